//! The blocks of Krea 2: attention whose result is gated, and a gated feed-forward.

use device::op::UnaryKind;
use residency::{Lease, LinearPart};
use tensor::{Activation, RopeLayout, Tensor};

use super::config::BlockSizes;
use crate::diffusion::heads::Heads;
use crate::diffusion::modulation::{Modulation, one_more};
use crate::diffusion::positions::Rotation;
use crate::{Probe, Result};

/// Added to the mean square in every normalisation.
pub(super) const NORM_EPS: f32 = 1e-5;

/// A block of the model or of its text's side.
pub(super) struct Block<'a> {
    pub(super) sizes: BlockSizes,
    pub(super) lease: &'a Lease<'a>,
    /// What its weights' names begin with.
    pub(super) name: &'a str,
}

impl Block<'_> {
    /// The block with a modulation of its two halves, over tokens that have places.
    pub(super) fn moved(
        &self,
        x: &Tensor,
        [first, second]: &[Modulation; 2],
        rotation: &Rotation,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let y = first.moved(&self.normed(x, "prenorm", probe)?)?;
        let x = first.gated(x, &self.attention(&y, Some(rotation), probe)?)?;
        let y = second.moved(&self.normed(&x, "postnorm", probe)?)?;
        let x = second.gated(&x, &self.feed_forward(&y, probe)?)?;
        probe.show(format_args!("{}", self.name), &x);
        Ok(x)
    }

    /// The block without any, over tokens that have no places.
    pub(super) fn unmoved(&self, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let x = x.add(&self.attention(&self.normed(x, "prenorm", probe)?, None, probe)?)?;
        let x = x.add(&self.feed_forward(&self.normed(&x, "postnorm", probe)?, probe)?)?;
        probe.show(format_args!("{}", self.name), &x);
        Ok(x)
    }

    fn layer(&self, layer: &str) -> String {
        format!("{}.{layer}", self.name)
    }

    fn normed(&self, x: &Tensor, norm: &str, probe: &mut Probe<'_>) -> Result<Tensor> {
        let weight = one_more(self.lease, &self.layer(&format!("{norm}.scale")))?;
        let y = x.rms_norm(Some(&weight), NORM_EPS)?;
        probe.show(format_args!("{}.{norm}", self.name), &y);
        Ok(y)
    }

    fn attention(&self, x: &Tensor, rotation: Option<&Rotation>, probe: &mut Probe<'_>) -> Result<Tensor> {
        let heads = Heads::empty(self.sizes.heads, x, x.dim(1))?;
        for (layer, norm, out) in [("wq", "qnorm", &heads.q), ("wk", "knorm", &heads.k)] {
            let y = self.lease.linear(&self.layer(&format!("attn.{layer}")), x)?.reshape(*out.shape())?;
            let weight = one_more(self.lease, &self.layer(&format!("attn.qknorm.{norm}.scale")))?;
            match rotation {
                Some(Rotation { cos, sin }) => {
                    y.normed_rope_into(&weight, NORM_EPS, [cos, sin], RopeLayout::Interleaved, out)?;
                }
                None => y.rms_norm_into(Some(&weight), NORM_EPS, out)?,
            }
        }
        let width = self.sizes.heads.groups * self.sizes.heads.size;
        // The heads of a token stand side by side, so this is a view.
        let out = heads.v.reshape([x.dim(0), x.dim(1), width])?;
        let values = LinearPart { rows: 0..width, activation: None, out: &out };
        self.lease.linear_in_parts(&self.layer("attn.wv"), x, &[values])?;
        let attended = heads.attend()?;
        probe.show(format_args!("{}.attention.out", self.name), &attended);
        let gate = self.lease.linear(&self.layer("attn.gate"), x)?;
        probe.show(format_args!("{}.attn.gate", self.name), &gate);
        let gated = attended.mul(&gate.unary(UnaryKind::Sigmoid)?)?;
        let out = self.lease.linear(&self.layer("attn.wo"), &gated)?;
        probe.show(format_args!("{}.attn", self.name), &out);
        Ok(out)
    }

    fn feed_forward(&self, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let gate = self.lease.linear(&self.layer("mlp.gate"), x)?;
        let up = self.lease.linear(&self.layer("mlp.up"), x)?;
        let out = self.lease.linear(&self.layer("mlp.down"), &gate.gate(Activation::Silu, &up)?)?;
        probe.show(format_args!("{}.mlp", self.name), &out);
        Ok(out)
    }
}
