//! Subgraphs put in their place: every use of one becomes a scope of its own.
//!
//! A node inside is named by the nodes around it and itself: `5:3` is node 3 in the subgraph that node 5
//! stands for. Editors write these names, and progress is reported under them.

use std::collections::{HashMap, VecDeque};

use graph::Literal;

use crate::document::{Document, Graph, Mode, Node};
use crate::error::Error;

/// How many parts (nodes, inputs, and 64 bytes of text each) a workflow may have with all subgraphs in place.
const MAX_PARTS: usize = 1_000_000;
/// How many uses of subgraphs there may be.
const MAX_SCOPES: usize = 20_000;
/// How deep subgraphs may be nested.
const MAX_DEPTH: usize = 32;

/// A file with all its subgraphs in place.
pub(crate) struct Expansion<'d, 'a> {
    pub(crate) document: &'d Document<'a>,
    /// The scopes; the first is the outermost graph.
    pub(crate) scopes: Vec<Scope>,
}

/// One use of a graph.
#[derive(Default)]
pub(crate) struct Scope {
    /// What stands before the ids of its nodes: empty, or `5:`.
    pub(crate) prefix: String,
    pub(crate) graph: usize,
    /// The node that stands for it.
    pub(crate) host: Option<Place>,
    /// For each of the graph's own inputs, the input of that node which feeds it.
    pub(crate) host_inputs: Vec<Option<usize>>,
    /// The scopes of the subgraphs in it, by the position of the node.
    pub(crate) children: HashMap<usize, usize>,
}

/// A node in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) scope: usize,
    pub(crate) node: usize,
}

impl<'d, 'a> Expansion<'d, 'a> {
    /// Puts all subgraphs that take part in their place.
    pub(crate) fn new(document: &'d Document<'a>) -> Result<Expansion<'d, 'a>, Error> {
        let mut expansion = Expansion { document, scopes: vec![Scope::default()] };
        let weights: Vec<usize> = document.graphs.iter().map(weight).collect();
        let mut parts = 0_usize;
        let mut next = 0;
        while next < expansion.scopes.len() {
            let graph = expansion.scopes[next].graph;
            parts = parts.saturating_add(weights[graph]);
            for (node, stored) in document.graphs[graph].nodes.iter().enumerate() {
                let place = Place { scope: next, node };
                if parts > MAX_PARTS {
                    return Err(expansion.too_large(place, MAX_PARTS, "parts"));
                }
                if let (Some(inner), Mode::Active) = (stored.inner, stored.mode) {
                    expansion.enter(place, inner)?;
                }
            }
            next += 1;
        }
        Ok(expansion)
    }

    fn enter(&mut self, place: Place, graph: usize) -> Result<(), Error> {
        let mut around = Some(place.scope);
        let mut depth = 0;
        while let Some(scope) = around {
            let scope = &self.scopes[scope];
            if scope.graph == graph {
                let subgraph = self.document.graphs[graph].name.clone();
                return Err(Error::SubgraphCycle { node: self.name(place), subgraph });
            }
            depth += 1;
            around = scope.host.map(|host| host.scope);
        }
        if depth > MAX_DEPTH {
            return Err(self.too_large(place, MAX_DEPTH, "levels"));
        }
        if self.scopes.len() > MAX_SCOPES {
            return Err(self.too_large(place, MAX_SCOPES, "subgraphs"));
        }
        let prefix = format!("{}:", self.name(place));
        let child = self.scopes.len();
        let host_inputs = self.host_inputs(place, graph);
        self.scopes.push(Scope { prefix, graph, host: Some(place), host_inputs, children: HashMap::new() });
        self.scopes[place.scope].children.insert(place.node, child);
        Ok(())
    }

    fn too_large(&self, place: Place, limit: usize, what: &'static str) -> Error {
        Error::TooLarge { node: self.name(place), limit, what }
    }

    /// The node at a place.
    pub(crate) fn node(&self, place: Place) -> &'d Node<'a> {
        &self.document.graphs[self.scopes[place.scope].graph].nodes[place.node]
    }

    /// The name of the node at a place.
    pub(crate) fn name(&self, place: Place) -> String {
        format!("{}{}", self.scopes[place.scope].prefix, self.node(place).id)
    }

    /// The node of an id in a scope.
    pub(crate) fn find(&self, scope: usize, id: &str) -> Option<Place> {
        let node = *self.document.graphs[self.scopes[scope].graph].places.get(id)?;
        Some(Place { scope, node })
    }

    /// The scope of the subgraph that a node stands for.
    pub(crate) fn child(&self, place: Place) -> Option<usize> {
        self.scopes[place.scope].children.get(&place.node).copied()
    }

    /// For each of a subgraph's own inputs, the input of its node that feeds it. Editors leave out inputs that
    /// nothing is linked to, so the name decides, and among equals the position.
    fn host_inputs(&self, host: Place, graph: usize) -> Vec<Option<usize>> {
        let mut by_name: HashMap<&str, VecDeque<usize>> = HashMap::new();
        for (at, slot) in self.node(host).inputs.iter().enumerate() {
            by_name.entry(slot.name).or_default().push_back(at);
        }
        let ports = self.document.graphs[graph].inputs.iter();
        ports.map(|port| by_name.get_mut(port.as_str())?.pop_front()).collect()
    }

    /// All nodes in the order in which they are sent: as the editor ordered them, with those of a subgraph in
    /// the place of its node.
    pub(crate) fn in_order(&self) -> Vec<Place> {
        let mut order = Vec::new();
        let mut waiting = self.scope_in_order(0);
        while let Some(place) = waiting.pop() {
            order.push(place);
            if let Some(child) = self.child(place) {
                waiting.extend(self.scope_in_order(child));
            }
        }
        order
    }

    /// The nodes of one scope, the last one first.
    fn scope_in_order(&self, scope: usize) -> Vec<Place> {
        let nodes = &self.document.graphs[self.scopes[scope].graph].nodes;
        let mut places: Vec<Place> = (0..nodes.len()).map(|node| Place { scope, node }).collect();
        if scope == 0 {
            places.sort_by_key(|place| nodes[place.node].order);
        }
        places.reverse();
        places
    }
}

/// How much one use of a graph adds, in parts.
fn weight(graph: &Graph<'_>) -> usize {
    let of_node = |node: &Node<'_>| {
        let list = node.values.list.into_iter().flatten();
        let named = node.values.named.into_iter().flat_map(|named| named.values());
        let text: usize = list.chain(named).map(byte_size).sum();
        1 + node.inputs.len() + text / 64
    };
    graph.nodes.iter().map(of_node).sum()
}

/// About how much a constant takes.
pub(crate) fn byte_size(literal: &Literal) -> usize {
    match literal {
        Literal::Text(text) => text.len(),
        Literal::List(list) => list.iter().map(|item| 8 + byte_size(item)).sum(),
        Literal::Map(map) => map.iter().map(|(key, value)| 8 + key.len() + byte_size(value)).sum(),
        _ => 8,
    }
}
