//! Widgets of nodes inside a subgraph that are shown on the subgraph's own node.
//!
//! Editors have stored their values in three ways. At first, and again now, the node has one value for each of
//! its inputs that ends at a widget. In between, `properties.proxyWidgets` listed the widgets by inner node and
//! name, with the values in the same order or left where they were, on the inner node.

use std::cell::RefCell;
use std::collections::HashMap;

use graph::Literal;

use crate::document::{Document, Graph, Node, id_text};
use crate::expansion::{Expansion, Place};
use crate::widgets::{WidgetValues, sendable};

/// How far a subgraph's input is followed into subgraphs that do not take part, which may name each other.
const MAX_DEPTH: usize = 32;

/// The own inputs of a graph.
struct Ports<'d> {
    by_name: HashMap<&'d str, usize>,
    /// By the first widget or slot that they lead to: the position of a node, and the slot's name.
    by_first_target: HashMap<(usize, &'d str), usize>,
    /// By the name of any slot that they lead to, and by that and the node's id.
    by_target: HashMap<(Option<&'d str>, &'d str), usize>,
}

impl<'d> Ports<'d> {
    fn of(graph: &'d Graph<'_>) -> Ports<'d> {
        let mut ports =
            Ports { by_name: HashMap::new(), by_first_target: HashMap::new(), by_target: HashMap::new() };
        for (port, name) in graph.inputs.iter().enumerate() {
            ports.by_name.entry(name).or_insert(port);
            for (at, (node, slot)) in graph.targets(port).enumerate() {
                if at == 0 {
                    ports.by_first_target.entry((node, slot.name)).or_insert(port);
                }
                ports.by_target.entry((None, slot.name)).or_insert(port);
                ports.by_target.entry((Some(&graph.nodes[node].id), slot.name)).or_insert(port);
            }
        }
        ports
    }
}

/// The values of all widgets, as the nodes that show them have them.
pub(crate) struct Promotions<'e, 'd, 'a> {
    expansion: &'e Expansion<'d, 'a>,
    /// What each node stores, by graph and position.
    stored: &'e [Vec<WidgetValues>],
    /// The graphs' own inputs, by graph.
    ports: Vec<Ports<'d>>,
    /// Values that subgraph nodes have for the subgraph's own inputs: scope and input.
    given: HashMap<(usize, usize), Literal>,
    /// Values that subgraph nodes have for widgets inside that no input leads to.
    overrides: HashMap<Place, HashMap<String, Literal>>,
    /// Whether a graph's input ends at a widget.
    ends_at_widget: RefCell<HashMap<(usize, usize), bool>>,
    /// Values of the subgraphs' own inputs that were asked for: scope and input.
    found: RefCell<HashMap<(usize, usize), Option<Literal>>>,
}

impl<'e, 'd, 'a> Promotions<'e, 'd, 'a> {
    /// Reads what the subgraph nodes store; `stored` is what all others do.
    pub(crate) fn new(expansion: &'e Expansion<'d, 'a>, stored: &'e [Vec<WidgetValues>]) -> Self {
        let mut promotions = Promotions {
            expansion,
            stored,
            ports: expansion.document.graphs.iter().map(Ports::of).collect(),
            given: HashMap::new(),
            overrides: HashMap::new(),
            ends_at_widget: RefCell::default(),
            found: RefCell::default(),
        };
        for (scope, stored) in expansion.scopes.iter().enumerate() {
            if let Some(host) = stored.host {
                promotions.read_host(scope, expansion.node(host));
            }
        }
        promotions
    }

    /// The value of a node's widget.
    pub(crate) fn widget(&self, place: Place, name: &str) -> Option<Literal> {
        if let Some(value) = self.overridden(place, name) {
            return Some(value.clone());
        }
        let graph = self.expansion.scopes[place.scope].graph;
        self.stored[graph][place.node].values.get(name).cloned()
    }

    /// The value that a subgraph node around has for a widget or an input that no link leads to.
    pub(crate) fn overridden(&self, place: Place, name: &str) -> Option<&Literal> {
        self.overrides.get(&place)?.get(name)
    }

    /// The value of a primitive: its own, or what is shown for it.
    pub(crate) fn primitive(&self, place: Place) -> Option<Literal> {
        // The widget is called `value`, and in some files like the widget that it is linked to.
        let shown = self.overrides.get(&place).and_then(|values| values.values().next());
        shown.cloned().or_else(|| self.widget(place, "value"))
    }

    /// The value of one of a subgraph's own inputs when nothing is linked to it from outside: that of the node
    /// that stands for it, else that of the first widget that it leads to.
    pub(crate) fn port(&self, scope: usize, port: usize) -> Option<Literal> {
        if let Some(known) = self.found.borrow().get(&(scope, port)) {
            return known.clone();
        }
        let value = self.find_port(scope, port);
        self.found.borrow_mut().insert((scope, port), value.clone());
        value
    }

    fn find_port(&self, scope: usize, port: usize) -> Option<Literal> {
        if let Some(value) = self.given.get(&(scope, port)) {
            return Some(value.clone());
        }
        let here = &self.expansion.scopes[scope];
        let graph = &self.graphs()[here.graph];
        let name = graph.inputs.get(port)?;
        if let Some(value) = here.host.and_then(|host| self.overridden(host, name)) {
            return Some(value.clone());
        }
        let targets: Vec<(usize, &str)> = graph.targets(port).map(|(node, slot)| (node, slot.name)).collect();
        targets.into_iter().find_map(|(node, input)| {
            let place = Place { scope, node };
            match self.expansion.child(place) {
                Some(child) => {
                    let inner_port = self.port_named(self.expansion.scopes[child].graph, input)?;
                    self.port(child, inner_port)
                }
                None => self.widget(place, input),
            }
        })
    }

    fn graphs(&self) -> &'d [Graph<'a>] {
        let document: &'d Document<'a> = self.expansion.document;
        &document.graphs
    }

    fn port_named(&self, graph: usize, name: &str) -> Option<usize> {
        self.ports[graph].by_name.get(name).copied()
    }

    /// Reads what the node of a scope stores.
    fn read_host(&mut self, scope: usize, host: &Node<'_>) {
        let proxies = host.property("proxyWidgets").and_then(Literal::as_list).unwrap_or_default();
        if proxies.is_empty() {
            self.read_positions(scope, host);
        } else {
            let values = host.values.list.unwrap_or_default();
            for (proxy, value) in proxies.iter().zip(values).filter(|(_, value)| **value != Literal::Null) {
                self.read_proxy(scope, proxy, value);
            }
        }
        self.read_quarantine(scope, host);
    }

    /// One value for each of the subgraph's own inputs that ends at a widget.
    fn read_positions(&mut self, scope: usize, host: &Node<'_>) {
        let graph = self.expansion.scopes[scope].graph;
        let mut values = host.values.list.unwrap_or_default().iter();
        for (port, name) in self.graphs()[graph].inputs.iter().enumerate() {
            if !self.is_widget(graph, port, 0) {
                continue;
            }
            let by_name = host.values.named.and_then(|named| named.get(name));
            let value = values.next().or(by_name).filter(|value| **value != Literal::Null);
            if let Some(value) = value {
                self.given.insert((scope, port), sendable(value.clone()));
            }
        }
    }

    /// One listed widget: the inner node's id, the widget's name, and for nested subgraphs the node further in.
    fn read_proxy(&mut self, scope: usize, proxy: &Literal, value: &Literal) {
        let Some([node, Literal::Text(name), rest @ ..]) = proxy.as_list() else { return };
        let Some(node) = id_text(node) else { return };
        let value = sendable(value.clone());
        let graph = self.expansion.scopes[scope].graph;
        // The node itself stands for the subgraph's own input.
        if node == "-1" {
            if let Some(port) = self.port_named(graph, name) {
                self.given.insert((scope, port), value);
            }
            return;
        }
        let Some(place) = self.expansion.find(scope, &node) else { return };
        let (prefix, name) = without_prefix(name);
        let inside = rest.first().and_then(id_text).or(prefix);
        let name = self.name_in(place, name, inside.as_deref());
        match self.ports[graph].by_first_target.get(&(place.node, name.as_str())).copied() {
            Some(port) => {
                self.given.insert((scope, port), value);
            }
            None => {
                self.overrides.entry(place).or_default().insert(name, value);
            }
        }
    }

    /// The name of an inner node's input that a listed name means. On a nested subgraph it may be the name of
    /// the widget at the end.
    fn name_in(&self, place: Place, name: &str, inside: Option<&str>) -> String {
        let Some(inner) = self.expansion.node(place).inner else { return name.to_owned() };
        let ports = &self.ports[inner];
        if inside.is_none() && ports.by_name.contains_key(name) {
            return name.to_owned();
        }
        let port = ports.by_target.get(&(inside, name));
        port.map_or(name, |port| self.graphs()[inner].inputs[*port].as_str()).to_owned()
    }

    /// Values that an editor could not place and kept: those of the subgraph's own inputs count.
    fn read_quarantine(&mut self, scope: usize, host: &Node<'_>) {
        let kept = host.property("proxyWidgetErrorQuarantine").and_then(Literal::as_list).unwrap_or_default();
        for entry in kept.iter().rev() {
            let original = entry.get("originalEntry").and_then(Literal::as_list);
            let Some([node, Literal::Text(name), ..]) = original else { continue };
            let value = entry.get("hostValue").filter(|value| **value != Literal::Null);
            let port = self.port_named(self.expansion.scopes[scope].graph, name);
            if let (Some("-1"), Some(value), Some(port)) = (id_text(node).as_deref(), value, port) {
                self.given.insert((scope, port), sendable(value.clone()));
            }
        }
    }

    /// Whether one of a graph's own inputs ends at a widget.
    fn is_widget(&self, graph_at: usize, port: usize, depth: usize) -> bool {
        if let Some(known) = self.ends_at_widget.borrow().get(&(graph_at, port)) {
            return *known;
        }
        let graph = &self.graphs()[graph_at];
        let found = depth < MAX_DEPTH
            && graph.targets(port).any(|(at, slot)| {
                let node = &graph.nodes[at];
                match node.inner {
                    Some(inner) => {
                        let inner_port = self.port_named(inner, slot.name);
                        inner_port.is_some_and(|inner_port| self.is_widget(inner, inner_port, depth + 1))
                    }
                    None => slot.is_widget || self.stored[graph_at][at].values.contains_key(slot.name),
                }
            });
        self.ends_at_widget.borrow_mut().insert((graph_at, port), found);
        found
    }
}

/// A listed name without the ids that some editors put before it (`12: seed`), and the innermost of those.
fn without_prefix(name: &str) -> (Option<String>, &str) {
    let (mut prefix, mut rest) = (None, name);
    while let Some((id, after)) = rest.split_once(':') {
        let id = id.trim();
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) || after.trim().is_empty() {
            break;
        }
        prefix = Some(id.to_owned());
        rest = after.trim_start();
    }
    (prefix, rest)
}
