//! The blocks of HiDream, and the activations that pass through them.

use std::sync::Arc;

use residency::Lease;
use tensor::{RopeLayout, Tensor};

use super::Config;
use super::experts::{experts, feed_forward};
use crate::Result;
use crate::diffusion::heads::Heads;
use crate::diffusion::modulation::{Everywhere, Modulation, by_item};
use crate::diffusion::positions::{Positions, Rotation};

/// Added to the variance in the normalisations of tokens.
pub(super) const NORM_EPS: f32 = 1e-6;
/// Added to the variance in the normalisation of queries and keys.
const HEAD_EPS: f32 = 1e-5;

/// The activations between blocks, of evaluations that run as one batch.
pub(in crate::diffusion) struct State {
    /// The image's tokens; behind the double blocks, those of the text behind them. `[batch, tokens, hidden]`.
    pub(super) image: Tensor,
    /// The text's tokens that go through all blocks, until they are joined to the image's.
    pub(super) text: Option<Tensor>,
    /// The states of the language model, `[evaluations, states, tokens, width]`, of which each block reads one.
    pub(super) states: Everywhere,
    /// The last of them in the model's width.
    pub(super) last_state: Everywhere,
    /// Time and pooled text after SiLU: as many rows as there are items, or one for all items of an evaluation.
    pub(super) vector: Everywhere,
    pub(super) positions: Arc<Positions>,
}

/// One block.
pub(super) struct Block<'a> {
    pub(super) config: &'a Config,
    pub(super) lease: &'a Lease<'a>,
    /// What its weights' names begin with.
    pub(super) name: String,
    /// Its number among all blocks.
    pub(super) index: usize,
}

impl State {
    /// The state that a block reads, in the model's width, `[batch, tokens, hidden]`.
    fn state_for(&mut self, block: &Block<'_>) -> Result<Tensor> {
        if block.index + 1 == block.config.blocks() {
            return self.last_state.on(block.lease);
        }
        let states = self.states.on(block.lease)?;
        let state = states.slice(1, block.config.states[block.index], 1)?;
        let state = state.reshape([states.dim(0), states.dim(2), states.dim(3)])?;
        let state = block.lease.linear(&format!("caption_projection.{}.linear", block.index), &state)?;
        // One for each item of each evaluation.
        let [evaluations, tokens, width] = [0, 1, 2].map(|axis| state.dim(axis));
        let items = self.image.dim(0);
        let each = state.reshape([evaluations, 1, tokens * width])?;
        Ok(each
            .broadcast([evaluations, items / evaluations, tokens * width])?
            .reshape([items, tokens, width])?)
    }

    /// A block that keeps image and text apart.
    pub(super) fn double(mut self, block: &Block<'_>) -> Result<State> {
        let state = self.state_for(block)?;
        let (vector, rotation) = (self.vector.on(block.lease)?, self.positions.on(block.lease.lane())?);
        let image = block.lease.bring(&self.image)?;
        let text = self.text.as_ref().map_or_else(
            || Ok(state.clone()),
            |text| -> Result<Tensor> { Ok(Tensor::concat(&[&block.lease.bring(text)?, &state], 1)?) },
        )?;
        let kept = text.dim(1) - state.dim(1);
        let [image, text] = block.double([&image, &text], &vector, &rotation)?;
        Ok(State { image, text: Some(text.slice(1, 0, kept)?.contiguous()?), ..self })
    }

    /// A block over both.
    pub(super) fn single(mut self, block: &Block<'_>) -> Result<State> {
        let state = self.state_for(block)?;
        let (vector, rotation) = (self.vector.on(block.lease)?, self.positions.on(block.lease.lane())?);
        let image = block.lease.bring(&self.image)?;
        let tokens = match self.text.take() {
            Some(text) => Tensor::concat(&[&image, &block.lease.bring(&text)?, &state], 1)?,
            None => Tensor::concat(&[&image, &state], 1)?,
        };
        let kept = tokens.dim(1) - state.dim(1);
        let tokens = block.single(&tokens, &vector, &rotation)?;
        Ok(State { image: tokens.slice(1, 0, kept)?.contiguous()?, ..self })
    }
}

impl Block<'_> {
    /// How the halves of the block are moved, three parts of so many for each.
    fn changes<const N: usize>(&self, vector: &Tensor, items: usize) -> Result<[Modulation; N]> {
        let change = self.lease.linear(&format!("{}.adaLN_modulation.1", self.name), vector)?;
        let change = by_item(&change, items)?;
        let parts: Vec<Modulation> =
            (0..N).map(|i| Modulation::part(&change, 3 * i, 3 * N)).collect::<Result<_>>()?;
        <[Modulation; N]>::try_from(parts).map_err(|_| crate::Error::Input {
            what: "a modulation",
            expected: format!("of {N} parts"),
            got: "another".into(),
        })
    }

    fn double(
        &self,
        [image, text]: [&Tensor; 2],
        vector: &Tensor,
        rotation: &Rotation,
    ) -> Result<[Tensor; 2]> {
        let [image_attention, image_feed, text_attention, text_feed] = self.changes(vector, image.dim(0))?;
        let (images, texts) = (image.dim(1), text.dim(1));
        let attended = {
            let heads = Heads::empty(self.config.head_sizes(), image, images + texts)?;
            let x = normed(image, &image_attention)?;
            self.heads("", &x, &heads.slice(0, images)?, &rotation.slice(0, images)?)?;
            let x = normed(text, &text_attention)?;
            self.heads("_t", &x, &heads.slice(images, texts)?, &rotation.slice(images, texts)?)?;
            heads.attend()?
        };
        let out = self.linear("attn1.to_out", &attended.slice(1, 0, images)?)?;
        let image = image.gated_add(&image_attention.gate, &out)?;
        let out = self.linear("attn1.to_out_t", &attended.slice(1, images, texts)?)?;
        let text = text.gated_add(&text_attention.gate, &out)?;
        let out = experts(self.lease, &format!("{}.ff_i", self.name), &normed(&image, &image_feed)?)?;
        let image = image.gated_add(&image_feed.gate, &out)?;
        let out = feed_forward(self.lease, &format!("{}.ff_t", self.name), &normed(&text, &text_feed)?)?;
        Ok([image, text.gated_add(&text_feed.gate, &out)?])
    }

    fn single(&self, x: &Tensor, vector: &Tensor, rotation: &Rotation) -> Result<Tensor> {
        let [attention, feed] = self.changes(vector, x.dim(0))?;
        let attended = {
            let heads = Heads::empty(self.config.head_sizes(), x, x.dim(1))?;
            self.heads("", &normed(x, &attention)?, &heads, rotation)?;
            heads.attend()?
        };
        let x = x.gated_add(&attention.gate, &self.linear("attn1.to_out", &attended)?)?;
        let out = experts(self.lease, &format!("{}.ff_i", self.name), &normed(&x, &feed)?)?;
        Ok(x.gated_add(&feed.gate, &out)?)
    }

    fn linear(&self, layer: &str, x: &Tensor) -> Result<Tensor> {
        Ok(self.lease.linear(&format!("{}.{layer}", self.name), x)?)
    }

    /// Writes the queries, keys and values of one side into their place; `side` is the end of its layers' names.
    fn heads(&self, side: &str, x: &Tensor, place: &Heads, rotation: &Rotation) -> Result<()> {
        for (layer, norm, out) in [("to_q", "q_rms_norm", &place.q), ("to_k", "k_rms_norm", &place.k)] {
            let heads = self.linear(&format!("attn1.{layer}{side}"), x)?;
            let weight = self.lease.weight(&format!("{}.attn1.{norm}{side}.weight", self.name))?;
            // All heads of a token are normalised together.
            let heads = heads.rms_norm(Some(&weight), HEAD_EPS)?.reshape(*out.shape())?;
            heads.rope(&rotation.cos, &rotation.sin, RopeLayout::Interleaved)?.copy_into(out)?;
        }
        let values = self.linear(&format!("attn1.to_v{side}"), x)?;
        Ok(values.reshape(*place.v.shape())?.copy_into(&place.v)?)
    }
}

/// Tokens normalised, scaled and shifted.
fn normed(x: &Tensor, change: &Modulation) -> Result<Tensor> {
    Ok(x.modulated_norm(&change.scale, &change.shift, NORM_EPS)?)
}
