//! Normalisations.

use device::Result;
use device::op::{GroupNorm, LayerNorm, ModulatedNorm, RmsNorm};

use crate::{Tensor, Weight};

impl Tensor {
    /// Mean 0 and variance 1 over each group of channels of `[batch, channels, …]`, scaled and shifted.
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Weight>,
        bias: Option<&Weight>,
        eps: f32,
    ) -> Result<Tensor> {
        let x = self.contiguous()?;
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.lane().launch(GroupNorm {
            x: x.operand().clone(),
            weight: weight.map(|w| w.operand().clone()),
            bias: bias.map(|b| b.operand().clone()),
            groups,
            eps,
            out: out.operand().clone(),
        })?;
        Ok(out)
    }

    /// Mean 0 and variance 1 over the last dimension, scaled and shifted.
    pub fn layer_norm(&self, weight: Option<&Weight>, bias: Option<&Weight>, eps: f32) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.lane().launch(LayerNorm {
            x: self.operand().clone(),
            weight: weight.map(|w| w.operand().clone()),
            bias: bias.map(|b| b.operand().clone()),
            eps,
            out: out.operand().clone(),
        })?;
        Ok(out)
    }

    /// Mean 0 and variance 1 over the last dimension, then `x · (1 + scale) + shift`; scale and shift repeat.
    pub fn modulated_norm(&self, scale: &Tensor, shift: &Tensor, eps: f32) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.lane().launch(ModulatedNorm {
            x: self.operand().clone(),
            scale: scale.operand().clone(),
            shift: shift.operand().clone(),
            eps,
            out: out.operand().clone(),
        })?;
        Ok(out)
    }

    /// Root mean square 1 over the last dimension, scaled.
    pub fn rms_norm(&self, weight: Option<&Weight>, eps: f32) -> Result<Tensor> {
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.lane().launch(RmsNorm {
            x: self.operand().clone(),
            weight: weight.map(|w| w.operand().clone()),
            eps,
            out: out.operand().clone(),
        })?;
        Ok(out)
    }
}
