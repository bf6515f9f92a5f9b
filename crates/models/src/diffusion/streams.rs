//! Blocks of two kinds, as FLUX introduced them: the first keep image and text apart and let them meet in attention, the
//! later ones run over both as one sequence, with attention and feed-forward side by side. Who has such blocks says how
//! their halves are moved, and whether the feed-forward is gated.

use std::fmt;

use residency::{Lease, LinearPart};
use tensor::{Activation, LayerInput, RopeLayout, Tensor};

use super::attending::Attending;
use super::heads::{HeadSizes, Heads};
use super::kept_heads::LastTokens;
use super::modulation::Modulation;
use super::pieces;
use super::positions::Rotation;
use super::tokens::Tokens;
use crate::{Probe, Result};

/// Added to the variance in every normalisation.
pub(super) const NORM_EPS: f32 = 1e-6;

/// The sizes of the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamSizes {
    /// Heads of attention, all together as wide as a token.
    pub(super) heads: HeadSizes,
    /// Inner width of the feed-forward.
    pub(super) mlp: usize,
    /// Whether the feed-forward is SiLU of one half times the other; else it is GELU.
    pub(super) is_gated: bool,
}

/// A block with what it computes by.
pub(super) struct StreamBlock<'a> {
    pub(super) sizes: StreamSizes,
    pub(super) lease: &'a Lease<'a>,
    /// What its weights' names begin with.
    pub(super) name: String,
    /// Of all tokens, those of the text first.
    pub(super) rotation: Rotation,
    /// Which of them are looked at more or less.
    pub(super) attending: &'a Attending,
    /// What happens to keys and values of the last tokens.
    pub(super) last: LastTokens,
}

impl StreamSizes {
    /// Values per token.
    pub(super) fn hidden(self) -> usize {
        self.heads.heads * self.heads.size
    }

    /// Rows of the first layer of the feed-forward.
    pub(super) fn mlp_rows(self) -> usize {
        if self.is_gated { 2 * self.mlp } else { self.mlp }
    }
}

impl StreamBlock<'_> {
    /// A block that keeps image and text apart, with how the two halves of each side are moved.
    pub(super) fn double(
        &self,
        tokens: Tokens,
        [image_change, text_change]: [&[Modulation; 2]; 2],
        probe: &mut Probe<'_>,
    ) -> Result<Tokens> {
        let [image, text] = tokens.sides()?;
        drop(tokens);
        let (texts, images) = (text.dim(1), image.dim(1));
        let side = |name: &str| Side { block: self, name: format!("{}.{name}", self.name) };
        let (image_side, text_side) = (side("img"), side("txt"));
        let attended = {
            let heads = self.last.room(self.sizes.heads, &text, texts + images)?;
            let place = (heads.slice(texts, images)?, self.rotation.slice(texts, images)?);
            image_side.heads(&image, &image_change[0], &place, probe)?;
            let place = (heads.slice(0, texts)?, self.rotation.slice(0, texts)?);
            text_side.heads(&text, &text_change[0], &place, probe)?;
            self.last.see(&heads)?;
            heads.attend_with(self.attending)?
        };
        let image = image_side.rest((&image, &attended.slice(1, texts, images)?), image_change, probe)?;
        probe.show(format_args!("{}.0", self.name), &image);
        let text = text_side.rest((&text, &attended.slice(1, 0, texts)?), text_change, probe)?;
        probe.show(format_args!("{}.1", self.name), &text);
        Ok(Tokens::Apart { image, text })
    }

    /// A block over text and image together, with how it is moved.
    pub(super) fn single(
        &self,
        tokens: Tokens,
        change: &Modulation,
        probe: &mut Probe<'_>,
    ) -> Result<Tokens> {
        let (block, lease, sizes) = (&self.name, self.lease, self.sizes);
        let (tokens, texts) = tokens.joined()?;
        // Each step's inputs go as soon as its result is there: sequences are long.
        let modulated = modulated(&tokens, change, format_args!("{block}.pre_norm"), probe)?;
        let room = |width: usize| {
            let shape = [modulated.dim(0), modulated.dim(1), width];
            modulated.lane().empty_as(modulated.dtype(), shape)
        };
        // What attention and feed-forward give stands side by side from the start.
        let (hidden, mlp) = (sizes.hidden(), sizes.mlp);
        let (qkv, both) = (room(3 * hidden)?, room(hidden + mlp)?);
        let (attended, inner) = (both.slice(2, 0, hidden)?, both.slice(2, hidden, mlp)?);
        let (linear, last) = (format!("{block}.linear1"), format!("{block}.linear2"));
        // A layer that rounds what it reads does the activation in the same pass.
        let is_late = !sizes.is_gated && lease.rounds_rows(&last, &modulated)?;
        probe.show_step(format_args!("{linear}"), || pieces::linear(lease, &linear, &modulated))?;
        let heads = LinearPart { rows: 0..3 * hidden, activation: None, out: &qkv };
        let rows = 3 * hidden..3 * hidden + sizes.mlp_rows();
        if sizes.is_gated {
            let halves = room(sizes.mlp_rows())?;
            let feed = LinearPart { rows, activation: None, out: &halves };
            pieces::linear_in_parts(lease, &linear, &modulated, &[heads, feed])?;
            gate_into(&halves, &inner, format_args!("{block}.mlp_act"), probe)?;
        } else {
            let activation = (!is_late).then_some(Activation::GeluTanh);
            let feed = LinearPart { rows, activation, out: &inner };
            pieces::linear_in_parts(lease, &linear, &modulated, &[heads, feed])?;
        }
        drop(modulated);
        probe.show_step(format_args!("{block}.mlp_act"), || match is_late {
            true => Ok(inner.activate(Activation::GeluTanh)?),
            false => Ok(inner.clone()),
        })?;
        {
            let qkv = Split { block: self, norm: format!("{block}.norm"), qkv };
            let heads = qkv.heads(probe)?;
            self.last.see(&heads)?;
            heads.attend_into(self.attending, &attended)?;
        }
        let both = if is_late { LayerInput::gelu_tanh(both, hidden) } else { LayerInput::new(both) };
        let out = lease.linear(&last, &both)?;
        probe.show(format_args!("{block}.linear2"), &out);
        let all = change.gated(&tokens, &out)?;
        probe.show(format_args!("{block}"), &all);
        Ok(Tokens::Joined { all, texts })
    }
}

/// The image's or the text's side of a double block.
struct Side<'a> {
    block: &'a StreamBlock<'a>,
    name: String,
}

impl Side<'_> {
    /// Writes the queries, keys and values of these tokens into their place.
    fn heads(
        &self,
        x: &Tensor,
        change: &Modulation,
        (place, rotation): &(Heads, Rotation),
        probe: &mut Probe<'_>,
    ) -> Result<()> {
        let x = modulated(x, change, format_args!("{}_norm1", self.name), probe)?;
        let qkv = pieces::linear(self.block.lease, &format!("{}_attn.qkv", self.name), &x)?;
        probe.show(format_args!("{}_attn.qkv", self.name), &qkv);
        let qkv = Split { block: self.block, norm: format!("{}_attn.norm", self.name), qkv };
        qkv.turn_into(rotation, [&place.q, &place.k], probe)?;
        Ok(qkv.part(2)?.copy_into(&place.v)?)
    }

    /// What attention gave is added to the tokens, then what the feed-forward gives.
    fn rest(
        &self,
        (x, attended): (&Tensor, &Tensor),
        changes: &[Modulation; 2],
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let (name, lease) = (&self.name, self.block.lease);
        let out = lease.linear(&format!("{name}_attn.proj"), attended)?;
        probe.show(format_args!("{name}_attn.proj"), &out);
        let x = changes[0].gated(x, &out)?;
        drop(out);
        let inner = modulated(&x, &changes[1], format_args!("{name}_norm2"), probe)?;
        let layer = format!("{name}_mlp.0");
        let inner = if self.block.sizes.is_gated {
            let halves = lease.linear(&layer, &inner)?;
            probe.show(format_args!("{layer}"), &halves);
            let shape = [inner.dim(0), inner.dim(1), self.block.sizes.mlp];
            let out = inner.lane().empty_as(inner.dtype(), shape)?;
            gate_into(&halves, &out, format_args!("{name}_mlp.1"), probe)?;
            LayerInput::new(out)
        } else {
            lease.linear_gelu_tanh(&layer, &inner, &format!("{name}_mlp.2"))?
        };
        probe.show_step(format_args!("{name}_mlp.1"), || Ok(inner.values()?.clone()))?;
        let out = lease.linear(&format!("{name}_mlp.2"), &inner)?;
        probe.show(format_args!("{name}_mlp.2"), &out);
        changes[1].gated(&x, &out)
    }
}

/// SiLU of the first half times the second; `name` is that of the activation.
fn gate_into(halves: &Tensor, out: &Tensor, name: fmt::Arguments<'_>, probe: &mut Probe<'_>) -> Result<()> {
    let parts = halves.chunk(2, 2)?;
    probe.show_step(format_args!("{name}.gate_fn"), || Ok(parts[0].activate(Activation::Silu)?))?;
    Ok(parts[0].gate_into(Activation::Silu, &parts[1], out)?)
}

/// Tokens normalised, scaled and shifted; `name` is that of the norm.
fn modulated(
    x: &Tensor,
    change: &Modulation,
    name: fmt::Arguments<'_>,
    probe: &mut Probe<'_>,
) -> Result<LayerInput> {
    probe.show_step(name, || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
    change.normed_input(x, NORM_EPS)
}

/// `[batch, tokens, 3 · hidden]`, to be split into the heads of queries, keys and values.
struct Split<'a> {
    block: &'a StreamBlock<'a>,
    /// What the names of the norms begin with.
    norm: String,
    qkv: Tensor,
}

impl Split<'_> {
    fn shape(&self) -> [usize; 4] {
        let HeadSizes { heads, size, .. } = self.block.sizes.heads;
        [self.qkv.dim(0), self.qkv.dim(1), heads, size]
    }

    /// Room for one part.
    fn empty(&self) -> Result<Tensor> {
        Ok(self.qkv.lane().empty_as(self.qkv.dtype(), self.shape())?)
    }

    /// All heads of a single block.
    fn heads(&self, probe: &mut Probe<'_>) -> Result<Heads> {
        let StreamBlock { rotation, last, sizes, .. } = self.block;
        if !matches!(last, LastTokens::Recorded(_)) {
            let (q, k) = (self.empty()?, self.empty()?);
            self.turn_into(rotation, [&q, &k], probe)?;
            return Ok(Heads { q, k, v: self.part(2)? });
        }
        let tokens = self.qkv.dim(1);
        let heads = last.room(sizes.heads, &self.qkv, tokens)?;
        let own = heads.slice(0, tokens)?;
        self.turn_into(&rotation.slice(0, tokens)?, [&own.q, &own.k], probe)?;
        self.part(2)?.copy_into(&own.v)?;
        Ok(heads)
    }

    /// Part 0, 1 or 2.
    fn part(&self, index: usize) -> Result<Tensor> {
        let hidden = self.block.sizes.hidden();
        Ok(self.qkv.slice(2, index * hidden, hidden)?.reshape(self.shape())?)
    }

    /// Writes queries and keys, normalised and turned.
    fn turn_into(&self, rotation: &Rotation, out: [&Tensor; 2], probe: &mut Probe<'_>) -> Result<()> {
        for (index, (name, out)) in ["query_norm", "key_norm"].into_iter().zip(out).enumerate() {
            let (x, name) = (self.part(index)?, format!("{}.{name}", self.norm));
            let weight = self.block.lease.weight(&format!("{name}.scale"))?;
            probe.show_step(format_args!("{name}"), || Ok(x.rms_norm(Some(&weight), NORM_EPS)?))?;
            let tables = [&rotation.cos, &rotation.sin];
            x.normed_rope_into(&weight, NORM_EPS, tables, RopeLayout::Interleaved, out)?;
        }
        Ok(())
    }
}
