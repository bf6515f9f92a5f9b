//! What is kept of nodes that ran, and for how long.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::event::Identity;
use crate::executor::CacheMode;
use crate::executor::key::Key;
use crate::literal::Map;
use crate::prompt::Prompt;
use crate::value::{NodeId, Value};

/// What a node gave.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// By slot, a list each: of one value, or of one per call or item.
    pub(super) outputs: Vec<Vec<Value>>,
    /// What clients show.
    pub(super) ui: Option<Map>,
}

impl Entry {
    /// Whether all of it still stands for what it was made of.
    fn is_current(&self) -> bool {
        self.outputs.iter().flatten().all(Value::is_current)
    }
}

/// The outputs that are kept between prompts.
pub(super) struct Cache {
    mode: CacheMode,
    kept: HashMap<Key, Kept>,
    /// The number of the present prompt.
    generation: u64,
    /// The user's nodes that expanded in the present prompt.
    expanded: HashSet<NodeId>,
}

struct Kept {
    entry: Arc<Entry>,
    /// The last prompt that had it.
    used: u64,
    /// The user's node that expanded into it, and its class.
    owner: Option<(NodeId, String)>,
}

impl Cache {
    pub(super) fn new(mode: CacheMode) -> Cache {
        Cache { mode, kept: HashMap::new(), generation: 0, expanded: HashSet::new() }
    }

    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }

    pub(super) fn is_on(&self) -> bool {
        self.mode != CacheMode::None
    }

    /// A prompt begins, whose nodes have these keys. What goes is dropped before anything new is made.
    pub(super) fn begin(&mut self, prompt: &Prompt, keys: impl Iterator<Item = Key>) {
        self.generation += 1;
        self.expanded.clear();
        self.kept.retain(|_, kept| kept.entry.is_current());
        for key in keys {
            self.touch(key);
        }
        let generation = self.generation;
        if self.mode == CacheMode::Classic {
            self.kept.retain(|_, kept| {
                let owner = kept.owner.as_ref().and_then(|(id, class)| Some((prompt.nodes.get(id)?, class)));
                let is_owned = owner.is_some_and(|(node, class)| node.class_type.as_ref() == Some(class));
                kept.used == generation || is_owned
            });
        }
        self.drop_oldest();
    }

    /// A node expanded again: what its last expansion left and this one does not use goes at the end.
    pub(super) fn expanded(&mut self, parent: &Identity, children: impl Iterator<Item = Key>) {
        self.expanded.insert(Arc::clone(&parent.real));
        for key in children {
            self.touch(key);
        }
    }

    /// The prompt is done.
    pub(super) fn end(&mut self) {
        let (generation, expanded) = (self.generation, std::mem::take(&mut self.expanded));
        if self.mode == CacheMode::Classic && !expanded.is_empty() {
            self.kept.retain(|_, kept| {
                let was_replaced = kept.owner.as_ref().is_some_and(|(id, _)| expanded.contains(id));
                kept.used == generation || !was_replaced
            });
        }
        self.drop_oldest();
    }

    pub(super) fn get(&self, key: Key) -> Option<Arc<Entry>> {
        self.kept.get(&key).map(|kept| Arc::clone(&kept.entry))
    }

    /// Keeps what a node gave. `real` is the class of the user's node that the node stands for.
    pub(super) fn set(&mut self, key: Key, entry: Arc<Entry>, identity: &Identity, real: String) {
        if !self.is_on() {
            return;
        }
        let owner = identity.parent.is_some().then(|| (Arc::clone(&identity.real), real));
        self.kept.insert(key, Kept { entry, used: self.generation, owner });
    }

    fn touch(&mut self, key: Key) {
        if let Some(kept) = self.kept.get_mut(&key) {
            kept.used = self.generation;
        }
    }

    /// Drops whole prompts, the oldest first, until the rest is few enough. The present one stays.
    fn drop_oldest(&mut self) {
        let CacheMode::Lru(most) = self.mode else { return };
        let mut ages: BTreeMap<u64, usize> = BTreeMap::new();
        for kept in self.kept.values() {
            *ages.entry(kept.used).or_default() += 1;
        }
        let (mut left, mut oldest) = (self.kept.len(), 0);
        for (used, count) in ages {
            if left <= most || used == self.generation {
                break;
            }
            left -= count;
            oldest = used + 1;
        }
        self.kept.retain(|_, kept| kept.used >= oldest);
    }
}
