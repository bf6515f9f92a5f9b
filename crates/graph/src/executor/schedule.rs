//! Which node runs next: those that wait for nothing, the ones people wait for first.

use std::collections::{BTreeSet, HashSet};

/// What decides a node's turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traits {
    /// It saves or shows something.
    pub(super) is_output: bool,
    /// It spends its time waiting, so it should begin early.
    pub(super) is_concurrent: bool,
}

/// The nodes that are to run, by their places in the graph.
#[derive(Default)]
pub(super) struct Schedule {
    pending: Vec<Option<Pending>>,
    count: usize,
    added: usize,
    /// Who waits for whom: the first blocks the second.
    edges: HashSet<(usize, usize)>,
    /// Rank, order of addition, place.
    ready: BTreeSet<(u8, usize, usize)>,
}

struct Pending {
    traits: Traits,
    order: usize,
    /// How many it waits for.
    blockers: usize,
    /// Who waits for it.
    blocked: Vec<usize>,
    feeds_output: bool,
    /// Where it is in the ready set, while it is there.
    rank: Option<u8>,
    /// It is being run, and is not ready again until it is put back.
    is_taken: bool,
}

impl Schedule {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn contains(&self, place: usize) -> bool {
        self.get(place).is_some()
    }

    /// Adds a node that waits for nothing yet; it is ready once it is settled.
    pub(super) fn add(&mut self, place: usize, traits: Traits) {
        if self.pending.len() <= place {
            self.pending.resize_with(place + 1, || None);
        }
        let (order, blocked) = (self.added, Vec::new());
        let node =
            Pending { traits, order, blockers: 0, blocked, feeds_output: false, rank: None, is_taken: false };
        self.pending[place] = Some(node);
        self.added += 1;
        self.count += 1;
    }

    /// Makes a node wait for another. Both must have been added.
    pub(super) fn block(&mut self, from: usize, to: usize) {
        if !self.contains(from) || !self.contains(to) || !self.edges.insert((from, to)) {
            return;
        }
        let Some((is_output, feeds_output)) =
            self.get(to).map(|node| (node.traits.is_output, node.feeds_output))
        else {
            return;
        };
        if let Some(node) = self.get_mut(from) {
            node.blocked.push(to);
            node.feeds_output |= is_output;
            let better = if is_output { 1 } else { 2 };
            if let Some(rank) = node.rank
                && rank > better
                && (is_output || feeds_output)
            {
                node.rank = Some(better);
                let order = node.order;
                self.ready.remove(&(rank, order, from));
                self.ready.insert((better, order, from));
            }
        }
        if let Some(node) = self.get_mut(to) {
            node.blockers += 1;
        }
        self.settle(to);
    }

    /// Makes a node ready if it waits for nothing, and gives it its rank.
    pub(super) fn settle(&mut self, place: usize) {
        let Some(node) = self.get(place) else { return };
        let (old, order) = (node.rank, node.order);
        let is_ready = node.blockers == 0 && !node.is_taken;
        if is_ready == old.is_some() {
            return;
        }
        let new = is_ready.then(|| self.rank(node));
        if let Some(rank) = old {
            self.ready.remove(&(rank, order, place));
        }
        if let Some(rank) = new {
            self.ready.insert((rank, order, place));
        }
        if let Some(node) = self.get_mut(place) {
            node.rank = new;
        }
    }

    /// Outputs and those that wait come first; then what leads to an output in one step, or in two.
    fn rank(&self, node: &Pending) -> u8 {
        if node.traits.is_output || node.traits.is_concurrent {
            0
        } else if node.feeds_output {
            1
        } else if node.blocked.iter().any(|&next| self.get(next).is_some_and(|next| next.feeds_output)) {
            2
        } else {
            3
        }
    }

    /// Takes the next node to run. It stays pending until it is completed or put back.
    pub(super) fn take(&mut self) -> Option<usize> {
        let (_, _, place) = self.ready.pop_first()?;
        if let Some(node) = self.get_mut(place) {
            node.rank = None;
            node.is_taken = true;
        }
        Some(place)
    }

    /// Puts a taken node back; it runs again when it waits for nothing.
    pub(super) fn put_back(&mut self, place: usize) {
        if let Some(node) = self.get_mut(place) {
            node.is_taken = false;
        }
        self.settle(place);
    }

    /// A node is done: nobody waits for it any more.
    pub(super) fn complete(&mut self, place: usize) {
        let Some(node) = self.pending.get_mut(place).and_then(Option::take) else { return };
        self.count -= 1;
        for next in node.blocked {
            self.edges.remove(&(place, next));
            if let Some(node) = self.get_mut(next) {
                node.blockers -= 1;
            }
            self.settle(next);
        }
    }

    /// When nothing is ready: nodes that wait for each other in a ring.
    pub(super) fn ring(&self) -> Vec<usize> {
        let mut blocker = vec![None; self.pending.len()];
        for (from, node) in self.pending.iter().enumerate() {
            for &to in node.iter().flat_map(|node| &node.blocked) {
                blocker[to].get_or_insert(from);
            }
        }
        // Following what each one waits for must come back to where it was.
        let mut seen = vec![false; self.pending.len()];
        let mut at = self.pending.iter().position(Option::is_some);
        while let Some(place) = at
            && !seen[place]
        {
            seen[place] = true;
            at = blocker[place];
        }
        let mut ring = Vec::new();
        while let Some(place) = at
            && ring.first() != Some(&place)
        {
            ring.push(place);
            at = blocker[place];
        }
        ring.sort_by_key(|&place| self.get(place).map(|node| node.order));
        ring
    }

    fn get(&self, place: usize) -> Option<&Pending> {
        self.pending.get(place)?.as_ref()
    }

    fn get_mut(&mut self, place: usize) -> Option<&mut Pending> {
        self.pending.get_mut(place)?.as_mut()
    }
}
