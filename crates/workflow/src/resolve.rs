//! Links followed to a node that runs, or to a value: out of and into subgraphs, through bypassed nodes,
//! reroutes and the like.

use std::collections::HashSet;

use graph::{Link, Literal};

use crate::document::{Mode, Node};
use crate::error::{Error, Warning};
use crate::expansion::{Expansion, Place};
use crate::promotion::Promotions;
use crate::virtual_node::{VirtualNode, shared_name};

/// How many nodes that do not run a link may pass.
const MAX_STEPS: usize = 1_000;

/// What is at the other end of a link.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Resolved {
    /// The output of a node that runs.
    Output(Link),
    /// A value that a person typed elsewhere.
    Value(Literal),
    /// Nothing, and why, if that is worth a word.
    Nothing(Option<String>),
}

/// Where following a link stands.
enum Step {
    /// At an input. The type is that of the input it began at, if a virtual node was passed.
    Input { place: Place, slot: usize, kind: Option<String> },
    /// At an output, wanted as a type.
    Output { place: Place, slot: usize, kind: String },
    /// At one of a subgraph's own inputs, seen from inside.
    Port { scope: usize, port: usize },
    /// At the end.
    Done(Resolved),
}

/// Follows links.
pub(crate) struct Resolver<'e, 'd, 'a> {
    pub(crate) expansion: &'e Expansion<'d, 'a>,
    pub(crate) promotions: &'e Promotions<'e, 'd, 'a>,
}

impl Resolver<'_, '_, '_> {
    /// Follows the link that ends at an input.
    pub(crate) fn resolve(&self, place: Place, slot: usize) -> Result<Resolved, Error> {
        let mut passed = HashSet::new();
        let mut step = Step::Input { place, slot, kind: None };
        loop {
            let here = match &step {
                Step::Done(_) => None,
                Step::Input { place, slot, .. } => Some((place.scope, Some(place.node), *slot, false)),
                Step::Output { place, slot, .. } => Some((place.scope, Some(place.node), *slot, true)),
                Step::Port { scope, port } => Some((*scope, None, *port, false)),
            };
            if passed.len() > MAX_STEPS {
                let node = self.expansion.name(place);
                return Err(Error::TooLarge {
                    node,
                    limit: MAX_STEPS,
                    what: "links in a row without a node that runs",
                });
            }
            if here.is_some_and(|here| !passed.insert(here)) {
                let input = self.expansion.node(place).inputs[slot].name.to_owned();
                return Err(Error::LinkCycle { node: self.expansion.name(place), input });
            }
            step = match step {
                Step::Done(end) => return Ok(end),
                Step::Input { place, slot, kind } => self.before_input(place, slot, kind),
                Step::Output { place, slot, kind } => self.behind_output(place, slot, kind),
                Step::Port { scope, port } => self.outside_port(scope, port),
            };
        }
    }

    /// A warning for an input whose link leads nowhere.
    pub(crate) fn dropped(&self, place: Place, slot: usize, why: String) -> Warning {
        let input = self.expansion.node(place).inputs[slot].name.to_owned();
        Warning::DroppedLink { node: self.expansion.name(place), input, why }
    }

    fn before_input(&self, place: Place, slot: usize, kind: Option<String>) -> Step {
        let node = self.expansion.node(place);
        let Some(input) = node.inputs.get(slot) else { return nothing() };
        let graph = &self.expansion.document.graphs[self.expansion.scopes[place.scope].graph];
        let Some(id) = &input.link else {
            let shown = self.promotions.overridden(place, input.name);
            return shown.map_or_else(nothing, |value| Step::Done(Resolved::Value(value.clone())));
        };
        let Some(wire) = graph.links.get(id) else {
            return because(format!("the file has no link {id}"));
        };
        if place.scope != 0 && wire.from == graph.input_node {
            return Step::Port { scope: place.scope, port: wire.from_slot };
        }
        match self.expansion.find(place.scope, &wire.from) {
            Some(origin) => {
                let kind = kind.unwrap_or_else(|| input.kind.clone());
                Step::Output { place: origin, slot: wire.from_slot, kind }
            }
            None => because(format!("the file has no node {}", wire.from)),
        }
    }

    /// Leaves a subgraph by one of its own inputs.
    fn outside_port(&self, scope: usize, port: usize) -> Step {
        let here = &self.expansion.scopes[scope];
        let Some(host) = here.host else { return nothing() };
        let outside = here.host_inputs.get(port).copied().flatten();
        match outside.filter(|slot| self.expansion.node(host).inputs[*slot].link.is_some()) {
            Some(slot) => Step::Input { place: host, slot, kind: None },
            None => Step::Done(match self.promotions.port(scope, port) {
                Some(value) => Resolved::Value(value),
                None => Resolved::Nothing(None),
            }),
        }
    }

    fn behind_output(&self, place: Place, slot: usize, kind: String) -> Step {
        let node = self.expansion.node(place);
        match node.mode {
            Mode::Muted => return because(format!("node {} is muted", self.expansion.name(place))),
            Mode::Bypassed => {
                return match bypass_input(node, slot, &kind) {
                    Some(input) => Step::Input { place, slot: input, kind: None },
                    None => because(format!(
                        "node {} is bypassed and has no input of type {kind}",
                        self.expansion.name(place)
                    )),
                };
            }
            Mode::Active => {}
        }
        if let Some(child) = self.expansion.child(place) {
            return self.inside_subgraph(child, slot, kind);
        }
        match VirtualNode::of(node.class) {
            None => Step::Done(Resolved::Output(Link::new(self.expansion.name(place), slot))),
            Some(VirtualNode::Reroute | VirtualNode::Set) => Step::Input { place, slot: 0, kind: Some(kind) },
            Some(VirtualNode::Primitive) => match self.promotions.primitive(place) {
                Some(value) => Step::Done(Resolved::Value(value)),
                None => nothing(),
            },
            Some(VirtualNode::Get) => match self.setter(place.scope, node) {
                Some(setter) => Step::Input { place: setter, slot: 0, kind: Some(kind) },
                None => because(format!("nothing sets what node {} gets", self.expansion.name(place))),
            },
            Some(VirtualNode::Decoration) => nothing(),
        }
    }

    /// Enters a subgraph by one of its own outputs.
    fn inside_subgraph(&self, scope: usize, port: usize, kind: String) -> Step {
        let graph = &self.expansion.document.graphs[self.expansion.scopes[scope].graph];
        let Some(wire) = graph.link_to_output(port) else {
            return because(format!("nothing in subgraph \"{}\" is linked to its output {port}", graph.name));
        };
        if wire.from == graph.input_node {
            return Step::Port { scope, port: wire.from_slot };
        }
        match self.expansion.find(scope, &wire.from) {
            Some(place) => Step::Output { place, slot: wire.from_slot, kind },
            None => because(format!("subgraph \"{}\" has no node {}", graph.name, wire.from)),
        }
    }

    /// The node that sets what another one gets: in the same graph, or in one around it.
    fn setter(&self, scope: usize, getter: &Node<'_>) -> Option<Place> {
        let name = shared_name(getter)?;
        let mut around = Some(scope);
        while let Some(scope) = around {
            let here = &self.expansion.scopes[scope];
            if let Some(node) = self.expansion.document.graphs[here.graph].setters.get(name) {
                return Some(Place { scope, node: *node });
            }
            around = here.host.map(|host| host.scope);
        }
        None
    }
}

fn nothing() -> Step {
    Step::Done(Resolved::Nothing(None))
}

fn because(why: String) -> Step {
    Step::Done(Resolved::Nothing(Some(why)))
}

/// The input of a bypassed node that goes out at one of its outputs: the one in the same position if it fits,
/// else the first of exactly the wanted type, else the first that fits.
fn bypass_input(node: &Node<'_>, output: usize, kind: &str) -> Option<usize> {
    if node.inputs.is_empty() {
        return None;
    }
    if is_any(kind) {
        return Some(if output < node.inputs.len() { output } else { 0 });
    }
    let output_kind = node.outputs.get(output).map_or("*", String::as_str);
    let fits = |input: usize| {
        let input_kind = &node.inputs[input].kind;
        connects(input_kind, output_kind) && connects(input_kind, kind)
    };
    if output < node.inputs.len() && fits(output) {
        return Some(output);
    }
    let exact = node.inputs.iter().position(|input| input.kind == kind);
    exact.or_else(|| (0..node.inputs.len()).find(|input| fits(*input)))
}

fn is_any(kind: &str) -> bool {
    matches!(kind, "" | "*" | "0")
}

/// Whether two types can be linked: any fits all, and a list fits whatever is in it.
fn connects(one: &str, other: &str) -> bool {
    if is_any(one) || is_any(other) {
        return true;
    }
    let same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
    one.split(',').any(|one| other.split(',').any(|other| same(one, other)))
}
