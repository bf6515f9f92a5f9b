//! Reductions.

use device::Result;
use device::op::{Reduce, ReduceKind, Softmax};

use crate::Tensor;

impl Tensor {
    /// One value for all along these dimensions, which become 1.
    pub fn reduce(&self, kind: ReduceKind, axes: &[usize]) -> Result<Tensor> {
        let in_range = axes.iter().filter(|&&axis| axis < self.rank());
        let shape = in_range.fold(*self.shape(), |shape, &axis| shape.with(axis, 1));
        let out = self.lane().empty_as(self.dtype(), shape)?;
        self.lane().launch(Reduce { kind, x: self.operand().clone(), out: out.operand().clone() })?;
        Ok(out)
    }

    /// Means along dimensions.
    pub fn mean(&self, axes: &[usize]) -> Result<Tensor> {
        self.reduce(ReduceKind::Mean, axes)
    }

    /// Sums along dimensions.
    pub fn sum(&self, axes: &[usize]) -> Result<Tensor> {
        self.reduce(ReduceKind::Sum, axes)
    }

    /// Softmax over the last dimension.
    pub fn softmax(&self) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.lane().launch(Softmax { x: self.operand().clone(), out: out.operand().clone() })?;
        Ok(out)
    }
}
