//! What callers and the worker share: the store, the worker's turn, and who is told.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use graph::{Catalogue, Literal, Map};
use residency::{FreeFlags, FreeRequest};
use runtime::Runtime;

use crate::event::{Event, EventSink, JobEvent};
use crate::job::Job;
use crate::observer::JobObserver;
use crate::queue::{AcceptedJob, Refused, RunningJob, Submission, Turn, checked_id};
use crate::store::{Abandoned, Claim, JobStore, WorkerName};
use crate::{SECRET_KEYS, now_ms};

/// How long the worker waits after the store did not answer.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// What callers and the worker share. The store is changed before anyone is told.
pub(crate) struct Shared {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) store: Arc<dyn JobStore>,
    /// The name under which the worker claims jobs, and for how long.
    worker: WorkerName,
    lease: Duration,
    turn: Arc<Wakeable>,
    /// Held from a change of the queue until it is told, so that changes are told in their order. It is
    /// taken before the turn is locked, and the turn is not locked any more while others are told.
    telling: Mutex<()>,
    free: FreeFlags,
}

/// The worker's turn, and how those who wait for a change of it are woken.
#[derive(Default)]
struct Wakeable {
    turn: Mutex<Turn>,
    /// Told when there may be something for the worker.
    wake: Condvar,
    /// Told when a job begins, and when the worker ends.
    beat: Condvar,
}

impl Wakeable {
    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_waiting(&self) {
        self.lock().note_waiting();
        self.wake.notify_one();
    }
}

/// What the worker does next.
pub(crate) enum Task {
    /// Free memory.
    Free(FreeRequest),
    /// Run a job.
    Run(RunningJob),
    /// There is nothing to do, and the time to look after things has come.
    Idle,
    /// End.
    Stop,
}

impl Shared {
    pub(crate) fn new(
        catalogue: Arc<Catalogue>,
        runtime: Arc<Runtime>,
        sink: Arc<dyn EventSink>,
        store: Arc<dyn JobStore>,
        lease: Duration,
    ) -> Shared {
        let turn = Arc::<Wakeable>::default();
        let waking = Arc::downgrade(&turn);
        store.watch(Box::new(move || {
            if let Some(turn) = waking.upgrade() {
                turn.note_waiting();
            }
        }));
        // What the store has from before waits already.
        turn.note_waiting();
        let (telling, free, worker) = (Mutex::default(), FreeFlags::default(), WorkerName::new());
        Shared { catalogue, runtime, sink, store, worker, lease, turn, telling, free }
    }

    /// The worker's turn, locked.
    pub(crate) fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock()
    }

    pub(crate) fn submit(&self, submission: Submission) -> Result<AcceptedJob, Refused> {
        let number = self.store.take_number(submission.number, submission.front);
        let mut prompt = submission.prompt.ok_or_else(Refused::no_prompt)?;
        let prompt_id = checked_id(submission.prompt_id)?;
        let accepted = graph::validate(&self.catalogue, &mut prompt, submission.targets.as_deref())
            .map_err(|rejected| Refused::Invalid(Box::new(rejected)))?;
        let mut extra_data = submission.extra_data;
        let secrets = take_secrets(&mut extra_data);
        if let Some(client) = &submission.client_id {
            extra_data.insert("client_id".to_owned(), client.as_str().into());
        }
        let client_id = extra_data.get("client_id").and_then(Literal::as_text).map(str::to_owned);
        extra_data.insert("create_time".to_owned(), now_ms().into());
        let job = Job {
            number,
            prompt_id: prompt_id.clone(),
            prompt: Arc::new(prompt),
            extra_data,
            secrets,
            outputs: accepted.outputs,
            client_id,
            was_requeued: false,
        };
        let nodes = job.prompt.nodes.len();
        self.try_change_queue(|| self.store.submit(job).map(Some)).map_err(Refused::Storage)?;
        tracing::info!("got prompt {prompt_id}: {nodes} nodes");
        Ok(AcceptedJob { prompt_id, number, node_errors: accepted.node_errors })
    }

    /// Takes jobs that wait out of the queue, those named or all. How many were found.
    pub(crate) fn delete_pending(&self, ids: Option<&[String]>) -> usize {
        let removed = self.change_queue(|| match self.store.cancel(ids) {
            Ok(0) if ids.is_some() => None,
            Ok(count) => Some(count),
            Err(error) => {
                tracing::error!("jobs cannot be taken out of the queue: {error}");
                None
            }
        });
        removed.unwrap_or(0)
    }

    pub(crate) fn free(&self, request: FreeRequest) {
        self.free.request(request);
        self.turn().request_free();
        self.turn.wake.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.turn().stop();
        self.turn.wake.notify_one();
    }

    /// The worker has ended.
    pub(crate) fn note_over(&self) {
        self.turn().note_over();
        self.turn.beat.notify_all();
    }

    /// Waits for the worker's next task; at `idle_at`, being idle is one.
    pub(crate) fn next_task(&self, idle_at: Option<Instant>) -> Task {
        loop {
            if !self.wait_for_task(idle_at) {
                return Task::Idle;
            }
            if let Some(task) = self.take_task() {
                return task;
            }
        }
    }

    /// Whether there is a task before `idle_at`. Nobody tells that the lease of another worker ran out, so the store is
    /// asked as often as that can happen.
    fn wait_for_task(&self, idle_at: Option<Instant>) -> bool {
        let look_at = Instant::now() + self.lease;
        let mut turn = self.turn();
        while !turn.has_task() {
            let now = Instant::now();
            if idle_at.is_some_and(|idle_at| idle_at <= now) {
                return false;
            }
            if look_at <= now {
                turn.note_waiting();
                return true;
            }
            let until = idle_at.map_or(look_at, |idle_at| idle_at.min(look_at));
            let left = until.saturating_duration_since(now);
            turn = self.turn.wake.wait_timeout(turn, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// What is to be done first, if it was not taken away meanwhile: memory is freed between two jobs.
    fn take_task(&self) -> Option<Task> {
        if self.turn().is_stopping() {
            return Some(Task::Stop);
        }
        if self.turn().take_free_request() {
            return self.free.take().map(Task::Free);
        }
        if !self.turn().take_waiting() {
            return None;
        }
        match self.store.redeliver() {
            Ok(abandoned) => abandoned.iter().for_each(|abandoned| self.tell_abandoned(abandoned)),
            Err(error) => tracing::error!("jobs of lost workers stay with them: {error}"),
        }
        match self.try_change_queue(|| self.claim()) {
            Ok(running) => running.map(Task::Run),
            Err(error) => {
                tracing::error!("no job can be taken now, so the queue waits: {error}");
                std::thread::sleep(STORE_PATIENCE);
                self.turn().note_waiting();
                None
            }
        }
    }

    /// Takes the first job, which runs from now on.
    fn claim(&self) -> Result<Option<RunningJob>, crate::Error> {
        let Some(claim) = self.store.claim(&self.worker, self.lease)? else { return Ok(None) };
        let observer = Arc::new(JobObserver::new(&claim.job, Arc::clone(&self.sink)));
        let mut turn = self.turn();
        let running = turn.begin(&claim, observer);
        // More may wait behind it.
        turn.note_waiting();
        drop(turn);
        if running.is_none() {
            self.release(&claim);
        }
        self.turn.beat.notify_all();
        Ok(running)
    }

    /// Gives a job back because the engine ends.
    pub(crate) fn release(&self, claim: &Claim) {
        if let Err(error) = self.store.release(claim) {
            let id = &claim.job.prompt_id;
            tracing::error!("job {id} counts as one during which the process ended: {error}");
        }
    }

    /// The running job is over.
    pub(crate) fn end_running(&self) {
        self.turn().end();
        self.change_queue(|| Some(()));
    }

    /// Renews the claim of the job that runs, for as long as the worker lives.
    pub(crate) fn keep_claims(&self) {
        let mut turn = self.turn();
        while !turn.is_over() {
            if turn.claim().is_none() {
                turn = self.turn.beat.wait(turn).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (after, waited) =
                self.turn.beat.wait_timeout(turn, self.lease / 3).unwrap_or_else(PoisonError::into_inner);
            let due = after.claim().filter(|_| waited.timed_out()).cloned();
            drop(after);
            if let Some(claim) = due {
                self.renew(&claim);
            }
            turn = self.turn();
        }
    }

    fn renew(&self, claim: &Claim) {
        match self.store.heartbeat(claim, self.lease) {
            Ok(true) => {}
            Ok(false) => self.turn().lose(claim),
            Err(error) => tracing::error!("the claim of job {} is not renewed: {error}", claim.job.prompt_id),
        }
    }

    /// Tells of a job that was lost too often that it ended.
    fn tell_abandoned(&self, Abandoned { job, record }: &Abandoned) {
        let observer = JobObserver::new(job, Arc::clone(&self.sink));
        for message in &record.messages {
            observer.tell(JobEvent::Message(message.clone()));
        }
        self.change_queue(|| Some(()));
        observer.tell(JobEvent::Ended { last: None });
    }

    /// Changes the queue and tells that it changed; what gives `None` changes nothing.
    fn change_queue<T>(&self, change: impl FnOnce() -> Option<T>) -> Option<T> {
        let changed: Result<Option<T>, std::convert::Infallible> = self.try_change_queue(|| Ok(change()));
        let Ok(changed) = changed;
        changed
    }

    /// The same for what may fail, and then changes nothing.
    fn try_change_queue<T, E>(&self, change: impl FnOnce() -> Result<Option<T>, E>) -> Result<Option<T>, E> {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change()?;
        if changed.is_some() {
            self.sink.event(Event::Queue { remaining: self.store.remaining() });
        }
        Ok(changed)
    }
}

/// Takes out what is never echoed.
fn take_secrets(extra_data: &mut Map) -> Map {
    let take = |key: &&str| Some(((*key).to_owned(), extra_data.shift_remove(*key)?));
    SECRET_KEYS.iter().filter_map(take).collect()
}
