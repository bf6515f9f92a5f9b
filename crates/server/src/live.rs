//! What the running job has done so far: for clients that ask, and for those that follow it by server-sent events.
//!
//! It stands before the [`Hub`], sees every event first and hands it on. The job's record says the same once it ended.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{Event, EventSink, JobEvent, JobFailure, Milestone, Progress};
use graph::{Map, NodeId, Picture};
use serde::Serialize;
use tokio::sync::watch;

use crate::hub::Hub;

/// What runs, and a counter that moves with every event.
pub(crate) struct Live {
    hub: Arc<Hub>,
    job: Mutex<Option<LiveJob>>,
    failed: Mutex<VecDeque<FailedJob>>,
    moved: watch::Sender<u64>,
}

/// The running job.
#[derive(Clone, Default)]
pub(crate) struct LiveJob {
    /// Its id.
    pub(crate) id: String,
    /// The nodes that ended or were known, by the id that is shown for them.
    pub(crate) done: HashSet<NodeId>,
    /// The node that runs and its class.
    pub(crate) current: Option<(NodeId, String)>,
    /// How far that node is, and of how much.
    pub(crate) step: Option<(f64, f64)>,
    /// What nodes showed, in order.
    pub(crate) shown: Vec<(NodeId, Map)>,
    /// The latest picture of what is being made, with the number of pictures so far.
    pub(crate) preview: Option<(u64, NodeId, Arc<Picture>)>,
}

/// Jobs that failed and are remembered.
const FAILED: usize = 5;

/// A job that failed since the server was started.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailedJob {
    prompt_id: String,
    /// Milliseconds since 1970.
    at_ms: u64,
    node: String,
    class: String,
    message: String,
}

impl Live {
    pub(crate) fn before(hub: Arc<Hub>) -> Live {
        Live { hub, job: Mutex::default(), failed: Mutex::default(), moved: watch::Sender::new(0) }
    }

    /// The running job as it stands, if it is this one.
    pub(crate) fn of(&self, id: &str) -> Option<LiveJob> {
        self.lock().as_ref().filter(|job| job.id == id).cloned()
    }

    /// The latest picture of what is being made, whatever it is.
    pub(crate) fn preview(&self) -> Option<(u64, NodeId, Arc<Picture>)> {
        self.lock().as_ref().and_then(|job| job.preview.clone())
    }

    /// The latest jobs that failed, the last one first.
    pub(crate) fn failures(&self) -> Vec<FailedJob> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn note_failure(&self, id: &str, at_ms: u64, why: &JobFailure) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.push_front(FailedJob {
            prompt_id: id.to_owned(),
            at_ms,
            node: why.node.to_string(),
            class: why.class.clone(),
            message: why.message.clone(),
        });
        failed.truncate(FAILED);
    }

    /// Wakes whenever something happened.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Option<LiveJob>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, id: &str, event: &JobEvent) {
        let mut running = self.lock();
        let is_start = matches!(event, JobEvent::Message(message) if message.milestone == Milestone::Started);
        if is_start || running.as_ref().is_none_or(|job| job.id != id) {
            *running = Some(LiveJob { id: id.to_owned(), ..LiveJob::default() });
        }
        let Some(job) = running.as_mut() else { return };
        match event {
            JobEvent::Message(message) => match &message.milestone {
                Milestone::Cached(nodes) => job.done.extend(nodes.iter().cloned()),
                Milestone::Failed(why) => self.note_failure(id, message.at_ms, why),
                Milestone::Started | Milestone::Succeeded | Milestone::Interrupted { .. } => {}
            },
            JobEvent::Started(who) => {
                job.current = Some((Arc::clone(&who.display), who.class.clone()));
                job.step = None;
            }
            JobEvent::Progress(progress) => job.note_progress(progress),
            JobEvent::Executed(who, Some(shown)) => job.shown.push((Arc::clone(&who.display), shown.clone())),
            JobEvent::Finished(who) => {
                job.done.insert(Arc::clone(&who.display));
            }
            JobEvent::Ended { .. } => *running = None,
            JobEvent::Executed(_, None) | JobEvent::Text(..) | JobEvent::Blocked(_) => {}
        }
    }
}

impl LiveJob {
    fn note_progress(&mut self, progress: &Progress) {
        self.step = Some((progress.value, progress.max));
        if let Some(picture) = progress.picture.as_ref().filter(|picture| !picture.is_result) {
            let number = self.preview.as_ref().map_or(0, |(number, ..)| *number) + 1;
            let node = Arc::clone(&progress.identity.display);
            self.preview = Some((number, node, Arc::new(picture.clone())));
        }
    }
}

impl EventSink for Live {
    fn event(&self, event: Event) {
        if let Event::Job { prompt_id, event, .. } = &event {
            self.note(prompt_id, event);
        }
        self.hub.event(event);
        self.moved.send_modify(|moved| *moved = moved.wrapping_add(1));
    }
}
