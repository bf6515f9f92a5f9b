//! The store: what callers ask is answered from a copy of the states; what they change is changed on the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::connection;
use async_nats::jetstream::kv::{Entry, Operation};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{AckKind, Message};
use engine::{
    Abandoned, Choice, Claim, HistoryEntry, Job, JobFilter, JobPage, JobRecord, JobStatus, JobStore,
    QueueView, Record, SortBy, Wake, WorkerName,
};
use futures_util::StreamExt;
use tokio::runtime::Runtime;

use crate::claims;
use crate::connection::{Choosing, ClusterConfig, Connection};
use crate::error::Error;
use crate::registry::Holdings;
use crate::scene::{self, Workers};
use crate::state::{Known, Mirror, Phase, State};

/// Jobs that ended and nobody asked for.
const MOST_ENDED: usize = 100_000;
/// How long the end of a job is tried to be kept while the server is away.
pub(crate) const FINISH_PATIENCE: Duration = Duration::from_secs(600);
/// Time between two looks for jobs of lost workers.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(500);
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
    pub(crate) choosing: Choosing,
    pub(crate) lease: Duration,
    /// How many jobs that ended are remembered.
    history: usize,
    /// What this process is called among the workers, if it is one.
    own: Mutex<Option<String>>,
    /// Says what this worker holds.
    pub(crate) holdings: Mutex<Option<Arc<dyn Fn() -> Holdings + Send + Sync>>>,
    /// When the jobs of lost workers were looked for last.
    pub(crate) looked: Mutex<Instant>,
}

/// The copy of the states, and who is told of changes.
#[derive(Default)]
pub(crate) struct Copy {
    mirror: Mutex<Mirror>,
    workers: Mutex<Workers>,
    wakes: Mutex<Vec<Wake>>,
    /// Jobs that were seen to end, for those who tell it.
    ended: Mutex<Vec<String>>,
}

impl Copy {
    pub(crate) fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(crate) fn wake(&self) {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
    }
}

/// A state that was read, with its revision; 0 for none. A deleted one is `None` with a revision.
pub(crate) type Found = (Option<State>, u64);

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
        threads.spawn(follow_workers(Arc::clone(&connection), Arc::clone(&shared)));
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
        Ok(NatsStore {
            threads,
            connection,
            shared,
            held: Mutex::default(),
            abandoned: Mutex::default(),
            choosing: config.choosing,
            lease: config.lease,
            history: config.history,
            own: Mutex::default(),
            holdings: Mutex::default(),
            looked: Mutex::new(Instant::now()),
        })
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

    pub(crate) fn held(&self) -> MutexGuard<'_, HashMap<i64, Message>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn own(&self) -> MutexGuard<'_, Option<String>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn abandon(&self, abandoned: Abandoned) {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(abandoned);
    }

    /// A state of the copy, which may be old.
    pub(crate) fn seen(&self, id: &str) -> Option<(State, u64)> {
        self.shared.mirror().jobs.get(id).map(|known| (known.state.clone(), known.revision))
    }

    pub(crate) async fn found(&self, id: &str) -> Result<Found, Error> {
        let entry = self.connection.states.entry(format!("job.{id}")).await;
        let Some(entry) = entry.map_err(|error| Error::request("give the state of a job", error))? else {
            return Ok((None, 0));
        };
        let state = (entry.operation == Operation::Put).then(|| serde_json::from_slice(&entry.value));
        let state = state.transpose().map_err(|error| Error::request("give a readable state", error))?;
        Ok((state, entry.revision))
    }

    /// Changes a state from a known revision; the copy has it at once.
    pub(crate) async fn change(&self, id: &str, state: &State, revision: u64) -> Result<u64, Error> {
        let key = format!("job.{id}");
        let changed = self.connection.states.update(key, state.bytes().into(), revision).await;
        let revision = changed.map_err(|error| Error::request("change the state of a job", error))?;
        if let Ok(known) = Known::new(state.clone(), revision) {
            self.shared.note(id, known);
        }
        Ok(revision)
    }

    async fn send(&self, job: &Job) -> Result<(), Error> {
        let mut state = State::waiting(engine::job_text(job));
        {
            let workers = self.shared.workers();
            state.models = workers.models_of(&job.prompt);
            if !state.models.is_empty() {
                state.first_come_s = scene::first_come_s(&self.shared.mirror(), &workers, &state.models);
            }
        }
        let id = &job.prompt_id;
        let was_known = self.enqueue(id, &state).await?;
        let Err(error) = self.change(id, &state, 0).await else { return Ok(()) };
        match self.found(id).await? {
            // It was sent before, or a worker has it already: then this state is older.
            (Some(_), _) => Ok(()),
            (None, 0) => Err(error),
            // It was taken out of the queue and is sent anew; the message of then may be gone.
            (None, revision) => {
                self.change(id, &state, revision).await?;
                if was_known {
                    self.enqueue(&format!("{id}/{revision}"), &state).await?;
                }
                Ok(())
            }
        }
    }

    /// Puts a job's message into the stream; whether one of that name was there before.
    async fn enqueue(&self, name: &str, state: &State) -> Result<bool, Error> {
        let failed = |why: String| Error::Request { what: "take a job", why };
        let message = PublishMessage::build().message_id(name).payload(state.job.clone().into());
        let message = message.header(claims::POOL_HEADER, self.connection.pool.as_str());
        let subject = self.connection.subject(&claims::key_of(&state.models));
        let sent = self.connection.jetstream.send_publish(subject, message).await;
        let taken = sent.map_err(|error| failed(error.to_string()))?.await;
        Ok(taken.map_err(|error| failed(error.to_string()))?.duplicate)
    }

    /// Ends a claim with a new state; whether it was still the worker's. Tries again what cannot be known.
    async fn end(&self, claim: &Claim, to: impl Fn(State) -> State) -> Result<bool, Error> {
        let (id, worker) = (&claim.job.prompt_id, &claim.worker.0);
        // The copy has what this process changed last; where it is old, the server refuses the change.
        if let Some((state, revision)) =
            self.seen(id).filter(|(state, _)| state.is_held_by(worker, claim.attempt))
            && self.change(id, &to(state), revision).await.is_ok()
        {
            return Ok(true);
        }
        let (state, revision) = self.found(id).await?;
        let Some(state) = state.filter(|state| state.is_of(worker, claim.attempt)) else { return Ok(false) };
        if !state.is_held_by(worker, claim.attempt) {
            return Ok(true); // it was kept by a try whose answer was lost
        }
        self.change(id, &to(state), revision).await.map(|_| true)
    }

    /// Drops the oldest records beyond those that are kept.
    fn drop_oldest(&self) {
        let oldest = self.shared.mirror().oldest(self.history);
        for id in oldest {
            let dropped = self.threads.block_on(async {
                // Where there is none, there is nothing to be deleted.
                let _ = self.connection.states.delete(format!("dead.{id}")).await;
                self.remove(&id, false).await
            });
            if let Err(error) = dropped {
                tracing::warn!("the record of job {id} stays: {error}");
            }
        }
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
        self.shared.mirror().remove(id);
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
        Ok(self.next_claim(worker, choose)?)
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
            self.drop_oldest();
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
pub(crate) async fn acknowledge(message: &Message, kind: AckKind) {
    if let Err(error) = message.ack_with(kind).await {
        tracing::warn!("an acknowledgement was not sent: {error}");
    }
}

/// Listens to what workers say of themselves.
async fn follow_workers(connection: Arc<Connection>, shared: Arc<Copy>) {
    loop {
        match connection.workers.watch_with_history(">").await {
            Ok(mut watch) => {
                while let Some(Ok(entry)) = watch.next().await {
                    let Some(name) = entry.key.strip_prefix("worker.") else { continue };
                    match entry.operation {
                        Operation::Put => match serde_json::from_slice(&entry.value) {
                            Ok(said) => shared.workers().note(said),
                            Err(error) => tracing::warn!("what worker {name} says cannot be read: {error}"),
                        },
                        _ => shared.workers().forget(name),
                    }
                }
            }
            Err(error) => tracing::warn!("workers cannot be followed now: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Keeps the copy up to date, for as long as the store is there; `ready` is told once it has all.
async fn follow(connection: Arc<Connection>, shared: Arc<Copy>, ready: tokio::sync::oneshot::Sender<()>) {
    let mut ready = Some(ready);
    loop {
        match connection.states.watch_with_history(">").await {
            Ok(mut watch) => {
                let mut is_new = false;
                while let Some(entry) = watch.next().await {
                    let Ok(entry) = entry else { break };
                    if let Some(id) = entry.key.strip_prefix("job.") {
                        note(&shared, id, &entry, is_new);
                    }
                    is_new |= entry.seen_current;
                    if is_new && let Some(ready) = ready.take() {
                        let _ = ready.send(()); // whoever opened it may be gone
                    }
                }
            }
            Err(error) => tracing::warn!("the states of jobs cannot be followed now: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn note(shared: &Copy, id: &str, entry: &Entry, is_new: bool) {
    if entry.operation != Operation::Put {
        shared.mirror().remove(id);
    } else {
        let known = serde_json::from_slice::<State>(&entry.value).ok();
        match known.map(|state| Known::new(state, entry.revision)) {
            Some(Ok(known)) if is_new => shared.note(id, known),
            Some(Ok(known)) => shared.note(id, known.aged()),
            _ => tracing::error!("the state of job {id} cannot be read"),
        }
    }
    shared.wake();
}
