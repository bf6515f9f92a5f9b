//! Finding things by name: one sorted list of positions beside the things themselves, so that names
//! are kept once and hostile names cannot make lookups slow.

/// Something with a name.
pub(crate) trait Named {
    fn name(&self) -> &str;
}

/// Positions in a slice, sorted by name.
#[derive(Debug, Default)]
pub(crate) struct NameIndex(Vec<u32>);

impl NameIndex {
    /// Sorts `items` by name. Fails with the positions of two that share one, earlier first.
    pub(crate) fn new<T: Named>(items: &[T]) -> Result<NameIndex, (usize, usize)> {
        let mut order = positions(items);
        order.sort_unstable_by(|&a, &b| name(items, a).cmp(name(items, b)).then(a.cmp(&b)));
        match order.windows(2).find(|pair| name(items, pair[0]) == name(items, pair[1])) {
            Some(pair) => Err((pair[0] as usize, pair[1] as usize)),
            None => Ok(NameIndex(order)),
        }
    }

    /// The position of the item with this name in the slice that the index was made from.
    pub(crate) fn find<T: Named>(&self, items: &[T], wanted: &str) -> Option<usize> {
        let place = self.0.binary_search_by(|&at| name(items, at).cmp(wanted)).ok()?;
        Some(self.0[place] as usize)
    }
}

/// All positions of a slice. The limits on tensors and keys keep them far below 32 bits.
pub(crate) fn positions<T>(items: &[T]) -> Vec<u32> {
    (0..items.len() as u32).collect()
}

fn name<T: Named>(items: &[T], at: u32) -> &str {
    items[at as usize].name()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Named for &str {
        fn name(&self) -> &str {
            self
        }
    }

    #[test]
    fn finds_by_name_and_reports_duplicates() {
        let items = ["b", "a", "", "c"];
        let index = NameIndex::new(&items).unwrap();
        for (at, item) in items.iter().enumerate() {
            assert_eq!(index.find(&items, item), Some(at));
        }
        assert_eq!(index.find(&items, "d"), None);
        assert_eq!(NameIndex::new(&["x", "y", "x"]).unwrap_err(), (0, 2));
    }
}
