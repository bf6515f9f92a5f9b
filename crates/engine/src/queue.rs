//! The queue: what comes in, and in which order it runs.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};

use graph::{ErrorDetail, Facts, Map, NodeErrors, Prompt, Rejected};
use uuid::Uuid;

use crate::job::{Job, JobRecord, JobStatus};
use crate::observer::JobObserver;

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

/// A job in the queue. The order of such values is the order in which they run: by number, then by id.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    /// Its place among all jobs that were ever accepted; ids can be used twice, this cannot.
    pub(crate) sequence: i64,
    pub(crate) job: Arc<Job>,
}

impl Ord for Queued {
    fn cmp(&self, other: &Queued) -> Ordering {
        let by_number = self.job.number.total_cmp(&other.job.number);
        by_number
            .then_with(|| self.job.prompt_id.cmp(&other.job.prompt_id))
            .then_with(|| self.sequence.cmp(&other.sequence))
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Queued) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Queued) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Queued {}

/// A number as the queue compares it: one zero, and one `NaN` that comes last.
fn comparable(number: f64) -> f64 {
    if number.is_nan() { f64::NAN } else { number + 0.0 }
}

/// The job that runs.
pub(crate) struct Running {
    queued: Queued,
    cancel: Arc<AtomicBool>,
    observer: Arc<JobObserver>,
    /// Whether a user ended it, and not the end of the engine.
    is_interrupted: bool,
}

/// What waits and what runs.
#[derive(Default)]
pub(crate) struct Queue {
    counter: u64,
    pending: BTreeSet<Queued>,
    running: Option<Running>,
    /// Whether memory is to be freed.
    is_free_requested: bool,
    is_stopping: bool,
}

impl Queue {
    /// A queue with what was waiting.
    pub(crate) fn new(counter: u64, pending: Vec<Queued>) -> Queue {
        Queue { counter, pending: pending.into_iter().collect(), ..Queue::default() }
    }

    /// The number of the next job, and the counter after it. A number that the client chose leaves the
    /// counter as it is; otherwise it rises, whatever becomes of the job.
    pub(crate) fn take_number(&mut self, chosen: Option<f64>, front: bool) -> (f64, u64) {
        if let Some(number) = chosen {
            return (comparable(number), self.counter);
        }
        let number = self.counter as f64;
        self.counter += 1;
        (comparable(if front { -number } else { number }), self.counter)
    }

    pub(crate) fn push(&mut self, queued: Queued) {
        self.pending.insert(queued);
    }

    /// Whether there is something for the worker.
    pub(crate) fn has_task(&self) -> bool {
        self.is_stopping || self.is_free_requested || !self.pending.is_empty()
    }

    pub(crate) fn request_free(&mut self) {
        self.is_free_requested = true;
    }

    /// Whether memory is to be freed; the caller does it.
    pub(crate) fn take_free_request(&mut self) -> bool {
        std::mem::take(&mut self.is_free_requested)
    }

    /// Takes the first job, which runs from now on; none once the engine ends.
    pub(crate) fn begin(&mut self, observe: impl FnOnce(&Queued) -> Arc<JobObserver>) -> Option<RunningJob> {
        if self.is_stopping {
            return None;
        }
        let queued = self.pending.pop_first()?;
        let running = RunningJob { observer: observe(&queued), cancel: Arc::default(), queued };
        self.running = Some(Running {
            queued: running.queued.clone(),
            cancel: Arc::clone(&running.cancel),
            observer: Arc::clone(&running.observer),
            is_interrupted: false,
        });
        Some(running)
    }

    /// Nothing runs any more.
    pub(crate) fn end(&mut self) {
        self.running = None;
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

    /// Tells the running job to end, if it is the one meant.
    pub(crate) fn interrupt(&mut self, id: Option<&str>) -> bool {
        let running =
            self.running.as_mut().filter(|running| id.is_none_or(|id| running.queued.job.prompt_id == id));
        let Some(running) = running else { return false };
        running.is_interrupted = true;
        running.cancel.store(true, atomic::Ordering::Relaxed);
        true
    }

    /// Takes waiting jobs out.
    pub(crate) fn remove(&mut self, ids: &[String]) -> Vec<Queued> {
        let ids: HashSet<&str> = ids.iter().map(String::as_str).collect();
        self.pending.extract_if(.., |queued| ids.contains(queued.job.prompt_id.as_str())).collect()
    }

    /// Takes all waiting jobs out.
    pub(crate) fn clear(&mut self) -> Vec<Queued> {
        std::mem::take(&mut self.pending).into_iter().collect()
    }

    pub(crate) fn remaining(&self) -> usize {
        self.pending.len() + usize::from(self.running.is_some())
    }

    pub(crate) fn view(&self) -> QueueView {
        QueueView {
            running: self.running.iter().map(|running| Arc::clone(&running.queued.job)).collect(),
            pending: self.pending.iter().map(|queued| Arc::clone(&queued.job)).collect(),
        }
    }

    /// The job's id, its client and the node shown.
    pub(crate) fn running_node(&self) -> Option<(String, Option<String>, String)> {
        let running = self.running.as_ref()?;
        let node = running.observer.last_node()?;
        let job = &running.queued.job;
        Some((job.prompt_id.clone(), job.client_id.clone(), node.display.to_string()))
    }

    /// What runs, then what waits, with their places among all jobs.
    pub(crate) fn unfinished(&self) -> Vec<(i64, JobRecord)> {
        let running = self.running.iter().map(|running| (&running.queued, JobStatus::InProgress));
        let pending = self.pending.iter().map(|queued| (queued, JobStatus::Pending));
        let record = |(queued, status): (&Queued, JobStatus)| {
            (queued.sequence, JobRecord { job: Arc::clone(&queued.job), status, entry: None })
        };
        running.chain(pending).map(record).collect()
    }

    /// A job that runs or waits.
    pub(crate) fn find(&self, id: &str) -> Option<JobRecord> {
        let mut records = self.unfinished().into_iter().map(|(_, record)| record);
        records.find(|record| record.job.prompt_id == id)
    }
}

/// A job that the worker has taken.
pub(crate) struct RunningJob {
    pub(crate) queued: Queued,
    /// Set when it is to end.
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) observer: Arc<JobObserver>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(number: f64, id: &str, sequence: i64) -> Queued {
        let job = Job { number, prompt_id: id.to_owned(), ..Job::default() };
        Queued { sequence, job: Arc::new(job) }
    }

    #[test]
    fn numbers_rise_front_negates_and_chosen_ones_leave_the_counter() {
        let mut queue = Queue::default();
        let mut take = |chosen, front| queue.take_number(chosen, front);
        assert_eq!(take(None, false), (0.0, 1));
        assert_eq!(take(None, true), (-1.0, 2));
        assert_eq!(take(Some(7.5), true), (7.5, 2));
        assert_eq!(take(None, false), (2.0, 3));
    }

    #[test]
    fn the_first_job_sent_to_the_front_has_a_plain_zero() {
        let (number, _) = Queue::default().take_number(None, true);
        assert!(number == 0.0 && number.is_sign_positive());
        let (number, _) = Queue::default().take_number(Some(-0.0), false);
        assert!(number.is_sign_positive());
    }

    #[test]
    fn order_is_by_number_then_id_then_arrival_and_nan_is_last() {
        let mut all = [
            queued(f64::NAN, "a", 1),
            queued(1.0, "b", 2),
            queued(1.0, "a", 4),
            queued(1.0, "a", 3),
            queued(-3.0, "z", 5),
            queued(f64::INFINITY, "a", 6),
        ];
        all.sort();
        assert_eq!(all.map(|queued| queued.sequence), [5, 3, 4, 2, 6, 1]);
    }

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
