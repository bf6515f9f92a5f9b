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
        self.normed_groups(groups, [weight, bias], eps, false)
    }

    /// The same with SiLU behind it, in one pass.
    pub fn group_norm_silu(
        &self,
        groups: usize,
        weight: Option<&Weight>,
        bias: Option<&Weight>,
        eps: f32,
    ) -> Result<Tensor> {
        self.normed_groups(groups, [weight, bias], eps, true)
    }

    fn normed_groups(
        &self,
        groups: usize,
        [weight, bias]: [Option<&Weight>; 2],
        eps: f32,
        silu: bool,
    ) -> Result<Tensor> {
        let x = self.contiguous()?;
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        self.lane().launch(GroupNorm {
            x: x.operand().clone(),
            weight: weight.map(|w| w.operand().clone()),
            bias: bias.map(|b| b.operand().clone()),
            groups,
            eps,
            silu,
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
        self.modulated_norm_into(scale, shift, eps, &out)?;
        Ok(out)
    }

    /// As [`Tensor::modulated_norm`], written into a view of another tensor, such as a part of it.
    pub fn modulated_norm_into(&self, scale: &Tensor, shift: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        self.lane().launch(ModulatedNorm {
            x: self.operand().clone(),
            scale: scale.operand().clone(),
            shift: shift.operand().clone(),
            eps,
            out: out.operand().clone(),
        })
    }

    /// Root mean square 1 over the last dimension, scaled.
    pub fn rms_norm(&self, weight: Option<&Weight>, eps: f32) -> Result<Tensor> {
        self.rms_norm_over(self.rank().saturating_sub(1), weight, eps)
    }

    /// Root mean square 1 over any dimension, scaled: channels of `[batch, channels, …]`, say.
    pub fn rms_norm_over(&self, axis: usize, weight: Option<&Weight>, eps: f32) -> Result<Tensor> {
        let x = if axis + 1 == self.rank() { self.clone() } else { self.contiguous()? };
        let out = self.lane().empty_as(self.dtype(), *self.shape())?;
        x.launch_rms_norm(axis, weight, eps, &out)?;
        Ok(out)
    }

    /// As [`Tensor::rms_norm`], written into a tensor of the same shape.
    pub fn rms_norm_into(&self, weight: Option<&Weight>, eps: f32, out: &Tensor) -> Result<()> {
        self.launch_rms_norm(self.rank().saturating_sub(1), weight, eps, out)
    }

    fn launch_rms_norm(&self, axis: usize, weight: Option<&Weight>, eps: f32, out: &Tensor) -> Result<()> {
        self.lane().launch(RmsNorm {
            x: self.operand().clone(),
            axis,
            weight: weight.map(|w| w.operand().clone()),
            eps,
            out: out.operand().clone(),
        })
    }
}
