//! Jobs: queued, run one after the other, told as events, and kept.
//!
//! ```text
//! submit ── graph::validate ──> queue (in the database) ──> worker thread ── graph::Executor
//!                                                              │   │
//!                        free flags, consumed between jobs ────┘   └── Event, in order, to an EventSink
//!                                                                  └── history (in the database)
//! ```
//!
//! An accepted job is in the database before the caller learns its id, and its record is there before anyone is
//! told that it ended, so a process that is killed loses neither. A job that was running then runs again, once;
//! if the process ends during that, too, the job is recorded as failed. Secrets are never written: a job that
//! runs after a restart runs without them.
#![forbid(unsafe_code)]

mod error;
mod event;
mod job;
mod listing;
mod message;
mod observer;
mod queue;
mod record;
mod shared;
mod store;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use graph::{CacheMode, Catalogue};
use nodes::Studio;
use residency::FreeRequest;

use crate::shared::Shared;
use crate::store::Store;
use crate::worker::Worker;

pub use error::Error;
pub use event::{Event, EventSink, JobEvent, Progress};
pub use job::{HistoryEntry, Job, JobFilter, JobPage, JobRecord, JobStatus, SortBy};
pub use message::{JobFailure, Message, Milestone, NodeIdentity};
pub use queue::{AcceptedJob, QueueView, Refused, Submission};

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
}

impl Default for EngineConfig {
    /// In memory, with ComfyUI's cache and its 10,000 remembered jobs.
    fn default() -> EngineConfig {
        EngineConfig { database: None, cache: CacheMode::default(), history_limit: 10_000, host_memory: None }
    }
}

/// The queue, its worker and the history. Cheap to share behind an `Arc`.
///
/// Dropping it ends the worker after the running node has seen that it is to end. The job that was running
/// is not failed by this: it goes back to those that wait, and the next start runs it.
pub struct Engine {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

impl Engine {
    /// Opens the database, puts back what was waiting, and starts the worker. A damaged database is moved
    /// aside, with a warning, and a new one is begun.
    ///
    /// # Errors
    /// The database cannot be opened, or another process has it open.
    pub fn start(
        config: EngineConfig,
        catalogue: Arc<Catalogue>,
        studio: Arc<Studio>,
        sink: Arc<dyn EventSink>,
    ) -> Result<Engine, Error> {
        let history_limit = i64::try_from(config.history_limit).unwrap_or(i64::MAX);
        let (store, restored) = Store::open(config.database.as_deref(), history_limit)?;
        let shared = Arc::new(Shared::new(catalogue, studio, sink, store, restored));
        let worker = Worker::new(Arc::clone(&shared), config.cache, config.host_memory);
        let worker = std::thread::Builder::new().name("worker".to_owned()).spawn(move || worker.run());
        Ok(Engine { shared, worker: Some(worker.map_err(Error::Thread)?) })
    }

    /// The node classes.
    #[must_use]
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.shared.catalogue
    }

    /// What the nodes share.
    #[must_use]
    pub fn studio(&self) -> &Arc<Studio> {
        &self.shared.studio
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
        self.shared.queue().remaining()
    }

    /// The queue as it stands.
    #[must_use]
    pub fn queue(&self) -> QueueView {
        self.shared.queue().view()
    }

    /// Takes jobs that wait out of the queue; they leave no history. How many were found.
    pub fn delete_pending(&self, ids: &[String]) -> usize {
        self.shared.delete_pending(ids)
    }

    /// Takes all jobs that wait out of the queue.
    pub fn clear_pending(&self) {
        self.shared.clear_pending();
    }

    /// Ends the running job, or only the one named if it is that; whether one was told to end.
    pub fn interrupt(&self, id: Option<&str>) -> bool {
        self.shared.queue().interrupt(id)
    }

    /// Ends a job wherever it is: waiting or running. Whether it was either.
    pub fn cancel(&self, id: &str) -> bool {
        let deleted = self.shared.delete_pending(&[id.to_owned()]) > 0;
        self.interrupt(Some(id)) || deleted
    }

    /// The node that runs now, for a client that comes back: the job's id, its client and the node shown.
    #[must_use]
    pub fn running_node(&self) -> Option<(String, Option<String>, String)> {
        self.shared.queue().running_node()
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
        // The queue is looked at first: a job leaves it only after its record is in the database.
        let unfinished = self.shared.queue().unfinished();
        listing::page(&self.shared.store, unfinished, filter)
    }

    /// One job of any state, whole.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn job(&self, id: &str) -> Result<Option<JobRecord>, Error> {
        let unfinished = self.shared.queue().find(id);
        if unfinished.is_some() {
            return Ok(unfinished);
        }
        let finished = self.shared.store.finished(id)?;
        Ok(finished.map(|(status, entry)| JobRecord {
            job: Arc::new(entry.job.clone()),
            status,
            entry: Some(Arc::new(entry)),
        }))
    }

    /// Ends the running job and starts no other. Returns at once. The job goes back to those that wait, and the next start
    /// runs it; those that are sent from now on wait, too.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Asks for memory; done between jobs. Returns at once.
    pub fn free(&self, request: FreeRequest) {
        self.shared.free(request);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop();
        let Some(worker) = self.worker.take() else { return };
        // The worker itself may hold the last reference, through its sink: it cannot wait for itself.
        if worker.thread().id() != std::thread::current().id() && worker.join().is_err() {
            tracing::error!("the worker ended by a panic");
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
