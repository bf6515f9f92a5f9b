//! What callers and the worker share: the queue, the database, and who is told.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use graph::{Catalogue, Literal, Map};
use nodes::Studio;
use residency::{FreeFlags, FreeRequest};

use crate::event::{Event, EventSink};
use crate::job::Job;
use crate::observer::JobObserver;
use crate::queue::{AcceptedJob, Queue, Queued, Refused, RunningJob, Submission, checked_id};
use crate::store::{Restored, Store};
use crate::{SECRET_KEYS, now_ms};

/// What callers and the worker share. The database is written before a job enters the queue and after it
/// leaves it.
pub(crate) struct Shared {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) studio: Arc<Studio>,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) store: Store,
    queue: Mutex<Queue>,
    /// Held from a change of the queue until it is told, so that changes are told in their order. It is
    /// taken before the queue is locked, and the queue is not locked any more while others are told.
    telling: Mutex<()>,
    /// Told when there may be something for the worker.
    wake: Condvar,
    free: FreeFlags,
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
        studio: Arc<Studio>,
        sink: Arc<dyn EventSink>,
        store: Store,
        restored: Restored,
    ) -> Shared {
        let queue = Mutex::new(Queue::new(restored.counter, restored.pending));
        let (telling, wake, free) = (Mutex::default(), Condvar::new(), FreeFlags::default());
        Shared { catalogue, studio, sink, store, queue, telling, wake, free }
    }

    /// The queue, locked.
    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn submit(&self, submission: Submission) -> Result<AcceptedJob, Refused> {
        let (number, counter) = self.queue().take_number(submission.number, submission.front);
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
        let sequence = self.store.add(&job, counter).map_err(Refused::Storage)?;
        self.change_queue(|queue| {
            queue.push(Queued { sequence, job: Arc::new(job) });
            Some(())
        });
        self.wake.notify_one();
        Ok(AcceptedJob { prompt_id, number, node_errors: accepted.node_errors })
    }

    pub(crate) fn delete_pending(&self, ids: &[String]) -> usize {
        let removed = self.change_queue(|queue| {
            let removed = queue.remove(ids);
            (!removed.is_empty()).then_some(removed)
        });
        let removed = removed.unwrap_or_default();
        self.erase(&removed);
        removed.len()
    }

    pub(crate) fn clear_pending(&self) {
        let removed = self.change_queue(|queue| Some(queue.clear()));
        self.erase(&removed.unwrap_or_default());
    }

    /// Takes jobs that left the queue out of the database.
    fn erase(&self, removed: &[Queued]) {
        let sequences: Vec<i64> = removed.iter().map(|queued| queued.sequence).collect();
        if let Err(error) = self.store.remove(&sequences) {
            tracing::error!("deleted jobs will be back after a restart: {error}");
        }
    }

    pub(crate) fn free(&self, request: FreeRequest) {
        self.free.request(request);
        self.queue().request_free();
        self.wake.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.queue().stop();
        self.wake.notify_one();
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

    /// Whether there is a task before `idle_at`.
    fn wait_for_task(&self, idle_at: Option<Instant>) -> bool {
        let mut queue = self.queue();
        while !queue.has_task() {
            let Some(idle_at) = idle_at else {
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = idle_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queue = self.wake.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// What is to be done first, if it was not taken away meanwhile: memory is freed between two jobs.
    fn take_task(&self) -> Option<Task> {
        if self.queue().is_stopping() {
            return Some(Task::Stop);
        }
        if self.queue().take_free_request() {
            return self.free.take().map(Task::Free);
        }
        let observe = |queued: &Queued| Arc::new(JobObserver::new(&queued.job, Arc::clone(&self.sink)));
        self.change_queue(|queue| queue.begin(observe)).map(Task::Run)
    }

    /// The running job is over.
    pub(crate) fn end_running(&self) {
        self.change_queue(|queue| {
            queue.end();
            Some(())
        });
    }

    /// Changes the queue and tells that it changed; what gives `None` changes nothing.
    fn change_queue<T>(&self, change: impl FnOnce(&mut Queue) -> Option<T>) -> Option<T> {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut queue = self.queue();
        let changed = change(&mut queue)?;
        let remaining = queue.remaining();
        drop(queue);
        self.sink.event(Event::Queue { remaining });
        Some(changed)
    }
}

/// Takes out what is never echoed.
fn take_secrets(extra_data: &mut Map) -> Map {
    let take = |key: &&str| Some(((*key).to_owned(), extra_data.shift_remove(*key)?));
    SECRET_KEYS.iter().filter_map(take).collect()
}
