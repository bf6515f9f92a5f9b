//! What nodes are supplied with: which of them must run first, and the values that go along links.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexMap;

use crate::class::{Call, Failure, GraphInput, Inputs};
use crate::executor::cache::Entry;
use crate::executor::calls::Gathered;
use crate::executor::key::{Fingerprint, Key};
use crate::executor::live::LiveNode;
use crate::executor::run::{Run, Stop};
use crate::executor::schedule::Traits;
use crate::guard::guarded;
use crate::literal::Map;
use crate::value::{Link, Value};

/// What is known of nodes in a run, by their places in the graph.
#[derive(Default)]
pub(super) struct Supply {
    keys: Vec<Option<Key>>,
    /// What nodes gave in this run, as long as someone may want it.
    results: HashMap<usize, Arc<Entry>>,
    /// How many pending nodes are linked to a node.
    holders: HashMap<usize, usize>,
    /// By pending node, the nodes that it is linked to.
    held: HashMap<usize, Vec<usize>>,
    /// All results stay: a node looks at the graph and may link to anything in it, or it may come to want a
    /// lazy input, and what is behind that may want anything.
    keeps_all: bool,
}

impl Supply {
    pub(super) fn key(&self, place: usize) -> Option<Key> {
        self.keys.get(place).copied().flatten()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.keys.iter().filter_map(|key| *key)
    }

    fn hold(&mut self, place: usize, mut sources: Vec<usize>) {
        sources.sort_unstable();
        sources.dedup();
        for &source in &sources {
            *self.holders.entry(source).or_default() += 1;
        }
        self.held.insert(place, sources);
    }

    fn is_held(&self, place: usize) -> bool {
        self.keeps_all || self.holders.get(&place).is_some_and(|count| *count > 0)
    }

    fn release(&mut self, place: usize) {
        for source in self.held.remove(&place).unwrap_or_default() {
            if let Some(count) = self.holders.get_mut(&source) {
                *count -= 1;
            }
            if !self.is_held(source) {
                self.results.remove(&source);
            }
        }
    }
}

impl Run<'_> {
    /// What is kept of a node from before.
    pub(super) fn kept(&self, place: usize) -> Option<Arc<Entry>> {
        self.cache.get(self.supply.key(place)?)
    }

    /// What a node gave, in this run or before.
    pub(super) fn known(&self, place: usize) -> Option<Arc<Entry>> {
        self.supply.results.get(&place).cloned().or_else(|| self.kept(place))
    }

    /// Makes a node pending, and what it needs. Links to lazy inputs are no needs.
    pub(super) fn add(&mut self, root: usize) -> Result<(), Stop> {
        let (mut stack, mut links, mut added) = (vec![root], Vec::new(), Vec::new());
        while let Some(place) = stack.pop() {
            if self.schedule.contains(place) {
                continue;
            }
            let node = self.graph.at(place);
            let class = &node.info.class;
            let traits =
                Traits { is_output: node.info.schema.is_output, is_concurrent: class.is_concurrent() };
            self.schedule.add(place, traits);
            self.supply.keeps_all |= node.info.looks_at_graph();
            added.push(place);
            if self.kept(place).is_some() {
                continue;
            }
            let mut sources = Vec::new();
            for (link, role) in node.links() {
                let Some(source) = self.graph.place(&link.node) else {
                    if role.is_lazy {
                        continue;
                    }
                    return Err(self.failed(&node.identity, not_found(link), Map::new()));
                };
                sources.push(source);
                if role.is_lazy {
                    self.supply.keeps_all = true;
                    continue;
                }
                if let Some(entry) = self.known(source) {
                    self.supply.results.insert(source, entry);
                } else {
                    stack.push(source);
                    links.push((source, place));
                }
            }
            self.supply.hold(place, sources);
        }
        for (from, to) in links {
            self.schedule.block(from, to);
        }
        for place in added {
            self.schedule.settle(place);
        }
        Ok(())
    }

    /// Makes a node wait for a lazy input that it asked for.
    pub(super) fn link_strongly(&mut self, place: usize, node: &LiveNode, name: &str) -> Result<(), Failure> {
        match node.inputs.get(name) {
            Some(GraphInput::Link(link)) => self.wait_for(place, link),
            Some(_) => {
                let text = format!(
                    "the node asks for its input \"{name}\", which is a constant that it does not declare"
                );
                Err(Failure::error("NodeInputError", text))
            }
            None => {
                let text = format!("the node asks for its input \"{name}\", which it does not have");
                Err(Failure::error("NodeInputError", text))
            }
        }
    }

    /// Makes a node wait for an output, unless that is known.
    pub(super) fn wait_for(&mut self, place: usize, link: &Link) -> Result<(), Failure> {
        let source = self.graph.place(&link.node).ok_or_else(|| not_found(link))?;
        let held = self.supply.held.entry(place).or_default();
        if !held.contains(&source) {
            held.push(source);
            *self.supply.holders.entry(source).or_default() += 1;
        }
        if let Some(entry) = self.known(source) {
            self.supply.results.insert(source, entry);
            return Ok(());
        }
        match self.add(source) {
            Ok(()) => {
                self.schedule.block(source, place);
                Ok(())
            }
            Err(Stop::Failed(failure)) => {
                Err(Failure::Error { kind: failure.kind, message: failure.message })
            }
            Err(Stop::Interrupted(_)) => Err(Failure::Interrupted),
        }
    }

    /// A node is done: who waited for it may run, and what only it wanted is let go.
    pub(super) fn complete(&mut self, place: usize, entry: Arc<Entry>) {
        if self.supply.is_held(place) {
            self.supply.results.insert(place, entry);
        }
        self.schedule.complete(place);
        self.supply.release(place);
    }

    /// The inputs of a node, as far as they are known. Of a lazy one that was `asked` for, there is no more
    /// to come.
    pub(super) fn gather(&self, node: &LiveNode, asked: Option<&HashSet<String>>) -> Gathered {
        let mut gathered = Gathered::default();
        for ((name, input), role) in node.inputs.iter().zip(&node.roles) {
            let value = match (input, role) {
                (GraphInput::Link(link), Some(role)) if role.is_raw_link => {
                    gathered.raw_links.insert(name.clone(), link.clone());
                    continue;
                }
                (GraphInput::Link(link), role) => {
                    let entry = self.graph.place(&link.node).and_then(|source| self.known(source));
                    match entry.and_then(|entry| entry.outputs.get(link.slot).cloned()) {
                        Some(values) => values,
                        None => {
                            let is_lazy = role.is_some_and(|role| role.is_lazy);
                            if is_lazy && asked.is_none_or(|asked| !asked.contains(name)) {
                                gathered.unknown.push(name.clone());
                            }
                            continue;
                        }
                    }
                }
                (constant, Some(_)) => vec![constant_value(constant)],
                // A constant that is not declared is nothing that the class could know.
                (_, None) => continue,
            };
            gathered.values.insert(name.clone(), value);
        }
        gathered
    }

    /// Gives nodes their keys, those that they are linked to first.
    pub(super) fn make_keys(&mut self, places: impl Iterator<Item = usize>) {
        if !self.cache.is_on() {
            return;
        }
        self.supply.keys.resize(self.graph.len(), None);
        let mut open = HashSet::new();
        let mut stack = Vec::new();
        for root in places {
            stack.push(root);
            while let Some(&place) = stack.last() {
                if self.supply.keys[place].is_some() {
                    stack.pop();
                    continue;
                }
                let node = self.graph.at(place);
                if open.insert(place) {
                    let sources = node.links().filter_map(|(link, _)| self.graph.place(&link.node));
                    // One that is open waits for this very node; such a link equals nothing.
                    stack.extend(
                        sources
                            .filter(|source| self.supply.keys[*source].is_none() && !open.contains(source)),
                    );
                } else {
                    self.supply.keys[place] = Some(self.make_key(&node));
                    stack.pop();
                }
            }
        }
    }

    fn make_key(&mut self, node: &LiveNode) -> Key {
        let fingerprint = self.fingerprint(node);
        let source = |id: &str| self.graph.place(id).and_then(|place| self.supply.key(place));
        self.cache.key_maker().key(node, &fingerprint, source)
    }

    fn fingerprint(&self, node: &LiveNode) -> Fingerprint {
        let mut values = IndexMap::new();
        let mut raw_links = IndexMap::new();
        for ((name, input), role) in node.inputs.iter().zip(&node.roles) {
            match (input, role) {
                (GraphInput::Link(link), Some(role)) if role.is_raw_link => {
                    raw_links.insert(name.clone(), link.clone());
                }
                (GraphInput::Link(_), _) | (_, None) => {}
                (constant, Some(_)) => {
                    values.insert(name.clone(), vec![constant_value(constant)]);
                }
            }
        }
        let call = Call {
            identity: Arc::clone(&node.identity),
            inputs: Inputs { values, raw_links },
            unknown: Vec::new(),
            index: 0,
            job: Arc::clone(&self.job),
        };
        match guarded(|| node.info.class.fingerprint(&call)) {
            Ok(None) => Fingerprint::None,
            Ok(Some(literal)) => Fingerprint::Some(literal),
            Err(_) => Fingerprint::Unknown,
        }
    }
}

fn constant_value(input: &GraphInput) -> Value {
    match input {
        GraphInput::Literal(literal) => Value::Literal(literal.clone()),
        GraphInput::Value(value) => value.clone(),
        // Callers pass constants only; a link has no value of its own.
        GraphInput::Link(_) => Value::Literal(crate::literal::Literal::Null),
    }
}

fn not_found(link: &Link) -> Failure {
    let text = format!("a link leads to node {}, which is not in the graph", link.node);
    Failure::error("NodeNotFoundError", text)
}
