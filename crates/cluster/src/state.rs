//! The state of a job as the bucket has it, and the copy of all states that a process keeps.

use std::collections::HashMap;
use std::sync::Arc;

use engine::{HistoryEntry, Job, JobRecord, JobStatus, QueueView, Record};
use serde::{Deserialize, Serialize};

/// A job's state. Changed only from the revision that one knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// The job, as `engine::job_text` writes it.
    pub(crate) job: String,
    /// How often it was claimed.
    pub(crate) attempt: i64,
    /// How often its worker was lost.
    pub(crate) losses: u32,
    /// Who has it, or had it.
    pub(crate) worker: Option<String>,
    /// What it left, as `engine::record_text` writes it.
    pub(crate) record: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    Waiting,
    Claimed,
    Finished,
}

impl State {
    pub(crate) fn waiting(job: String) -> State {
        State { phase: Phase::Waiting, job, attempt: 0, losses: 0, worker: None, record: None }
    }

    /// As JSON, which cannot fail for text and numbers.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Whether this worker has it, by this attempt.
    pub(crate) fn is_held_by(&self, worker: &str, attempt: i64) -> bool {
        self.phase == Phase::Claimed && self.is_of(worker, attempt)
    }

    /// Whether it was this attempt of this worker that came last.
    pub(crate) fn is_of(&self, worker: &str, attempt: i64) -> bool {
        self.attempt == attempt && self.worker.as_deref() == Some(worker)
    }
}

/// A job of the copy.
pub(crate) struct Known {
    pub(crate) state: State,
    pub(crate) job: Arc<Job>,
    pub(crate) record: Option<Record>,
    /// Of the entry: later ones are larger.
    pub(crate) revision: u64,
}

impl Known {
    pub(crate) fn new(state: State, revision: u64) -> Result<Known, engine::Error> {
        let mut job = engine::read_job(&state.job)?;
        job.was_requeued |= state.losses > 0;
        let record =
            state.record.as_deref().map(|text| engine::read_record(&job.prompt_id, text)).transpose()?;
        Ok(Known { state, job: Arc::new(job), record, revision })
    }

    pub(crate) fn status(&self) -> JobStatus {
        match (self.state.phase, &self.record) {
            (Phase::Waiting, _) => JobStatus::Pending,
            (Phase::Claimed, _) => JobStatus::InProgress,
            (Phase::Finished, record) => record.as_ref().map_or(JobStatus::Failed, |record| record.status),
        }
    }

    pub(crate) fn entry(&self) -> Option<HistoryEntry> {
        let record = self.record.as_ref()?;
        Some(HistoryEntry {
            job: (*self.job).clone(),
            outputs: record.outputs.clone(),
            identities: record.identities.clone(),
            succeeded: record.status == JobStatus::Completed,
            messages: record.messages.clone(),
            worker: record.worker.clone().or_else(|| self.state.worker.clone()),
        })
    }

    pub(crate) fn shown(&self) -> JobRecord {
        JobRecord { job: Arc::clone(&self.job), status: self.status(), entry: self.entry().map(Arc::new) }
    }
}

/// All jobs, by their ids.
#[derive(Default)]
pub(crate) struct Mirror {
    pub(crate) jobs: HashMap<String, Known>,
    pub(crate) counter: f64,
}

impl Mirror {
    /// Takes a newer state over; an older one changes nothing.
    pub(crate) fn note(&mut self, id: &str, known: Known) {
        if self.jobs.get(id).is_none_or(|old| old.revision < known.revision) {
            if known.job.number.is_finite() {
                self.counter = self.counter.max(known.job.number.abs() + 1.0);
            }
            self.jobs.insert(id.to_owned(), known);
        }
    }

    pub(crate) fn queue(&self) -> QueueView {
        let of = |phase: Phase| {
            let mut jobs: Vec<&Known> =
                self.jobs.values().filter(|known| known.state.phase == phase).collect();
            jobs.sort_by(|a, b| a.job.number.total_cmp(&b.job.number));
            jobs.into_iter().map(|known| Arc::clone(&known.job)).collect()
        };
        QueueView { running: of(Phase::Claimed), pending: of(Phase::Waiting) }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.jobs.values().filter(|known| known.state.phase != Phase::Finished).count()
    }

    /// Finished jobs, in the order in which they ended.
    pub(crate) fn finished(&self) -> Vec<&Known> {
        let mut jobs: Vec<&Known> =
            self.jobs.values().filter(|known| known.state.phase == Phase::Finished).collect();
        jobs.sort_by_key(|known| known.revision);
        jobs
    }
}
