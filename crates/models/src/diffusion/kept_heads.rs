//! Keys and values of tokens at the end of a sequence that are computed once in a run: the first step records them, later
//! steps leave the tokens out and read what was recorded.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use tensor::Tensor;

use super::heads::{HeadSizes, Heads};
use crate::Result;

/// Keys and values of one block, each `[batch, tokens, heads, size]`.
pub(super) type KeysAndValues = [Tensor; 2];

/// What a block does about the keys and values of the last tokens.
#[derive(Default)]
pub(super) enum LastTokens {
    /// They are tokens like all others.
    #[default]
    Usual,
    /// Those of so many tokens are recorded.
    Record(usize, RefCell<Option<KeysAndValues>>),
    /// The tokens are not among those that are computed: their keys and values are these.
    Recorded(KeysAndValues),
}

impl LastTokens {
    /// Records so many.
    pub(super) fn record(tokens: usize) -> LastTokens {
        LastTokens::Record(tokens, RefCell::default())
    }

    /// Room for the heads of so many computed tokens, with what was recorded behind their keys and values.
    pub(super) fn room(&self, sizes: HeadSizes, beside: &Tensor, tokens: usize) -> Result<Heads> {
        let LastTokens::Recorded(recorded) = self else { return Heads::empty(sizes, beside, tokens) };
        let count = recorded[0].dim(1);
        let all = Heads::empty(sizes, beside, tokens + count)?;
        let last = all.slice(tokens, count)?;
        recorded[0].copy_into(&last.k)?;
        recorded[1].copy_into(&last.v)?;
        Ok(Heads { q: all.q.slice(1, 0, tokens)?, ..all })
    }

    /// Records the last keys and values, if it is to.
    pub(super) fn see(&self, heads: &Heads) -> Result<()> {
        let LastTokens::Record(count, recorded) = self else { return Ok(()) };
        // A copy: a view would hold the memory of all tokens.
        let last = |x: &Tensor| -> Result<Tensor> {
            let last = x.slice(1, x.dim(1) - count, *count)?;
            let out = x.lane().empty_as(x.dtype(), *last.shape())?;
            last.copy_into(&out)?;
            Ok(out)
        };
        *recorded.borrow_mut() = Some([last(&heads.k)?, last(&heads.v)?]);
        Ok(())
    }

    /// What was recorded.
    pub(super) fn into_recorded(self) -> Option<KeysAndValues> {
        match self {
            LastTokens::Record(_, recorded) => recorded.into_inner(),
            _ => None,
        }
    }
}

/// What was recorded for one conditioning of a run, block by block.
#[derive(Default)]
pub(super) struct KeptHeads(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    blocks: Vec<Option<KeysAndValues>>,
    /// Of how many items, once every block has been recorded.
    items: Option<usize>,
}

impl KeptHeads {
    /// Whether all blocks were recorded, for so many items.
    pub(super) fn are_whole(&self, items: usize) -> bool {
        self.with(|kept| kept.items == Some(items))
    }

    /// Keeps what a block recorded.
    pub(super) fn put(&self, block: usize, recorded: KeysAndValues) {
        self.with(|kept| {
            kept.items = None;
            kept.blocks.resize_with(kept.blocks.len().max(block + 1), || None);
            kept.blocks[block] = Some(recorded);
        });
    }

    /// Says that all blocks were recorded.
    pub(super) fn finish(&self, items: usize) {
        self.with(|kept| kept.items = Some(items));
    }

    /// What a block recorded.
    pub(super) fn of(&self, block: usize) -> Option<KeysAndValues> {
        self.with(|kept| kept.blocks.get(block)?.clone())
    }

    fn with<T>(&self, what: impl FnOnce(&mut Kept) -> T) -> T {
        // Every change is whole, so what another thread left is good.
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
