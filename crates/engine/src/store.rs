//! Where jobs are from the moment they are accepted: the queue, who has claimed what, and the records of those that
//! ended.
//!
//! ```text
//! submit ──> waiting ── claim(worker, lease) ──> claimed ── finish ──> history
//!               ^                                   │ │
//!               ├── release (the worker ends) ──────┘ └── heartbeat, every third of the lease
//!               └── redeliver (the lease ran out)
//! ```
//!
//! A claim belongs to one worker until its lease runs out. A worker that lives renews it; what a dead one had is
//! delivered again, once, and the second time recorded as failed. A worker whose claim went to another learns it from
//! its next heartbeat or from `finish`, and what it made is not recorded.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::job::{HistoryEntry, Job, JobFilter, JobPage, JobRecord, JobStatus};
use crate::queue::QueueView;
use crate::record::Record;

/// A queue and its history. One machine has them in a file; several may share a service behind this.
pub trait JobStore: Send + Sync {
    /// The number of the next job. A number that the client chose leaves the counter as it is; otherwise it rises,
    /// whatever becomes of the job.
    fn take_number(&self, chosen: Option<f64>, front: bool) -> f64;

    /// Adds a job that waits. It survives the end of the process from here on, but for its secrets.
    ///
    /// # Errors
    /// It cannot be kept; then it does not wait.
    fn submit(&self, job: Job) -> Result<(), Error>;

    /// Takes the first job that waits, for a worker, until the lease runs out; none if none waits.
    ///
    /// # Errors
    /// The claim cannot be kept; then the job still waits.
    fn claim(&self, worker: &WorkerName, lease: Duration) -> Result<Option<Claim>, Error> {
        self.claim_chosen(worker, lease, &mut |_| Choice::Take)
    }

    /// The same for the first job that `choose` takes: it is asked for one after the other, in the order in which they
    /// run, until it takes one or stops. It must be quick, and must not ask the store.
    ///
    /// # Errors
    /// The claim cannot be kept; then the job still waits.
    fn claim_chosen(
        &self,
        worker: &WorkerName,
        lease: Duration,
        choose: &mut dyn FnMut(&Job) -> Choice,
    ) -> Result<Option<Claim>, Error>;

    /// Renews a claim from now on; whether it is still the worker's.
    ///
    /// # Errors
    /// That cannot be known now. The lease goes on from its last renewal.
    fn heartbeat(&self, claim: &Claim, lease: Duration) -> Result<bool, Error>;

    /// Gives a claimed job back, because its worker ends in an orderly way: it waits again.
    ///
    /// # Errors
    /// It cannot be kept; then the job counts as lost when the lease runs out.
    fn release(&self, claim: &Claim) -> Result<(), Error>;

    /// Keeps the record of a claimed job, which ended; whether the claim was still the worker's. If it was not, nothing
    /// is kept: another worker has the job, or had it.
    ///
    /// # Errors
    /// The record cannot be kept. The claim ends all the same: the job did.
    fn finish(&self, claim: &Claim, record: &Record) -> Result<bool, Error>;

    /// Lets claims go whose lease ran out: their jobs wait again. Those that were lost once too often are recorded as
    /// failed and given back, so that they can be told.
    ///
    /// # Errors
    /// A record cannot be kept.
    fn redeliver(&self) -> Result<Vec<Abandoned>, Error>;

    /// Takes jobs that wait out of the queue, those named or all; they leave no record. How many were found.
    ///
    /// # Errors
    /// They cannot be taken out; then they still wait.
    fn cancel(&self, ids: Option<&[String]>) -> Result<usize, Error>;

    /// Jobs that wait or are claimed.
    fn remaining(&self) -> usize;

    /// The queue as it stands.
    fn queue(&self) -> QueueView;

    /// One job of any state, whole.
    ///
    /// # Errors
    /// It cannot be read.
    fn find(&self, id: &str) -> Result<Option<JobRecord>, Error>;

    /// Jobs of every state, as a list to page through.
    ///
    /// # Errors
    /// They cannot be read.
    fn list(&self, filter: &JobFilter) -> Result<JobPage, Error>;

    /// Finished jobs, oldest first: `max` alone is the last ones, with `offset` a slice from the oldest.
    ///
    /// # Errors
    /// They cannot be read.
    fn history(&self, max: Option<usize>, offset: Option<usize>) -> Result<Vec<HistoryEntry>, Error>;

    /// One finished job, whole.
    ///
    /// # Errors
    /// It cannot be read.
    fn finished(&self, id: &str) -> Result<Option<(JobStatus, HistoryEntry)>, Error>;

    /// Forgets finished jobs: those named, or all.
    ///
    /// # Errors
    /// They cannot be removed.
    fn forget(&self, ids: Option<&[String]>) -> Result<(), Error>;

    /// Calls `wake` from now on whenever there may be something to claim. It must be quick, and must not ask the store.
    fn watch(&self, wake: Wake);

    /// Does what can wait until nothing else is to be done.
    fn settle(&self) {}
}

/// What a worker says of a job that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It takes this one.
    Take,
    /// Not this one, perhaps a later one.
    Leave,
    /// Neither this one nor a later one.
    Stop,
}

/// Told when there may be something to claim.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// The name of a worker: no two that share a store have the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerName(pub Arc<str>);

impl WorkerName {
    /// A name that nobody has.
    #[must_use]
    pub fn new() -> WorkerName {
        WorkerName(format!("worker-{}", uuid::Uuid::new_v4()).into())
    }
}

impl Default for WorkerName {
    fn default() -> WorkerName {
        WorkerName::new()
    }
}

/// A job that a worker has taken.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The job's place among all jobs that were ever accepted; ids can be used twice, this cannot.
    pub sequence: i64,
    /// How often the job has been claimed, this time included. A worker whose claim went to another has a smaller one.
    pub attempt: i64,
    /// Whose it is.
    pub worker: WorkerName,
    /// The job.
    pub job: Arc<Job>,
}

/// A job that was lost with its worker once too often.
#[derive(Clone, Debug)]
pub struct Abandoned {
    /// Which.
    pub job: Arc<Job>,
    /// What was recorded of it.
    pub record: Record,
}
