//! The blocks of FLUX.3: attention and feed-forward side by side, from the same tokens.

use residency::{Lease, LinearPart};
use tensor::{Activation, RopeLayout, Tensor};

use super::config::Config;
use crate::diffusion::heads::Heads;
use crate::diffusion::modulation::Modulation;
use crate::diffusion::positions::Rotation;
use crate::{Probe, Result};

/// Added to the variance in every normalisation.
pub(super) const NORM_EPS: f32 = 1e-6;

/// A block over tokens of one kind or of all.
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
        change: &Modulation,
        rotation: &Rotation,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name = self.name;
        probe.show_step(format_args!("{name}.norm"), || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
        let y = change.normed(x, NORM_EPS)?;
        let attended = self.attention(&y, rotation, probe)?;
        probe.show(format_args!("{name}.attn"), &attended);
        let inner = self.lease.linear(&format!("{name}.mlp_in"), &y)?;
        let halves = inner.chunk(2, 2)?;
        let inner = halves[0].gate(Activation::Silu, &halves[1])?;
        let fed = self.lease.linear(&format!("{name}.mlp_out"), &inner)?;
        probe.show(format_args!("{name}.mlp"), &fed);
        change.gated(x, &attended.add(&fed)?)
    }

    fn attention(&self, x: &Tensor, rotation: &Rotation, probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = self.name;
        let heads = Heads::empty(self.config.head_sizes(), x, x.dim(1))?;
        for (layer, norm, out) in [("q_proj", "query_norm", &heads.q), ("k_proj", "key_norm", &heads.k)] {
            let y = self.lease.linear(&format!("{name}.{layer}"), x)?.reshape(*out.shape())?;
            let weight = self.lease.weight(&format!("{name}.norm.{norm}.scale"))?;
            let tables = [&rotation.cos, &rotation.sin];
            y.normed_rope_into(&weight, NORM_EPS, tables, RopeLayout::Interleaved, out)?;
        }
        // The heads of a token stand side by side, so this is a view.
        let out = heads.v.reshape(*x.shape())?;
        let values = LinearPart { rows: 0..self.config.hidden, activation: None, out: &out };
        self.lease.linear_in_parts(&format!("{name}.v_proj"), x, &[values])?;
        probe.show(format_args!("{name}.attention.q"), &heads.q);
        probe.show(format_args!("{name}.attention.k"), &heads.k);
        probe.show(format_args!("{name}.attention.v"), &heads.v);
        let attended = heads.attend()?;
        probe.show(format_args!("{name}.attention.out"), &attended);
        Ok(self.lease.linear(&format!("{name}.attn_out"), &attended)?)
    }
}
