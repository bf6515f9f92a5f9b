//! Builds the graph that a node expands into.

use graph::{Call, GraphInput, GraphNode, Link, NodeId, Outcome, Slot, Value};
use indexmap::IndexMap;

/// A graph that takes a node's place.
pub(crate) struct Expansion<'a> {
    call: &'a Call,
    nodes: IndexMap<NodeId, GraphNode>,
}

impl<'a> Expansion<'a> {
    /// An empty graph in the place of the node that is called.
    pub(crate) fn new(call: &'a Call) -> Expansion<'a> {
        Expansion { call, nodes: IndexMap::new() }
    }

    /// Adds a node under the next number.
    pub(crate) fn node<'n>(
        &mut self,
        class: &str,
        inputs: impl IntoIterator<Item = (&'n str, GraphInput)>,
    ) -> NodeId {
        let id = self.id(&(self.nodes.len() + 1).to_string());
        let inputs = inputs.into_iter().map(|(name, input)| (name.to_owned(), input)).collect();
        self.nodes.insert(id.clone(), GraphNode { class: class.to_owned(), inputs, display: None });
        id
    }

    /// Adds a node under a name of its own.
    pub(crate) fn named(&mut self, name: &str, node: GraphNode) {
        self.nodes.insert(self.id(name), node);
    }

    /// The id of a node of that name in this graph.
    pub(crate) fn id(&self, name: &str) -> NodeId {
        self.call.child(name)
    }

    /// Sets an input of a node that is there.
    pub(crate) fn set(&mut self, node: &NodeId, name: &str, input: GraphInput) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.inputs.insert(name.to_owned(), input);
        }
    }

    /// What the node gives: these outputs, and this graph.
    pub(crate) fn giving(self, slots: impl IntoIterator<Item = Slot>) -> Outcome {
        Outcome::slots(slots).expanding(self.nodes)
    }
}

/// A link to an output.
pub(crate) fn link(node: &NodeId, slot: usize) -> GraphInput {
    GraphInput::Link(Link::new(node.clone(), slot))
}

/// An output of the expansion as an output of the node.
pub(crate) fn linked_slot(node: &NodeId, slot: usize) -> Slot {
    Slot::Link(Link::new(node.clone(), slot))
}

/// A value that is known already as an input.
pub(crate) fn known(value: &Value) -> GraphInput {
    match value {
        Value::Literal(literal) => GraphInput::Literal(literal.clone()),
        other => GraphInput::Value(other.clone()),
    }
}

/// A constant as an input.
pub(crate) fn constant(value: impl Into<graph::Literal>) -> GraphInput {
    GraphInput::Literal(value.into())
}
