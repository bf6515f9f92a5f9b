//! `gantry serve`: ComfyUI's API and web front end.

mod welcome;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use device::Registry;
use engine::EngineConfig;
use graph::CacheMode;
use nodes::studio::Settings;
use server::files::{FilesConfig, LogRing, WebPackages};
use server::{ProcessInfo, ServerConfig, TlsFiles};

use super::print;
use crate::cli::{CacheArgs, ServeArgs};
use crate::machine::Machine;
use crate::{environment, host, serving};

/// Jobs that the history remembers.
const HISTORY: usize = 10_000;
/// The name of the database in the folder of users' files.
pub(super) const DATABASE: &str = "gantry.db";

pub(super) fn run(machine: &Machine, args: &ServeArgs, notes: &[String]) -> Result<ExitCode> {
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
    let (temp, own_files) = (folders.temp.clone(), folders.clone());
    let database = args.database.clone().unwrap_or_else(|| folders.user.join(DATABASE));
    make_database_folder(&database, &folders.user)?;
    warn_of_folders(&folders);
    for folder in [&folders.input, &folders.output, &folders.user.join("default")] {
        disk::remove_stale(folder);
    }
    let settings = Settings {
        no_metadata: args.disable_metadata,
        preview_size: Some(args.preview_size),
        preview: serving::preview_method(args.preview_method),
        profile_file: environment::profile_file(),
    };
    let studio = serving::studio(machine, folders, args.compute, settings)?;
    let mut catalogue = nodes::catalogue(&studio);
    if args.testing_nodes {
        nodes::add_testing_classes(&mut catalogue, &studio);
    }
    tracing::info!("{} node classes; models compute on {}", catalogue.len(), studio.compute);
    let config = server_config(args, &studio.folders, logs)?;
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
        |server| {
            // Launchers wait for this line on the output; whoever reads it may be gone.
            drop(print(&format!("{}\n", server.gui_line())));
            let url = server.url();
            tracing::info!("{}", welcome::dashboard(&url));
            // Looking through large folders takes a while, and nobody has to wait for it.
            std::thread::spawn(move || {
                if let Some(text) = welcome::without_models(&own_files, &url) {
                    tracing::info!("{text}");
                }
            });
        },
        async {
            server::stop_signal().await;
            serving::exit_soon();
        },
    )
    .map_err(|error| match error {
        server::Error::Bind { .. } => anyhow::Error::new(error).context(format!("--port {}", args.port)),
        error => error.into(),
    })?;
    serving::empty(&temp)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the folder that the database goes into.
fn make_database_folder(database: &Path, user: &Path) -> Result<()> {
    ensure!(!database.is_dir(), "--database {}: this is a folder; name a file in it", database.display());
    let Some(folder) = database.parent() else { return Ok(()) };
    let flag = if folder == user { "--user-directory" } else { "--database" };
    ensure!(
        folder.is_dir() || !folder.exists(),
        "{} is a file, but must be a folder; name another with {flag}",
        folder.display()
    );
    std::fs::create_dir_all(folder)
        .with_context(|| format!("the folder {} cannot be made; name another with {flag}", folder.display()))
}

/// A folder that cannot be written to fails the first job that saves; better that it is known before.
fn warn_of_folders(folders: &nodes::Folders) {
    for (folder, flag) in [(&folders.output, "--output-directory"), (&folders.temp, "--temp-directory")] {
        let above = folder.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"));
        let why = if above.is_dir() { host::refuses_writing(above) } else { Some("it is a file".to_owned()) };
        if let Some(why) = why {
            let (folder, above) = (folder.display(), above.display());
            tracing::warn!(
                "nothing can be written to {folder} ({above}: {why}); name another folder with {flag}"
            );
        }
    }
}

fn server_config(args: &ServeArgs, folders: &nodes::Folders, logs: LogRing) -> Result<ServerConfig> {
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
    for (flag, file) in [("--tls-keyfile", &args.tls_keyfile), ("--tls-certfile", &args.tls_certfile)] {
        if let Some(file) = file {
            ensure!(file.is_file(), "{flag} {}: there is no such file", file.display());
        }
    }
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
