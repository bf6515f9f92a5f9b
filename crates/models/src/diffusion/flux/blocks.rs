//! The blocks of FLUX, and the activations that pass through them.

use residency::Lease;
use tensor::{Activation, Mask, RopeLayout, Tensor};

use super::Config;
use super::positions::{Positions, Rotation};
use crate::{Probe, Result};

/// Added to the variance in every normalisation.
pub(super) const NORM_EPS: f32 = 1e-6;

/// The activations between double blocks. They travel together to where the next block computes.
pub(super) struct Apart {
    /// Image tokens `[batch, tokens, hidden]`.
    image: Tensor,
    /// Text tokens `[batch, tokens, hidden]`.
    text: Tensor,
    /// Time, guidance and pooled text, after the SiLU with which every block begins, `[batch or 1, hidden]`.
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

/// Queries, keys and values, each `[batch, tokens, heads, size]`.
struct Heads {
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

impl Apart {
    pub(super) fn new(image: Tensor, text: Tensor, vector: &Tensor, positions: Positions) -> Result<Apart> {
        let vector = Everywhere { first: vector.activate(Activation::Silu)?, copies: Vec::new() };
        Ok(Apart { image, text, vector, positions })
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
        let [image_first, image_second] = image_side.modulations(&vector, probe)?;
        let [text_first, text_second] = text_side.modulations(&vector, probe)?;

        let attended = {
            let image =
                image_side.heads(&self.image, &image_first, &rotation.slice(texts, images)?, probe)?;
            let text = text_side.heads(&self.text, &text_first, &rotation.slice(0, texts)?, probe)?;
            let join = |text: &Tensor, image: &Tensor| Tensor::concat(&[text, image], 1);
            Heads { q: join(&text.q, &image.q)?, k: join(&text.k, &image.k)?, v: join(&text.v, &image.v)? }
                .attend(config)?
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
        let change = modulation(&change, 0, 3)?;

        // Each step's inputs go as soon as its result is there: sequences are long.
        let modulated = {
            let normed = self.tokens.layer_norm(None, None, NORM_EPS)?;
            probe.show(format_args!("{block}.pre_norm"), &normed);
            normed.modulate(&change.scale, &change.shift)?
        };
        let both = {
            let x = lease.linear(&format!("{block}.linear1"), &modulated)?;
            drop(modulated);
            probe.show(format_args!("{block}.linear1"), &x);
            let heads = x.slice(2, 0, 3 * config.hidden)?;
            let attended = split_heads(config, lease, &format!("{block}.norm"), &heads, &rotation, probe)?
                .attend(config)?;
            let inner = x.slice(2, 3 * config.hidden, config.mlp)?.activate(Activation::GeluTanh)?;
            probe.show(format_args!("{block}.mlp_act"), &inner);
            Tensor::concat(&[&attended, &inner], 2)?
        };
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
    fn modulations(&self, vector: &Tensor, probe: &mut Probe<'_>) -> Result<[Modulation; 2]> {
        let name = format!("{}_mod.lin", self.name);
        let change = self.lease.linear(&name, vector)?;
        probe.show(format_args!("{name}"), &change);
        Ok([modulation(&change, 0, 6)?, modulation(&change, 3, 6)?])
    }

    /// Queries, keys and values of these tokens.
    fn heads(
        &self,
        x: &Tensor,
        change: &Modulation,
        rotation: &Rotation,
        probe: &mut Probe<'_>,
    ) -> Result<Heads> {
        let x = x.layer_norm(None, None, NORM_EPS)?;
        probe.show(format_args!("{}_norm1", self.name), &x);
        let x = x.modulate(&change.scale, &change.shift)?;
        let qkv = self.lease.linear(&format!("{}_attn.qkv", self.name), &x)?;
        probe.show(format_args!("{}_attn.qkv", self.name), &qkv);
        split_heads(self.config, self.lease, &format!("{}_attn.norm", self.name), &qkv, rotation, probe)
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
        let inner = x.layer_norm(None, None, NORM_EPS)?;
        probe.show(format_args!("{name}_norm2"), &inner);
        let inner = inner.modulate(&change.scale, &change.shift)?;
        let inner = self.lease.linear_then(&format!("{name}_mlp.0"), &inner, Some(Activation::GeluTanh))?;
        probe.show(format_args!("{name}_mlp.1"), &inner);
        let out = self.lease.linear(&format!("{name}_mlp.2"), &inner)?;
        probe.show(format_args!("{name}_mlp.2"), &out);
        Ok(x.gated_add(&change.gate, &out)?)
    }
}

impl Heads {
    /// Attention of all tokens over all tokens, `[batch, tokens, hidden]`.
    fn attend(&self, config: &Config) -> Result<Tensor> {
        let scale = 1.0 / (config.head_size as f32).sqrt();
        let out = self.q.attention(&self.k, &self.v, &Mask::None, scale)?;
        Ok(out.reshape([out.dim(0), out.dim(1), config.hidden])?)
    }
}

/// Three parts of a modulation `[batch, parts · hidden]`, from part `first`.
fn modulation(change: &Tensor, first: usize, parts: usize) -> Result<Modulation> {
    let width = change.dim(1) / parts;
    let change = change.reshape([change.dim(0), 1, change.dim(1)])?;
    let part = |i: usize| change.slice(2, (first + i) * width, width);
    Ok(Modulation { shift: part(0)?, scale: part(1)?, gate: part(2)? })
}

/// Splits `[batch, tokens, 3 · hidden]` into heads; queries and keys are normalised and turned.
fn split_heads(
    config: &Config,
    lease: &Lease<'_>,
    norm: &str,
    qkv: &Tensor,
    rotation: &Rotation,
    probe: &mut Probe<'_>,
) -> Result<Heads> {
    let shape = [qkv.dim(0), qkv.dim(1), config.heads, config.head_size];
    let part =
        |i: usize| -> Result<Tensor> { Ok(qkv.slice(2, i * config.hidden, config.hidden)?.reshape(shape)?) };
    let mut turned = |i: usize, name: &str| -> Result<Tensor> {
        let name = format!("{norm}.{name}");
        let x = part(i)?.rms_norm(Some(&lease.weight(&format!("{name}.scale"))?), NORM_EPS)?;
        probe.show(format_args!("{name}"), &x);
        Ok(x.rope(&rotation.cos, &rotation.sin, RopeLayout::Interleaved)?)
    };
    Ok(Heads { q: turned(0, "query_norm")?, k: turned(1, "key_norm")?, v: part(2)? })
}
