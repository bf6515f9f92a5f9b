//! The blocks of LTX-Video, and the activations that pass through them.

use std::sync::Arc;

use residency::Lease;
use tensor::{Activation, Mask, RopeLayout, Tensor};

use super::Config;
use super::positions::TokenAngles;
use crate::Result;
use crate::diffusion::batches::together;
use crate::diffusion::modulation::Everywhere;
use crate::diffusion::timed_change::Change;

/// Added to the mean square of queries and keys.
const HEAD_EPS: f32 = 1e-5;

/// One evaluation's activations before the first block.
pub(super) struct Entered {
    /// Tokens `[items, tokens, hidden]`.
    pub(super) tokens: Tensor,
    /// The text `[items, tokens, hidden]`.
    pub(super) text: Tensor,
    /// What is added to the scores of the text's tokens, `[items, 1, 1, tokens]`, where some of them do not count.
    pub(super) mask: Option<Tensor>,
    /// The time `[items, times, hidden]`: one for all tokens, one for each frame or one for each token.
    pub(super) time: Tensor,
    /// The time as the modulations of all blocks, `[items, times, 6 · hidden]`.
    pub(super) change: Tensor,
}

/// The activations between blocks, of evaluations that run as one batch. They travel together to where the next block
/// computes.
pub(super) struct State {
    tokens: Tensor,
    text: Everywhere,
    mask: Option<Everywhere>,
    time: Everywhere,
    change: Everywhere,
    angles: Arc<TokenAngles>,
}

impl State {
    /// The activations of one or more evaluations of equal shapes, one after the other.
    pub(super) fn new(entered: &[Entered], angles: Arc<TokenAngles>) -> Result<State> {
        let all = |part: fn(&Entered) -> &Tensor| together(&entered.iter().map(part).collect::<Vec<_>>(), 0);
        let masks: Vec<&Tensor> = entered.iter().filter_map(|one| one.mask.as_ref()).collect();
        Ok(State {
            tokens: all(|one| &one.tokens)?,
            text: Everywhere::new(all(|one| &one.text)?),
            mask: if masks.is_empty() { None } else { Some(Everywhere::new(together(&masks, 0)?)) },
            time: Everywhere::new(all(|one| &one.time)?),
            change: Everywhere::new(all(|one| &one.change)?),
            angles,
        })
    }

    /// The tokens.
    pub(super) fn tokens(&self) -> &Tensor {
        &self.tokens
    }

    /// The time.
    pub(super) fn time(&self) -> &Tensor {
        self.time.first()
    }

    /// One of the blocks.
    pub(super) fn block(mut self, config: &Config, lease: &Lease<'_>, index: usize) -> Result<State> {
        let layers = Layers { config, lease, name: format!("transformer_blocks.{index}") };
        let x = lease.bring(&self.tokens)?;
        let table = format!("{}.scale_shift_table", layers.name);
        let change = Change::new(lease, &table, &self.change.on(lease)?, 6)?;
        let x = layers.self_attention(&x, &change, &self.angles)?;
        let mask = match &mut self.mask {
            None => Mask::None,
            Some(mask) => Mask::Additive(mask.on(lease)?),
        };
        let x = layers.cross_attention(&x, &self.text.on(lease)?, &mask)?;
        let tokens = layers.feed_forward(&x, &change)?;
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
    fn self_attention(&self, x: &Tensor, change: &Change, angles: &TokenAngles) -> Result<Tensor> {
        let name = format!("{}.attn1", self.name);
        let rotation = angles.on(self.lease.lane())?;
        let attended = {
            let inner = change.rms_normed(x, 0)?;
            // Each is turned before the next is made: sequences are long. All values of a token turn as one head.
            let turned = |layer: &str| -> Result<Tensor> {
                let x = self.normed(&name, layer, &inner)?;
                let (items, tokens, hidden) = (x.dim(0), x.dim(1), x.dim(2));
                let x = x.reshape([items, tokens, 1, hidden])?;
                self.heads(&x.rope(&rotation.cos, &rotation.sin, RopeLayout::Interleaved)?)
            };
            let (q, k) = (turned("q")?, turned("k")?);
            let v = self.lease.linear(&format!("{name}.to_v"), &inner)?;
            drop(inner);
            self.attend([&q, &k, &self.heads(&v)?], &Mask::None)?
        };
        change.gated(x, 2, &self.lease.linear(&format!("{name}.to_out.0"), &attended)?)
    }

    fn cross_attention(&self, x: &Tensor, text: &Tensor, mask: &Mask) -> Result<Tensor> {
        let name = format!("{}.attn2", self.name);
        let q = self.heads(&self.normed(&name, "q", x)?)?;
        let k = self.heads(&self.normed(&name, "k", text)?)?;
        let v = self.heads(&self.lease.linear(&format!("{name}.to_v"), text)?)?;
        let attended = self.attend([&q, &k, &v], mask)?;
        Ok(x.add(&self.lease.linear(&format!("{name}.to_out.0"), &attended)?)?)
    }

    fn feed_forward(&self, x: &Tensor, change: &Change) -> Result<Tensor> {
        let (lease, name) = (self.lease, &self.name);
        let inner = change.rms_normed(x, 3)?;
        let inner =
            lease.linear_then(&format!("{name}.ff.net.0.proj"), &inner, Some(Activation::GeluTanh))?;
        change.gated(x, 5, &lease.linear(&format!("{name}.ff.net.2"), &inner)?)
    }

    /// Queries or keys, normalised over all heads together.
    fn normed(&self, attention: &str, layer: &str, x: &Tensor) -> Result<Tensor> {
        let out = self.lease.linear(&format!("{attention}.to_{layer}"), x)?;
        let weight = self.lease.weight(&format!("{attention}.{layer}_norm.weight"))?;
        Ok(out.rms_norm(Some(&weight), HEAD_EPS)?)
    }

    /// `[items, tokens, …]` as heads.
    fn heads(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.reshape([x.dim(0), x.dim(1), self.config.heads, self.config.head()])?)
    }

    fn attend(&self, [q, k, v]: [&Tensor; 3], mask: &Mask) -> Result<Tensor> {
        let out = q.attention(k, v, mask, 1.0 / (self.config.head() as f32).sqrt())?;
        Ok(out.reshape([q.dim(0), q.dim(1), self.config.hidden])?)
    }
}
