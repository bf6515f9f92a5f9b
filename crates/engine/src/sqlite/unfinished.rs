//! Jobs that wait or are claimed, as they are in memory: with their secrets, and in the order in which they run.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::job::{Job, JobRecord, JobStatus};
use crate::queue::QueueView;
use crate::store::{Choice, Claim, WorkerName};

/// A job in the queue. The order of such values is the order in which they run: by number, then by id.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    /// Its place among all jobs that were ever accepted.
    pub(super) sequence: i64,
    pub(super) job: Arc<Job>,
    /// How often it has been claimed.
    pub(super) attempts: i64,
    /// How often it was lost with its worker.
    pub(super) lost_runs: i64,
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

impl Queued {
    /// The same job, which was not run to its end.
    pub(super) fn requeued(mut self) -> Queued {
        Arc::make_mut(&mut self.job).was_requeued = true;
        self
    }
}

/// A number as the queue compares it: one zero, and one `NaN` that comes last.
fn comparable(number: f64) -> f64 {
    if number.is_nan() { f64::NAN } else { number + 0.0 }
}

/// A job that a worker has.
struct Claimed {
    queued: Queued,
    worker: WorkerName,
    expires: Instant,
}

impl Claimed {
    fn is(&self, claim: &Claim) -> bool {
        self.queued.attempts == claim.attempt && self.worker == claim.worker
    }
}

/// What waits and what is claimed.
#[derive(Default)]
pub(super) struct Unfinished {
    counter: u64,
    waiting: BTreeSet<Queued>,
    claimed: BTreeMap<i64, Claimed>,
}

impl Unfinished {
    pub(super) fn new(counter: u64, waiting: Vec<Queued>) -> Unfinished {
        Unfinished { counter, waiting: waiting.into_iter().collect(), claimed: BTreeMap::new() }
    }

    /// The number of the next job.
    pub(super) fn take_number(&mut self, chosen: Option<f64>, front: bool) -> f64 {
        if let Some(number) = chosen {
            return comparable(number);
        }
        let number = self.counter as f64;
        self.counter += 1;
        comparable(if front { -number } else { number })
    }

    /// The number after the latest.
    pub(super) fn counter(&self) -> u64 {
        self.counter
    }

    /// A job waits from now on.
    pub(super) fn push(&mut self, queued: Queued) {
        self.waiting.insert(queued);
    }

    /// The first job that a worker chooses is its own from now on.
    pub(super) fn claim(
        &mut self,
        worker: &WorkerName,
        lease: Duration,
        choose: &mut dyn FnMut(&Job) -> Choice,
    ) -> Option<Claim> {
        let answers = self.waiting.iter().map(|queued| (queued, choose(&queued.job)));
        let (chosen, answer) = answers.into_iter().find(|(_, answer)| *answer != Choice::Leave)?;
        if answer == Choice::Stop {
            return None;
        }
        let chosen = chosen.clone();
        let mut queued = self.waiting.take(&chosen)?;
        queued.attempts += 1;
        let claim = Claim {
            sequence: queued.sequence,
            attempt: queued.attempts,
            worker: worker.clone(),
            job: Arc::clone(&queued.job),
        };
        let claimed = Claimed { queued, worker: worker.clone(), expires: Instant::now() + lease };
        self.claimed.insert(claim.sequence, claimed);
        Some(claim)
    }

    /// Renews a claim; whether it is still the worker's.
    pub(super) fn renew(&mut self, claim: &Claim, lease: Duration) -> bool {
        let held = self.claimed.get_mut(&claim.sequence).filter(|claimed| claimed.is(claim));
        held.map(|claimed| claimed.expires = Instant::now() + lease).is_some()
    }

    /// Whether a claim is still the worker's.
    pub(super) fn is_held(&self, claim: &Claim) -> bool {
        self.claimed.get(&claim.sequence).is_some_and(|claimed| claimed.is(claim))
    }

    /// A claim ends; the job, if it was still the worker's.
    pub(super) fn end(&mut self, claim: &Claim) -> Option<Queued> {
        if !self.is_held(claim) {
            return None;
        }
        self.claimed.remove(&claim.sequence).map(|claimed| claimed.queued)
    }

    /// Ends the claims whose lease ran out; their jobs, and whose they were.
    pub(super) fn end_expired(&mut self, now: Instant) -> Vec<(Queued, WorkerName)> {
        let expired = self.claimed.extract_if(.., |_, claimed| claimed.expires <= now);
        expired.map(|(_, claimed)| (claimed.queued, claimed.worker)).collect()
    }

    /// Takes jobs that wait out, those named or all.
    pub(super) fn remove(&mut self, ids: Option<&[String]>) -> Vec<Queued> {
        let Some(ids) = ids else { return std::mem::take(&mut self.waiting).into_iter().collect() };
        let ids: HashSet<&str> = ids.iter().map(String::as_str).collect();
        self.waiting.extract_if(.., |queued| ids.contains(queued.job.prompt_id.as_str())).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.claimed.len()
    }

    pub(super) fn view(&self) -> QueueView {
        QueueView {
            running: self.claimed.values().map(|claimed| Arc::clone(&claimed.queued.job)).collect(),
            pending: self.waiting.iter().map(|queued| Arc::clone(&queued.job)).collect(),
        }
    }

    /// What runs, then what waits, with their places among all jobs.
    pub(super) fn records(&self) -> Vec<(i64, JobRecord)> {
        let running = self.claimed.values().map(|claimed| (&claimed.queued, JobStatus::InProgress));
        let waiting = self.waiting.iter().map(|queued| (queued, JobStatus::Pending));
        let record = |(queued, status): (&Queued, JobStatus)| {
            (queued.sequence, JobRecord { job: Arc::clone(&queued.job), status, entry: None })
        };
        running.chain(waiting).map(record).collect()
    }

    /// A job that runs or waits.
    pub(super) fn find(&self, id: &str) -> Option<JobRecord> {
        let mut records = self.records().into_iter().map(|(_, record)| record);
        records.find(|record| record.job.prompt_id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(number: f64, id: &str, sequence: i64) -> Queued {
        let job = Job { number, prompt_id: id.to_owned(), ..Job::default() };
        Queued { sequence, job: Arc::new(job), attempts: 0, lost_runs: 0 }
    }

    #[test]
    fn numbers_rise_front_negates_and_chosen_ones_leave_the_counter() {
        let mut queue = Unfinished::default();
        let mut take = |chosen, front| (queue.take_number(chosen, front), queue.counter());
        assert_eq!(take(None, false), (0.0, 1));
        assert_eq!(take(None, true), (-1.0, 2));
        assert_eq!(take(Some(7.5), true), (7.5, 2));
        assert_eq!(take(None, false), (2.0, 3));
    }

    #[test]
    fn the_first_job_sent_to_the_front_has_a_plain_zero() {
        let number = Unfinished::default().take_number(None, true);
        assert!(number == 0.0 && number.is_sign_positive());
        let number = Unfinished::default().take_number(Some(-0.0), false);
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
    fn a_claim_is_one_workers_until_it_is_renewed_or_runs_out() {
        let mut queue = Unfinished::new(0, vec![queued(1.0, "a", 1)]);
        let (first, second) = (WorkerName::new(), WorkerName::new());
        let lease = Duration::from_secs(60);
        let claim = queue.claim(&first, lease, &mut |_| Choice::Take).unwrap();
        assert!(queue.claim(&second, lease, &mut |_| Choice::Take).is_none(), "it is the first one's");
        assert!(queue.renew(&claim, lease) && queue.is_held(&claim));
        assert!(queue.end_expired(Instant::now()).is_empty());
        let lost = queue.end_expired(Instant::now() + 2 * lease);
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].1, first);
        assert!(!queue.renew(&claim, lease), "it is nobody's");
        queue.push(lost[0].0.clone().requeued());
        let again = queue.claim(&second, lease, &mut |_| Choice::Take).unwrap();
        assert_eq!((claim.attempt, again.attempt), (1, 2));
        assert!(again.job.was_requeued && !claim.job.was_requeued);
        assert!(!queue.is_held(&claim) && queue.end(&claim).is_none(), "the first one's claim is over");
        assert!(queue.end(&again).is_some());
        assert_eq!(queue.len(), 0);
    }
}
