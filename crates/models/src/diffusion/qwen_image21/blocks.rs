//! The blocks of Qwen-Image 2.1.

use residency::{Lease, LinearPart};
use tensor::{Activation, RopeLayout, Tensor};

use super::config::Config;
use super::sequence::{Segment, attend};
use crate::diffusion::heads::Heads;
use crate::diffusion::modulation::Modulation;
use crate::diffusion::pieces;
use crate::diffusion::positions::Rotation;
use crate::{Probe, Result};

/// Added to the variance in every normalisation.
pub(super) const NORM_EPS: f32 = 1e-6;

/// A block over the whole sequence.
pub(super) struct Block<'a> {
    pub(super) config: &'a Config,
    pub(super) lease: &'a Lease<'a>,
    /// What its weights' names begin with.
    pub(super) name: &'a str,
}

impl Block<'_> {
    /// Tokens `[items, tokens, hidden]` through the block.
    pub(super) fn over(
        &self,
        x: &Tensor,
        [first, second]: &[Modulation; 2],
        (rotation, segments): (&Rotation, &mut [Segment]),
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name = self.name;
        probe.show_step(format_args!("{name}.img_norm1"), || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
        let y = first.normed(x, NORM_EPS)?;
        let x = first.gated(x, &self.attention(&y, (rotation, segments), probe)?)?;
        probe.show_step(format_args!("{name}.img_norm2"), || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
        let y = second.normed(&x, NORM_EPS)?;
        let inner = pieces::linear(self.lease, &format!("{name}.img_mlp.gate_up"), &y)?;
        let halves = inner.chunk(2, 2)?;
        let inner = halves[0].gate(Activation::Silu, &halves[1])?;
        let fed = self.lease.linear(&format!("{name}.img_mlp.out"), &inner)?;
        probe.show(format_args!("{name}.img_mlp"), &fed);
        let x = second.gated(&x, &fed)?;
        probe.show(format_args!("{name}"), &x);
        Ok(x)
    }

    fn attention(
        &self,
        x: &Tensor,
        (rotation, segments): (&Rotation, &mut [Segment]),
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let layer = |layer: &str| format!("{}.attn.{layer}", self.name);
        let heads = Heads::empty(self.config.head_sizes(), x, x.dim(1))?;
        for (projection, norm, out) in [("to_q", "norm_q", &heads.q), ("to_k", "norm_k", &heads.k)] {
            let y = self.lease.linear(&layer(projection), x)?.reshape(*out.shape())?;
            let weight = self.lease.weight(&format!("{}.weight", layer(norm)))?;
            probe.show_step(format_args!("{}.{norm}", self.name), || {
                Ok(y.rms_norm(Some(&weight), NORM_EPS)?)
            })?;
            let tables = [&rotation.cos, &rotation.sin];
            y.normed_rope_into(&weight, NORM_EPS, tables, RopeLayout::Interleaved, out)?;
        }
        // The heads of a token stand side by side, so this is a view.
        let out = heads.v.reshape(*x.shape())?;
        let values = LinearPart { rows: 0..self.config.hidden, activation: None, out: &out };
        self.lease.linear_in_parts(&layer("to_v"), x, &[values])?;
        let attended = attend(self.lease, &heads, segments)?;
        let out = self.lease.linear(&layer("to_out.0"), &attended)?;
        probe.show(format_args!("{}.attn", self.name), &out);
        Ok(out)
    }
}
