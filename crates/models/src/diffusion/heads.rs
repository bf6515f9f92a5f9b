//! Heads of attention: queries, keys and values of all tokens, filled by one side after the other, then read.

use tensor::Tensor;

use super::attending::Attending;
use crate::Result;

/// How many heads there are, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadSizes {
    /// Heads of queries.
    pub(super) heads: usize,
    /// Heads of keys and values, which groups of queries share.
    pub(super) groups: usize,
    /// Values per head.
    pub(super) size: usize,
}

/// Queries, keys and values, each `[batch, tokens, heads, size]`.
pub(super) struct Heads {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
}

impl HeadSizes {
    /// As many heads of keys and values as of queries.
    pub(super) fn equal(heads: usize, size: usize) -> HeadSizes {
        HeadSizes { heads, groups: heads, size }
    }
}

impl Heads {
    /// Room for so many tokens, beside a tensor of any number of them.
    pub(super) fn empty(sizes: HeadSizes, beside: &Tensor, tokens: usize) -> Result<Heads> {
        let empty =
            |heads| beside.lane().empty_as(beside.dtype(), [beside.dim(0), tokens, heads, sizes.size]);
        Ok(Heads { q: empty(sizes.heads)?, k: empty(sizes.groups)?, v: empty(sizes.groups)? })
    }

    /// `len` tokens from `start`.
    pub(super) fn slice(&self, start: usize, len: usize) -> Result<Heads> {
        let part = |x: &Tensor| x.slice(1, start, len);
        Ok(Heads { q: part(&self.q)?, k: part(&self.k)?, v: part(&self.v)? })
    }

    /// Attention of all tokens over all tokens, `[batch, tokens, heads · size]`.
    pub(super) fn attend(&self) -> Result<Tensor> {
        self.attend_with(&Attending::default())
    }

    /// The same where some tokens are looked at more or less than others.
    pub(super) fn attend_with(&self, attending: &Attending) -> Result<Tensor> {
        let width = self.q.dim(2) * self.q.dim(3);
        let out = self.q.lane().empty_as(self.q.dtype(), [self.q.dim(0), self.q.dim(1), width])?;
        self.attend_into(attending, &out)?;
        Ok(out)
    }

    /// The same, written into a view of another tensor.
    pub(super) fn attend_into(&self, attending: &Attending, out: &Tensor) -> Result<()> {
        let scale = 1.0 / (self.q.dim(3) as f32).sqrt();
        // Cutting the last dimension is always a view.
        let out = out.reshape(*self.q.shape())?;
        attending.attend([&self.q, &self.k, &self.v], scale, &out)
    }
}
