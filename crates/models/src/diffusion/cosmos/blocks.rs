//! The blocks of Cosmos Predict 2, and the activations that pass through them.

use std::sync::Arc;

use residency::Lease;
use tensor::{Activation, Mask, RopeLayout, Tensor};

use super::Config;
use crate::Result;
use crate::diffusion::batches::together;
use crate::diffusion::modulation::Everywhere;
use crate::diffusion::positions::Positions;
use crate::diffusion::timed_change::{Change, NORM_EPS};

/// One evaluation's activations before the first block.
pub(super) struct Entered {
    /// The video's tokens `[items, tokens, hidden]`.
    pub(super) tokens: Tensor,
    /// The text `[items, tokens, width]`.
    pub(super) text: Tensor,
    /// The time `[items, times, hidden]` behind its activation: one for all tokens or one for each frame.
    pub(super) time: Tensor,
    /// What all blocks are moved by alike, `[items, times, 3 · hidden]`.
    pub(super) shared: Tensor,
}

/// The activations between blocks, of evaluations that run as one batch. They travel together to where the next block
/// computes.
pub(super) struct State {
    tokens: Tensor,
    text: Everywhere,
    time: Everywhere,
    shared: Everywhere,
    positions: Arc<Positions>,
}

impl State {
    /// The activations of one or more evaluations of equal shapes, one after the other.
    pub(super) fn new(entered: &[Entered], positions: Arc<Positions>) -> Result<State> {
        let all = |part: fn(&Entered) -> &Tensor| together(&entered.iter().map(part).collect::<Vec<_>>(), 0);
        Ok(State {
            tokens: all(|one| &one.tokens)?,
            text: Everywhere::new(all(|one| &one.text)?),
            time: Everywhere::new(all(|one| &one.time)?),
            shared: Everywhere::new(all(|one| &one.shared)?),
            positions,
        })
    }

    /// The video's tokens.
    pub(super) fn tokens(&self) -> &Tensor {
        &self.tokens
    }

    /// The time, and what all blocks are moved by alike.
    pub(super) fn times(&self) -> [&Tensor; 2] {
        [self.time.first(), self.shared.first()]
    }

    /// One of the blocks.
    pub(super) fn block(mut self, config: &Config, lease: &Lease<'_>, index: usize) -> Result<State> {
        let layers = Layers { config, lease, name: format!("blocks.{index}") };
        let x = lease.bring(&self.tokens)?;
        let (time, shared) = (self.time.on(lease)?, self.shared.on(lease)?);
        let change = |part: &str| -> Result<Change> {
            let name = format!("{}.adaln_modulation_{part}", layers.name);
            Ok(Change::of(moved(lease, &name, &time, &shared)?, 3))
        };
        let x = layers.self_attention(&x, &change("self_attn")?, &self.positions)?;
        let x = layers.cross_attention(&x, &change("cross_attn")?, &self.text.on(lease)?)?;
        let tokens = layers.feed_forward(&x, &change("mlp")?)?;
        Ok(State { tokens, ..self })
    }
}

/// How tokens are moved, by two narrow layers and by what all blocks share.
pub(super) fn moved(lease: &Lease<'_>, name: &str, time: &Tensor, shared: &Tensor) -> Result<Tensor> {
    let own = lease.linear(&format!("{name}.2"), &lease.linear(&format!("{name}.1"), time)?)?;
    Ok(own.add(shared)?)
}

/// The layers of one block.
struct Layers<'a> {
    config: &'a Config,
    lease: &'a Lease<'a>,
    name: String,
}

impl Layers<'_> {
    fn self_attention(&self, x: &Tensor, change: &Change, positions: &Positions) -> Result<Tensor> {
        let rotation = positions.on(self.lease.lane())?;
        let attended = {
            let inner = change.normed(x, 0)?;
            // Each is turned before the next is made: sequences are long.
            let turned = |layer: &str| -> Result<Tensor> {
                let x = self.normed("self_attn", layer, &inner)?;
                Ok(x.rope(&rotation.cos, &rotation.sin, RopeLayout::HalfSplit)?)
            };
            let (q, k) = (turned("q")?, turned("k")?);
            let v = self.heads(&self.linear("self_attn.v_proj", &inner)?)?;
            drop(inner);
            self.attend([&q, &k, &v])?
        };
        change.gated(x, 2, &self.linear("self_attn.output_proj", &attended)?)
    }

    fn cross_attention(&self, x: &Tensor, change: &Change, text: &Tensor) -> Result<Tensor> {
        let attended = {
            let q = self.normed("cross_attn", "q", &change.normed(x, 0)?)?;
            let k = self.normed("cross_attn", "k", text)?;
            let v = self.heads(&self.linear("cross_attn.v_proj", text)?)?;
            self.attend([&q, &k, &v])?
        };
        change.gated(x, 2, &self.linear("cross_attn.output_proj", &attended)?)
    }

    fn feed_forward(&self, x: &Tensor, change: &Change) -> Result<Tensor> {
        let first = format!("{}.mlp.layer1", self.name);
        let inner = self.lease.linear_then(&first, &change.normed(x, 0)?, Some(Activation::Gelu))?;
        change.gated(x, 2, &self.linear("mlp.layer2", &inner)?)
    }

    /// Queries or keys, each head normalised by itself.
    fn normed(&self, attention: &str, layer: &str, x: &Tensor) -> Result<Tensor> {
        let out = self.heads(&self.linear(&format!("{attention}.{layer}_proj"), x)?)?;
        let weight = self.lease.weight(&format!("{}.{attention}.{layer}_norm.weight", self.name))?;
        Ok(out.rms_norm(Some(&weight), NORM_EPS)?)
    }

    fn linear(&self, layer: &str, x: &Tensor) -> Result<Tensor> {
        Ok(self.lease.linear(&format!("{}.{layer}", self.name), x)?)
    }

    /// `[items, tokens, hidden]` as heads.
    fn heads(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.reshape([x.dim(0), x.dim(1), self.config.heads(), self.config.head])?)
    }

    fn attend(&self, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let out = q.attention(k, v, &Mask::None, 1.0 / (self.config.head as f32).sqrt())?;
        Ok(out.reshape([q.dim(0), q.dim(1), self.config.hidden])?)
    }
}
