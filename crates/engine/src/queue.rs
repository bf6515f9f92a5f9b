//! What comes in, and what the worker's turn is.

use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};

use graph::{ErrorDetail, Facts, Map, NodeErrors, Prompt, Rejected};
use uuid::Uuid;

use crate::job::Job;
use crate::observer::JobObserver;
use crate::store::Claim;

/// A prompt as a client sends it.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// The prompt; `None` if there was none.
    pub prompt: Option<Prompt>,
    /// Its id, if the client chose one.
    pub prompt_id: Option<String>,
    /// Its place in the queue, if the client chose one.
    pub number: Option<f64>,
    /// Before all others.
    pub front: bool,
    /// What the client sent along, secrets included.
    pub extra_data: Map,
    /// Who sends it.
    pub client_id: Option<String>,
    /// Only these output nodes.
    pub targets: Option<Vec<String>>,
}

/// A prompt that was queued.
#[derive(Clone, Debug)]
pub struct AcceptedJob {
    /// Its id.
    pub prompt_id: String,
    /// Its place in the queue.
    pub number: f64,
    /// What is wrong with the parts that do not run.
    pub node_errors: NodeErrors,
}

/// A prompt that was not queued.
#[derive(Debug)]
pub enum Refused {
    /// It cannot run; `no_prompt` and `invalid_prompt_id` too.
    Invalid(Box<Rejected>),
    /// The database cannot take it.
    Storage(crate::Error),
}

/// The queue as it stands.
#[derive(Clone, Debug, Default)]
pub struct QueueView {
    /// What runs.
    pub running: Vec<Arc<Job>>,
    /// What waits, first to run first.
    pub pending: Vec<Arc<Job>>,
}

impl Refused {
    /// There is no prompt.
    pub(crate) fn no_prompt() -> Refused {
        Refused::because(
            "no_prompt",
            "The request has no prompt",
            "send the workflow under \"prompt\"".to_owned(),
        )
    }

    fn because(kind: &str, message: &str, details: String) -> Refused {
        let error =
            ErrorDetail { kind: kind.to_owned(), message: message.to_owned(), details, facts: Facts::new() };
        Refused::Invalid(Box::new(Rejected { error, node_errors: NodeErrors::new() }))
    }
}

/// The id of a job: the client's, if it is a UUID in its usual spelling, or a new one.
pub(crate) fn checked_id(chosen: Option<String>) -> Result<String, Refused> {
    let Some(id) = chosen else { return Ok(Uuid::new_v4().to_string()) };
    match Uuid::try_parse(&id) {
        Ok(uuid) if uuid.to_string() == id => Ok(id),
        _ => {
            let details = format!("{id:?} is no UUID in lower case with hyphens; leave it out to get one");
            Err(Refused::because("invalid_prompt_id", "The prompt_id is not a UUID", details))
        }
    }
}

/// The job that runs here.
pub(crate) struct Running {
    claim: Claim,
    cancel: Arc<AtomicBool>,
    observer: Arc<JobObserver>,
    /// Whether a user ended it, and not the end of the engine.
    is_interrupted: bool,
    /// Whether another worker has it now.
    is_lost: bool,
}

/// What the worker is to do, and what it does.
#[derive(Default)]
pub(crate) struct Turn {
    running: Option<Running>,
    /// Whether a job may wait.
    may_claim: bool,
    /// Whether memory is to be freed.
    is_free_requested: bool,
    is_stopping: bool,
    /// Whether the worker has ended.
    is_over: bool,
}

impl Turn {
    /// Whether there is something for the worker.
    pub(crate) fn has_task(&self) -> bool {
        self.is_stopping || self.is_free_requested || self.may_claim
    }

    /// A job may wait.
    pub(crate) fn note_waiting(&mut self) {
        self.may_claim = true;
    }

    /// Whether a job may wait; the caller looks.
    pub(crate) fn take_waiting(&mut self) -> bool {
        std::mem::take(&mut self.may_claim)
    }

    pub(crate) fn request_free(&mut self) {
        self.is_free_requested = true;
    }

    /// Whether memory is to be freed; the caller does it.
    pub(crate) fn take_free_request(&mut self) -> bool {
        std::mem::take(&mut self.is_free_requested)
    }

    /// A claimed job runs from now on; none once the engine ends.
    pub(crate) fn begin(&mut self, claim: &Claim, observer: Arc<JobObserver>) -> Option<RunningJob> {
        if self.is_stopping {
            return None;
        }
        let cancel = Arc::<AtomicBool>::default();
        self.running = Some(Running {
            claim: claim.clone(),
            cancel: Arc::clone(&cancel),
            observer: Arc::clone(&observer),
            is_interrupted: false,
            is_lost: false,
        });
        Some(RunningJob { claim: claim.clone(), cancel, observer })
    }

    /// Nothing runs any more.
    pub(crate) fn end(&mut self) {
        self.running = None;
    }

    /// The claim of the job that runs.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.running.as_ref().map(|running| &running.claim)
    }

    /// Another worker has the job, if it still runs: it is to end.
    pub(crate) fn lose(&mut self, claim: &Claim) {
        let running = self.running.as_mut();
        if let Some(running) = running.filter(|running| running.claim.sequence == claim.sequence) {
            running.is_lost = true;
            running.cancel.store(true, atomic::Ordering::Relaxed);
        }
    }

    /// Whether another worker has the job that runs.
    pub(crate) fn is_lost(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_lost)
    }

    /// Whether the running job ends because the engine does, and no user asked for it.
    pub(crate) fn is_put_back(&self) -> bool {
        self.is_stopping && self.running.as_ref().is_some_and(|running| !running.is_interrupted)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
        if let Some(running) = &self.running {
            running.cancel.store(true, atomic::Ordering::Relaxed);
        }
    }

    /// The worker has ended.
    pub(crate) fn note_over(&mut self) {
        self.is_over = true;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Tells the running job to end, if it is the one meant.
    pub(crate) fn interrupt(&mut self, id: Option<&str>) -> bool {
        let running =
            self.running.as_mut().filter(|running| id.is_none_or(|id| running.claim.job.prompt_id == id));
        let Some(running) = running else { return false };
        running.is_interrupted = true;
        running.cancel.store(true, atomic::Ordering::Relaxed);
        true
    }

    /// The job's id, its client and the node shown.
    pub(crate) fn running_node(&self) -> Option<(String, Option<String>, String)> {
        let running = self.running.as_ref()?;
        let node = running.observer.last_node()?;
        let job = &running.claim.job;
        Some((job.prompt_id.clone(), job.client_id.clone(), node.display.to_string()))
    }
}

/// A job that the worker has taken.
pub(crate) struct RunningJob {
    pub(crate) claim: Claim,
    /// Set when it is to end.
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) observer: Arc<JobObserver>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_in_their_usual_spelling() {
        let good = "0b0e1f5a-3c1d-4f7e-9a3b-2f6d8c9e0a11";
        assert_eq!(checked_id(Some(good.to_owned())).unwrap(), good);
        let bad = ["", "x", "0B0E1F5A-3c1d-4f7e-9a3b-2f6d8c9e0a11", "0b0e1f5a3c1d4f7e9a3b2f6d8c9e0a11"];
        for id in bad {
            let Err(Refused::Invalid(rejected)) = checked_id(Some(id.to_owned())) else {
                panic!("{id} passes")
            };
            assert_eq!(rejected.error.kind, "invalid_prompt_id");
        }
        let new = checked_id(None).unwrap();
        assert_eq!(checked_id(Some(new.clone())).unwrap(), new);
    }
}
