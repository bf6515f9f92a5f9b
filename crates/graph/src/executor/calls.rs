//! One node, several calls: lists are taken apart for a class that takes single values, and what the calls
//! gave is put together again.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::class::{Call, Inputs, JobContext, Outcome, Outputs, Slot};
use crate::event::Identity;
use crate::literal::{Literal, Map};
use crate::value::{Link, Value};

/// What a node's inputs are, before they are taken apart into calls.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) values: IndexMap<String, Vec<Value>>,
    pub(super) raw_links: IndexMap<String, Link>,
    /// Lazy inputs that were not evaluated.
    pub(super) unknown: Vec<String>,
}

/// A call to make, or one that a blocker keeps from being made.
pub(super) enum Planned {
    Call(Call),
    Blocked(Option<Arc<str>>),
}

impl Gathered {
    /// The calls. A list that is too short repeats its last value; without inputs there is one call.
    pub(super) fn calls(
        &self,
        identity: &Arc<Identity>,
        job: &Arc<JobContext>,
        takes_lists: bool,
    ) -> impl Iterator<Item = Planned> {
        let longest = self.values.values().map(Vec::len).max().unwrap_or(0);
        let count = if takes_lists { 1 } else { longest.max(1) };
        (0..count).map(move |index| {
            let values = if takes_lists { self.values.clone() } else { self.slice(index) };
            let blocker = values.values().flatten().find_map(|value| match value {
                Value::Blocker(message) => Some(message.clone()),
                _ => None,
            });
            if let Some(message) = blocker {
                return Planned::Blocked(message);
            }
            Planned::Call(Call {
                identity: Arc::clone(identity),
                inputs: Inputs { values, raw_links: self.raw_links.clone() },
                unknown: self.unknown.clone(),
                index,
                job: Arc::clone(job),
            })
        })
    }

    fn slice(&self, index: usize) -> IndexMap<String, Vec<Value>> {
        let one = |(name, values): (&String, &Vec<Value>)| {
            let value = values.get(index).or(values.last())?;
            Some((name.clone(), vec![value.clone()]))
        };
        self.values.iter().filter_map(one).collect()
    }

    /// The inputs as they are shown when the node fails.
    pub(super) fn described(&self) -> Map {
        let describe = |value: &Value| match value {
            Value::Literal(literal) => literal.clone(),
            other => Literal::Text(other.describe()),
        };
        let list = |values: &Vec<Value>| Literal::List(values.iter().map(describe).collect());
        self.values.iter().map(|(name, values)| (name.clone(), list(values))).collect()
    }
}

/// What the calls of a node show, together: the keys of the first, each with the items of all.
pub(super) fn merge_ui(outcomes: &mut [Outcome]) -> Option<Map> {
    let mut shown = outcomes.iter_mut().filter_map(|outcome| outcome.ui.take());
    let mut merged: Map = shown.next()?;
    for value in merged.values_mut() {
        if value.as_list().is_none() {
            *value = Literal::List(vec![std::mem::take(value)]);
        }
    }
    for mut ui in shown {
        for (key, value) in &mut merged {
            let Literal::List(items) = value else { continue };
            match ui.get_mut(key).map(std::mem::take) {
                Some(Literal::List(more)) => items.extend(more),
                Some(one) => items.push(one),
                None => {}
            }
        }
    }
    Some(merged).filter(|merged| !merged.is_empty())
}

/// The outputs of all calls, slot by slot. `linked` gives what an expansion's output gave.
pub(super) fn merge_outputs(
    calls: Vec<Outputs>,
    slots: usize,
    mut linked: impl FnMut(&Link) -> Vec<Value>,
) -> Vec<Vec<Value>> {
    let mut merged: Vec<Vec<Value>> = Vec::new();
    for call in calls {
        let outputs = match call {
            Outputs::Slots(outputs) => outputs,
            Outputs::Blocked(message) => vec![Slot::One(Value::Blocker(message)); slots],
        };
        if merged.len() < outputs.len() {
            merged.resize_with(outputs.len(), Vec::new);
        }
        for (values, slot) in merged.iter_mut().zip(outputs) {
            match slot {
                Slot::One(value) => values.push(value),
                Slot::Many(many) => values.extend(many),
                Slot::Link(link) => values.extend(linked(&link)),
            }
        }
    }
    merged
}

/// The links that the calls gave in place of values.
pub(super) fn links_of(calls: &[Outputs]) -> impl Iterator<Item = &Link> {
    let slots = calls.iter().flat_map(|call| match call {
        Outputs::Slots(slots) => slots.as_slice(),
        Outputs::Blocked(_) => &[],
    });
    slots.filter_map(|slot| match slot {
        Slot::Link(link) => Some(link),
        _ => None,
    })
}
