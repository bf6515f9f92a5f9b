//! What callers and the workers share: the store, the workers' turn, and who is told.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use graph::{Catalogue, Literal, Map};
use meta::DeviceId;
use residency::{FreeFlags, FreeRequest};
use runtime::Runtime;

use crate::event::{Event, EventSink, JobEvent};
use crate::job::Job;
use crate::observer::JobObserver;
use crate::place::{Chooser, JobPlace, NamedDevices};
use crate::queue::{AcceptedJob, Refused, Submission, checked_id};
use crate::store::{Abandoned, Choice, Claim, JobStore, WorkerName};
use crate::turn::{RunningJob, Step, Turn};
use crate::{SECRET_KEYS, now_ms};

/// How long the worker waits after the store did not answer.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// What callers and the workers share. The store is changed before anyone is told.
pub(crate) struct Shared {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) store: Arc<dyn JobStore>,
    /// The names under which workers claim jobs, and for how long.
    names: Vec<WorkerName>,
    lease: Duration,
    crew: Crew,
    turn: Arc<Wakeable>,
    /// Held from a change of the queue until it is told, so that changes are told in their order. It is
    /// taken before the turn is locked, and the turn is not locked any more while others are told.
    telling: Mutex<()>,
    free: FreeFlags,
}

/// The workers, and what they must know to share devices.
pub(crate) struct Crew {
    /// Where each computes.
    pub(crate) devices: Vec<DeviceId>,
    /// Which devices a prompt names.
    pub(crate) named: Option<NamedDevices>,
    /// What they are called in the store.
    pub(crate) name: Option<String>,
}

impl Crew {
    fn worker_name(&self, device: DeviceId) -> WorkerName {
        match &self.name {
            None => WorkerName::new(),
            Some(name) if self.devices.len() == 1 => WorkerName(name.as_str().into()),
            Some(name) => WorkerName(format!("{name}/{device}").into()),
        }
    }
}

/// The workers' turn, and how those who wait for a change of it are woken.
struct Wakeable {
    turn: Mutex<Turn>,
    /// Told when there may be something for a worker.
    wake: Condvar,
    /// Told when a job begins, and when a worker ends.
    beat: Condvar,
}

impl Wakeable {
    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_waiting(&self) {
        self.lock().note_waiting();
        self.wake.notify_all();
    }
}

/// What a worker does next.
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
        (crew, lease): (Crew, Duration),
    ) -> Shared {
        let turn = Mutex::new(Turn::new(crew.devices.len()));
        let turn = Arc::new(Wakeable { turn, wake: Condvar::new(), beat: Condvar::new() });
        let waking = Arc::downgrade(&turn);
        store.watch(Box::new(move || {
            if let Some(turn) = waking.upgrade() {
                turn.note_waiting();
            }
        }));
        // What the store has from before waits already.
        turn.note_waiting();
        let (telling, free) = (Mutex::default(), FreeFlags::default());
        let names = crew.devices.iter().map(|device| crew.worker_name(*device)).collect();
        Shared { catalogue, runtime, sink, store, names, lease, crew, turn, telling, free }
    }

    /// The workers' turn, locked.
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
        self.turn.wake.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.turn().stop();
        self.turn.wake.notify_all();
    }

    pub(crate) fn drain(&self) {
        self.turn().drain();
        self.turn.wake.notify_all();
    }

    /// A worker has ended.
    pub(crate) fn note_over(&self) {
        self.turn().note_over();
        self.turn.beat.notify_all();
    }

    /// All workers have ended, however they did.
    pub(crate) fn note_all_over(&self) {
        self.turn().note_all_over();
        self.turn.beat.notify_all();
    }

    /// Memory was freed.
    pub(crate) fn note_freed(&self) {
        self.turn().note_freed();
        self.turn.wake.notify_all();
    }

    /// Waits for a worker's next task; at `idle_at`, being idle is one.
    pub(crate) fn next_task(&self, worker: usize, idle_at: Option<Instant>) -> Task {
        loop {
            if !self.wait_for_task(worker, idle_at) {
                return Task::Idle;
            }
            if let Some(task) = self.take_task(worker) {
                return task;
            }
        }
    }

    /// Whether there is a task before `idle_at`. Nobody tells that the lease of another worker ran out, so the store is
    /// asked as often as that can happen.
    fn wait_for_task(&self, worker: usize, idle_at: Option<Instant>) -> bool {
        let look_at = Instant::now() + self.lease;
        let mut turn = self.turn();
        while turn.next(worker).is_none() {
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

    /// What is to be done first, if nobody else took it meanwhile: memory is freed between jobs.
    fn take_task(&self, worker: usize) -> Option<Task> {
        let step = self.turn().take(worker)?;
        match step {
            Step::Stop => Some(Task::Stop),
            Step::Free => {
                let request = self.free.take();
                if request.is_none() {
                    self.note_freed();
                }
                request.map(Task::Free)
            }
            Step::Look => {
                let found = self.look(worker);
                self.turn().looked();
                // Who waits to free memory may do so now.
                self.turn.wake.notify_all();
                found.map(Task::Run)
            }
        }
    }

    /// Looks for a job for a worker, which then runs.
    fn look(&self, worker: usize) -> Option<RunningJob> {
        match self.store.redeliver() {
            Ok(abandoned) => abandoned.iter().for_each(|abandoned| self.tell_abandoned(abandoned)),
            Err(error) => tracing::error!("jobs of lost workers stay with them: {error}"),
        }
        match self.try_change_queue(|| self.claim(worker)) {
            Ok(running) => running,
            Err(error) => {
                tracing::error!("no job can be taken now, so the queue waits: {error}");
                std::thread::sleep(STORE_PATIENCE);
                self.turn().note_waiting();
                None
            }
        }
    }

    /// Takes the first job that the worker may run, which runs from now on. Claims are made one after the other, so that
    /// what is free now is free until the job has it.
    fn claim(&self, worker: usize) -> Result<Option<RunningJob>, crate::Error> {
        let (own, name) = (self.crew.devices[worker], &self.names[worker]);
        let mut chooser = Chooser {
            own,
            workers: &self.crew.devices,
            named: self.crew.named.as_ref(),
            taken: self.turn().taken(),
            chosen: Default::default(),
        };
        let is_alone = self.crew.devices.len() == 1;
        let mut choose = |job: &Job| if is_alone { Choice::Take } else { chooser.look(job) };
        let Some(claim) = self.store.claim_chosen(name, self.lease, &mut choose)? else { return Ok(None) };
        let devices = (!is_alone).then_some(chooser.chosen);
        let place = Arc::new(JobPlace { worker: own, devices });
        let observer = JobObserver::new(&claim.job, Some(Arc::clone(&place)), Arc::clone(&self.sink));
        let mut turn = self.turn();
        let running = turn.begin(&claim, Arc::new(observer), place);
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

    /// A job is over.
    pub(crate) fn end_running(&self, claim: &Claim) {
        self.let_go(claim);
        self.change_queue(|| Some(()));
    }

    /// A job runs no more, and others may have its devices.
    pub(crate) fn let_go(&self, claim: &Claim) {
        self.turn().end(claim);
        self.turn.wake.notify_all();
    }

    /// Renews the claims of the jobs that run, for as long as a worker lives.
    pub(crate) fn keep_claims(&self) {
        let pause = self.lease / 3;
        let mut due_at = Instant::now() + pause;
        let mut turn = self.turn();
        while !turn.is_over() {
            if turn.is_idle() {
                turn = self.turn.beat.wait(turn).unwrap_or_else(PoisonError::into_inner);
                due_at = Instant::now() + pause;
                continue;
            }
            let left = due_at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                turn = self.turn.beat.wait_timeout(turn, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let claims = turn.claims();
            drop(turn);
            claims.iter().for_each(|claim| self.renew(claim));
            due_at = Instant::now() + pause;
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
        let observer = JobObserver::new(job, None, Arc::clone(&self.sink));
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
