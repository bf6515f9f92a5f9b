//! What the workers are to do, and what they do.

use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};

use meta::DeviceId;

use crate::observer::JobObserver;
use crate::place::{JobPlace, Taken};
use crate::store::Claim;

/// A job that runs here.
struct Running {
    claim: Claim,
    cancel: Arc<AtomicBool>,
    observer: Arc<JobObserver>,
    place: Arc<JobPlace>,
    /// Whether a user ended it, and not the end of the engine.
    is_interrupted: bool,
    /// Whether another worker has it now.
    is_lost: bool,
}

impl Running {
    fn is(&self, claim: &Claim) -> bool {
        (self.claim.sequence, self.claim.attempt) == (claim.sequence, claim.attempt)
    }
}

/// The node that runs now of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningNode {
    /// The job.
    pub prompt_id: String,
    /// Who sent it.
    pub client_id: Option<String>,
    /// The node, as it is shown.
    pub node: String,
    /// Who runs it, by the device that it computes on.
    pub worker: DeviceId,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// End.
    Stop,
    /// Free memory, while nobody else does anything; [`Turn::note_freed`] ends it.
    Free,
    /// Look for a job; [`Turn::looked`] ends it.
    Look,
}

/// What the workers are to do, and what they do.
pub(crate) struct Turn {
    /// In the order in which they began.
    running: Vec<Running>,
    /// By worker, whether a job may wait for it.
    may_claim: Vec<bool>,
    /// Workers that look for a job at the moment.
    looking: usize,
    /// Whether memory is to be freed.
    is_free_requested: bool,
    /// Whether somebody frees memory.
    is_freeing: bool,
    is_stopping: bool,
    /// Whether no other job is to begin.
    is_draining: bool,
    /// Workers that have not ended.
    working: usize,
}

impl Turn {
    /// The turn of so many workers.
    pub(crate) fn new(workers: usize) -> Turn {
        Turn {
            running: Vec::new(),
            may_claim: vec![false; workers],
            looking: 0,
            is_free_requested: false,
            is_freeing: false,
            is_stopping: false,
            is_draining: false,
            working: workers,
        }
    }

    /// What there is for a worker. Memory is freed between jobs: none begins until it is, and it waits for those that run.
    pub(crate) fn next(&self, worker: usize) -> Option<Step> {
        if self.is_stopping || (self.is_draining && self.running.is_empty() && self.looking == 0) {
            return Some(Step::Stop);
        }
        if self.is_freeing {
            return None;
        }
        if self.is_free_requested {
            return (self.running.is_empty() && self.looking == 0).then_some(Step::Free);
        }
        (self.may_claim[worker] && !self.is_draining).then_some(Step::Look)
    }

    /// The same, which the worker does from now on.
    pub(crate) fn take(&mut self, worker: usize) -> Option<Step> {
        let step = self.next(worker)?;
        match step {
            Step::Stop => {}
            Step::Free => (self.is_free_requested, self.is_freeing) = (false, true),
            Step::Look => {
                self.may_claim[worker] = false;
                self.looking += 1;
            }
        }
        Some(step)
    }

    /// A job may wait.
    pub(crate) fn note_waiting(&mut self) {
        self.may_claim.fill(true);
    }

    /// A worker has looked for a job, and begun what it found.
    pub(crate) fn looked(&mut self) {
        self.looking -= 1;
    }

    pub(crate) fn request_free(&mut self) {
        self.is_free_requested = true;
    }

    pub(crate) fn note_freed(&mut self) {
        self.is_freeing = false;
    }

    /// A claimed job runs from now on; none once the engine ends.
    pub(crate) fn begin(
        &mut self,
        claim: &Claim,
        observer: Arc<JobObserver>,
        place: Arc<JobPlace>,
    ) -> Option<RunningJob> {
        if self.is_stopping {
            return None;
        }
        let cancel = Arc::<AtomicBool>::default();
        self.running.push(Running {
            claim: claim.clone(),
            cancel: Arc::clone(&cancel),
            observer: Arc::clone(&observer),
            place: Arc::clone(&place),
            is_interrupted: false,
            is_lost: false,
        });
        Some(RunningJob { claim: claim.clone(), cancel, observer, place })
    }

    /// A job runs no more, and what it had is free: those that wait may run.
    pub(crate) fn end(&mut self, claim: &Claim) {
        self.running.retain(|running| !running.is(claim));
        self.note_waiting();
    }

    /// The claims of the jobs that run.
    pub(crate) fn claims(&self) -> Vec<Claim> {
        self.running.iter().map(|running| running.claim.clone()).collect()
    }

    /// Whether nothing runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether a job runs besides this one.
    pub(crate) fn has_others(&self, claim: &Claim) -> bool {
        self.running.iter().any(|running| !running.is(claim))
    }

    /// The devices that jobs have.
    pub(crate) fn taken(&self) -> Taken {
        let mut taken = Taken::default();
        self.running.iter().for_each(|running| taken.add(&running.place));
        taken
    }

    /// Another worker has the job, if it still runs: it is to end.
    pub(crate) fn lose(&mut self, claim: &Claim) {
        if let Some(running) = self.running.iter_mut().find(|running| running.is(claim)) {
            running.is_lost = true;
            running.cancel.store(true, atomic::Ordering::Relaxed);
        }
    }

    /// Whether another worker has a job that runs here.
    pub(crate) fn is_lost(&self, claim: &Claim) -> bool {
        self.running.iter().any(|running| running.is(claim) && running.is_lost)
    }

    /// Whether a job ends because the engine does, and no user asked for it.
    pub(crate) fn is_put_back(&self, claim: &Claim) -> bool {
        self.is_stopping && self.running.iter().any(|running| running.is(claim) && !running.is_interrupted)
    }

    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
        for running in &self.running {
            running.cancel.store(true, atomic::Ordering::Relaxed);
        }
    }

    /// No other job begins; when those that run have ended, the workers do.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// A worker has ended.
    pub(crate) fn note_over(&mut self) {
        self.working = self.working.saturating_sub(1);
    }

    /// All workers have ended, however they did.
    pub(crate) fn note_all_over(&mut self) {
        self.working = 0;
    }

    /// Whether all workers have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.working == 0
    }

    /// Tells the jobs that run to end, or only the one that is meant; whether there was one.
    pub(crate) fn interrupt(&mut self, id: Option<&str>) -> bool {
        let mut found = false;
        for running in &mut self.running {
            if id.is_none_or(|id| running.claim.job.prompt_id == id) {
                running.is_interrupted = true;
                running.cancel.store(true, atomic::Ordering::Relaxed);
                found = true;
            }
        }
        found
    }

    /// The nodes that run, one of each job that has begun with one.
    pub(crate) fn running_nodes(&self) -> Vec<RunningNode> {
        let node = |running: &Running| {
            let job = &running.claim.job;
            Some(RunningNode {
                prompt_id: job.prompt_id.clone(),
                client_id: job.client_id.clone(),
                node: running.observer.last_node()?.display.to_string(),
                worker: running.place.worker,
            })
        };
        self.running.iter().filter_map(node).collect()
    }
}

/// A job that a worker has taken.
pub(crate) struct RunningJob {
    pub(crate) claim: Claim,
    /// Set when it is to end.
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) observer: Arc<JobObserver>,
    pub(crate) place: Arc<JobPlace>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_freed_once_and_while_nobody_looks_or_runs() {
        let mut turn = Turn::new(2);
        turn.note_waiting();
        assert_eq!(turn.take(0), Some(Step::Look));
        turn.request_free();
        assert_eq!(turn.next(1), None, "the other one looks for a job");
        turn.looked();
        assert_eq!(turn.take(1), Some(Step::Free));
        assert_eq!((turn.next(0), turn.next(1)), (None, None), "one frees, all wait");
        turn.note_freed();
        assert_eq!((turn.next(0), turn.next(1)), (None, Some(Step::Look)));
        turn.stop();
        assert_eq!((turn.next(0), turn.next(1)), (Some(Step::Stop), Some(Step::Stop)));
        turn.note_over();
        assert!(!turn.is_over());
        turn.note_over();
        assert!(turn.is_over());
    }

    #[test]
    fn a_drained_worker_ends_what_it_has_and_begins_nothing() {
        let mut turn = Turn::new(1);
        turn.note_waiting();
        assert_eq!(turn.take(0), Some(Step::Look));
        turn.drain();
        turn.note_waiting();
        assert_eq!(turn.next(0), None, "it still looks");
        turn.looked();
        assert_eq!(turn.next(0), Some(Step::Stop));
    }
}
