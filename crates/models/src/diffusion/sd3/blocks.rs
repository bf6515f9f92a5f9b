//! The blocks of Stable Diffusion 3, and the activations that pass through them.

use std::fmt;

use residency::Lease;
use tensor::{Activation, Tensor};

use super::Config;
use super::config::HEAD;
use crate::diffusion::batches::together;
use crate::diffusion::heads::Heads;
use crate::diffusion::modulation::{Everywhere, Modulation, by_item};
use crate::diffusion::pieces;
use crate::{Probe, Result};

/// Added to the variance in every normalisation.
pub(super) const NORM_EPS: f32 = 1e-6;

/// The activations between blocks, of evaluations that run as one batch. They travel together to where the next block
/// computes.
pub(super) struct Joint {
    /// Image tokens `[batch, tokens, hidden]`.
    image: Tensor,
    /// Text tokens `[batch, tokens, hidden]`.
    text: Tensor,
    /// Time and pooled text, after the SiLU with which every block begins: as many rows as there are items, or one for
    /// all items of an evaluation.
    vector: Everywhere,
}

impl Joint {
    /// The activations of one or more evaluations of equal shapes, one after the other.
    pub(super) fn new(images: &[Tensor], texts: &[Tensor], vectors: &[Tensor]) -> Result<Joint> {
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        let vector = all(vectors)?.activate(Activation::Silu)?;
        Ok(Joint { image: all(images)?, text: all(texts)?, vector: Everywhere::new(vector) })
    }

    /// The same activations where a block computes.
    pub(super) fn bring(self, lease: &Lease<'_>) -> Result<Joint> {
        let (image, text) = (lease.bring(&self.image)?, lease.bring(&self.text)?);
        Ok(Joint { image, text, ..self })
    }

    /// The image's tokens.
    pub(super) fn image(&self) -> &Tensor {
        &self.image
    }

    /// Time and pooled text after SiLU.
    pub(super) fn vector(&self) -> &Tensor {
        self.vector.first()
    }

    /// A block: image and text meet in its attention.
    pub(super) fn block(
        mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        probe: &mut Probe<'_>,
    ) -> Result<Joint> {
        let side = |name: &str| Side { config, lease, name: format!("joint_blocks.{index}.{name}") };
        let (image_side, text_side) = (side("x_block"), side("context_block"));
        let (vector, items) = (self.vector.on(lease)?, self.image.dim(0));
        let image_change = image_side.modulations(&vector, items, probe)?;
        let text_change = text_side.modulations(&vector, items, probe)?;
        let (texts, images) = (self.text.dim(1), self.image.dim(1));

        let attended = {
            let heads = Heads::empty(config.head_sizes(), &self.text, texts + images)?;
            let text = text_side.normed(&self.text, (&text_change, 0), "norm1", probe)?;
            text_side.heads(&text, "attn", &heads.slice(0, texts)?, probe)?;
            drop(text);
            let image = image_side.normed(&self.image, (&image_change, 0), "norm1", probe)?;
            image_side.heads(&image, "attn", &heads.slice(texts, images)?, probe)?;
            heads.attend()?
        };
        let mut image = image_side.add_attended(
            &self.image,
            ("attn", &attended.slice(1, texts, images)?),
            &image_change.part(0)?,
            probe,
        )?;
        if index < config.dual_blocks {
            image = image_side.add_own_attention(&self.image, &image, &image_change, probe)?;
        }
        let image = image_side.feed_forward(&image, &image_change, probe)?;
        probe.show(format_args!("joint_blocks.{index}.1"), &image);
        let text = if config.ends_text_at(index) {
            self.text
        } else {
            let attended = attended.slice(1, 0, texts)?;
            let text =
                text_side.add_attended(&self.text, ("attn", &attended), &text_change.part(0)?, probe)?;
            let text = text_side.feed_forward(&text, &text_change, probe)?;
            probe.show(format_args!("joint_blocks.{index}.0"), &text);
            text
        };
        Ok(Joint { image, text, vector: self.vector })
    }
}

/// A block of the image alone, named `name`: attention over itself, then the feed-forward. `vector` is after its SiLU.
pub(super) fn image_block(
    config: &Config,
    lease: &Lease<'_>,
    name: String,
    (image, vector): (&Tensor, &Tensor),
    probe: &mut Probe<'_>,
) -> Result<Tensor> {
    let side = Side { config, lease, name };
    let change = side.modulations(vector, image.dim(0), probe)?;
    let attended = {
        let x = side.normed(image, (&change, 0), "norm1", probe)?;
        let heads = Heads::empty(config.head_sizes(), &x, x.dim(1))?;
        side.heads(&x, "attn", &heads, probe)?;
        heads.attend()?
    };
    let image = side.add_attended(image, ("attn", &attended), &change.part(0)?, probe)?;
    side.feed_forward(&image, &change, probe)
}

/// What moves the parts of one side of a block, `[items or 1, 1, parts · hidden]`: three for each part, or shift and scale
/// alone for a text that is not changed.
struct Change {
    all: Tensor,
    parts: usize,
}

impl Change {
    /// The modulation from part `first` on.
    fn part(&self, first: usize) -> Result<Modulation> {
        Modulation::part(&self.all, first, self.parts)
    }

    /// Scale and shift from part `first` on.
    fn scale_and_shift(&self, first: usize) -> Result<[Tensor; 2]> {
        let width = self.all.dim(2) / self.parts;
        let part = |i: usize| self.all.slice(2, (first + i) * width, width);
        Ok([part(1)?, part(0)?])
    }
}

/// The image's or the text's side of a block.
struct Side<'a> {
    config: &'a Config,
    lease: &'a Lease<'a>,
    name: String,
}

impl Side<'_> {
    fn modulations(&self, vector: &Tensor, items: usize, probe: &mut Probe<'_>) -> Result<Change> {
        let name = format!("{}.adaLN_modulation.1", self.name);
        let change = self.lease.linear(&name, vector)?;
        probe.show(format_args!("{name}"), &change);
        let parts = change.dim(1) / self.config.hidden;
        Ok(Change { all: by_item(&change, items)?, parts })
    }

    /// Tokens normalised, then scaled and shifted by the parts of a modulation from `first` on.
    fn normed(
        &self,
        x: &Tensor,
        (change, first): (&Change, usize),
        norm: &str,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name: fmt::Arguments<'_> = format_args!("{}.{norm}", self.name);
        probe.show_step(name, || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
        let [scale, shift] = change.scale_and_shift(first)?;
        Ok(x.modulated_norm(&scale, &shift, NORM_EPS)?)
    }

    /// Writes the queries, keys and values of these tokens into their place.
    fn heads(&self, x: &Tensor, attention: &str, place: &Heads, probe: &mut Probe<'_>) -> Result<()> {
        let name = format!("{}.{attention}", self.name);
        let qkv = pieces::linear(self.lease, &format!("{name}.qkv"), x)?;
        probe.show(format_args!("{name}.qkv"), &qkv);
        let (hidden, heads) = (self.config.hidden, self.config.heads);
        let part = |index: usize| -> Result<Tensor> {
            let part = qkv.slice(2, index * hidden, hidden)?;
            Ok(part.reshape([qkv.dim(0), qkv.dim(1), heads, HEAD])?)
        };
        for (index, (norm, out)) in [("ln_q", &place.q), ("ln_k", &place.k)].into_iter().enumerate() {
            if self.config.normed_heads {
                let weight = self.lease.weight(&format!("{name}.{norm}.weight"))?;
                part(index)?.rms_norm_into(Some(&weight), NORM_EPS, out)?;
                probe.show(format_args!("{name}.{norm}"), out);
            } else {
                part(index)?.copy_into(out)?;
            }
        }
        Ok(part(2)?.copy_into(&place.v)?)
    }

    fn add_attended(
        &self,
        x: &Tensor,
        (attention, attended): (&str, &Tensor),
        change: &Modulation,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name = format!("{}.{attention}.proj", self.name);
        let out = self.lease.linear(&name, attended)?;
        probe.show(format_args!("{name}"), &out);
        Ok(x.gated_add(&change.gate, &out)?)
    }

    /// The second attention, of the tokens that came in over themselves, added to what there is by now.
    fn add_own_attention(
        &self,
        before: &Tensor,
        now: &Tensor,
        change: &Change,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let attended = {
            let x = self.normed(before, (change, 6), "norm1", probe)?;
            let heads = Heads::empty(self.config.head_sizes(), &x, x.dim(1))?;
            self.heads(&x, "attn2", &heads, probe)?;
            heads.attend()?
        };
        self.add_attended(now, ("attn2", &attended), &change.part(6)?, probe)
    }

    fn feed_forward(&self, x: &Tensor, change: &Change, probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = &self.name;
        let inner = self.normed(x, (change, 3), "norm2", probe)?;
        let inner = self.lease.linear_then(&format!("{name}.mlp.fc1"), &inner, Some(Activation::GeluTanh))?;
        probe.show(format_args!("{name}.mlp.act"), &inner);
        let out = self.lease.linear(&format!("{name}.mlp.fc2"), &inner)?;
        probe.show(format_args!("{name}.mlp.fc2"), &out);
        Ok(x.gated_add(&change.part(3)?.gate, &out)?)
    }
}
