//! The blocks of Kandinsky 5, and the activations that pass through them.

use std::sync::Arc;

use residency::Lease;
use tensor::{Activation, Mask, RopeLayout, Tensor};

use super::Config;
use crate::Result;
use crate::diffusion::batches::together;
use crate::diffusion::modulation::{Everywhere, Modulation, by_item};
use crate::diffusion::positions::{Positions, Rotation};

/// Added to the variance of tokens.
pub(super) const NORM_EPS: f32 = 1e-5;
/// Added to the mean square of heads: the smallest step of f32 at one.
const HEAD_EPS: f32 = f32::EPSILON;

/// One evaluation's activations before the first block.
pub(super) struct Entered {
    /// The video's tokens `[items, tokens, hidden]`.
    pub(super) tokens: Tensor,
    /// The text's tokens `[items, tokens, hidden]`.
    pub(super) text: Tensor,
    /// The time with all of the text, `[items, time]`, behind its activation.
    pub(super) vector: Tensor,
}

/// The activations between blocks, of evaluations that run as one batch. They travel together to where the next block
/// computes.
pub(super) struct State {
    tokens: Tensor,
    text: Everywhere,
    vector: Everywhere,
    /// Where the tokens of the video and of the text stand.
    positions: [Arc<Positions>; 2],
}

impl State {
    /// The activations of one or more evaluations of equal shapes, one after the other.
    pub(super) fn new(entered: &[Entered], positions: [Arc<Positions>; 2]) -> Result<State> {
        let all = |part: fn(&Entered) -> &Tensor| together(&entered.iter().map(part).collect::<Vec<_>>(), 0);
        Ok(State {
            tokens: all(|one| &one.tokens)?,
            text: Everywhere::new(all(|one| &one.text)?),
            vector: Everywhere::new(all(|one| &one.vector)?),
            positions,
        })
    }

    /// The video's tokens.
    pub(super) fn tokens(&self) -> &Tensor {
        &self.tokens
    }

    /// The time with all of the text.
    pub(super) fn vector(&self) -> &Tensor {
        self.vector.first()
    }

    /// One of the blocks that refine the text.
    pub(super) fn text_block(mut self, config: &Config, lease: &Lease<'_>, index: usize) -> Result<State> {
        let layers = Layers { config, lease, name: format!("text_transformer_blocks.{index}") };
        let x = self.text.on(lease)?;
        let change =
            by_item(&layers.linear("text_modulation.out_layer", &self.vector.on(lease)?)?, x.dim(0))?;
        let rotation = self.positions[1].on(lease.lane())?;
        let x = layers.self_attention(&x, &Modulation::part(&change, 0, 6)?, &rotation)?;
        let x = layers.feed_forward(&x, &Modulation::part(&change, 3, 6)?)?;
        Ok(State { text: Everywhere::new(x), ..self })
    }

    /// One of the blocks of the video.
    pub(super) fn block(mut self, config: &Config, lease: &Lease<'_>, index: usize) -> Result<State> {
        let layers = Layers { config, lease, name: format!("visual_transformer_blocks.{index}") };
        let x = lease.bring(&self.tokens)?;
        let vector = self.vector.on(lease)?;
        let change = by_item(&layers.linear("visual_modulation.out_layer", &vector)?, x.dim(0))?;
        let rotation = self.positions[0].on(lease.lane())?;
        let x = layers.self_attention(&x, &Modulation::part(&change, 0, 9)?, &rotation)?;
        let x = layers.cross_attention(&x, &Modulation::part(&change, 3, 9)?, &self.text.on(lease)?)?;
        let tokens = layers.feed_forward(&x, &Modulation::part(&change, 6, 9)?)?;
        Ok(State { tokens, ..self })
    }
}

/// The layers of one block.
struct Layers<'a> {
    config: &'a Config,
    lease: &'a Lease<'a>,
    name: String,
}

impl Layers<'_> {
    fn self_attention(&self, x: &Tensor, change: &Modulation, rotation: &Rotation) -> Result<Tensor> {
        let attended = {
            let inner = change.normed(x, NORM_EPS)?;
            // Each is turned before the next is made: sequences are long.
            let turned = |layer: &str, norm: &str| -> Result<Tensor> {
                let x = self.normed("self_attention", [layer, norm], &inner)?;
                Ok(x.rope(&rotation.cos, &rotation.sin, RopeLayout::Interleaved)?)
            };
            let (q, k) = (turned("to_query", "query_norm")?, turned("to_key", "key_norm")?);
            let v = self.heads(&self.linear("self_attention.to_value", &inner)?)?;
            drop(inner);
            self.attend([&q, &k, &v])?
        };
        change.gated(x, &self.linear("self_attention.out_layer", &attended)?)
    }

    fn cross_attention(&self, x: &Tensor, change: &Modulation, text: &Tensor) -> Result<Tensor> {
        let attended = {
            let inner = change.normed(x, NORM_EPS)?;
            let q = self.normed("cross_attention", ["to_query", "query_norm"], &inner)?;
            drop(inner);
            let k = self.normed("cross_attention", ["to_key", "key_norm"], text)?;
            let v = self.heads(&self.linear("cross_attention.to_value", text)?)?;
            self.attend([&q, &k, &v])?
        };
        change.gated(x, &self.linear("cross_attention.out_layer", &attended)?)
    }

    fn feed_forward(&self, x: &Tensor, change: &Modulation) -> Result<Tensor> {
        let inner = change.normed(x, NORM_EPS)?;
        let first = format!("{}.feed_forward.in_layer", self.name);
        let inner = self.lease.linear_then(&first, &inner, Some(Activation::Gelu))?;
        change.gated(x, &self.linear("feed_forward.out_layer", &inner)?)
    }

    /// Queries or keys, each head normalised by itself.
    fn normed(&self, attention: &str, [layer, norm]: [&str; 2], x: &Tensor) -> Result<Tensor> {
        let out = self.heads(&self.linear(&format!("{attention}.{layer}"), x)?)?;
        let weight = self.lease.weight(&format!("{}.{attention}.{norm}.weight", self.name))?;
        Ok(out.rms_norm(Some(&weight), HEAD_EPS)?)
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
