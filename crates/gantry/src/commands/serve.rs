//! `gantry serve`: ComfyUI's API and web front end.

mod welcome;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, ensure};
use device::Registry;
use engine::{EngineConfig, NamedDevices};
use graph::CacheMode;
use meta::DeviceId;
use runtime::Settings;
use serde_json::json;
use server::files::{FilesConfig, LogRing, WebPackages};
use server::{ProcessInfo, Server, ServerConfig, TlsFiles};

use super::front::Front;
use super::{is_quiet, print};
use crate::bars::{Bars, NodeBar};
use crate::cli::{CacheArgs, ServeArgs, VERSION};
use crate::machine::Machine;
use crate::serving::LogConfig;
use crate::templates::TEMPLATES;
use crate::{environment, host, serving};

/// Jobs that the history remembers.
const HISTORY: usize = 10_000;
/// The name of the database in the folder of users' files.
pub(super) const DATABASE: &str = "gantry.db";

pub(super) fn run(machine: &Machine, args: &ServeArgs, notes: &[String]) -> Result<ExitCode> {
    let logs = LogRing::default();
    let bars = Bars::default();
    let log =
        LogConfig { verbosity: args.jobs.verbose, is_quiet: is_quiet(), file: args.jobs.log_file.clone() };
    serving::start_log(&log, logs.clone(), bars.clone())?;
    tell_notes(machine, notes);
    let folders = serving::folders(&args.folders)?;
    serving::empty(&folders.temp)?;
    let (temp, own_files) = (folders.temp.clone(), folders.clone());
    let database = args.database.clone().unwrap_or_else(|| folders.user.join(DATABASE));
    make_database_folder(&database, &folders.user)?;
    warn_of_folders(&folders);
    remove_stale(&folders);
    let (workers, compute) = serving::workers(machine, args.jobs.workers.as_ref(), args.jobs.compute)?;
    let settings = Settings { workers: workers.clone(), ..serving::settings(&args.jobs) };
    let front = args.queue.open()?.map(|store| Front::new(store, &folders));
    let runtime = match &front {
        Some(front) => front.runtime(machine, folders, compute, settings)?,
        None => serving::runtime(machine, folders, compute, settings)?,
    };
    let mut catalogue = nodes::catalogue(&runtime);
    if args.jobs.testing_nodes {
        nodes_testing::add(&mut catalogue, &runtime.host);
    }
    tracing::info!("{} node classes; {}", catalogue.len(), computing(&workers, runtime.compute));
    let mut config = server_config(args, &runtime.folders, logs)?;
    config.sensors = Some(machine.sensors());
    let (has_front_end, has_token) = (config.files.front_end.is_some(), config.token.is_some());
    let listen = || format!("--listen {} (see --token and --no-token)", args.listen);
    config.checked_addresses().with_context(listen)?;
    let onlooker = Arc::new(NodeBar::new(bars, &catalogue, None));
    let mut engine = EngineConfig {
        database: Some(database),
        cache: cache_mode(&args.cache),
        onlooker: Some(onlooker),
        ..engine_config(&runtime.devices, workers)
    };
    if let Some(front) = &front {
        front.join(&mut config, &mut engine);
    }
    let (engine_slot, as_json) = (Arc::new(OnceLock::<Arc<engine::Engine>>::new()), args.json);
    let queue = Arc::clone(&engine_slot);
    server::serve(
        config,
        engine,
        Arc::new(catalogue),
        runtime,
        |server| {
            let _ = engine_slot.set(Arc::clone(server.engine()));
            let followed = front.as_ref().map(|front| front.follow(server.sink(), own_files.clone()));
            if let Some(Err(error)) = followed {
                tracing::error!("clients are told nothing of what workers do: {error:#}");
            }
            tell_ready(server, own_files, (as_json, has_token, has_front_end));
        },
        async {
            server::stop_signal().await;
            serving::exit_soon();
            if let Some(engine) = queue.get() {
                let queue = engine.queue();
                tracing::info!("{}", at_the_end(queue.running.len(), queue.pending.len()));
            }
        },
    )
    .map_err(|error| told_bind(error, args.port))?;
    serving::empty(&temp)?;
    Ok(ExitCode::SUCCESS)
}

/// Tells where it listens, and what people may want to know.
fn tell_ready(
    server: &Server,
    own_files: runtime::Folders,
    (as_json, has_token, has_front_end): (bool, bool, bool),
) {
    // Launchers wait for this line on the output; whoever reads it may be gone.
    let url = server.url();
    drop(print(&if as_json { listening(&url) } else { format!("{}\n", server.gui_line()) }));
    if has_token {
        tracing::info!("{}", welcome::with_token(&url));
    }
    tracing::info!("{}", welcome::dashboard(&url));
    // Looking through large folders takes a while, and nobody has to wait for it.
    std::thread::spawn(move || {
        if let Some(text) = welcome::without_models(&own_files, &url, has_front_end) {
            tracing::info!("{text}");
        }
    });
}

/// What the flags and the machine have to say.
pub(super) fn tell_notes(machine: &Machine, notes: &[String]) {
    for note in notes {
        tracing::warn!("{note}");
    }
    if let Some(note) = machine.note() {
        tracing::info!("{note}");
    }
}

/// A port that cannot be had is told with its flag.
fn told_bind(error: server::Error, port: u16) -> anyhow::Error {
    match error {
        server::Error::Bind { .. } => anyhow::Error::new(error).context(format!("--port {port}")),
        error => error.into(),
    }
}

/// An engine for a machine's devices.
pub(super) fn engine_config(devices: &Registry, workers: Vec<DeviceId>) -> EngineConfig {
    EngineConfig {
        history_limit: HISTORY,
        host_memory: host_memory(devices.clone()),
        workers,
        named_devices: Some(named_devices(devices)),
        ..EngineConfig::default()
    }
}

/// Where models compute, for the log.
fn computing(workers: &[DeviceId], compute: DeviceId) -> String {
    let names: Vec<String> = workers.iter().map(ToString::to_string).collect();
    match names.as_slice() {
        [] => format!("models compute on {compute}"),
        names => format!("{} workers, on {}", names.len(), names.join(", ")),
    }
}

/// What tells which devices a prompt names.
fn named_devices(devices: &Registry) -> NamedDevices {
    let known: Vec<DeviceId> = devices.iter().map(device::Device::id).collect();
    Arc::new(move |prompt| nodes::named_devices(prompt, &known))
}

/// Where it listens, for programs.
fn listening(url: &str) -> String {
    let told = json!({ "url": url, "dashboard": format!("{url}/gantry/"), "process": std::process::id(), "version": VERSION });
    format!("{told}\n")
}

/// What becomes of the queue when the server stops.
fn at_the_end(running: usize, waiting: usize) -> String {
    let what = match (running, waiting) {
        (0, 0) => return "stopping: no job runs or waits".to_owned(),
        (0, 1) => "the job that waits goes".to_owned(),
        (0, waiting) => format!("the {waiting} jobs that wait go"),
        (1, 0) => "the running job goes".to_owned(),
        (1, waiting) => format!("the running job and {waiting} that wait go"),
        (running, 0) => format!("the {running} running jobs go"),
        (running, waiting) => format!("the {running} running jobs and {waiting} that wait go"),
    };
    format!("stopping: {what} on at the next start")
}

/// Removes what an earlier run left half-written.
fn remove_stale(folders: &runtime::Folders) {
    for folder in [&folders.input, &folders.output, &folders.user.join("default")] {
        disk::remove_stale(folder);
    }
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
fn warn_of_folders(folders: &runtime::Folders) {
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

fn server_config(args: &ServeArgs, folders: &runtime::Folders, logs: LogRing) -> Result<ServerConfig> {
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
        own_templates: TEMPLATES,
        templates: packages.templates,
        docs: packages.docs,
        max_upload_bytes: max_upload as u64,
        logs,
        exchange: None,
    };
    for (flag, file) in [("--tls-keyfile", &args.tls_keyfile), ("--tls-certfile", &args.tls_certfile)] {
        if let Some(file) = file {
            ensure!(file.is_file(), "{flag} {}: there is no such file", file.display());
        }
    }
    ensure!(
        args.tls_keyfile.is_some() == args.tls_certfile.is_some(),
        "--tls-keyfile and --tls-certfile go together"
    );
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
    config.token = args.token.read()?;
    config.allow_without_token = args.no_token;
    config.allowed_hosts.clone_from(&args.allow_host);
    config.self_only = args.disable_api_nodes;
    config.compress = args.enable_compress_response_body;
    config.process = ProcessInfo {
        os: std::env::consts::OS.to_owned(),
        argv: environment::command_line(),
        version: VERSION.to_owned(),
        front_end_version: packages.front_end_version,
    };
    Ok(config)
}

/// ComfyUI's flags: `--cache-lru 0` is its default.
pub(super) fn cache_mode(args: &CacheArgs) -> CacheMode {
    match args.cache_lru {
        Some(count) if count > 0 => CacheMode::Lru(count),
        _ if args.cache_none => CacheMode::None,
        _ => CacheMode::Classic,
    }
}

/// How much of the host's memory is in use.
fn host_memory(devices: Registry) -> Option<engine::HostMemory> {
    let used = move || {
        let memory = devices.get(DeviceId::CPU).and_then(device::Device::memory);
        memory.map_or(0.0, |memory| 1.0 - memory.free as f64 / memory.total.max(1) as f64)
    };
    Some(Box::new(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queues_fate_is_told() {
        assert_eq!(at_the_end(0, 0), "stopping: no job runs or waits");
        assert_eq!(at_the_end(1, 0), "stopping: the running job goes on at the next start");
        assert_eq!(at_the_end(1, 2), "stopping: the running job and 2 that wait go on at the next start");
        assert_eq!(at_the_end(2, 0), "stopping: the 2 running jobs go on at the next start");
        assert_eq!(at_the_end(2, 3), "stopping: the 2 running jobs and 3 that wait go on at the next start");
        assert_eq!(at_the_end(0, 1), "stopping: the job that waits goes on at the next start");
    }
}
