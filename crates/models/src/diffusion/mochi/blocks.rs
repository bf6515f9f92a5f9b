//! The blocks of Mochi, and the activations that pass through them.

use std::sync::Arc;

use device::op::UnaryKind;
use residency::Lease;
use tensor::{Activation, Mask, RopeLayout, Tensor};

use super::Config;
use super::positions::{Rotation, TokenAngles};
use crate::Result;
use crate::diffusion::batches::together;
use crate::diffusion::modulation::Everywhere;

/// Added to the mean square of tokens, and to that of heads.
const NORM_EPS: f32 = 1e-6;
const HEAD_EPS: f32 = 1e-5;

/// One evaluation's activations before the first block.
pub(super) struct Entered {
    /// The video's tokens `[items, tokens, hidden]`.
    pub(super) tokens: Tensor,
    /// The text's tokens `[items, tokens, width]`.
    pub(super) text: Tensor,
    /// The time with all of the text, `[items, hidden]`, behind its activation.
    pub(super) vector: Tensor,
}

/// The activations between blocks, of evaluations that run as one batch. They travel together to where the next block
/// computes.
pub(super) struct State {
    tokens: Tensor,
    text: Tensor,
    vector: Everywhere,
    angles: Arc<TokenAngles>,
}

impl State {
    /// The activations of one or more evaluations of equal shapes, one after the other.
    pub(super) fn new(entered: &[Entered], angles: Arc<TokenAngles>) -> Result<State> {
        let all = |part: fn(&Entered) -> &Tensor| together(&entered.iter().map(part).collect::<Vec<_>>(), 0);
        Ok(State {
            tokens: all(|one| &one.tokens)?,
            text: all(|one| &one.text)?,
            vector: Everywhere::new(all(|one| &one.vector)?),
            angles,
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

    /// One of the blocks. The last leaves the text as it is.
    pub(super) fn block(mut self, config: &Config, lease: &Lease<'_>, index: usize) -> Result<State> {
        let layers = Layers { config, lease, name: format!("blocks.{index}") };
        let (x, y) = (lease.bring(&self.tokens)?, lease.bring(&self.text)?);
        let vector = self.vector.on(lease)?;
        let video = Changes::new(lease, &format!("{}.mod_x", layers.name), &vector, x.dim(2))?;
        let text = Changes::new(lease, &format!("{}.mod_y", layers.name), &vector, y.dim(2))?;
        let rotation = self.angles.on(lease.lane())?;
        let attended = {
            let sides = [
                layers.heads("x", &video.normed(&x, 0)?, Some(&rotation))?,
                layers.heads("y", &text.normed(&y, 0)?, None)?,
            ];
            let joined = |part: usize| Tensor::concat(&[&sides[0][part], &sides[1][part]], 1);
            let (q, k, v) = (joined(0)?, joined(1)?, joined(2)?);
            let scale = 1.0 / (config.head() as f32).sqrt();
            let out = q.attention(&k, &v, &Mask::None, scale)?;
            out.reshape([x.dim(0), x.dim(1) + y.dim(1), config.hidden])?
        };
        let part = |start: usize, len: usize| attended.slice(1, start, len)?.contiguous();
        let tokens = layers.through("x", &x, &part(0, x.dim(1))?, &video)?;
        let is_last = index + 1 == config.blocks;
        let text = if is_last { y } else { layers.through("y", &y, &part(x.dim(1), y.dim(1))?, &text)? };
        Ok(State { tokens, text, ..self })
    }
}

/// How one side of a block is moved, `[items, 1, parts · width]`: a scale and a gate of attention, then of the
/// feed-forward layers.
struct Changes {
    all: Tensor,
    width: usize,
}

impl Changes {
    fn new(lease: &Lease<'_>, name: &str, vector: &Tensor, width: usize) -> Result<Changes> {
        let all = lease.linear(name, vector)?;
        Ok(Changes { all: all.reshape([all.dim(0), 1, all.dim(1)])?, width })
    }

    fn part(&self, index: usize) -> Result<Tensor> {
        Ok(self.all.slice(2, index * self.width, self.width)?)
    }

    /// Tokens of root mean square 1, scaled by one part.
    fn normed(&self, x: &Tensor, part: usize) -> Result<Tensor> {
        let normed = x.rms_norm(None, NORM_EPS)?;
        Ok(normed.gated_add(&self.part(part)?, &normed)?)
    }

    /// Tokens plus others of root mean square 1, gated by one part.
    fn gated(&self, x: &Tensor, part: usize, y: &Tensor) -> Result<Tensor> {
        let gate = self.part(part)?.contiguous()?.unary(UnaryKind::Tanh)?;
        Ok(x.gated_add(&gate, &y.rms_norm(None, NORM_EPS)?)?)
    }
}

/// The layers of one block.
struct Layers<'a> {
    config: &'a Config,
    lease: &'a Lease<'a>,
    name: String,
}

impl Layers<'_> {
    /// Queries, keys and values of one side, `[items, tokens, heads, size]`; those of the video turn.
    fn heads(&self, side: &str, x: &Tensor, rotation: Option<&Rotation>) -> Result<[Tensor; 3]> {
        let (heads, size) = (self.config.heads, self.config.head());
        let (items, tokens) = (x.dim(0), x.dim(1));
        let all = self.lease.linear(&format!("{}.attn.qkv_{side}", self.name), x)?;
        let all = all.reshape([items, tokens, 3, heads, size])?;
        let part = |index: usize| -> Result<Tensor> {
            Ok(all.slice(2, index, 1)?.contiguous()?.reshape([items, tokens, heads, size])?)
        };
        let normed = |index: usize, norm: &str| -> Result<Tensor> {
            let weight = self.lease.weight(&format!("{}.attn.{norm}_{side}.weight", self.name))?;
            let x = part(index)?.rms_norm(Some(&weight), HEAD_EPS)?;
            let Some(Rotation { cos, sin }) = rotation else { return Ok(x) };
            // Every head turns by its own angles, so all of a token turn as one.
            let x = x.reshape([items, tokens, 1, heads * size])?;
            Ok(x.rope(cos, sin, RopeLayout::Interleaved)?.reshape([items, tokens, heads, size])?)
        };
        Ok([normed(0, "q_norm")?, normed(1, "k_norm")?, part(2)?])
    }

    /// One side behind attention.
    fn through(&self, side: &str, x: &Tensor, attended: &Tensor, changes: &Changes) -> Result<Tensor> {
        let (lease, name) = (self.lease, &self.name);
        let x = changes.gated(x, 1, &lease.linear(&format!("{name}.attn.proj_{side}"), attended)?)?;
        let both = lease.linear(&format!("{name}.mlp_{side}.w1"), &changes.normed(&x, 2)?)?;
        let half = both.dim(2) / 2;
        let inner = both.slice(2, 0, half)?.gate(Activation::Silu, &both.slice(2, half, half)?)?;
        drop(both);
        changes.gated(&x, 3, &lease.linear(&format!("{name}.mlp_{side}.w2"), &inner)?)
    }
}
