//! What the engine tells while it works.

use std::sync::Arc;

use graph::{Identity, Map, NodeId, Picture};

use crate::message::{JobFailure, Message};
use crate::place::JobPlace;

/// Who is told. Called in order from the worker and from callers, so it must be quick. It may ask the engine
/// how things stand, but must not change the queue: that is told only after what is being told now.
pub trait EventSink: Send + Sync {
    /// Something happened.
    fn event(&self, event: Event);
}

/// A sink, and somebody who looks on and is told the same first.
pub(crate) struct Both {
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) onlooker: Arc<dyn EventSink>,
}

impl EventSink for Both {
    fn event(&self, event: Event) {
        self.onlooker.event(event.clone());
        self.sink.event(event);
    }
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The queue changed: how many jobs wait or run.
    Queue {
        /// How many.
        remaining: usize,
    },
    /// Something of a job.
    Job {
        /// Which.
        prompt_id: Arc<str>,
        /// Whose.
        client_id: Option<Arc<str>>,
        /// Where it runs; none for a job that was lost with its worker.
        place: Option<Arc<JobPlace>>,
        /// What.
        event: JobEvent,
    },
    /// A line for all people who watch, such as what a free request left.
    Notice(String),
}

/// Something of a job.
#[derive(Clone, Debug)]
pub enum JobEvent {
    /// It began, ended, or knew outputs already; these are kept.
    Message(Message),
    /// A node starts.
    Started(Arc<Identity>),
    /// A node is so far; `Started` and `Finished` are told besides.
    Progress(Progress),
    /// A line of text for a node.
    Text(Arc<Identity>, String),
    /// A node has something to show.
    Executed(Arc<Identity>, Option<Map>),
    /// A node ended well, or its output was known.
    Finished(Arc<Identity>),
    /// An error that does not end the job (`ExecutionBlocked`).
    Blocked(Box<JobFailure>),
    /// The job ended; its record is in the history.
    Ended {
        /// The last node that ran, if any.
        last: Option<NodeId>,
    },
}

/// How far a node is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Which.
    pub identity: Arc<Identity>,
    /// How far.
    pub value: f64,
    /// Of how much.
    pub max: f64,
    /// What it has.
    pub picture: Option<Picture>,
    /// Whether only the snapshot of all nodes is to be sent.
    pub is_plain: bool,
}
