//! The blocks of Z-Image and Lumina 2, and the activations that pass through them.

use std::sync::Arc;

use device::op::UnaryKind;
use residency::Lease;
use tensor::{Activation, RopeLayout, Tensor};

use super::config::{Config, Generation};
use crate::diffusion::heads::Heads;
use crate::diffusion::modulation::{Everywhere, by_item};
use crate::diffusion::pieces;
use crate::diffusion::positions::{Positions, Rotation};
use crate::diffusion::tokens::Tokens;
use crate::{Probe, Result};

/// Added to the variance in the normalisations of tokens.
pub(super) const BLOCK_EPS: f32 = 1e-5;
/// Added to the variance in the normalisation of queries and keys: the smallest step of 32 bits.
const HEAD_EPS: f32 = f32::EPSILON;

/// The activations between blocks, of evaluations that run as one batch.
pub(in crate::diffusion) struct State {
    pub(super) tokens: Tokens,
    /// The embedded time, one row for each evaluation.
    pub(super) time: Everywhere,
    /// The same after SiLU.
    pub(super) silu: Everywhere,
    pub(super) positions: Arc<Positions>,
}

impl State {
    /// A block over the text alone, which does not look at the time.
    pub(super) fn refine_text(self, block: &Block<'_>, probe: &mut Probe<'_>) -> Result<State> {
        let [image, text] = self.tokens.sides()?;
        let text = block.lease.bring(&text)?;
        let rotation = self.positions.on(block.lease.lane())?.slice(0, text.dim(1))?;
        let text = block.unmoved(&text, &rotation, probe)?;
        Ok(State { tokens: Tokens::Apart { image, text }, ..self })
    }

    /// A block over the image alone.
    pub(super) fn refine_image(mut self, block: &Block<'_>, probe: &mut Probe<'_>) -> Result<State> {
        let [image, text] = self.tokens.sides()?;
        let image = block.lease.bring(&image)?;
        let rotation = self.positions.on(block.lease.lane())?.slice(text.dim(1), image.dim(1))?;
        let vector = self.vector(block)?;
        let image = block.moved(&image, &vector, &rotation, probe)?;
        Ok(State { tokens: Tokens::Apart { image, text }, ..self })
    }

    /// A block over both.
    pub(super) fn layer(mut self, block: &Block<'_>, probe: &mut Probe<'_>) -> Result<State> {
        let vector = self.vector(block)?;
        let (all, texts) = self.tokens.joined()?;
        let rotation = self.positions.on(block.lease.lane())?;
        let all = block.moved(&block.lease.bring(&all)?, &vector, &rotation, probe)?;
        Ok(State { tokens: Tokens::Joined { all, texts }, ..self })
    }

    /// What the modulations of blocks are made from.
    fn vector(&mut self, block: &Block<'_>) -> Result<Tensor> {
        match block.config.generation {
            Generation::Lumina2 => self.silu.on(block.lease),
            Generation::ZImage => self.time.on(block.lease),
        }
    }
}

/// A block of any of the three stacks.
pub(super) struct Block<'a> {
    pub(super) config: &'a Config,
    pub(super) lease: &'a Lease<'a>,
    /// What its weights' names begin with.
    pub(super) name: &'a str,
}

impl Block<'_> {
    /// The block with a modulation: scale and gate of attention, then those of the feed-forward.
    pub(super) fn moved(
        &self,
        x: &Tensor,
        vector: &Tensor,
        rotation: &Rotation,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let layer = format!("{}.{}", self.name, self.config.generation.modulation());
        let change = self.lease.linear(&layer, vector)?;
        probe.show(format_args!("{layer}"), &change);
        let change = by_item(&change, x.dim(0))?.chunk(2, 4)?;
        let scale = |i: usize| change[i].affine(1.0, 1.0);
        let gate = |i: usize| change[i].unary(UnaryKind::Tanh);

        let out = self.normed(x, "attention_norm1", probe)?.mul(&scale(0)?)?;
        let out = self.attention(&out, rotation, probe)?;
        let out = self.normed(&out, "attention_norm2", probe)?;
        let x = x.gated_add(&gate(1)?, &out)?;
        let out = self.normed(&x, "ffn_norm1", probe)?.mul(&scale(2)?)?;
        let out = self.feed_forward(&out, probe)?;
        let out = self.normed(&out, "ffn_norm2", probe)?;
        let x = x.gated_add(&gate(3)?, &out)?;
        probe.show(format_args!("{}", self.name), &x);
        Ok(x)
    }

    /// The block without one.
    fn unmoved(&self, x: &Tensor, rotation: &Rotation, probe: &mut Probe<'_>) -> Result<Tensor> {
        let out = self.attention(&self.normed(x, "attention_norm1", probe)?, rotation, probe)?;
        let x = x.add(&self.normed(&out, "attention_norm2", probe)?)?;
        let out = self.feed_forward(&self.normed(&x, "ffn_norm1", probe)?, probe)?;
        let x = x.add(&self.normed(&out, "ffn_norm2", probe)?)?;
        probe.show(format_args!("{}", self.name), &x);
        Ok(x)
    }

    fn normed(&self, x: &Tensor, norm: &str, probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = format!("{}.{norm}", self.name);
        let out = x.rms_norm(Some(&self.lease.weight(&format!("{name}.weight"))?), BLOCK_EPS)?;
        probe.show(format_args!("{name}"), &out);
        Ok(out)
    }

    fn attention(&self, x: &Tensor, rotation: &Rotation, probe: &mut Probe<'_>) -> Result<Tensor> {
        let (lease, name, sizes) = (self.lease, self.name, self.config.head_sizes());
        let qkv = pieces::linear(lease, &format!("{name}.attention.qkv"), x)?;
        probe.show(format_args!("{name}.attention.qkv"), &qkv);
        let part = |first: usize, heads: usize| -> Result<Tensor> {
            let part = qkv.slice(2, first * sizes.size, heads * sizes.size)?;
            Ok(part.reshape([qkv.dim(0), qkv.dim(1), heads, sizes.size])?)
        };
        let turned = |norm: &str, x: &Tensor, probe: &mut Probe<'_>| -> Result<Tensor> {
            let norm = format!("{name}.attention.{norm}");
            let weight = lease.weight(&format!("{norm}.weight"))?;
            probe.show_step(format_args!("{norm}"), || Ok(x.rms_norm(Some(&weight), HEAD_EPS)?))?;
            let out = x.lane().empty_as(x.dtype(), *x.shape())?;
            let tables = [&rotation.cos, &rotation.sin];
            x.normed_rope_into(&weight, HEAD_EPS, tables, RopeLayout::Interleaved, &out)?;
            Ok(out)
        };
        let attended = {
            let q = turned("q_norm", &part(0, sizes.heads)?, probe)?;
            let k = turned("k_norm", &part(sizes.heads, sizes.groups)?, probe)?;
            Heads { q, k, v: part(sizes.heads + sizes.groups, sizes.groups)? }.attend()?
        };
        let out = lease.linear(&format!("{name}.attention.out"), &attended)?;
        probe.show(format_args!("{name}.attention.out"), &out);
        Ok(out)
    }

    fn feed_forward(&self, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let layer = |i: usize| format!("{}.feed_forward.w{i}", self.name);
        let inner = {
            let (gate, up) = (self.lease.linear(&layer(1), x)?, self.lease.linear(&layer(3), x)?);
            probe.show(format_args!("{}", layer(1)), &gate);
            probe.show(format_args!("{}", layer(3)), &up);
            gate.gate(Activation::Silu, &up)?
        };
        let out = self.lease.linear(&layer(2), &inner)?;
        probe.show(format_args!("{}", layer(2)), &out);
        Ok(out)
    }
}
