//! Products: linear layers, matrix products, attention, rotary positions, embeddings.

use device::Result;
use device::op::{Attention, AttentionMask, Embedding, Matmul, NormedRope, Rope, RopeLayout};
use meta::Shape;

use crate::{Activation, Lane, LayerInput, Tensor, Weight};

/// What a query may see.
#[derive(Clone, Debug)]
pub enum Mask {
    /// All keys.
    None,
    /// Keys up to its own position.
    Causal,
    /// Added to the scores: repeatable to `[batch, heads, queries, keys]`.
    Additive(Tensor),
}

impl Tensor {
    /// `x · weightᵀ + bias`.
    pub fn linear(&self, weight: &Weight, bias: Option<&Weight>) -> Result<Tensor> {
        self.linear_then(weight, bias, None)
    }

    /// `activation(x · weightᵀ + bias)`.
    pub fn linear_then(
        &self,
        weight: &Weight,
        bias: Option<&Weight>,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        LayerInput::new(self.clone()).linear_then(weight, bias, activation)
    }

    /// As [`Tensor::linear_then`], written into a view of another tensor, such as a part of it.
    pub fn linear_into(
        &self,
        weight: &Weight,
        bias: Option<&Weight>,
        activation: Option<Activation>,
        out: &Tensor,
    ) -> Result<()> {
        LayerInput::new(self.clone()).linear_into(weight, bias, activation, out)
    }

    /// `alpha · self · other` over the last two dimensions; leading dimensions repeat.
    pub fn matmul(&self, other: &Tensor, alpha: f32) -> Result<Tensor> {
        let (a, b) = (self.operand(), other.operand());
        let rank = a.rank().max(b.rank()).max(2);
        let lead = |x: &Tensor, i: usize| {
            let skip = rank - x.rank();
            if i < skip { 1 } else { x.dim(i - skip) }
        };
        let batch: Vec<usize> = (0..rank - 2).map(|i| lead(self, i).max(lead(other, i))).collect();
        let full = |x: &Tensor| -> Result<Tensor> {
            let mut dims = batch.clone();
            dims.extend(x.dims().iter().rev().take(2).rev());
            x.broadcast(Shape::new(&dims).map_err(|_| too_many(x))?)
        };
        let (a, b) = (full(self)?, full(other)?);
        let mut dims = batch.clone();
        dims.extend([a.dim(rank - 2), b.dim(rank - 1)]);
        let out = self.lane().empty_as(self.dtype(), Shape::new(&dims).map_err(|_| too_many(self))?)?;
        let (a, b, target) = (a.operand().clone(), b.operand().clone(), out.operand().clone());
        self.lane().launch(Matmul { a, b, alpha, accumulate: false, out: target })?;
        Ok(out)
    }

    /// `self += alpha · a · b`, where `self` is, for matrices `[m, k]` and `[k, n]`. The sum is made in f32 and rounded
    /// once.
    pub fn add_matmul(&self, a: &Tensor, b: &Tensor, alpha: f32) -> Result<()> {
        let (a, b, out) = (a.operand().clone(), b.operand().clone(), self.operand().clone());
        self.lane().launch(Matmul { a, b, alpha, accumulate: true, out })
    }

    /// Attention of these queries `[batch, queries, heads, size]` over keys and values
    /// `[batch, keys, groups, size]`.
    pub fn attention(&self, k: &Tensor, v: &Tensor, mask: &Mask, scale: f32) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.attention_into(k, v, mask, scale, &out)?;
        Ok(out)
    }

    /// As [`Tensor::attention`], written into a view of another tensor, such as a part of it.
    pub fn attention_into(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: &Mask,
        scale: f32,
        out: &Tensor,
    ) -> Result<()> {
        self.attend([k, v], mask, scale, None, out)
    }

    /// As [`Tensor::attention`], with scores that are bent to stay below a cap before the mask is added:
    /// `cap · tanh(score / cap)`.
    pub fn capped_attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: &Mask,
        scale: f32,
        cap: f32,
    ) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.attend([k, v], mask, scale, Some(cap), &out)?;
        Ok(out)
    }

    fn attend(
        &self,
        [k, v]: [&Tensor; 2],
        mask: &Mask,
        scale: f32,
        soft_cap: Option<f32>,
        out: &Tensor,
    ) -> Result<()> {
        self.lane().launch(Attention {
            q: self.operand().clone(),
            k: k.operand().clone(),
            v: v.operand().clone(),
            mask: match mask {
                Mask::None => AttentionMask::None,
                Mask::Causal => AttentionMask::Causal,
                Mask::Additive(scores) => AttentionMask::Additive(scores.operand().clone()),
            },
            scale,
            soft_cap,
            out: out.operand().clone(),
        })
    }

    /// Rotates heads `[batch, positions, heads, size]` by f32 tables `[1 or batch, positions, rotated / 2]`.
    pub fn rope(&self, cos: &Tensor, sin: &Tensor, layout: RopeLayout) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.lane().launch(Rope {
            x: self.operand().clone(),
            cos: cos.operand().clone(),
            sin: sin.operand().clone(),
            layout,
            out: out.operand().clone(),
        })?;
        Ok(out)
    }

    /// Root mean square 1 over each head, scaled, then rotated as in [`Tensor::rope`] with the tables `[cos, sin]`;
    /// written into a view of another tensor, such as a part of it.
    pub fn normed_rope_into(
        &self,
        weight: &Weight,
        eps: f32,
        [cos, sin]: [&Tensor; 2],
        layout: RopeLayout,
        out: &Tensor,
    ) -> Result<()> {
        self.lane().launch(NormedRope {
            x: self.operand().clone(),
            weight: weight.operand().clone(),
            eps,
            cos: cos.operand().clone(),
            sin: sin.operand().clone(),
            layout,
            out: out.operand().clone(),
        })
    }
}

impl Lane {
    /// Rows of a table, one for each id, whatever the table is stored as.
    pub fn embedding(&self, table: &Weight, ids: &Tensor) -> Result<Tensor> {
        let mut dims = ids.dims().to_vec();
        dims.push(table.dims().last().copied().unwrap_or(0));
        let out = self.empty(Shape::new(&dims).map_err(|_| too_many(ids))?)?;
        let coded = table.operand().encoding().scheme().is_some();
        self.launch(Embedding {
            table: table.operand().clone(),
            scales: table.scales().filter(|_| coded).cloned(),
            ids: ids.operand().clone(),
            out: out.operand().clone(),
        })?;
        match table.scales() {
            Some(scales) if !coded => {
                let scale = Tensor::new(scales.values.clone(), self.clone()).cast(self.dtype())?;
                out.mul(&scale.reshape([1])?)
            }
            _ => Ok(out),
        }
    }
}

fn too_many(x: &Tensor) -> device::Error {
    device::Error::Operand {
        op: "shape",
        operand: "dimensions",
        expected: format!("at most {}", meta::MAX_RANK),
        got: format!("those of {}", x.shape()),
    }
}
