//! What the running jobs have done so far: for clients that ask, and for those that follow it by server-sent events.
//!
//! It stands before the [`Hub`], sees every event first and hands it on. A job's record says the same once it ended.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{Event, EventSink, JobEvent, JobFailure, Milestone, Progress};
use graph::{Map, NodeId, Picture};
use serde::Serialize;
use tokio::sync::watch;

use crate::hub::Hub;

/// What runs, and a counter that moves with every event.
pub(crate) struct Live {
    hub: Arc<Hub>,
    jobs: Mutex<Jobs>,
    failed: Mutex<VecDeque<FailedJob>>,
    moved: watch::Sender<u64>,
}

/// The running jobs, in the order in which they began.
#[derive(Default)]
struct Jobs {
    running: Vec<LiveJob>,
    /// How many pictures of what is being made there were.
    pictures: u64,
}

/// A running job.
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
    /// The latest picture of what is being made, with its number among those of all jobs.
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
        Live { hub, jobs: Mutex::default(), failed: Mutex::default(), moved: watch::Sender::new(0) }
    }

    /// A running job as it stands.
    pub(crate) fn of(&self, id: &str) -> Option<LiveJob> {
        self.lock().running.iter().find(|job| job.id == id).cloned()
    }

    /// The latest picture of what is being made, in a job or in whichever it is.
    pub(crate) fn preview(&self, id: Option<&str>) -> Option<(u64, NodeId, Arc<Picture>)> {
        let jobs = self.lock();
        let meant = jobs.running.iter().filter(|job| id.is_none_or(|id| job.id == id));
        meant.filter_map(|job| job.preview.clone()).max_by_key(|(number, ..)| *number)
    }

    /// The numbers of the latest pictures, by the jobs that run and have some.
    pub(crate) fn preview_numbers(&self) -> BTreeMap<String, u64> {
        let jobs = self.lock();
        let number = |job: &LiveJob| Some((job.id.clone(), job.preview.as_ref()?.0));
        jobs.running.iter().filter_map(number).collect()
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

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, id: &str, event: &JobEvent) {
        let mut jobs = self.lock();
        let Jobs { running, pictures } = &mut *jobs;
        let is_start = matches!(event, JobEvent::Message(message) if message.milestone == Milestone::Started);
        if is_start {
            running.retain(|job| job.id != id);
        }
        let found = running.iter().position(|job| job.id == id).unwrap_or(running.len());
        if found == running.len() {
            running.push(LiveJob { id: id.to_owned(), ..LiveJob::default() });
        }
        let job = &mut running[found];
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
            JobEvent::Progress(progress) => job.note_progress(progress, pictures),
            JobEvent::Executed(who, Some(shown)) => job.shown.push((Arc::clone(&who.display), shown.clone())),
            JobEvent::Finished(who) => {
                job.done.insert(Arc::clone(&who.display));
            }
            JobEvent::Ended { .. } => drop(running.remove(found)),
            JobEvent::Executed(_, None) | JobEvent::Text(..) | JobEvent::Blocked(_) => {}
        }
    }
}

impl LiveJob {
    fn note_progress(&mut self, progress: &Progress, pictures: &mut u64) {
        self.step = Some((progress.value, progress.max));
        if let Some(picture) = progress.picture.as_ref().filter(|picture| !picture.is_result) {
            *pictures += 1;
            let node = Arc::clone(&progress.identity.display);
            self.preview = Some((*pictures, node, Arc::new(picture.clone())));
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
