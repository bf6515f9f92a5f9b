//! The blocks of FLUX, and the activations that pass through them.

use std::fmt;

use residency::{Lease, LinearPart};
use tensor::{Activation, Mask, RopeLayout, Tensor};

use super::Config;
use super::positions::{Positions, Rotation};
use crate::{Probe, Result};

/// Added to the variance in every normalisation.
pub(super) const NORM_EPS: f32 = 1e-6;

/// One evaluation's activations before the first block.
pub(super) struct Entered {
    /// Image tokens `[batch, tokens, hidden]`.
    pub(super) image: Tensor,
    /// Text tokens `[batch, tokens, hidden]`.
    pub(super) text: Tensor,
    /// Time, guidance and pooled text, `[batch or 1, hidden]`.
    pub(super) vector: Tensor,
}

/// The activations between double blocks, of evaluations that run as one batch. They travel together to where the next block computes.
pub(super) struct Apart {
    /// Image tokens `[batch, tokens, hidden]`.
    image: Tensor,
    /// Text tokens `[batch, tokens, hidden]`.
    text: Tensor,
    /// Time, guidance and pooled text, after the SiLU with which every block begins: as many rows as there are items,
    /// or one for all items of an evaluation.
    vector: Everywhere,
    positions: Positions,
}

/// A value that every block reads and none changes: it travels to each device once.
struct Everywhere {
    first: Tensor,
    copies: Vec<Tensor>,
}

impl Everywhere {
    /// The value where a block computes.
    fn on(&mut self, lease: &Lease<'_>) -> Result<Tensor> {
        let here = |copy: &&Tensor| copy.lane().device().id() == lease.lane().device().id();
        if let Some(copy) = std::iter::once(&self.first).chain(&self.copies).find(here) {
            return Ok(copy.clone());
        }
        let copy = lease.bring(&self.first)?;
        self.copies.push(copy.clone());
        Ok(copy)
    }
}

/// The activations between single blocks.
pub(super) struct Joined {
    /// Text tokens, then image tokens, `[batch, tokens, hidden]`.
    tokens: Tensor,
    /// How many of them are text.
    texts: usize,
    /// As in [`Apart`].
    vector: Everywhere,
    positions: Positions,
}

/// How one half of a block is moved: `x · (1 + scale) + shift` before it and `gate` after.
struct Modulation {
    shift: Tensor,
    scale: Tensor,
    gate: Tensor,
}

/// Queries, keys and values, each `[batch, tokens, heads, size]`: filled by one side after the other, then read.
struct Heads {
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

impl Apart {
    /// The activations of one or more evaluations of equal shapes, one after the other.
    pub(super) fn new(entered: &[Entered], positions: Positions) -> Result<Apart> {
        let together = |part: fn(&Entered) -> &Tensor| match entered {
            [only] => Ok(part(only).clone()),
            many => Tensor::concat(&many.iter().map(part).collect::<Vec<_>>(), 0),
        };
        let vector = together(|entered| &entered.vector)?.activate(Activation::Silu)?;
        let (image, text) = (together(|entered| &entered.image)?, together(|entered| &entered.text)?);
        Ok(Apart { image, text, vector: Everywhere { first: vector, copies: Vec::new() }, positions })
    }

    /// The same activations where a block computes.
    pub(super) fn bring(self, lease: &Lease<'_>) -> Result<Apart> {
        let (image, text) = (lease.bring(&self.image)?, lease.bring(&self.text)?);
        Ok(Apart { image, text, ..self })
    }

    /// Text and image in one sequence, as single blocks want them.
    pub(super) fn join(self) -> Result<Joined> {
        let tokens = Tensor::concat(&[&self.text, &self.image], 1)?;
        Ok(Joined { tokens, texts: self.text.dim(1), vector: self.vector, positions: self.positions })
    }

    /// A block that keeps image and text apart: they meet in its attention.
    pub(super) fn double_block(
        mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        probe: &mut Probe<'_>,
    ) -> Result<Apart> {
        let block = format!("double_blocks.{index}");
        if index == 0 {
            self.positions.show(lease.lane(), probe)?;
        }
        let rotation = self.positions.on(lease.lane())?;
        let (texts, images) = (self.text.dim(1), self.image.dim(1));
        let image_side = Side { config, lease, name: format!("{block}.img") };
        let text_side = Side { config, lease, name: format!("{block}.txt") };
        let vector = self.vector.on(lease)?;
        let items = self.image.dim(0);
        let [image_first, image_second] = image_side.modulations(&vector, items, probe)?;
        let [text_first, text_second] = text_side.modulations(&vector, items, probe)?;

        let attended = {
            let heads = Heads::empty(config, &self.text, texts + images)?;
            let place = heads.slice(texts, images)?;
            image_side.heads(&self.image, &image_first, &rotation.slice(texts, images)?, &place, probe)?;
            let place = heads.slice(0, texts)?;
            text_side.heads(&self.text, &text_first, &rotation.slice(0, texts)?, &place, probe)?;
            heads.attend(config)?
        };
        let (text, image) = (attended.slice(1, 0, texts)?, attended.slice(1, texts, images)?);

        let image = image_side.add_attended(&self.image, &image, &image_first, probe)?;
        let image = image_side.feed_forward(&image, &image_second, probe)?;
        probe.show(format_args!("{block}.0"), &image);
        let text = text_side.add_attended(&self.text, &text, &text_first, probe)?;
        let text = text_side.feed_forward(&text, &text_second, probe)?;
        probe.show(format_args!("{block}.1"), &text);
        Ok(Apart { image, text, ..self })
    }
}

impl Joined {
    /// The same activations where a block computes.
    pub(super) fn bring(self, lease: &Lease<'_>) -> Result<Joined> {
        Ok(Joined { tokens: lease.bring(&self.tokens)?, ..self })
    }

    /// The first `count` tokens of the image.
    pub(super) fn image_tokens(&self, count: usize) -> Result<Tensor> {
        Ok(self.tokens.slice(1, self.texts, count)?)
    }

    /// Time, guidance and pooled text after SiLU.
    pub(super) fn vector(&self) -> &Tensor {
        &self.vector.first
    }

    /// A block over text and image together, with attention and feed-forward side by side.
    pub(super) fn single_block(
        mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        probe: &mut Probe<'_>,
    ) -> Result<Joined> {
        let block = format!("single_blocks.{index}");
        let rotation = self.positions.on(lease.lane())?;
        let change = lease.linear(&format!("{block}.modulation.lin"), &self.vector.on(lease)?)?;
        probe.show(format_args!("{block}.modulation.lin"), &change);
        let change = modulation(&by_item(&change, self.tokens.dim(0))?, 0, 3)?;

        // Each step's inputs go as soon as its result is there: sequences are long.
        let modulated = change.apply(&self.tokens, format_args!("{block}.pre_norm"), probe)?;
        // What attention and feed-forward give stands side by side from the start.
        let room = |width: usize| {
            let shape = [modulated.dim(0), modulated.dim(1), width];
            modulated.lane().empty_as(modulated.dtype(), shape)
        };
        let (heads, mlp) = (3 * config.hidden, config.mlp);
        let (qkv, both) = (room(heads)?, room(config.hidden + mlp)?);
        let (attended, inner) = (both.slice(2, 0, config.hidden)?, both.slice(2, config.hidden, mlp)?);
        let linear = format!("{block}.linear1");
        probe.show_step(format_args!("{linear}"), || Ok(lease.linear(&linear, &modulated)?))?;
        let parts = [
            LinearPart { rows: 0..heads, activation: None, out: &qkv },
            LinearPart { rows: heads..heads + mlp, activation: Some(Activation::GeluTanh), out: &inner },
        ];
        lease.linear_in_parts(&linear, &modulated, &parts)?;
        drop(modulated);
        probe.show(format_args!("{block}.mlp_act"), &inner);
        {
            let qkv = Split { config, norm: format!("{block}.norm"), qkv };
            let (q, k) = (qkv.empty()?, qkv.empty()?);
            qkv.turn_into(lease, &rotation, [&q, &k], probe)?;
            Heads { q, k, v: qkv.part(2)? }.attend_into(config, &attended)?;
        }
        let out = lease.linear(&format!("{block}.linear2"), &both)?;
        probe.show(format_args!("{block}.linear2"), &out);
        let tokens = self.tokens.gated_add(&change.gate, &out)?;
        probe.show(format_args!("{block}"), &tokens);
        Ok(Joined { tokens, ..self })
    }
}

/// The image's or the text's side of a double block.
struct Side<'a> {
    config: &'a Config,
    lease: &'a Lease<'a>,
    name: String,
}

impl Side<'_> {
    /// How attention and feed-forward are moved.
    fn modulations(&self, vector: &Tensor, items: usize, probe: &mut Probe<'_>) -> Result<[Modulation; 2]> {
        let name = format!("{}_mod.lin", self.name);
        let change = self.lease.linear(&name, vector)?;
        probe.show(format_args!("{name}"), &change);
        let change = by_item(&change, items)?;
        Ok([modulation(&change, 0, 6)?, modulation(&change, 3, 6)?])
    }

    /// Writes the queries, keys and values of these tokens into their place.
    fn heads(
        &self,
        x: &Tensor,
        change: &Modulation,
        rotation: &Rotation,
        place: &Heads,
        probe: &mut Probe<'_>,
    ) -> Result<()> {
        let x = change.apply(x, format_args!("{}_norm1", self.name), probe)?;
        let qkv = self.lease.linear(&format!("{}_attn.qkv", self.name), &x)?;
        probe.show(format_args!("{}_attn.qkv", self.name), &qkv);
        let qkv = Split { config: self.config, norm: format!("{}_attn.norm", self.name), qkv };
        qkv.turn_into(self.lease, rotation, [&place.q, &place.k], probe)?;
        Ok(qkv.part(2)?.copy_into(&place.v)?)
    }

    fn add_attended(
        &self,
        x: &Tensor,
        attended: &Tensor,
        change: &Modulation,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let out = self.lease.linear(&format!("{}_attn.proj", self.name), attended)?;
        probe.show(format_args!("{}_attn.proj", self.name), &out);
        Ok(x.gated_add(&change.gate, &out)?)
    }

    fn feed_forward(&self, x: &Tensor, change: &Modulation, probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = &self.name;
        let inner = change.apply(x, format_args!("{name}_norm2"), probe)?;
        let inner = self.lease.linear_then(&format!("{name}_mlp.0"), &inner, Some(Activation::GeluTanh))?;
        probe.show(format_args!("{name}_mlp.1"), &inner);
        let out = self.lease.linear(&format!("{name}_mlp.2"), &inner)?;
        probe.show(format_args!("{name}_mlp.2"), &out);
        Ok(x.gated_add(&change.gate, &out)?)
    }
}

impl Heads {
    /// Room for so many tokens, beside a tensor of any number of them.
    fn empty(config: &Config, beside: &Tensor, tokens: usize) -> Result<Heads> {
        let shape = [beside.dim(0), tokens, config.heads, config.head_size];
        let empty = || beside.lane().empty_as(beside.dtype(), shape);
        Ok(Heads { q: empty()?, k: empty()?, v: empty()? })
    }

    /// `len` tokens from `start`.
    fn slice(&self, start: usize, len: usize) -> Result<Heads> {
        let part = |x: &Tensor| x.slice(1, start, len);
        Ok(Heads { q: part(&self.q)?, k: part(&self.k)?, v: part(&self.v)? })
    }

    /// Attention of all tokens over all tokens, `[batch, tokens, hidden]`.
    fn attend(&self, config: &Config) -> Result<Tensor> {
        let out = self.q.lane().empty_as(self.q.dtype(), [self.q.dim(0), self.q.dim(1), config.hidden])?;
        self.attend_into(config, &out)?;
        Ok(out)
    }

    /// The same, written into a view of another tensor.
    fn attend_into(&self, config: &Config, out: &Tensor) -> Result<()> {
        let scale = 1.0 / (config.head_size as f32).sqrt();
        // Cutting the last dimension is always a view.
        let out = out.reshape(*self.q.shape())?;
        Ok(self.q.attention_into(&self.k, &self.v, &Mask::None, scale, &out)?)
    }
}

impl Modulation {
    /// Tokens normalised, scaled and shifted; `name` is that of the norm.
    fn apply(&self, x: &Tensor, name: fmt::Arguments<'_>, probe: &mut Probe<'_>) -> Result<Tensor> {
        probe.show_step(name, || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
        Ok(x.modulated_norm(&self.scale, &self.shift, NORM_EPS)?)
    }
}

/// Modulations `[rows, width]` as `[items or 1, 1, width]`: an evaluation of several items may have one row for all.
pub(super) fn by_item(change: &Tensor, items: usize) -> Result<Tensor> {
    let (rows, width) = (change.dim(0), change.dim(1));
    let change = change.reshape([rows, 1, width])?;
    if rows == 1 || rows == items {
        return Ok(change);
    }
    Ok(change.broadcast([rows, items / rows, width])?.reshape([items, 1, width])?)
}

/// Three parts of a modulation `[items or 1, 1, parts · hidden]`, from part `first`.
fn modulation(change: &Tensor, first: usize, parts: usize) -> Result<Modulation> {
    let width = change.dim(2) / parts;
    let part = |i: usize| change.slice(2, (first + i) * width, width);
    Ok(Modulation { shift: part(0)?, scale: part(1)?, gate: part(2)? })
}

/// `[batch, tokens, 3 · hidden]`, to be split into the heads of queries, keys and values.
struct Split<'a> {
    config: &'a Config,
    /// What the names of the norms begin with.
    norm: String,
    qkv: Tensor,
}

impl Split<'_> {
    fn shape(&self) -> [usize; 4] {
        [self.qkv.dim(0), self.qkv.dim(1), self.config.heads, self.config.head_size]
    }

    /// Room for one part.
    fn empty(&self) -> Result<Tensor> {
        Ok(self.qkv.lane().empty_as(self.qkv.dtype(), self.shape())?)
    }

    /// Part 0, 1 or 2.
    fn part(&self, index: usize) -> Result<Tensor> {
        let hidden = self.config.hidden;
        Ok(self.qkv.slice(2, index * hidden, hidden)?.reshape(self.shape())?)
    }

    /// Writes queries and keys, normalised and turned.
    fn turn_into(
        &self,
        lease: &Lease<'_>,
        rotation: &Rotation,
        out: [&Tensor; 2],
        probe: &mut Probe<'_>,
    ) -> Result<()> {
        for (index, (name, out)) in ["query_norm", "key_norm"].into_iter().zip(out).enumerate() {
            let (x, name) = (self.part(index)?, format!("{}.{name}", self.norm));
            let weight = lease.weight(&format!("{name}.scale"))?;
            probe.show_step(format_args!("{name}"), || Ok(x.rms_norm(Some(&weight), NORM_EPS)?))?;
            let tables = [&rotation.cos, &rotation.sin];
            x.normed_rope_into(&weight, NORM_EPS, tables, RopeLayout::Interleaved, out)?;
        }
        Ok(())
    }
}
