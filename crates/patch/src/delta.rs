//! A patch's change as a matrix, computed on an f32 lane.

use tensor::{Lane, Tensor};

use crate::adapter::{Delta, KroneckerFactor, OtherWeight, Product, glora_form};
use crate::arithmetic::patched;
use crate::factors::Factors;
use crate::{Factor, Oft, Result};

/// What a change is computed from beside its own tensors.
pub(crate) struct Bench<'a> {
    /// An f32 lane.
    pub(crate) lane: &'a Lane,
    /// The patch's own tensors, as far as they are on the lane's device.
    pub(crate) factors: &'a Factors,
    /// Multiplies the change.
    pub(crate) factor: f32,
}

impl Bench<'_> {
    /// The change as `[rows, columns]`; `None` where it depends on a weight that is not given.
    pub(crate) fn change(&self, delta: &Delta, weight: Option<&Tensor>) -> Result<Option<Tensor>> {
        match delta {
            Delta::Lora { up, down, mid, .. } => self.lora(up, down, mid.as_ref()).map(Some),
            Delta::Loha { w1, w2, .. } => {
                Ok(Some(self.product(w1, self.factor)?.mul(&self.product(w2, 1.0)?)?))
            }
            Delta::Lokr { w1, w2, .. } => self.kronecker(w1, w2).map(Some),
            Delta::Difference(values) => Ok(Some(self.matrix(values)?.affine(self.factor, 0.0)?)),
            Delta::Glora { a, b, .. } => weight.map(|weight| self.glora(a, b, weight)).transpose(),
            Delta::Oft(oft) => weight.map(|weight| self.rotated(oft, weight)).transpose(),
            Delta::Weight(other) => self.other(other).map(Some),
            Delta::Nothing => Ok(None),
            Delta::Replacement(values) => {
                weight.map(|weight| Ok(self.matrix(values)?.sub(&as_matrix(weight)?)?)).transpose()
            }
        }
    }

    /// Another model's weight with its own patches, as a matrix.
    fn other(&self, other: &OtherWeight) -> Result<Tensor> {
        let mut values = self.factors.tensor(self.lane, &other.values)?;
        if let Some(scale) = other.scale {
            values = values.affine(scale, 0.0)?;
        }
        if !other.patches.is_empty() {
            values = patched(self.lane, self.factors, &values, &other.patches)?;
        }
        Ok(as_matrix(&values)?.affine(self.factor, 0.0)?)
    }

    fn matrix(&self, factor: &Factor) -> Result<Tensor> {
        self.factors.matrix(self.lane, factor)
    }

    fn lora(&self, up: &Factor, down: &Factor, mid: Option<&Factor>) -> Result<Tensor> {
        let [left, right] = self.lora_sides(up, down, mid)?;
        Ok(left.matmul(&right, self.factor)?)
    }

    /// The two matrices whose product a LoRA is.
    pub(crate) fn lora_sides(&self, up: &Factor, down: &Factor, mid: Option<&Factor>) -> Result<[Tensor; 2]> {
        let mut right = self.matrix(down)?;
        if let Some(mid) = mid {
            // down'[m, j, kernel] = Σₙ mid[m, n, kernel] · down[n, j]
            right = self.spread(&self.factors.tensor(self.lane, mid)?, &right)?;
        }
        Ok([self.matrix(up)?, right])
    }

    /// `a · b`, or with a core `Σ core[i, j, kernel] · b[j, r] · a[i, p]` as `[p, r · kernel]`.
    fn product(&self, product: &Product, factor: f32) -> Result<Tensor> {
        let (a, b) = (self.matrix(&product.a)?, self.matrix(&product.b)?);
        match &product.core {
            None => Ok(a.matmul(&b, factor)?),
            Some(core) => {
                let right = self.spread(&self.factors.tensor(self.lane, core)?, &b)?;
                Ok(a.transpose(0, 1)?.matmul(&right, factor)?)
            }
        }
    }

    /// `Σₙ core[m, n, kernel] · matrix[n, j]` as `[m, j · kernel]`.
    fn spread(&self, core: &Tensor, matrix: &Tensor) -> Result<Tensor> {
        let (outer, inner) = (core.dim(0), core.dim(1));
        let kernel = core.shape().count() / (outer * inner);
        let columns = matrix.dim(1);
        let rows = core.reshape([outer, inner, kernel])?.permute(&[0, 2, 1])?.contiguous()?;
        let product = rows.reshape([outer * kernel, inner])?.matmul(matrix, 1.0)?;
        let order = product.reshape([outer, kernel, columns])?.permute(&[0, 2, 1])?.contiguous()?;
        Ok(order.reshape([outer, columns * kernel])?)
    }

    /// Every value of the outer block times the whole inner block. An inner block with a kernel is seen as a matrix;
    /// its values then stand in the same order as the weight's.
    fn kronecker(&self, w1: &KroneckerFactor, w2: &KroneckerFactor) -> Result<Tensor> {
        let (outer, inner) = (self.block(w1)?.affine(self.factor, 0.0)?, self.block(w2)?);
        let ([a, b], [c, d]) = ([outer.dim(0), outer.dim(1)], [inner.dim(0), inner.dim(1)]);
        let all = outer.reshape([a, 1, b, 1])?.mul(&inner.reshape([1, c, 1, d])?)?;
        Ok(all.reshape([a * c, b * d])?)
    }

    fn block(&self, block: &KroneckerFactor) -> Result<Tensor> {
        match block {
            KroneckerFactor::Whole(factor) => self.matrix(factor),
            KroneckerFactor::Product(product) => self.product(product, 1.0),
        }
    }

    /// What rotating its blocks of rows adds to a weight.
    fn rotated(&self, oft: &Oft, weight: &Tensor) -> Result<Tensor> {
        let (rows, columns) = crate::factor::flat(weight.shape());
        let blocks = weight.reshape([rows / oft.block_rows(), oft.block_rows(), columns])?;
        let turns = self.factors.tensor(self.lane, oft.turns())?;
        Ok(turns.matmul(&blocks, self.factor * self.factor)?.reshape([rows, columns])?)
    }

    fn glora(&self, a: &[Factor; 2], b: &[Factor; 2], weight: &Tensor) -> Result<Tensor> {
        let older = glora_form(a, b, weight.shape()).is_some_and(|(older, _)| older);
        let [a1, a2, b1, b2] = [&a[0], &a[1], &b[0], &b[1]].map(|factor| self.matrix(factor));
        let (a1, a2, b1, b2) = (a1?, a2?, b1?, b2?);
        if older {
            let right = as_matrix(weight)?.matmul(&a2, 1.0)?.matmul(&a1, self.factor)?;
            return Ok(b2.matmul(&b1, self.factor)?.add(&right)?);
        }
        let [outputs, inputs, kernel] = solid(weight);
        let rows = weight.reshape([outputs, inputs, kernel])?.permute(&[0, 2, 1])?.contiguous()?;
        let right = rows.reshape([outputs * kernel, inputs])?.matmul(&a1, 1.0)?.matmul(&a2, self.factor)?;
        let right = right.reshape([outputs, kernel, inputs])?.permute(&[0, 2, 1])?.contiguous()?;
        Ok(b1.matmul(&b2, self.factor)?.add(&right.reshape([outputs, inputs * kernel])?)?)
    }
}

/// A weight as `[rows, all others]`; a view, since weights are contiguous here.
pub(crate) fn as_matrix(weight: &Tensor) -> Result<Tensor> {
    let (rows, columns) = crate::factor::flat(weight.shape());
    Ok(weight.reshape([rows, columns])?)
}

/// Outputs, inputs and kernel positions of a weight; 1 for what it does not have.
pub(crate) fn solid(weight: &Tensor) -> [usize; 3] {
    let dims = weight.dims();
    let at = |i: usize| dims.get(i).copied().unwrap_or(1);
    [at(0), at(1), dims.iter().skip(2).product()]
}

/// The two halves of the rows exchanged.
pub(crate) fn swap_halves(matrix: &Tensor) -> Result<Tensor> {
    let half = matrix.dim(0) / 2;
    let (first, second) = (matrix.slice(0, 0, half)?, matrix.slice(0, half, half)?);
    Ok(Tensor::concat(&[&second, &first], 0)?)
}
