//! What is kept of nodes that ran, and for how long.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::Identity;
use crate::executor::CacheMode;
use crate::executor::key::{Key, KeyMaker};
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

/// The outputs that are kept between prompts, for all who run prompts beside each other.
pub(super) struct Cache {
    mode: CacheMode,
    kept: HashMap<Key, Kept>,
    /// The number of the latest prompt of all.
    generation: u64,
    members: Vec<Member>,
}

/// One of those who run prompts.
#[derive(Default)]
struct Member {
    /// The number of its latest prompt.
    generation: u64,
    /// That prompt.
    prompt: Arc<Prompt>,
    is_running: bool,
    /// The user's nodes that expanded in that prompt.
    expanded: HashSet<NodeId>,
}

struct Kept {
    entry: Arc<Entry>,
    /// By member, the last prompt that had it.
    used: Vec<u64>,
    /// The user's node that expanded into it, and its class.
    owner: Option<(NodeId, String)>,
}

impl Kept {
    fn touch(&mut self, member: usize, generation: u64) {
        if self.used.len() <= member {
            self.used.resize(member + 1, 0);
        }
        self.used[member] = generation;
    }

    fn last_used(&self) -> u64 {
        self.used.iter().copied().max().unwrap_or(0)
    }

    /// Whether a prompt that runs has it.
    fn is_in_use(&self, members: &[Member]) -> bool {
        let mut both = members.iter().zip(&self.used);
        both.any(|(member, used)| member.is_running && member.generation == *used)
    }

    /// Whether a prompt that runs has the node that expanded into it.
    fn is_owned(&self, members: &[Member]) -> bool {
        let Some((id, class)) = &self.owner else { return false };
        let running = members.iter().filter(|member| member.is_running);
        let mut nodes = running.filter_map(|member| member.prompt.nodes.get(id));
        nodes.any(|node| node.class_type.as_ref() == Some(class))
    }
}

impl Cache {
    pub(super) fn new(mode: CacheMode) -> Cache {
        Cache { mode, kept: HashMap::new(), generation: 0, members: Vec::new() }
    }

    /// One more who runs prompts; its number.
    pub(super) fn join(&mut self) -> usize {
        self.members.push(Member::default());
        self.members.len() - 1
    }

    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }

    pub(super) fn is_on(&self) -> bool {
        self.mode != CacheMode::None
    }

    /// A prompt begins, whose nodes have these keys. What goes is dropped before anything new is made.
    pub(super) fn begin(&mut self, member: usize, prompt: &Arc<Prompt>, keys: impl Iterator<Item = Key>) {
        self.generation += 1;
        let (generation, prompt) = (self.generation, Arc::clone(prompt));
        self.members[member] = Member { generation, prompt, is_running: true, expanded: HashSet::new() };
        self.kept.retain(|_, kept| kept.entry.is_current());
        for key in keys {
            self.touch(member, key);
        }
        if self.mode == CacheMode::Classic {
            // What others have whose prompts run stays, too.
            let members = &self.members;
            self.kept.retain(|_, kept| kept.is_in_use(members) || kept.is_owned(members));
        }
        self.drop_oldest();
    }

    /// A node expanded again: what its last expansion left and this one does not use goes at the end.
    pub(super) fn expanded(&mut self, member: usize, parent: &Identity, children: impl Iterator<Item = Key>) {
        self.members[member].expanded.insert(Arc::clone(&parent.real));
        for key in children {
            self.touch(member, key);
        }
    }

    /// The prompt is done.
    pub(super) fn end(&mut self, member: usize) {
        let expanded = std::mem::take(&mut self.members[member].expanded);
        if self.mode == CacheMode::Classic && !expanded.is_empty() {
            let members = &self.members;
            self.kept.retain(|_, kept| {
                let was_replaced = kept.owner.as_ref().is_some_and(|(id, _)| expanded.contains(id));
                kept.is_in_use(members) || !was_replaced
            });
        }
        self.drop_oldest();
        self.members[member].is_running = false;
    }

    pub(super) fn get(&self, key: Key) -> Option<Arc<Entry>> {
        self.kept.get(&key).map(|kept| Arc::clone(&kept.entry))
    }

    /// Keeps what a node gave. `real` is the class of the user's node that the node stands for.
    pub(super) fn set(
        &mut self,
        member: usize,
        key: Key,
        entry: Arc<Entry>,
        (identity, real): (&Identity, String),
    ) {
        if !self.is_on() {
            return;
        }
        let owner = identity.parent.is_some().then(|| (Arc::clone(&identity.real), real));
        // Somebody else may have made the same meanwhile, and his prompt has it, too.
        let used = self.kept.remove(&key).map_or_else(Vec::new, |kept| kept.used);
        let mut kept = Kept { entry, used, owner };
        kept.touch(member, self.members[member].generation);
        self.kept.insert(key, kept);
    }

    fn touch(&mut self, member: usize, key: Key) {
        if let Some(kept) = self.kept.get_mut(&key) {
            kept.touch(member, self.members[member].generation);
        }
    }

    /// Drops whole prompts, the oldest first, until the rest is few enough. Those that run stay.
    fn drop_oldest(&mut self) {
        let CacheMode::Lru(most) = self.mode else { return };
        let running = self.members.iter().filter(|member| member.is_running);
        let first_running = running.map(|member| member.generation).min().unwrap_or(u64::MAX);
        let mut ages: BTreeMap<u64, usize> = BTreeMap::new();
        for kept in self.kept.values() {
            *ages.entry(kept.last_used()).or_default() += 1;
        }
        let (mut left, mut oldest) = (self.kept.len(), 0);
        for (used, count) in ages {
            if left <= most || used >= first_running {
                break;
            }
            left -= count;
            oldest = used + 1;
        }
        self.kept.retain(|_, kept| kept.last_used() >= oldest);
    }
}

/// What is kept between prompts, with how it is found: shared by all who run prompts beside each other.
pub(super) struct Shelf {
    cache: Mutex<Cache>,
    key_maker: KeyMaker,
}

/// One member's place at the shelf.
pub(super) struct Place {
    shelf: Arc<Shelf>,
    member: usize,
}

impl Place {
    /// The first place at an empty shelf.
    pub(super) fn new(mode: CacheMode) -> Place {
        let shelf = Shelf { cache: Mutex::new(Cache::new(mode)), key_maker: KeyMaker::default() };
        let member = lock(&shelf.cache).join();
        Place { shelf: Arc::new(shelf), member }
    }

    /// One more place at the same shelf.
    pub(super) fn beside(&self) -> Place {
        Place { shelf: Arc::clone(&self.shelf), member: self.cache().join() }
    }

    /// What makes keys.
    pub(super) fn key_maker(&self) -> &KeyMaker {
        &self.shelf.key_maker
    }

    pub(super) fn clear(&self) {
        self.cache().clear();
    }

    pub(super) fn is_on(&self) -> bool {
        self.cache().is_on()
    }

    pub(super) fn begin(&self, prompt: &Arc<Prompt>, keys: impl Iterator<Item = Key>) {
        self.cache().begin(self.member, prompt, keys);
    }

    pub(super) fn expanded(&self, parent: &Identity, children: impl Iterator<Item = Key>) {
        self.cache().expanded(self.member, parent, children);
    }

    pub(super) fn end(&self) {
        self.cache().end(self.member);
    }

    pub(super) fn get(&self, key: Key) -> Option<Arc<Entry>> {
        self.cache().get(key)
    }

    pub(super) fn set(&self, key: Key, entry: Arc<Entry>, identity: &Identity, real: String) {
        self.cache().set(self.member, key, entry, (identity, real));
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.shelf.cache)
    }
}

fn lock(cache: &Mutex<Cache>) -> MutexGuard<'_, Cache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}
