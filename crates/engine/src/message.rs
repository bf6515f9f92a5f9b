//! How a job begins and ends: what is told of it at the time, and kept of it afterwards.

use graph::{Identity, Map, NodeId};

/// A step in a job's life, and when it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// In milliseconds since 1970.
    pub at_ms: u64,
    /// What happened.
    pub milestone: Milestone,
}

/// What happened to a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Milestone {
    /// It began.
    Started,
    /// The outputs of these nodes were known.
    Cached(Vec<NodeId>),
    /// It ended well.
    Succeeded,
    /// A node failed.
    Failed(Box<JobFailure>),
    /// The user ended it.
    Interrupted {
        /// The node that ran.
        node: NodeId,
        /// Its class.
        class: String,
        /// The nodes that had run.
        executed: Vec<NodeId>,
    },
}

impl Milestone {
    /// Whether the job is over.
    #[must_use]
    pub fn is_end(&self) -> bool {
        !matches!(self, Milestone::Started | Milestone::Cached(_))
    }
}

/// Why a node failed, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFailure {
    /// The user's node; empty where it is not known.
    pub node: NodeId,
    /// Its class.
    pub class: String,
    /// The kind of the error, as ComfyUI names kinds.
    pub kind: String,
    /// What went wrong.
    pub message: String,
    /// The nodes that had run.
    pub executed: Vec<NodeId>,
    /// From the user's node down to the one that failed, a line each.
    pub trace: Vec<String>,
    /// The inputs of the node that failed.
    pub inputs: Map,
    /// The nodes whose outputs were there.
    pub outputs: Vec<NodeId>,
}

/// Who a node is that shows something: nodes may stand for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The node itself.
    pub node: NodeId,
    /// The one that it is shown at.
    pub display: NodeId,
    /// The one that made it, if one did.
    pub parent: Option<NodeId>,
    /// The user's node that it stands for.
    pub real: NodeId,
}

impl From<&Identity> for NodeIdentity {
    fn from(identity: &Identity) -> NodeIdentity {
        NodeIdentity {
            node: identity.node.clone(),
            display: identity.display.clone(),
            parent: identity.parent.clone(),
            real: identity.real.clone(),
        }
    }
}
