//! Tells what a running job does: the executor's events become the job's, in the same order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use graph::{Identity, Observer, RunEvent};

use crate::event::{Event, EventSink, JobEvent, Progress};
use crate::job::Job;
use crate::message::{Message, Milestone};
use crate::place::JobPlace;
use crate::{now_ms, record};

/// Looks at one run of one job.
pub(crate) struct JobObserver {
    job: Arc<Job>,
    prompt_id: Arc<str>,
    client_id: Option<Arc<str>>,
    place: Option<Arc<JobPlace>>,
    sink: Arc<dyn EventSink>,
    last: Mutex<Option<Arc<Identity>>>,
    messages: Mutex<Vec<Message>>,
    has_ended: AtomicBool,
}

impl JobObserver {
    pub(crate) fn new(job: &Arc<Job>, place: Option<Arc<JobPlace>>, sink: Arc<dyn EventSink>) -> JobObserver {
        JobObserver {
            job: Arc::clone(job),
            prompt_id: job.prompt_id.as_str().into(),
            client_id: job.client_id.as_deref().map(Into::into),
            place,
            sink,
            last: Mutex::default(),
            messages: Mutex::default(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// The node that started last.
    pub(crate) fn last_node(&self) -> Option<Arc<Identity>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps what happened, with the time of now.
    pub(crate) fn keep(&self, milestone: Milestone) -> Message {
        let message = Message { at_ms: now_ms(), milestone };
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message.clone());
        message
    }

    /// All that was kept.
    pub(crate) fn messages(&self) -> Vec<Message> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Nothing that a node still says is told from now on: a thread of its own may outlive the run.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    pub(crate) fn tell(&self, event: JobEvent) {
        let (prompt_id, client_id) = (Arc::clone(&self.prompt_id), self.client_id.clone());
        self.sink.event(Event::Job { prompt_id, client_id, place: self.place.clone(), event });
    }
}

impl Observer for JobObserver {
    fn event(&self, event: RunEvent) {
        if self.has_ended.load(Ordering::Acquire) {
            return;
        }
        self.tell(match event {
            RunEvent::Cached { nodes } => JobEvent::Message(self.keep(Milestone::Cached(nodes))),
            RunEvent::Started { identity } => {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&identity));
                JobEvent::Started(identity)
            }
            RunEvent::Progress { identity, value, max, picture, is_plain } => {
                JobEvent::Progress(Progress { identity, value, max, picture, is_plain })
            }
            RunEvent::Text { identity, text } => JobEvent::Text(identity, text),
            RunEvent::Executed { identity, ui } => JobEvent::Executed(identity, ui),
            RunEvent::Finished { identity } => JobEvent::Finished(identity),
            RunEvent::Blocked(failure) => JobEvent::Blocked(Box::new(record::failure(&self.job, &failure))),
        });
    }
}
