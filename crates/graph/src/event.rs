//! What a run tells while it goes on, and what it leaves.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::literal::Map;
use crate::value::NodeId;

/// Who a node is. A node of an expansion stands for one of the user's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its own id.
    pub node: NodeId,
    /// The id that is shown.
    pub display: NodeId,
    /// The node that expanded into it.
    pub parent: Option<NodeId>,
    /// The user's node at the root of the expansions.
    pub real: NodeId,
    /// Its class.
    pub class: String,
}

/// Who is told.
pub trait Observer: Send + Sync {
    /// Something happened. Called from the thread that runs the node; it must be quick.
    fn event(&self, event: RunEvent);
}

impl<F: Fn(RunEvent) + Send + Sync> Observer for F {
    fn event(&self, event: RunEvent) {
        self(event);
    }
}

/// A picture of what a node has so far: 8 bits each of red, green and blue, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `3 * width * height` bytes.
    pub rgb: Vec<u8>,
    /// Whether it is a result to be sent whole and without loss, and no preview.
    pub is_result: bool,
}

/// What a run tells.
#[derive(Clone, Debug)]
pub enum RunEvent {
    /// At the start: the nodes whose outputs are known already.
    Cached {
        /// Their ids.
        nodes: Vec<NodeId>,
    },
    /// A node starts.
    Started {
        /// Which.
        identity: Arc<Identity>,
    },
    /// A node is so far.
    Progress {
        /// Which.
        identity: Arc<Identity>,
        /// How far.
        value: f64,
        /// Of how much.
        max: f64,
        /// What it has.
        picture: Option<Picture>,
        /// Whether only the snapshot of all nodes is to be sent, and not the older single event.
        is_plain: bool,
    },
    /// A line of text for a node.
    Text {
        /// Which.
        identity: Arc<Identity>,
        /// The line.
        text: String,
    },
    /// A node has something to show; `None` for a cached one that has not.
    Executed {
        /// Which.
        identity: Arc<Identity>,
        /// What.
        ui: Option<Map>,
    },
    /// A node ended well, or its output was known.
    Finished {
        /// Which.
        identity: Arc<Identity>,
    },
    /// A node was skipped, and the one that blocked it wants the user to know why. The run goes on.
    Blocked(NodeFailure),
}

/// How a run ended, and what it leaves.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// How it ended.
    pub end: RunEnd,
    /// What clients show, by node; of cached nodes too.
    pub outputs: IndexMap<NodeId, Map>,
    /// Who those nodes are.
    pub identities: IndexMap<NodeId, Arc<Identity>>,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub enum RunEnd {
    /// All outputs were made.
    Succeeded,
    /// A node failed.
    Failed(NodeFailure),
    /// The job was to end.
    Interrupted {
        /// The node that ran then.
        identity: Arc<Identity>,
        /// The nodes that had ended well.
        executed: Vec<NodeId>,
    },
}

/// A node that failed.
#[derive(Clone, Debug)]
pub struct NodeFailure {
    /// Which. Clients are told of the user's node that it stands for, [`Identity::real`].
    pub identity: Arc<Identity>,
    /// What clients know such errors by, such as `ValueError`.
    pub kind: String,
    /// What, where and what to do.
    pub message: String,
    /// Whether a device had too little memory.
    pub is_out_of_memory: bool,
    /// Its inputs, each a list, as far as they can be written.
    pub inputs: Map,
    /// All nodes of the prompt whose outputs are kept: none if nothing is cached.
    pub outputs: Vec<NodeId>,
    /// The nodes that had ended well in this run.
    pub executed: Vec<NodeId>,
}
