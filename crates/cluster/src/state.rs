//! The state of a job as the bucket has it, and the copy of all states that a process keeps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Dispatch, HistoryEntry, Job, JobRecord, JobStatus, QueueView, Record};
use serde::{Deserialize, Serialize};

/// The share of the newest time in what is known of a kind of job.
const NEWEST: f64 = 0.3;

/// A job's state. Changed only from the revision that one knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// The job, as `engine::job_text` writes it.
    pub(crate) job: String,
    /// How often it was claimed.
    pub(crate) attempt: i64,
    /// The message by which it was claimed, by its place in the stream.
    pub(crate) sequence: Option<i64>,
    /// How often its worker was lost.
    pub(crate) losses: u32,
    /// Who has it, or had it.
    pub(crate) worker: Option<String>,
    /// What it left, as `engine::record_text` writes it.
    pub(crate) record: Option<String>,
    /// The names of the model files that it loads.
    pub(crate) models: Vec<String>,
    /// How long it was predicted to wait when it came, first come, first served.
    pub(crate) first_come_s: Option<f64>,
    /// Why its worker took it.
    pub(crate) dispatch: Option<Dispatch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    Waiting,
    Claimed,
    Finished,
}

impl State {
    pub(crate) fn waiting(job: String) -> State {
        State {
            phase: Phase::Waiting,
            job,
            attempt: 0,
            sequence: None,
            losses: 0,
            worker: None,
            record: None,
            models: Vec::new(),
            first_come_s: None,
            dispatch: None,
        }
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
    /// When it was first seen, or would have been by its age.
    pub(crate) came: Instant,
    /// When this state was seen.
    pub(crate) seen: Instant,
}

impl Known {
    pub(crate) fn new(state: State, revision: u64) -> Result<Known, engine::Error> {
        let mut job = engine::read_job(&state.job)?;
        job.was_requeued |= state.losses > 0;
        let record =
            state.record.as_deref().map(|text| engine::read_record(&job.prompt_id, text)).transpose()?;
        let now = Instant::now();
        Ok(Known { state, job: Arc::new(job), record, revision, came: now, seen: now })
    }

    /// The same with its age, of a job that came before it could be seen here.
    pub(crate) fn aged(mut self) -> Known {
        let created_ms = u64::try_from(self.job.created()).unwrap_or(0);
        let age_ms = if created_ms == 0 { 0 } else { engine::now_ms().saturating_sub(created_ms) };
        self.came = self.came.checked_sub(Duration::from_millis(age_ms)).unwrap_or(self.came);
        self
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
            dispatch: self.state.dispatch.clone(),
        })
    }

    pub(crate) fn shown(&self) -> JobRecord {
        JobRecord { job: Arc::clone(&self.job), status: self.status(), entry: self.entry().map(Arc::new) }
    }

    /// Its place among those that wait: by its number, and then as they came.
    fn place(&self) -> (i64, u64) {
        let bits = self.job.number.to_bits().cast_signed();
        // Negative numbers count their bits downwards.
        let ordered = bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed();
        (ordered, self.revision)
    }
}

/// All jobs, by their ids.
#[derive(Default)]
pub(crate) struct Mirror {
    pub(crate) jobs: HashMap<String, Known>,
    pub(crate) counter: f64,
    /// Ids of those that wait, in their order.
    waiting: BTreeMap<(i64, u64), String>,
    claimed: BTreeSet<String>,
    /// Ids of those that ended, in the order in which they did.
    finished: BTreeMap<u64, String>,
    /// How long jobs compute, by the models that they load.
    seconds: HashMap<Vec<String>, f64>,
    typical_s: Option<f64>,
    /// What each worker's latest job loaded, and when it ended.
    latest: HashMap<String, (Vec<String>, Instant)>,
}

impl Mirror {
    /// Takes a newer state over; an older one changes nothing.
    pub(crate) fn note(&mut self, id: &str, mut known: Known) {
        if self.jobs.get(id).is_some_and(|old| old.revision >= known.revision) {
            return;
        }
        if known.job.number.is_finite() {
            self.counter = self.counter.max(known.job.number.abs() + 1.0);
        }
        if let Some(old) = self.remove(id) {
            known.came = old.came;
            if (old.state.phase, known.state.phase) == (Phase::Claimed, Phase::Finished) {
                self.learn(&known.state, known.seen.duration_since(old.seen).as_secs_f64());
                let worker = known.state.worker.as_deref().map(worker_of).unwrap_or_default();
                self.latest.insert(worker.to_owned(), (known.state.models.clone(), known.seen));
            }
        }
        match known.state.phase {
            Phase::Waiting => drop(self.waiting.insert(known.place(), id.to_owned())),
            Phase::Claimed => drop(self.claimed.insert(id.to_owned())),
            Phase::Finished => drop(self.finished.insert(known.revision, id.to_owned())),
        }
        self.jobs.insert(id.to_owned(), known);
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<Known> {
        let known = self.jobs.remove(id)?;
        match known.state.phase {
            Phase::Waiting => drop(self.waiting.remove(&known.place())),
            Phase::Claimed => drop(self.claimed.remove(id)),
            Phase::Finished => drop(self.finished.remove(&known.revision)),
        }
        Some(known)
    }

    /// How long a job was claimed tells how long the next of its kind will compute.
    fn learn(&mut self, state: &State, claimed_s: f64) {
        let load_s = state.dispatch.as_ref().map_or(0.0, |dispatch| dispatch.load_s);
        // What loading took was predicted only: it counts where nothing else is known.
        if load_s > 0.0 && self.seconds.contains_key(&state.models) {
            return;
        }
        let seconds = (claimed_s - load_s).max(0.1 * claimed_s);
        let blend = |old: f64| old + NEWEST * (seconds - old);
        self.typical_s = Some(self.typical_s.map_or(seconds, blend));
        self.seconds.entry(state.models.clone()).and_modify(|old| *old = blend(*old)).or_insert(seconds);
    }

    /// How long jobs with these models compute; none if no job has ended yet.
    pub(crate) fn seconds_of(&self, models: &[String]) -> Option<f64> {
        self.seconds.get(models).copied().or(self.typical_s)
    }

    /// What a worker's latest job loaded, if it ended after that moment.
    pub(crate) fn loaded_since(&self, worker: &str, moment: Instant) -> &[String] {
        let latest = self.latest.get(worker).filter(|(_, ended)| *ended > moment);
        latest.map_or(&[], |(models, _)| models)
    }

    /// Jobs that wait, in their order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Known> {
        self.waiting.values().filter_map(|id| self.jobs.get(id))
    }

    pub(crate) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn claimed(&self) -> impl Iterator<Item = &Known> {
        self.claimed.iter().filter_map(|id| self.jobs.get(id))
    }

    pub(crate) fn queue(&self) -> QueueView {
        let mut running: Vec<Arc<Job>> = self.claimed().map(|known| Arc::clone(&known.job)).collect();
        running.sort_by(|a, b| a.number.total_cmp(&b.number));
        QueueView { running, pending: self.waiting().map(|known| Arc::clone(&known.job)).collect() }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.waiting.len() + self.claimed.len()
    }

    /// The oldest finished jobs beyond so many; a few at a time.
    pub(crate) fn oldest(&self, kept: usize) -> Vec<String> {
        let over = self.finished.len().saturating_sub(kept);
        self.finished.values().take(over.min(2)).cloned().collect()
    }

    /// Finished jobs, in the order in which they ended.
    pub(crate) fn finished(&self) -> Vec<&Known> {
        self.finished.values().filter_map(|id| self.jobs.get(id)).collect()
    }
}

/// The worker of a claim: the names of one that runs several jobs have their devices behind a slash.
pub(crate) fn worker_of(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(number: f64, revision: u64, phase: Phase) -> Known {
        let job = Job { number, prompt_id: format!("{number}"), ..Job::default() };
        Known::new(State { phase, ..State::waiting(engine::job_text(&job)) }, revision).unwrap()
    }

    #[test]
    fn jobs_wait_by_their_numbers_and_then_as_they_came() {
        let mut mirror = Mirror::default();
        for (id, number, revision) in
            [("a", 2.0, 1), ("b", -3.0, 2), ("c", 0.5, 3), ("d", 2.0, 4), ("e", -1.0, 5)]
        {
            mirror.note(id, known(number, revision, Phase::Waiting));
        }
        let order: Vec<u64> = mirror.waiting().map(|known| known.revision).collect();
        assert_eq!(order, [2, 5, 3, 1, 4]);
        assert_eq!(mirror.remaining(), 5);
    }

    #[test]
    fn a_job_is_counted_in_one_phase_and_older_states_change_nothing() {
        let mut mirror = Mirror::default();
        for (revision, phase) in [(1, Phase::Waiting), (3, Phase::Claimed), (2, Phase::Waiting)] {
            mirror.note("a", known(1.0, revision, phase));
        }
        assert_eq!((mirror.waiting_len(), mirror.claimed().count(), mirror.remaining()), (0, 1, 1));
        mirror.note("a", known(1.0, 4, Phase::Finished));
        let known = known(2.0, 5, Phase::Waiting);
        assert_eq!((mirror.remaining(), mirror.finished().len()), (0, 1));
        assert!(mirror.seconds_of(&[]).is_some(), "how long it took is remembered");
        let before = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let loaded =
            State { models: vec!["m".to_owned()], worker: Some("w/cuda:1".to_owned()), ..known.state };
        for (revision, phase) in [(5, Phase::Claimed), (6, Phase::Finished)] {
            mirror.note("b", Known::new(State { phase, ..loaded.clone() }, revision).unwrap());
        }
        assert_eq!(mirror.loaded_since("w", before), ["m"]);
        assert!(mirror.loaded_since("w", Instant::now()).is_empty(), "what it says itself is newer");
        mirror.remove("b");
        mirror.remove("a");
        assert!(mirror.finished().is_empty() && mirror.jobs.is_empty());
    }
}
