//! Jobs: queued, run by one worker or several, told as events, and kept.
//!
//! ```text
//! submit ── graph::validate ──> JobStore ── claim, heartbeat ──> worker threads ── graph::Executor
//!                                  ^                                │   │
//!                                  │     free flags, between jobs ──┘   └── Event, in order, to an EventSink
//!                                  └── finish (the history) ────────────┘
//! ```
//!
//! One worker runs one job after the other. Several run jobs at the same time, each on its device, which a job has for
//! itself; jobs that name several devices take turns on each of them, stage by stage ([`JobPlace`]). They share loaded models, cached outputs and this queue, and memory
//! is freed while none of them works.
//!
//! What waits and what is remembered is in a [`JobStore`]; [`SqliteStore`] is that of one machine. What the worker has,
//! others ask through a [`WorkerHandle`]. An accepted job is in the database before the caller learns its id, and its record is there before anyone is
//! told that it ended, so a process that is killed loses neither. A job that was running then runs again, once;
//! if the process ends during that, too, the job is recorded as failed. Secrets are never written: a job that
//! runs after a restart runs without them.
#![forbid(unsafe_code)]

mod error;
mod event;
mod job;
mod message;
mod observer;
mod place;
mod queue;
mod record;
mod remote;
mod shared;
mod sqlite;
mod store;
mod turn;
mod worker;
mod worker_handle;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use graph::{CacheMode, Catalogue, Executor};
use meta::DeviceId;
use residency::FreeRequest;
use runtime::Runtime;

use crate::event::Both;
use crate::shared::{Crew, Shared};
use crate::worker::Worker;

pub use error::Error;
pub use event::{Event, EventSink, JobEvent, Progress};
pub use job::{Dispatch, HistoryEntry, Job, JobFilter, JobPage, JobRecord, JobStatus, SortBy};
pub use message::{JobFailure, Message, Milestone, NodeIdentity};
pub use place::{JobPlace, NamedDevices};
pub use queue::{AcceptedJob, QueueView, Refused, Submission};
pub use record::Record;
pub use remote::RemoteWorkers;
pub use sqlite::SqliteStore;
pub use sqlite::exchange::{job_text, read_job, read_record, record_text};
pub use store::{Abandoned, Choice, Claim, JobStore, Wake, WorkerName};
pub use turn::RunningNode;
pub use worker_handle::{
    Activity, DeviceReport, FileQuestion, LocalWorker, ModelFile, ModelFolder, PlanRefusal, WorkerFault,
    WorkerHandle, WorkerReport,
};

/// Reads how much of the host's memory is in use, as a fraction from 0 to 1.
pub type HostMemory = Box<dyn FnMut() -> f64 + Send>;

/// What an engine is started with.
pub struct EngineConfig {
    /// The database file; none to keep everything in memory (`gantry run`).
    pub database: Option<PathBuf>,
    /// How long outputs of nodes are kept.
    pub cache: CacheMode,
    /// How many finished jobs are remembered; older ones are dropped.
    pub history_limit: usize,
    /// How host memory is read. While nothing runs, cached outputs of nodes are dropped when it is nearly
    /// full; none to never look.
    pub host_memory: Option<HostMemory>,
    /// Is told everything beside the sink, such as a terminal that shows how far a job is.
    pub onlooker: Option<Arc<dyn EventSink>>,
    /// How long a claim of a job is good without a sign of life. Jobs of a worker that gives none run elsewhere after it.
    pub lease: Duration,
    /// The devices of the workers: so many jobs run at the same time. One worker on the runtime's own device if none is
    /// given.
    pub workers: Vec<DeviceId>,
    /// Says which devices a prompt names: a job has them for itself while it runs. Asked only if there are several workers.
    pub named_devices: Option<NamedDevices>,
    /// Where jobs are, if not in the database.
    pub store: Option<Arc<dyn JobStore>>,
    /// Who runs the jobs, if nobody here does: then the engine has no workers of its own.
    pub remote: Option<Arc<dyn RemoteWorkers>>,
    /// What the workers are called in a store that others share; a name that nobody has if none is given.
    pub name: Option<String>,
}

impl Default for EngineConfig {
    /// In memory, with ComfyUI's cache and its 10,000 remembered jobs.
    fn default() -> EngineConfig {
        EngineConfig {
            database: None,
            cache: CacheMode::default(),
            history_limit: 10_000,
            host_memory: None,
            onlooker: None,
            lease: Duration::from_secs(30),
            workers: Vec::new(),
            named_devices: None,
            store: None,
            remote: None,
            name: None,
        }
    }
}

/// The queue, its workers and the history. Cheap to share behind an `Arc`.
///
/// Dropping it ends the workers after the running nodes have seen that they are to end. A job that was running
/// is not failed by this: it goes back to those that wait, and the next start runs it.
pub struct Engine {
    shared: Arc<Shared>,
    handle: Arc<dyn WorkerHandle>,
    workers: Vec<JoinHandle<()>>,
    heart: Option<JoinHandle<()>>,
    remote: Option<Arc<dyn RemoteWorkers>>,
}

impl Engine {
    /// Opens the database, puts back what was waiting, and starts the workers. A damaged database is moved
    /// aside, with a warning, and a new one is begun.
    ///
    /// # Errors
    /// The database cannot be opened, or another process has it open.
    pub fn start(
        config: EngineConfig,
        catalogue: Arc<Catalogue>,
        runtime: Arc<Runtime>,
        sink: Arc<dyn EventSink>,
    ) -> Result<Engine, Error> {
        let store = match &config.store {
            Some(store) => Arc::clone(store),
            None => Arc::new(SqliteStore::open(config.database.as_deref(), config.history_limit)?),
        };
        Engine::with_store(config, store, catalogue, runtime, sink)
    }

    /// Starts the workers on a store that may be shared with others; the database of the configuration does not count.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn with_store(
        config: EngineConfig,
        store: Arc<dyn JobStore>,
        catalogue: Arc<Catalogue>,
        runtime: Arc<Runtime>,
        sink: Arc<dyn EventSink>,
    ) -> Result<Engine, Error> {
        let handle = Arc::new(LocalWorker::new(Arc::clone(&runtime)));
        let sink = match config.onlooker {
            Some(onlooker) => Arc::new(Both { sink, onlooker }) as Arc<dyn EventSink>,
            None => sink,
        };
        let names = config.workers.iter().map(|device| Some(Arc::from(device.to_string()))).collect();
        let (devices, names): (Vec<DeviceId>, Vec<Option<Arc<str>>>) = match config.workers.is_empty() {
            true => (vec![runtime.compute], vec![None]),
            false => (config.workers, names),
        };
        let executor = Executor::new(Arc::clone(&catalogue), config.cache);
        let crew = Crew { devices, named: config.named_devices, name: config.name };
        let shared = Arc::new(Shared::new(catalogue, runtime, sink, store, (crew, config.lease)));
        // From here on, dropping the engine ends the workers.
        let mut engine = Engine { shared, handle, workers: Vec::new(), heart: None, remote: config.remote };
        if engine.remote.is_none() {
            engine.start_threads(names, &executor, config.host_memory)?;
        }
        Ok(engine)
    }

    /// Starts a thread for each worker, and one that renews their claims.
    fn start_threads(
        &mut self,
        names: Vec<Option<Arc<str>>>,
        executor: &Executor,
        mut host_memory: Option<HostMemory>,
    ) -> Result<(), Error> {
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        for (number, name) in names.into_iter().enumerate() {
            let called = name.as_deref().map_or_else(|| "worker".to_owned(), |name| format!("worker {name}"));
            let (shared, executor) = (Arc::clone(&self.shared), executor.beside());
            let worker = Worker::new(shared, (number, name), executor, host_memory.take());
            self.workers.push(thread(&called).spawn(move || worker.run()).map_err(Error::Thread)?);
        }
        let beating = Arc::clone(&self.shared);
        let heart = thread("heartbeat").spawn(move || beating.keep_claims());
        self.heart = Some(heart.map_err(Error::Thread)?);
        Ok(())
    }

    /// The node classes.
    #[must_use]
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.shared.catalogue
    }

    /// What the workers have and do, and what can be asked of them.
    #[must_use]
    pub fn worker(&self) -> &Arc<dyn WorkerHandle> {
        &self.handle
    }

    /// Validates a prompt and queues it.
    ///
    /// # Errors
    /// Nothing in it can run, or the database cannot take it.
    pub fn submit(&self, submission: Submission) -> Result<AcceptedJob, Refused> {
        self.shared.submit(submission)
    }

    /// Jobs that wait or run.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.shared.store.remaining()
    }

    /// The queue as it stands.
    #[must_use]
    pub fn queue(&self) -> QueueView {
        self.shared.store.queue()
    }

    /// Takes jobs that wait out of the queue; they leave no history. How many were found.
    pub fn delete_pending(&self, ids: &[String]) -> usize {
        self.shared.delete_pending(Some(ids))
    }

    /// Takes all jobs that wait out of the queue.
    pub fn clear_pending(&self) {
        self.shared.delete_pending(None);
    }

    /// Ends the jobs that run, or only the one named if it does; whether one was told to end.
    pub fn interrupt(&self, id: Option<&str>) -> bool {
        match &self.remote {
            Some(remote) => remote.interrupt(id),
            None => self.shared.turn().interrupt(id),
        }
    }

    /// Ends a job wherever it is: waiting or running. Whether it was either.
    pub fn cancel(&self, id: &str) -> bool {
        let deleted = self.shared.delete_pending(Some(&[id.to_owned()])) > 0;
        self.interrupt(Some(id)) || deleted
    }

    /// The nodes that run now, one of each job, for a client that comes back.
    #[must_use]
    pub fn running_nodes(&self) -> Vec<RunningNode> {
        self.shared.turn().running_nodes()
    }

    /// Finished jobs, oldest first: `max` alone is the last ones, with `offset` a slice from the oldest.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn history(&self, max: Option<usize>, offset: Option<usize>) -> Result<Vec<HistoryEntry>, Error> {
        self.shared.store.history(max, offset)
    }

    /// One finished job.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn history_entry(&self, id: &str) -> Result<Option<HistoryEntry>, Error> {
        Ok(self.shared.store.finished(id)?.map(|(_, entry)| entry))
    }

    /// Forgets finished jobs: those named, or all.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn forget(&self, ids: Option<&[String]>) -> Result<(), Error> {
        self.shared.store.forget(ids)
    }

    /// Jobs of every state, as a list to page through. Of finished jobs it has what a list shows: the prompt
    /// is empty, and `extra_data` holds the client, the time of creation and the workflow's id.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn jobs(&self, filter: &JobFilter) -> Result<JobPage, Error> {
        self.shared.store.list(filter)
    }

    /// One job of any state, whole.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn job(&self, id: &str) -> Result<Option<JobRecord>, Error> {
        self.shared.store.find(id)
    }

    /// Ends the jobs that run and starts no other. Returns at once. They go back to those that wait, and the next start
    /// runs them; those that are sent from now on wait, too.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Asks for memory; done once no job runs, and before another begins. Returns at once.
    pub fn free(&self, request: FreeRequest) {
        match &self.remote {
            Some(remote) => remote.free(request),
            None => self.shared.free(request),
        }
    }

    /// Begins no other job, and ends the workers when those that run have ended. Returns at once.
    pub fn drain(&self) {
        self.shared.drain();
    }

    /// Whether all workers have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.turn().is_over()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop();
        // A worker itself may hold the last reference, through its sink: it cannot wait for itself.
        let is_here = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        for worker in self.workers.drain(..).filter(|worker| !is_here(worker)) {
            if worker.join().is_err() {
                tracing::error!("a worker ended by a panic");
            }
        }
        self.shared.note_all_over();
        if let Some(heart) = self.heart.take().filter(|heart| !is_here(heart))
            && heart.join().is_err()
        {
            tracing::error!("what renews claims ended by a panic");
        }
    }
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// What is never echoed, stored or written into files.
pub const SECRET_KEYS: &[&str] = &["auth_token_comfy_org", "api_key_comfy_org"];
