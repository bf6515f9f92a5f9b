//! `gantry worker`: runs jobs of a queue that several machines share.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::{Holdings, NatsStore, Order, SharedFiles, WorkerDevice, WorkerEntry};
use engine::{Engine, EngineConfig, Event, EventSink, JobEvent, Milestone, WorkerName};
use meta::DeviceId;
use runtime::{Runtime, Settings};
use serde_json::json;
use server::files::LogRing;

use super::serve::{cache_mode, engine_config, tell_notes};
use super::{is_quiet, print};
use crate::bars::{Bars, NodeBar};
use crate::cli::{VERSION, WorkerArgs};
use crate::machine::Machine;
use crate::serving::{self, LogConfig};

/// Between two signs of life.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);
/// Between two looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Signs of life between two looks at the model folders.
const LOOKS_AT_FILES: u32 = 10;

pub(super) fn run(machine: &Machine, args: &WorkerArgs, notes: &[String]) -> Result<ExitCode> {
    let bars = Bars::default();
    let log =
        LogConfig { verbosity: args.jobs.verbose, is_quiet: is_quiet(), file: args.jobs.log_file.clone() };
    serving::start_log(&log, LogRing::default(), bars.clone())?;
    tell_notes(machine, notes);
    let name = unique(&args.name)?;
    let store =
        args.queue.open()?.context("--queue says where the jobs are, such as nats://10.0.0.5:4222")?;
    let folders = serving::folders(&args.folders)?;
    let own_temp = folders.temp.join(&name);
    let (workers, compute) = serving::workers(machine, args.jobs.workers.as_ref(), args.jobs.compute)?;
    let settings = Settings { workers: workers.clone(), ..serving::settings(&args.jobs) };
    let mut runtime = serving::open_runtime(machine, folders.clone(), compute, settings)?;
    runtime.set_outputs(Arc::new(SharedFiles::new(Arc::clone(&store), folders, Some(name.clone()))));
    let runtime = Arc::new(runtime);
    let mut catalogue = nodes::catalogue(&runtime);
    if args.jobs.testing_nodes {
        nodes_testing::add(&mut catalogue, &runtime.host);
    }
    let about = WorkerEntry {
        name: name.clone(),
        pool: args.queue.pool.clone(),
        version: VERSION.to_owned(),
        classes: catalogue.len(),
        seats: workers.len().max(1),
        capacity_bytes: capacity_bytes(machine, &workers, runtime.compute),
        since_ms: engine::now_ms(),
        ..WorkerEntry::default()
    };
    let sink = Arc::new(Telling {
        store: Arc::clone(&store),
        name: name.clone(),
        work: Mutex::default(),
        done: AtomicU64::new(0),
        micros: AtomicU64::new(0),
    });
    let config = EngineConfig {
        cache: cache_mode(&args.cache),
        onlooker: Some(Arc::new(NodeBar::new(bars, &catalogue, None))),
        lease: args.queue.lease(),
        store: Some(Arc::clone(&store) as _),
        name: Some(name.clone()),
        ..engine_config(&runtime.devices, workers)
    };
    let engine = Engine::start(config, Arc::new(catalogue), Arc::clone(&runtime), Arc::clone(&sink) as _)?;
    let engine = Arc::new(engine);
    let queue = args.queue.queue.as_deref().unwrap_or_default();
    tracing::info!("worker {name} takes jobs of pool {} from {queue}", args.queue.pool);
    drop(print(&if args.json {
        format!("{}\n", json!({ "worker": name }))
    } else {
        format!("worker {name}\n")
    }));
    let asked = Arc::downgrade(&runtime);
    store.set_holdings(move || asked.upgrade().map_or_else(Holdings::default, |runtime| holdings(&runtime)));
    work(&store, &engine, &runtime, &sink, about)?;
    serving::empty(&own_temp)?;
    Ok(ExitCode::SUCCESS)
}

/// Works until it is asked to end and has ended its job.
fn work(
    store: &Arc<NatsStore>,
    engine: &Arc<Engine>,
    runtime: &Runtime,
    sink: &Telling,
    mut about: WorkerEntry,
) -> Result<()> {
    let obeying = Arc::downgrade(engine);
    store.obey(move |order| {
        let Some(engine) = obeying.upgrade() else { return };
        match order {
            Order::Interrupt(id) => drop(engine.interrupt(id)),
            Order::Free(request) => engine.free(request),
        }
    })?;
    let is_ending = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&is_ending);
    server::when_asked_to_stop(move || ending.store(true, Ordering::SeqCst));
    let (mut due, mut signs) = (Instant::now(), 0);
    while !engine.is_over() {
        if is_ending.load(Ordering::SeqCst) && !about.is_draining {
            about.is_draining = true;
            due = Instant::now();
            tracing::info!("stopping after the job that runs, if one does");
            engine.drain();
        }
        // What it runs is told at once.
        let has_changed = !sink.work().keys().eq(about.running.iter());
        if has_changed || due <= Instant::now() {
            if signs % LOOKS_AT_FILES == 0 {
                about.files = files(runtime);
            }
            signs += 1;
            describe(&mut about, engine, runtime, sink);
            if let Err(error) = store.announce(&about) {
                tracing::warn!("{error}");
            }
            due = Instant::now() + SIGN_OF_LIFE;
        }
        std::thread::sleep(LOOK);
    }
    if let Err(error) = store.withdraw(&about.name) {
        tracing::warn!("{error}");
    }
    Ok(())
}

/// What it has and does now.
fn describe(about: &mut WorkerEntry, engine: &Engine, runtime: &Runtime, sink: &Telling) {
    let report = engine.worker().report();
    about.devices = report
        .devices
        .iter()
        .map(|device| {
            let memory = device.memory.clone().unwrap_or_default();
            WorkerDevice {
                id: device.id.to_string(),
                name: device.name.clone(),
                total_bytes: memory.total,
                free_bytes: memory.free.saturating_add(memory.cached),
            }
        })
        .collect();
    let Holdings { models, load_bytes_per_s } = holdings(runtime);
    (about.models, about.load_bytes_per_s) = (models, load_bytes_per_s);
    about.running = sink.work().keys().cloned().collect();
    about.jobs_done = sink.done.load(Ordering::Relaxed);
    let seconds = sink.micros.load(Ordering::Relaxed) as f64 / 1e6;
    about.seconds_per_job = if about.jobs_done > 0 { seconds / about.jobs_done as f64 } else { 0.0 };
}

/// The models that it holds now, and how fast it loads others.
fn holdings(runtime: &Runtime) -> Holdings {
    let models = runtime.residency.models();
    Holdings {
        models: models.into_iter().filter(|model| model.staged).map(|model| model.name).collect(),
        load_bytes_per_s: runtime.load_bytes_per_s().unwrap_or(0.0),
    }
}

/// The memory of the device that a job computes on.
fn capacity_bytes(machine: &Machine, workers: &[DeviceId], compute: DeviceId) -> u64 {
    let devices = if workers.is_empty() { vec![compute] } else { workers.to_vec() };
    let devices = devices.into_iter().filter_map(|id| machine.registry().get(id).ok());
    devices.filter_map(|device| device.memory().ok()).map(|memory| memory.total).min().unwrap_or(0)
}

/// The model files that it can load, with their bytes.
fn files(runtime: &Runtime) -> BTreeMap<String, BTreeMap<String, u64>> {
    let folders = &runtime.folders;
    let bytes = |key: &str, name: &str| {
        let about = folders.find(key, name).and_then(|path| std::fs::metadata(path).ok());
        about.map_or(0, |about| about.len())
    };
    let listed = folders.keys().filter(|key| *key != "custom_nodes").map(|key| {
        let files = folders.list(key).into_iter().map(|name| (name.clone(), bytes(key, &name)));
        (key.to_owned(), files.collect::<BTreeMap<_, _>>())
    });
    listed.filter(|(_, files)| !files.is_empty()).collect()
}

/// The name, and what no other worker has behind it.
fn unique(name: &str) -> Result<String> {
    let is_name =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    ensure!(is_name, "--name {name:?}: use letters, digits, - and _");
    let random = WorkerName::new().0;
    Ok(format!("{name}-{}", &random[random.len() - 6..]))
}

/// Tells fronts what happens here.
struct Telling {
    store: Arc<NatsStore>,
    name: String,
    /// When the jobs began that run.
    work: Mutex<BTreeMap<String, Instant>>,
    done: AtomicU64,
    micros: AtomicU64,
}

impl Telling {
    fn work(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Instant>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for Telling {
    fn event(&self, event: Event) {
        if let Event::Job { prompt_id, event: job, .. } = &event {
            match job {
                JobEvent::Message(message) if message.milestone == Milestone::Started => {
                    self.work().insert(prompt_id.to_string(), Instant::now());
                }
                JobEvent::Ended { .. } => {
                    if let Some(since) = self.work().remove(&**prompt_id) {
                        let took = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                        self.done.fetch_add(1, Ordering::Relaxed);
                        self.micros.fetch_add(took, Ordering::Relaxed);
                    }
                }
                _ => {}
            }
        }
        self.store.tell(&self.name, &event);
    }
}
