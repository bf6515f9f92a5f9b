//! Jobs and what is remembered of them.

use std::fmt;
use std::sync::Arc;

use graph::{Literal, Map, NodeId, Prompt};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::message::{JobFailure, Message, Milestone, NodeIdentity};

/// A job that was accepted.
#[derive(Clone, Default)]
pub struct Job {
    /// Its place in the queue: smaller runs earlier.
    pub number: f64,
    /// Its id.
    pub prompt_id: String,
    /// The prompt, with its constants converted.
    pub prompt: Arc<Prompt>,
    /// What the client sent along, with `client_id` and `create_time`, less its secrets.
    pub extra_data: Map,
    /// What is never echoed; lost when the process ends.
    pub secrets: Map,
    /// The output nodes to run.
    pub outputs: Vec<NodeId>,
    /// Who sent it.
    pub client_id: Option<String>,
    /// Whether it was running when the process ended, and was put back.
    pub was_requeued: bool,
}

impl fmt::Debug for Job {
    /// Names the job; its prompt is large, and its secrets are nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut job = f.debug_struct("Job");
        job.field("number", &self.number).field("prompt_id", &self.prompt_id).finish_non_exhaustive()
    }
}

impl Job {
    /// When it was accepted, in milliseconds since 1970; 0 if that is not known.
    #[must_use]
    pub fn created(&self) -> i64 {
        let time = self.extra_data.get("create_time").and_then(Literal::as_int);
        time.and_then(|time| i64::try_from(time).ok()).unwrap_or(0)
    }

    /// The id of the workflow that it was made from, if the client sent it along.
    #[must_use]
    pub fn workflow_id(&self) -> Option<&str> {
        self.extra_data.get("extra_pnginfo")?.get("workflow")?.get("id")?.as_text()
    }
}

/// What is kept of a job that ended.
#[derive(Clone, Debug)]
pub struct HistoryEntry {
    /// The job.
    pub job: Job,
    /// What its nodes show.
    pub outputs: IndexMap<NodeId, Map>,
    /// Who those nodes are.
    pub identities: IndexMap<NodeId, NodeIdentity>,
    /// Whether it ended well.
    pub succeeded: bool,
    /// Start, cached nodes and end, as they were told.
    pub messages: Vec<Message>,
    /// Which worker ran it, where there were several, by its device.
    pub worker: Option<String>,
    /// Why that worker took it, where a queue had a choice.
    pub dispatch: Option<Dispatch>,
}

/// Why a worker took a job, in the numbers by which it was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// In a few words.
    pub reason: String,
    /// The model files that the job loads.
    pub models: Vec<String>,
    /// How long it had waited until then.
    pub waited_s: f64,
    /// How long it was predicted to wait, loading included, first come, first served.
    pub first_come_s: Option<f64>,
    /// How long loading what the worker lacks was predicted to take.
    pub load_s: f64,
    /// How long the wait for a worker that holds its models was predicted to be; none if there was none.
    pub elsewhere_s: Option<f64>,
    /// How many earlier jobs it passed over.
    pub passed_over: usize,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobStatus {
    /// It waits.
    Pending,
    /// It runs.
    InProgress,
    /// It ended well.
    Completed,
    /// A node failed.
    Failed,
    /// The user ended it.
    Cancelled,
}

/// A job of any state.
#[derive(Clone, Debug)]
pub struct JobRecord {
    /// The job; in lists, of a finished one only what a list shows.
    pub job: Arc<Job>,
    /// Its state.
    pub status: JobStatus,
    /// What it left, if it ended.
    pub entry: Option<Arc<HistoryEntry>>,
}

/// Which jobs to list, and how.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Only these states; all if empty.
    pub statuses: Vec<JobStatus>,
    /// Only of this workflow (`extra_data.extra_pnginfo.workflow.id`).
    pub workflow_id: Option<String>,
    /// By what.
    pub sort_by: SortBy,
    /// Smallest first.
    pub ascending: bool,
    /// At most so many.
    pub limit: Option<usize>,
    /// After so many.
    pub offset: usize,
}

/// What a list of jobs is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// When it was accepted.
    #[default]
    Created,
    /// How long it ran.
    Duration,
}

/// A part of a list of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobPage {
    /// The part.
    pub jobs: Vec<JobRecord>,
    /// How many there are in all.
    pub total: usize,
}

impl HistoryEntry {
    /// When it began, in milliseconds since 1970, if that was kept.
    #[must_use]
    pub fn began_ms(&self) -> Option<u64> {
        let mut began = self.messages.iter().filter(|message| message.milestone == Milestone::Started);
        began.next().map(|message| message.at_ms)
    }

    /// How it ended, if that was kept.
    #[must_use]
    pub fn end(&self) -> Option<&Message> {
        self.messages.iter().find(|message| message.milestone.is_end())
    }

    /// Why it failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&JobFailure> {
        self.messages.iter().find_map(|message| match &message.milestone {
            Milestone::Failed(failure) => Some(&**failure),
            _ => None,
        })
    }
}
