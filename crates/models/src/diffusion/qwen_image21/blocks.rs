//! The blocks of Qwen-Image 2.1.

use residency::{Lease, LinearPart};
use tensor::{Activation, RopeLayout, Tensor};

use super::config::Config;
use super::prefix::PrefixInBlock;
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
    /// What stands before the image.
    pub(super) prefix: PrefixInBlock<'a>,
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

    /// Room for the heads of so many tokens, with what was recorded before their keys and values.
    fn room(&self, x: &Tensor) -> Result<(Heads, usize)> {
        let (sizes, tokens) = (self.config.head_sizes(), x.dim(1));
        let Some([k, v]) = &self.prefix.recorded else { return Ok((Heads::empty(sizes, x, tokens)?, 0)) };
        let before = k.dim(1);
        let all = Heads::empty(sizes, x, before + tokens)?;
        let first = all.slice(0, before)?;
        k.copy_into(&first.k)?;
        v.copy_into(&first.v)?;
        Ok((Heads { q: all.q.slice(1, 0, tokens)?, ..all }, before))
    }

    fn attention(
        &self,
        x: &Tensor,
        (rotation, segments): (&Rotation, &mut [Segment]),
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let layer = |layer: &str| format!("{}.attn.{layer}", self.name);
        let (heads, before) = self.room(x)?;
        let own = |x: &Tensor| x.slice(1, before, x.dim(1) - before);
        let (keys, values) = (own(&heads.k)?, own(&heads.v)?);
        for (projection, norm, out) in [("to_q", "norm_q", &heads.q), ("to_k", "norm_k", &keys)] {
            let y = self.lease.linear(&layer(projection), x)?.reshape(*out.shape())?;
            let weight = self.lease.weight(&format!("{}.weight", layer(norm)))?;
            probe.show_step(format_args!("{}.{norm}", self.name), || {
                Ok(y.rms_norm(Some(&weight), NORM_EPS)?)
            })?;
            let tables = [&rotation.cos, &rotation.sin];
            y.normed_rope_into(&weight, NORM_EPS, tables, RopeLayout::Interleaved, out)?;
        }
        if before == 0 {
            // The heads of a token stand side by side, so this is a view.
            let out = values.reshape(*x.shape())?;
            let part = LinearPart { rows: 0..self.config.hidden, activation: None, out: &out };
            self.lease.linear_in_parts(&layer("to_v"), x, &[part])?;
        } else {
            self.lease.linear(&layer("to_v"), x)?.reshape(*values.shape())?.copy_into(&values)?;
        }
        self.prefix.keep([&heads.k, &heads.v])?;
        let attended = attend(self.lease, &heads, before, segments)?;
        let out = self.lease.linear(&layer("to_out.0"), &attended)?;
        probe.show(format_args!("{}.attn", self.name), &out);
        Ok(out)
    }
}
