//! Modulations of tokens that may have times of their own: one for all of them, one for each frame, or one for each token.

use residency::Lease;
use tensor::Tensor;

use crate::Result;

/// Added to the variance in every normalisation.
pub(super) const NORM_EPS: f32 = 1e-6;

/// How a block moves the tokens, `[items, times, parts · hidden]`, or any part of it over tokens that stand together.
pub(super) struct Change {
    all: Tensor,
    parts: usize,
}

impl Change {
    /// The time's modulations with what a block adds to them.
    pub(super) fn new(lease: &Lease<'_>, name: &str, time: &Tensor, parts: usize) -> Result<Change> {
        let own = lease.lane().unpack(&lease.weight(name)?)?;
        Ok(Change { all: time.add(&own)?, parts })
    }

    /// Modulations that are a block's already, `[items, times, parts · hidden]`.
    pub(super) fn of(all: Tensor, parts: usize) -> Change {
        Change { all, parts }
    }

    /// One part, `[items, times, 1, hidden]`.
    fn part(&self, index: usize) -> Result<Tensor> {
        let [items, times, width] = [self.all.dim(0), self.all.dim(1), self.all.dim(2) / self.parts];
        Ok(self.all.slice(2, index * width, width)?.reshape([items, times, 1, width])?)
    }

    /// Tokens `[items, tokens, hidden]` with those of one time together: `[items, times, tokens, hidden]`.
    fn by_time(&self, x: &Tensor) -> Result<Tensor> {
        let times = self.all.dim(1);
        Ok(x.reshape([x.dim(0), times, x.dim(1) / times, x.dim(2)])?)
    }

    /// Tokens normalised, scaled and shifted by two parts, shift first.
    pub(super) fn normed(&self, x: &Tensor, first: usize) -> Result<Tensor> {
        let normed = self.by_time(x)?.modulated_norm(&self.part(first + 1)?, &self.part(first)?, NORM_EPS)?;
        Ok(normed.reshape(*x.shape())?)
    }

    /// Tokens of root mean square 1, scaled and shifted by two parts, shift first.
    pub(super) fn rms_normed(&self, x: &Tensor, first: usize) -> Result<Tensor> {
        let normed = self.by_time(&x.rms_norm(None, NORM_EPS)?)?;
        Ok(normed.modulate(&self.part(first + 1)?, &self.part(first)?)?.reshape(*x.shape())?)
    }

    /// Tokens plus others, gated by one part.
    pub(super) fn gated(&self, x: &Tensor, part: usize, y: &Tensor) -> Result<Tensor> {
        let sum = self.by_time(x)?.gated_add(&self.part(part)?, &self.by_time(y)?)?;
        Ok(sum.reshape(*x.shape())?)
    }
}
