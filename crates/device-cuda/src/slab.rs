//! Small blocks of memory cut from large ones.
//!
//! The card hands memory out in pages of 2 MB; a block of its own for each small tensor would waste a
//! good part of them. So small blocks are cut from slabs: the smallest free range that fits is split,
//! and a freed block grows together with free neighbours of its slab. This part knows only numbers.

use std::collections::{BTreeMap, BTreeSet};

/// What must have happened before a range may be used again.
pub(crate) trait Mark: Clone {
    /// Whether having waited for `self` is as good as having waited for `other`.
    fn covers(&self, other: &Self) -> bool;
}

/// A block that was cut from a slab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece<M> {
    /// Its first byte.
    pub(crate) address: u64,
    /// Its size.
    pub(crate) size: usize,
    /// First byte of its slab.
    pub(crate) slab: u64,
    /// What must have happened before it may be used.
    pub(crate) marks: Vec<M>,
}

/// The free ranges of all slabs.
pub(crate) struct Slabs<M> {
    /// Size of each slab by its first byte.
    slabs: BTreeMap<u64, usize>,
    /// Free ranges by their first byte.
    free: BTreeMap<u64, Piece<M>>,
    /// The same by size, smallest first.
    by_size: BTreeSet<(usize, u64)>,
    free_bytes: usize,
}

impl<M> Default for Slabs<M> {
    fn default() -> Slabs<M> {
        Slabs { slabs: BTreeMap::new(), free: BTreeMap::new(), by_size: BTreeSet::new(), free_bytes: 0 }
    }
}

impl<M: Mark> Slabs<M> {
    /// Bytes in free ranges.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Adds a slab, all of it free.
    pub(crate) fn add(&mut self, address: u64, size: usize) {
        self.slabs.insert(address, size);
        self.insert(Piece { address, size, slab: address, marks: Vec::new() });
    }

    /// A piece of exactly `size` bytes from the smallest range that has so many; none if none has.
    pub(crate) fn take(&mut self, size: usize) -> Option<Piece<M>> {
        let &(_, address) = self.by_size.range((size, 0)..).next()?;
        let mut piece = self.remove(address)?;
        if piece.size > size {
            self.insert(Piece {
                address: piece.address + size as u64,
                size: piece.size - size,
                slab: piece.slab,
                marks: piece.marks.clone(),
            });
            piece.size = size;
        }
        Some(piece)
    }

    /// Takes a piece back and joins it with its free neighbours.
    pub(crate) fn give(&mut self, mut piece: Piece<M>) {
        let before = self.free.range(..piece.address).next_back();
        let touches = |p: &Piece<M>| p.slab == piece.slab && p.address + p.size as u64 == piece.address;
        if let Some(address) = before.filter(|(_, p)| touches(p)).map(|(address, _)| *address)
            && let Some(joined) = self.remove(address)
        {
            piece.address = joined.address;
            piece.size += joined.size;
            join(&mut piece.marks, joined.marks);
        }
        let end = piece.address + piece.size as u64;
        if self.free.get(&end).is_some_and(|p| p.slab == piece.slab)
            && let Some(joined) = self.remove(end)
        {
            piece.size += joined.size;
            join(&mut piece.marks, joined.marks);
        }
        self.insert(piece);
    }

    /// Removes and returns the slabs that are free as a whole.
    pub(crate) fn take_unused(&mut self) -> Vec<Piece<M>> {
        let whole = |piece: &&Piece<M>| self.slabs.get(&piece.address) == Some(&piece.size);
        let unused: Vec<u64> = self.free.values().filter(whole).map(|piece| piece.address).collect();
        for address in &unused {
            self.slabs.remove(address);
        }
        unused.into_iter().filter_map(|address| self.remove(address)).collect()
    }

    fn insert(&mut self, piece: Piece<M>) {
        self.free_bytes += piece.size;
        self.by_size.insert((piece.size, piece.address));
        self.free.insert(piece.address, piece);
    }

    fn remove(&mut self, address: u64) -> Option<Piece<M>> {
        let piece = self.free.remove(&address)?;
        self.by_size.remove(&(piece.size, address));
        self.free_bytes -= piece.size;
        Some(piece)
    }
}

/// Both lists of marks in one, without those that another covers.
fn join<M: Mark>(marks: &mut Vec<M>, more: Vec<M>) {
    for mark in more {
        if !marks.iter().any(|known| known.covers(&mark)) {
            marks.retain(|known| !mark.covers(known));
            marks.push(mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream and a point on it.
    impl Mark for (u8, u64) {
        fn covers(&self, other: &(u8, u64)) -> bool {
            self.0 == other.0 && self.1 >= other.1
        }
    }

    #[test]
    fn pieces_are_split_and_grow_together_again() {
        let mut slabs = Slabs::default();
        slabs.add(1000, 100);
        let (mut a, b, mut c) = (slabs.take(30).unwrap(), slabs.take(30).unwrap(), slabs.take(40).unwrap());
        assert!(slabs.take(1).is_none() && slabs.free_bytes() == 0);
        assert_eq!((a.address, b.address, c.address), (1000, 1030, 1060));
        a.marks = vec![(0, 5)];
        c.marks = vec![(0, 7), (1, 2)];
        slabs.give(a);
        slabs.give(c);
        assert_eq!(slabs.take(35).map(|p| (p.address, p.marks)), Some((1060, vec![(0, 7), (1, 2)])));
        assert!(slabs.take_unused().is_empty());
        slabs.give(Piece { address: 1060, size: 35, slab: 1000, marks: vec![(0, 9)] });
        slabs.give(b);
        let unused = slabs.take_unused();
        assert_eq!(unused.len(), 1);
        assert_eq!((unused[0].address, unused[0].size), (1000, 100));
        let mut marks = unused[0].marks.clone();
        marks.sort_unstable();
        assert_eq!(marks, [(0, 9), (1, 2)], "the latest point of each stream");
        assert!(slabs.take(1).is_none());
    }

    #[test]
    fn neighbouring_slabs_stay_apart() {
        let mut slabs: Slabs<(u8, u64)> = Slabs::default();
        slabs.add(0, 50);
        slabs.add(50, 50);
        assert!(slabs.take(60).is_none());
        let (a, b) = (slabs.take(50).unwrap(), slabs.take(50).unwrap());
        slabs.give(a);
        slabs.give(b);
        assert!(slabs.take(60).is_none());
        assert_eq!(slabs.take_unused().len(), 2);
    }

    #[test]
    fn pieces_in_use_never_overlap() {
        let mut slabs: Slabs<(u8, u64)> = Slabs::default();
        let (mut used, mut state): (Vec<Piece<(u8, u64)>>, u64) = (Vec::new(), 88_172_645_463_325_252);
        for turn in 0..20_000u64 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if state % 5 < 2 && !used.is_empty() {
                let mut piece = used.swap_remove(state as usize / 8 % used.len());
                piece.marks = vec![(state as u8 % 3, turn)];
                slabs.give(piece);
            } else {
                let size = 1 + (state >> 20) as usize % 300;
                let piece = slabs.take(size).or_else(|| {
                    slabs.add(10_000 * (turn + 1), 2000);
                    slabs.take(size)
                });
                used.push(piece.unwrap());
            }
            if turn % 500 == 0 {
                let mut sorted: Vec<_> = used.iter().map(|p| (p.address, p.size as u64)).collect();
                sorted.extend(slabs.free.values().map(|p| (p.address, p.size as u64)));
                sorted.sort_unstable();
                assert!(sorted.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
                let total: u64 = sorted.iter().map(|(_, size)| size).sum();
                assert_eq!(total, slabs.slabs.len() as u64 * 2000, "no byte is lost");
            }
        }
        used.into_iter().for_each(|piece| slabs.give(piece));
        let count = slabs.slabs.len();
        assert!(count > 1 && slabs.take_unused().len() == count, "all grows together in the end");
        assert_eq!(slabs.free_bytes(), 0);
    }
}
