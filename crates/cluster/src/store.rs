//! The store: what callers ask is answered from a copy of the states; what they change is changed on the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::connection;
use async_nats::jetstream::kv::Operation;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{AckKind, Message};
use engine::{
    Abandoned, Choice, Claim, HistoryEntry, Job, JobFailure, JobFilter, JobPage, JobRecord, JobStatus,
    JobStore, Milestone, QueueView, Record, SortBy, Wake, WorkerName,
};
use futures_util::StreamExt;
use tokio::runtime::Runtime;

use crate::connection::{ClusterConfig, Connection};
use crate::error::Error;
use crate::state::{Known, Mirror, Phase, State};

/// Workers that may be lost with a job before it counts as failed.
const MOST_LOSSES: u32 = 3;
/// Jobs that ended and nobody asked for.
const MOST_ENDED: usize = 100_000;
/// How long the end of a job is tried to be kept while the server is away.
pub(crate) const FINISH_PATIENCE: Duration = Duration::from_secs(600);
/// How long the server may take to say whether there is a job.
const FETCH_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks for jobs of lost workers.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two tries.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

/// A queue and its history on a NATS server. Its calls wait for the server and must not be made from async code, but for
/// those that only ask.
pub struct NatsStore {
    pub(crate) threads: Runtime,
    pub(crate) connection: Arc<Connection>,
    pub(crate) shared: Arc<Copy>,
    /// The messages of the claims of this process, by the claim's sequence.
    held: Mutex<HashMap<i64, Message>>,
    abandoned: Mutex<Vec<Abandoned>>,
}

/// The copy of the states, and who is told of changes.
#[derive(Default)]
pub(crate) struct Copy {
    mirror: Mutex<Mirror>,
    wakes: Mutex<Vec<Wake>>,
    /// Jobs that were seen to end, for those who tell it.
    ended: Mutex<Vec<String>>,
}

impl Copy {
    pub(crate) fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The jobs that were seen to end since it was asked last.
    pub(crate) fn take_ended(&self) -> Vec<String> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a state over, and notes whether the job ended by it.
    fn note(&self, id: &str, known: Known) {
        let has_ended = known.state.phase == Phase::Finished;
        let mut mirror = self.mirror();
        let ran = mirror.jobs.get(id).is_some_and(|old| old.state.phase != Phase::Finished);
        mirror.note(id, known);
        drop(mirror);
        if has_ended && ran {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            if ended.len() < MOST_ENDED {
                ended.push(id.to_owned());
            }
        }
    }

    fn wake(&self) {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
    }
}

/// A state that was read, with its revision; 0 for none. A deleted one is `None` with a revision.
type Found = (Option<State>, u64);

impl NatsStore {
    /// Opens the queue of a pool, which is made if it is new.
    ///
    /// # Errors
    /// The server cannot be reached, refuses us, or another version made the queue.
    pub fn open(config: &ClusterConfig) -> Result<NatsStore, Error> {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let threads =
            threads.worker_threads(1).thread_name("queue").enable_all().build().map_err(Error::Threads)?;
        let connection = Arc::new(threads.block_on(Connection::open(config))?);
        let shared = Arc::<Copy>::default();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        threads.spawn(follow(Arc::clone(&connection), Arc::clone(&shared), ready));
        // The entry of the protocol is always there, so the first round always ends.
        let waited =
            threads.block_on(async { tokio::time::timeout(Duration::from_secs(10), is_ready).await });
        if !matches!(waited, Ok(Ok(()))) {
            return Err(Error::request("tell its jobs", "no answer in 10 s"));
        }
        let ticking = Arc::downgrade(&shared);
        threads.spawn(async move {
            loop {
                tokio::time::sleep(LOOK_INTERVAL).await;
                let Some(shared) = ticking.upgrade() else { return };
                if shared.mirror().remaining() > 0 {
                    shared.wake();
                }
            }
        });
        let (held, abandoned) = (Mutex::default(), Mutex::default());
        Ok(NatsStore { threads, connection, shared, held, abandoned })
    }

    /// The reasons of jobs that were given up, by id.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn dead_letter(&self, id: &str) -> Result<Option<String>, Error> {
        let found = self.threads.block_on(self.connection.states.get(format!("dead.{id}")));
        let found = found.map_err(|error| Error::request("give a dead letter", error))?;
        Ok(found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn held(&self) -> MutexGuard<'_, HashMap<i64, Message>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn found(&self, id: &str) -> Result<Found, Error> {
        let entry = self.connection.states.entry(format!("job.{id}")).await;
        let Some(entry) = entry.map_err(|error| Error::request("give the state of a job", error))? else {
            return Ok((None, 0));
        };
        let state = (entry.operation == Operation::Put).then(|| serde_json::from_slice(&entry.value));
        let state = state.transpose().map_err(|error| Error::request("give a readable state", error))?;
        Ok((state, entry.revision))
    }

    /// Changes a state from a known revision; the copy has it at once.
    async fn change(&self, id: &str, state: &State, revision: u64) -> Result<u64, Error> {
        let key = format!("job.{id}");
        let changed = self.connection.states.update(key, state.bytes().into(), revision).await;
        let revision = changed.map_err(|error| Error::request("change the state of a job", error))?;
        if let Ok(known) = Known::new(state.clone(), revision) {
            self.shared.note(id, known);
        }
        Ok(revision)
    }

    async fn send(&self, job: &Job) -> Result<(), Error> {
        let text = engine::job_text(job);
        let message = PublishMessage::build().message_id(&job.prompt_id).payload(text.clone().into());
        let sent = self.connection.jetstream.send_publish(self.connection.subject.clone(), message).await;
        let sent = sent.map_err(|error| Error::request("take a job", error))?;
        sent.await.map_err(|error| Error::request("take a job", error))?;
        // A worker may have it already: then the state is there, and newer than this one.
        match self.change(&job.prompt_id, &State::waiting(text), 0).await {
            Err(error) if matches!(self.found(&job.prompt_id).await?, (_, 0)) => Err(error),
            _ => Ok(()),
        }
    }

    async fn next_message(&self) -> Result<Option<Message>, Error> {
        let failed = |why: String| Error::Request { what: "deliver a job", why };
        let batch = self.connection.consumer.fetch().max_messages(1).messages().await;
        let mut batch = batch.map_err(|error| failed(error.to_string()))?;
        // A server that goes away after it was asked never says that there is nothing.
        let next = tokio::time::timeout(FETCH_PATIENCE, batch.next()).await;
        let next = next.map_err(|_| failed(format!("no answer in {} s", FETCH_PATIENCE.as_secs())))?;
        next.transpose().map_err(|error| failed(error.to_string()))
    }

    /// Makes a delivered message a claim; none if its job is over, or was given up.
    async fn take(&self, message: Message, worker: &WorkerName) -> Result<Option<(Claim, Message)>, Error> {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        let Ok(job) = engine::read_job(&text) else {
            tracing::error!("a message of the queue is no job and is dropped");
            acknowledge(&message, AckKind::Term).await;
            return Ok(None);
        };
        let sequence = message.info().map_or(0, |info| info.stream_sequence.cast_signed());
        let (state, revision) = self.found(&job.prompt_id).await?;
        let mut state = match state {
            None if revision == 0 => State::waiting(text),
            Some(state) if state.phase != Phase::Finished => state,
            // It was taken out of the queue, or ended; only the acknowledgement was lost.
            _ => {
                acknowledge(&message, AckKind::Ack).await;
                return Ok(None);
            }
        };
        if state.phase == Phase::Claimed {
            state.losses += 1;
            let lost = state.worker.as_deref().unwrap_or("unknown");
            tracing::warn!("worker {lost} has not renewed its claim of job {} in time", job.prompt_id);
        }
        if state.losses >= MOST_LOSSES {
            self.give_up(&job.prompt_id, state, revision).await?;
            acknowledge(&message, AckKind::Ack).await;
            return Ok(None);
        }
        state.phase = Phase::Claimed;
        state.attempt += 1;
        state.worker = Some(worker.0.to_string());
        self.change(&job.prompt_id, &state, revision).await?;
        let job = Job { was_requeued: state.attempt > 1, ..job };
        let claim = Claim { sequence, attempt: state.attempt, worker: worker.clone(), job: Arc::new(job) };
        Ok(Some((claim, message)))
    }

    /// Records a job as failed whose workers were lost, and keeps the reason.
    async fn give_up(&self, id: &str, mut state: State, revision: u64) -> Result<(), Error> {
        let record = lost_record(state.losses, state.worker.as_deref().unwrap_or("unknown"));
        state.phase = Phase::Finished;
        state.worker = None; // the last worker, if it comes back, must not take this end for its own
        state.record = Some(engine::record_text(id, &record));
        self.change(id, &state, revision).await?;
        let reason = record.messages.iter().find_map(|message| match &message.milestone {
            Milestone::Failed(failure) => Some(failure.message.clone()),
            _ => None,
        });
        let kept = self.connection.states.put(format!("dead.{id}"), reason.unwrap_or_default().into()).await;
        kept.map_err(|error| Error::request("keep a dead letter", error))?;
        if let Ok(job) = engine::read_job(&state.job) {
            let abandoned = Abandoned { job: Arc::new(job), record };
            self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(abandoned);
        }
        self.shared.wake();
        Ok(())
    }

    /// Ends a claim with a new state; whether it was still the worker's. Tries again what cannot be known.
    async fn end(&self, claim: &Claim, to: impl Fn(State) -> State) -> Result<bool, Error> {
        let (id, worker) = (&claim.job.prompt_id, &claim.worker.0);
        let (state, revision) = self.found(id).await?;
        let Some(state) = state.filter(|state| state.is_of(worker, claim.attempt)) else { return Ok(false) };
        if !state.is_held_by(worker, claim.attempt) {
            return Ok(true); // it was kept by a try whose answer was lost
        }
        self.change(id, &to(state), revision).await.map(|_| true)
    }

    async fn remove(&self, id: &str, is_waiting_only: bool) -> Result<bool, Error> {
        let (state, revision) = self.found(id).await?;
        let Some(state) = state else { return Ok(false) };
        if (state.phase == Phase::Waiting) != is_waiting_only {
            return Ok(false);
        }
        let key = format!("job.{id}");
        if self.connection.states.delete_expect_revision(key, Some(revision)).await.is_err() {
            return Ok(false); // somebody was faster
        }
        self.shared.mirror().jobs.remove(id);
        Ok(true)
    }
}

impl JobStore for NatsStore {
    fn take_number(&self, chosen: Option<f64>, front: bool) -> f64 {
        if let Some(chosen) = chosen {
            return chosen;
        }
        let mut mirror = self.shared.mirror();
        let number = mirror.counter;
        mirror.counter += 1.0;
        if front { -number } else { number }
    }

    fn submit(&self, job: Job) -> Result<(), engine::Error> {
        self.threads.block_on(self.send(&job))?;
        self.shared.wake();
        Ok(())
    }

    fn claim_chosen(
        &self,
        worker: &WorkerName,
        _lease: Duration,
        choose: &mut dyn FnMut(&Job) -> Choice,
    ) -> Result<Option<Claim>, engine::Error> {
        if self.shared.mirror().remaining() == 0 {
            return Ok(None);
        }
        while let Some(message) = self.threads.block_on(self.next_message())? {
            let chosen = engine::read_job(&String::from_utf8_lossy(&message.payload)).map(|job| choose(&job));
            if !matches!(chosen, Ok(Choice::Take) | Err(_)) {
                self.threads.block_on(acknowledge(&message, AckKind::Nak(Some(PAUSE))));
                return Ok(None);
            }
            if let Some((claim, message)) = self.threads.block_on(self.take(message, worker))? {
                self.held().insert(claim.sequence, message);
                return Ok(Some(claim));
            }
        }
        Ok(None)
    }

    fn heartbeat(&self, claim: &Claim, _lease: Duration) -> Result<bool, engine::Error> {
        let is_ours = self.shared.mirror().jobs.get(&claim.job.prompt_id).is_none_or(|known| {
            known.state.attempt < claim.attempt || known.state.is_held_by(&claim.worker.0, claim.attempt)
        });
        let Some(message) = self.held().get(&claim.sequence).filter(|_| is_ours).cloned() else {
            return Ok(false);
        };
        if self.connection.client.connection_state() != connection::State::Connected {
            return Err(Error::request("renew a claim", "there is no connection").into());
        }
        self.threads.block_on(acknowledge(&message, AckKind::Progress));
        Ok(true)
    }

    fn release(&self, claim: &Claim) -> Result<(), engine::Error> {
        self.threads.block_on(self.end(claim, |state| State { phase: Phase::Waiting, ..state }))?;
        let message = self.held().remove(&claim.sequence);
        if let Some(message) = message {
            self.threads.block_on(acknowledge(&message, AckKind::Nak(None)));
        }
        Ok(())
    }

    fn finish(&self, claim: &Claim, record: &Record) -> Result<bool, engine::Error> {
        let text = engine::record_text(&claim.job.prompt_id, record);
        let ended = |state: State| State { phase: Phase::Finished, record: Some(text.clone()), ..state };
        let until = Instant::now() + FINISH_PATIENCE;
        let kept = loop {
            match self.threads.block_on(self.end(claim, ended)) {
                Err(error) if Instant::now() < until => {
                    tracing::warn!("the end of job {} is not kept yet: {error}", claim.job.prompt_id);
                    std::thread::sleep(PAUSE);
                }
                kept => break kept,
            }
        };
        let message = self.held().remove(&claim.sequence);
        if let (Ok(true), Some(message)) = (&kept, message) {
            self.threads.block_on(acknowledge(&message, AckKind::Ack));
        }
        Ok(kept?)
    }

    fn redeliver(&self) -> Result<Vec<Abandoned>, engine::Error> {
        // The server delivers again what is not acknowledged in time.
        Ok(std::mem::take(&mut *self.abandoned.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn cancel(&self, ids: Option<&[String]>) -> Result<usize, engine::Error> {
        let waiting: Vec<String> = match ids {
            Some(ids) => ids.to_vec(),
            None => self.queue().pending.iter().map(|job| job.prompt_id.clone()).collect(),
        };
        let mut count = 0;
        for id in &waiting {
            count += usize::from(self.threads.block_on(self.remove(id, true))?);
        }
        Ok(count)
    }

    fn remaining(&self) -> usize {
        self.shared.mirror().remaining()
    }

    fn queue(&self) -> QueueView {
        self.shared.mirror().queue()
    }

    fn find(&self, id: &str) -> Result<Option<JobRecord>, engine::Error> {
        Ok(self.shared.mirror().jobs.get(id).map(Known::shown))
    }

    fn list(&self, filter: &JobFilter) -> Result<JobPage, engine::Error> {
        let mirror = self.shared.mirror();
        let mut found: Vec<&Known> = mirror.jobs.values().filter(|known| is_wanted(known, filter)).collect();
        let duration = |known: &Known| known.record.as_ref().map_or(0, Record::duration_ms);
        match filter.sort_by {
            SortBy::Created => found.sort_by_key(|known| (known.job.created(), known.revision)),
            SortBy::Duration => found.sort_by_key(|known| (duration(known), known.revision)),
        }
        if !filter.ascending {
            found.reverse();
        }
        let total = found.len();
        let page = found.into_iter().skip(filter.offset).take(filter.limit.unwrap_or(usize::MAX));
        Ok(JobPage { jobs: page.map(Known::shown).collect(), total })
    }

    fn history(&self, max: Option<usize>, offset: Option<usize>) -> Result<Vec<HistoryEntry>, engine::Error> {
        let mirror = self.shared.mirror();
        let finished = mirror.finished();
        let from = match (max, offset) {
            (Some(max), None) => finished.len().saturating_sub(max),
            (_, offset) => offset.unwrap_or(0),
        };
        let wanted = finished.into_iter().skip(from).take(max.unwrap_or(usize::MAX));
        Ok(wanted.filter_map(Known::entry).collect())
    }

    fn finished(&self, id: &str) -> Result<Option<(JobStatus, HistoryEntry)>, engine::Error> {
        let mirror = self.shared.mirror();
        Ok(mirror.jobs.get(id).and_then(|known| Some((known.status(), known.entry()?))))
    }

    fn forget(&self, ids: Option<&[String]>) -> Result<(), engine::Error> {
        let ids = ids.map_or_else(
            || self.shared.mirror().finished().iter().map(|known| known.job.prompt_id.clone()).collect(),
            <[String]>::to_vec,
        );
        for id in ids.iter().filter(|id| matches!(self.finished(id), Ok(Some(_)))) {
            self.threads.block_on(self.remove(id, false))?;
        }
        Ok(())
    }

    fn watch(&self, wake: Wake) {
        self.shared.wakes.lock().unwrap_or_else(PoisonError::into_inner).push(wake);
    }
}

fn is_wanted(known: &Known, filter: &JobFilter) -> bool {
    let workflow = filter.workflow_id.as_deref();
    (filter.statuses.is_empty() || filter.statuses.contains(&known.status()))
        && (workflow.is_none() || workflow == known.job.workflow_id())
}

/// Tells the server about a message. If that is lost, the message comes again and is seen to be over.
async fn acknowledge(message: &Message, kind: AckKind) {
    if let Err(error) = message.ack_with(kind).await {
        tracing::warn!("an acknowledgement was not sent: {error}");
    }
}

/// Keeps the copy up to date, for as long as the store is there; `ready` is told once it has all.
async fn follow(connection: Arc<Connection>, shared: Arc<Copy>, ready: tokio::sync::oneshot::Sender<()>) {
    let mut ready = Some(ready);
    loop {
        match connection.states.watch_with_history(">").await {
            Ok(mut watch) => {
                while let Some(entry) = watch.next().await {
                    let Ok(entry) = entry else { break };
                    if let Some(id) = entry.key.strip_prefix("job.") {
                        note(&shared, id, &entry);
                    }
                    if entry.seen_current
                        && let Some(ready) = ready.take()
                    {
                        let _ = ready.send(()); // whoever opened it may be gone
                    }
                }
            }
            Err(error) => tracing::warn!("the states of jobs cannot be followed now: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn note(shared: &Copy, id: &str, entry: &async_nats::jetstream::kv::Entry) {
    if entry.operation != Operation::Put {
        shared.mirror().jobs.remove(id);
    } else {
        let known = serde_json::from_slice::<State>(&entry.value).ok();
        match known.map(|state| Known::new(state, entry.revision)) {
            Some(Ok(known)) => shared.note(id, known),
            _ => tracing::error!("the state of job {id} cannot be read"),
        }
    }
    shared.wake();
}

/// The record of a job whose workers were lost.
fn lost_record(losses: u32, last: &str) -> Record {
    let message = format!(
        "{losses} workers were lost while this job was running, the last of them {last}, so it is not run again; \
         their logs may say why. Queue it again to try once more"
    );
    let failure = JobFailure {
        node: "".into(),
        class: String::new(),
        kind: "WorkerLost".to_owned(),
        message,
        executed: Vec::new(),
        trace: Vec::new(),
        inputs: graph::Map::new(),
        outputs: Vec::new(),
    };
    let failed = engine::Message { at_ms: engine::now_ms(), milestone: Milestone::Failed(Box::new(failure)) };
    Record {
        status: JobStatus::Failed,
        outputs: Default::default(),
        identities: Default::default(),
        messages: vec![failed],
        worker: None,
    }
}
