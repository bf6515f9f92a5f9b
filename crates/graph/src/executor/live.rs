//! The graph of a running job: the prompt's nodes, and those that nodes expanded into.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use indexmap::IndexMap;

use crate::catalogue::Catalogue;
use crate::class::{Failure, GraphInput, GraphNode, GraphView};
use crate::declared::{ClassInfo, Role};
use crate::event::Identity;
use crate::prompt::{Prompt, constant_of, link_of};
use crate::value::{Link, NodeId};

/// A node of a running job.
pub(super) struct LiveNode {
    pub(super) identity: Arc<Identity>,
    pub(super) info: Arc<ClassInfo>,
    pub(super) inputs: IndexMap<String, GraphInput>,
    /// What is done with each input, in their order; `None` for one that is not declared.
    pub(super) roles: Vec<Option<Role>>,
    /// The id to show that the expansion gave.
    display: Option<NodeId>,
}

impl LiveNode {
    fn new(identity: Identity, info: Arc<ClassInfo>, inputs: IndexMap<String, GraphInput>) -> LiveNode {
        let roles = info.roles(&inputs, inputs.keys());
        LiveNode { identity: Arc::new(identity), info, inputs, roles, display: None }
    }

    /// Its links, each with what is done with it.
    pub(super) fn links(&self) -> impl Iterator<Item = (&Link, Role)> {
        self.inputs.values().zip(&self.roles).filter_map(|(input, role)| match input {
            GraphInput::Link(link) => Some((link, role.unwrap_or_default())),
            _ => None,
        })
    }
}

/// The graph of a running job. Nodes are added and never taken away, so a node's place stays.
#[derive(Default)]
pub(super) struct LiveGraph {
    nodes: RwLock<IndexMap<NodeId, Arc<LiveNode>>>,
}

/// The classes that a job met. Each is asked for its declaration once.
pub(super) struct Classes {
    catalogue: Arc<Catalogue>,
    known: HashMap<String, Arc<ClassInfo>>,
}

impl Classes {
    pub(super) fn new(catalogue: Arc<Catalogue>) -> Classes {
        Classes { catalogue, known: HashMap::new() }
    }

    fn get(&mut self, name: &str) -> Option<Arc<ClassInfo>> {
        if let Some(info) = self.known.get(name) {
            return Some(Arc::clone(info));
        }
        let info = Arc::new(ClassInfo::new(Arc::clone(self.catalogue.get(name)?)));
        self.known.insert(name.to_owned(), Arc::clone(&info));
        Some(info)
    }
}

impl LiveGraph {
    /// The graph of a prompt. Nodes of unknown classes are left out: validation let none pass that is needed.
    pub(super) fn of(prompt: &Prompt, classes: &mut Classes) -> LiveGraph {
        let mut nodes = IndexMap::with_capacity(prompt.nodes.len());
        for (id, sent) in &prompt.nodes {
            let Some(info) = sent.class_type.as_deref().and_then(|class| classes.get(class)) else {
                continue;
            };
            let identity = Identity {
                node: Arc::clone(id),
                display: Arc::clone(id),
                parent: None,
                real: Arc::clone(id),
                class: info.schema.class.clone(),
            };
            let inputs = sent.inputs.iter().flatten().map(|(name, literal)| {
                let input = link_of(literal)
                    .map_or_else(|| GraphInput::Literal(constant_of(literal).clone()), GraphInput::Link);
                (name.clone(), input)
            });
            nodes.insert(Arc::clone(id), Arc::new(LiveNode::new(identity, info, inputs.collect())));
        }
        LiveGraph { nodes: RwLock::new(nodes) }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The node at a place.
    pub(super) fn at(&self, place: usize) -> Arc<LiveNode> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&nodes[place])
    }

    /// Where a node is.
    pub(super) fn place(&self, id: &str) -> Option<usize> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).get_index_of(id)
    }

    /// Adds what a node expanded into, and gives the places.
    pub(super) fn expand(
        &self,
        parent: &Identity,
        expansion: &IndexMap<NodeId, GraphNode>,
        classes: &mut Classes,
    ) -> Result<Vec<usize>, Failure> {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let mut places = Vec::with_capacity(expansion.len());
        for (id, new) in expansion {
            if nodes.contains_key(id) {
                let text =
                    format!("the expansion has a node {id}, but there is one already; give it another id");
                return Err(Failure::error("DuplicateNodeError", text));
            }
            let Some(info) = classes.get(&new.class) else {
                let text =
                    format!("the expansion has a node of class \"{}\", which does not exist", new.class);
                return Err(Failure::error("KeyError", text));
            };
            let shown = new.display.as_ref().unwrap_or(&parent.node);
            let identity = Identity {
                node: Arc::clone(id),
                display: nodes
                    .get(shown)
                    .map_or_else(|| Arc::clone(shown), |shown| Arc::clone(&shown.identity.display)),
                parent: Some(Arc::clone(&parent.node)),
                real: Arc::clone(&parent.real),
                class: new.class.clone(),
            };
            let mut node = LiveNode::new(identity, info, new.inputs.clone());
            node.display.clone_from(&new.display);
            places.push(nodes.insert_full(Arc::clone(id), Arc::new(node)).0);
        }
        Ok(places)
    }
}

impl GraphView for LiveGraph {
    fn node(&self, id: &str) -> Option<GraphNode> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let node = nodes.get(id)?;
        Some(GraphNode {
            class: node.identity.class.clone(),
            inputs: node.inputs.clone(),
            display: node.display.clone(),
        })
    }

    fn ids(&self) -> Vec<NodeId> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    fn display_of(&self, id: &str) -> NodeId {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        nodes.get(id).map_or_else(|| NodeId::from(id), |node| Arc::clone(&node.identity.display))
    }
}
