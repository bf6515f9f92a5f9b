//! `gantry serve`: ComfyUI's API and web front end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use device::Registry;
use engine::EngineConfig;
use graph::CacheMode;
use meta::ByteSize;
use nodes::studio::Settings;
use placement::Plan;
use server::files::{FilesConfig, LogRing, WebPackages};
use server::{PlanQuestion, Planner, ProcessInfo, ServerConfig, TlsFiles};

use super::plan;
use super::print;
use crate::cli::{CacheArgs, ServeArgs};
use crate::machine::Machine;
use crate::{environment, serving};

/// Jobs that the history remembers.
const HISTORY: usize = 10_000;
/// The name of the database in the folder of users' files.
const DATABASE: &str = "gantry.db";

pub(super) fn run(machine: Machine, args: &ServeArgs, notes: &[String]) -> Result<ExitCode> {
    let logs = LogRing::default();
    serving::start_log(args.verbose, logs.clone());
    for note in notes {
        tracing::warn!("{note}");
    }
    if let Some(note) = machine.note() {
        tracing::info!("{note}");
    }
    let folders = serving::folders(&args.folders)?;
    serving::empty(&folders.temp)?;
    let temp = folders.temp.clone();
    let database = args.database.clone().unwrap_or_else(|| folders.user.join(DATABASE));
    if let Some(folder) = database.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let settings = Settings {
        no_metadata: args.disable_metadata,
        preview_size: Some(args.preview_size),
        preview: serving::preview_method(args.preview_method),
    };
    let studio = serving::studio(&machine, folders, args.compute, settings)?;
    let mut catalogue = nodes::catalogue(&studio);
    if args.testing_nodes {
        nodes::add_testing_classes(&mut catalogue);
    }
    tracing::info!("{} node classes; models compute on {}", catalogue.len(), studio.compute);
    let config = server_config(args, &studio.folders, logs, Arc::new(machine))?;
    let listen = || format!("--listen {} (see --token and --no-token)", args.listen);
    config.checked_addresses().with_context(listen)?;
    let engine = EngineConfig {
        database: Some(database),
        cache: cache_mode(&args.cache),
        history_limit: HISTORY,
        host_memory: host_memory(studio.devices.clone()),
    };
    server::serve(
        config,
        engine,
        Arc::new(catalogue),
        studio,
        // Launchers wait for this line on the output; whoever reads it may be gone.
        |server| drop(print(&format!("{}\n", server.gui_line()))),
        server::stop_signal(),
    )?;
    serving::empty(&temp)?;
    Ok(ExitCode::SUCCESS)
}

fn server_config(
    args: &ServeArgs,
    folders: &nodes::Folders,
    logs: LogRing,
    machine: Arc<Machine>,
) -> Result<ServerConfig> {
    ensure!(
        args.max_upload_size.is_finite() && args.max_upload_size > 0.0,
        "--max-upload-size {}: give a number of megabytes",
        args.max_upload_size
    );
    let max_upload = (args.max_upload_size * 1024.0 * 1024.0) as usize;
    let packages = WebPackages::find(&environment::python_packages());
    if let Some(root) = &args.front_end_root {
        ensure!(
            root.join("index.html").is_file(),
            "--front-end-root {}: there is no index.html in it; give the folder \"static\" of the Python package \
             comfyui-frontend-package",
            root.display()
        );
    }
    let front_end = args.front_end_root.clone().or(packages.front_end);
    if front_end.is_none() {
        tracing::info!(
            "no web front end found: pip install comfyui-frontend-package, or give --front-end-root"
        );
    }
    let files = FilesConfig {
        folders: folders.clone(),
        front_end,
        templates: packages.templates,
        docs: packages.docs,
        max_upload_bytes: max_upload as u64,
        logs,
    };
    let tls = |key: &PathBuf, certificate: &PathBuf| TlsFiles {
        key: key.clone(),
        certificate: certificate.clone(),
    };
    let mut config = ServerConfig::new(Arc::new(files));
    config.listen = args.listen.split(',').map(|name| name.trim().to_owned()).collect();
    config.port = args.port;
    config.tls = args.tls_keyfile.as_ref().zip(args.tls_certfile.as_ref()).map(|(key, cert)| tls(key, cert));
    config.cors_origin.clone_from(&args.enable_cors_header);
    config.max_upload_bytes = max_upload;
    config.token.clone_from(&args.token);
    config.allow_without_token = args.no_token;
    config.allowed_hosts.clone_from(&args.allow_host);
    config.self_only = args.disable_api_nodes;
    config.compress = args.enable_compress_response_body;
    config.process = ProcessInfo {
        os: std::env::consts::OS.to_owned(),
        argv: environment::command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        front_end_version: packages.front_end_version,
    };
    config.planner = Some(Arc::new(MachinePlanner(machine)));
    Ok(config)
}

/// ComfyUI's flags: `--cache-lru 0` is its default.
fn cache_mode(args: &CacheArgs) -> CacheMode {
    match args.cache_lru {
        Some(count) if count > 0 => CacheMode::Lru(count),
        _ if args.cache_none => CacheMode::None,
        _ => CacheMode::Classic,
    }
}

/// How much of the host's memory is in use.
fn host_memory(devices: Registry) -> Option<engine::HostMemory> {
    let used = move || {
        let memory = devices.get(meta::DeviceId::CPU).and_then(device::Device::memory);
        memory.map_or(0.0, |memory| 1.0 - memory.free as f64 / memory.total.max(1) as f64)
    };
    Some(Box::new(used))
}

/// Answers `POST /gantry/plan` as `gantry plan` does.
struct MachinePlanner(Arc<Machine>);

impl Planner for MachinePlanner {
    fn plan(&self, file: &std::path::Path, question: &PlanQuestion) -> Result<Plan, String> {
        let asked = plan::Question {
            file: file.to_owned(),
            text: plan::allocation_text(
                question.alloc.as_deref(),
                question.virtual_vram_gb,
                question.donor.as_deref().unwrap_or("cpu"),
                question.compute,
            ),
            compute: question.compute,
            rows: question.rows.unwrap_or(plan::DEFAULT_ROWS),
            working: ByteSize(question.working_bytes.unwrap_or(plan::DEFAULT_WORKING_BYTES)),
        };
        plan::answer(&self.0, &asked).map_err(|error| crate::told(&error))
    }
}
