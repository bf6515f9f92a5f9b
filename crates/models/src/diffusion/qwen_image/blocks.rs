//! The blocks of Qwen-Image, and the activations that pass through them.

use std::sync::Arc;

use residency::{Lease, LinearPart};
use tensor::{Activation, RopeLayout, Tensor};

use super::Config;
use crate::diffusion::heads::Heads;
use crate::diffusion::modulation::{Everywhere, Modulation, by_item};
use crate::diffusion::positions::{Positions, Rotation};
use crate::{Probe, Result};

/// Added to the variance in every normalisation.
pub(super) const NORM_EPS: f32 = 1e-6;

/// The activations between blocks, of evaluations that run as one batch.
pub(in crate::diffusion) struct Joint {
    /// Image tokens `[batch, tokens, hidden]`; what control networks and patches of the model add behind a block is added
    /// here.
    pub(super) image: Tensor,
    /// Text tokens `[batch, tokens, hidden]`.
    pub(super) text: Tensor,
    /// The times after the SiLU with which every block begins, one row for each evaluation; behind them the end of time,
    /// if some tokens are read as at it.
    pub(super) vector: Everywhere,
    /// The image's tokens from here on are read as at the end of time.
    pub(super) timeless_from: Option<usize>,
    pub(super) positions: Arc<Positions>,
}

impl Joint {
    /// The same activations where a block computes.
    pub(super) fn bring(self, lease: &Lease<'_>) -> Result<Joint> {
        let (image, text) = (lease.bring(&self.image)?, lease.bring(&self.text)?);
        Ok(Joint { image, text, ..self })
    }

    /// The rows of the evaluations' own times.
    pub(super) fn times(&self) -> Result<Tensor> {
        own_times(self.vector.first(), self.timeless_from)
    }

    /// A block: image and text meet in its attention.
    pub(super) fn block(
        mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        probe: &mut Probe<'_>,
    ) -> Result<Joint> {
        let block = format!("transformer_blocks.{index}");
        let side = |names: &'static Names| Side { config, lease, block: &block, names };
        let (image_side, text_side) = (side(&IMAGE), side(&TEXT));
        let rotation = self.positions.on(lease.lane())?;
        let (texts, images) = (self.text.dim(1), self.image.dim(1));
        let (vector, items) = (self.vector.on(lease)?, self.image.dim(0));
        let image_change = image_side.changes(&vector, items, self.timeless_from, probe)?;
        let own = own_times(&vector, self.timeless_from)?;
        let text_change = text_side.changes(&own, items, None, probe)?;

        let attended = {
            let heads = Heads::empty(config.head_sizes(), &self.text, texts + images)?;
            let place = heads.slice(0, texts)?;
            text_side.heads(&self.text, &text_change, &rotation.slice(0, texts)?, &place, probe)?;
            let place = heads.slice(texts, images)?;
            image_side.heads(&self.image, &image_change, &rotation.slice(texts, images)?, &place, probe)?;
            heads.attend()?
        };
        let (text, image) = (attended.slice(1, 0, texts)?, attended.slice(1, texts, images)?);
        let image = image_side.add_attended(&self.image, &image, &image_change, probe)?;
        let image = image_side.feed_forward(&image, &image_change, probe)?;
        let text = text_side.add_attended(&self.text, &text, &text_change, probe)?;
        let text = text_side.feed_forward(&text, &text_change, probe)?;
        probe.show(format_args!("{block}.0"), &text);
        probe.show(format_args!("{block}.1"), &image);
        Ok(Joint { image, text, ..self })
    }
}

/// The rows of the evaluations' own times: without that of the end of time, if there is one.
fn own_times(vector: &Tensor, timeless_from: Option<usize>) -> Result<Tensor> {
    let own = vector.dim(0) - usize::from(timeless_from.is_some());
    Ok(vector.slice(0, 0, own)?)
}

/// What the layers of one side of a block are called.
struct Names {
    side: &'static str,
    heads: [&'static str; 3],
    norms: [&'static str; 2],
    out: &'static str,
}

const IMAGE: Names = Names {
    side: "img",
    heads: ["attn.to_q", "attn.to_k", "attn.to_v"],
    norms: ["attn.norm_q", "attn.norm_k"],
    out: "attn.to_out.0",
};

const TEXT: Names = Names {
    side: "txt",
    heads: ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
    norms: ["attn.norm_added_q", "attn.norm_added_k"],
    out: "attn.to_add_out",
};

/// The image's or the text's side of a block.
struct Side<'a> {
    config: &'a Config,
    lease: &'a Lease<'a>,
    block: &'a str,
    names: &'static Names,
}

/// How the two halves of a block are moved, for the tokens from the first on and for those from others on.
struct Changes(Vec<(usize, [Modulation; 2])>);

impl Changes {
    /// Tokens normalised, then scaled and shifted for a half of the block.
    fn normed(&self, x: &Tensor, half: usize) -> Result<Tensor> {
        if let [(_, changes)] = self.0.as_slice() {
            return Ok(x.modulated_norm(&changes[half].scale, &changes[half].shift, NORM_EPS)?);
        }
        let out = x.lane().empty_as(x.dtype(), *x.shape())?;
        self.over(x.dim(1), |start, len, changes| {
            let Modulation { scale, shift, .. } = &changes[half];
            let (x, out) = (x.slice(1, start, len)?, out.slice(1, start, len)?);
            Ok(x.modulated_norm_into(scale, shift, NORM_EPS, &out)?)
        })?;
        Ok(out)
    }

    /// `x + gate · y` for a half of the block.
    fn add(&self, x: &Tensor, y: &Tensor, half: usize) -> Result<Tensor> {
        if let [(_, changes)] = self.0.as_slice() {
            return Ok(x.gated_add(&changes[half].gate, y)?);
        }
        let out = x.lane().empty_as(x.dtype(), *x.shape())?;
        self.over(x.dim(1), |start, len, changes| {
            let part = |tensor: &Tensor| tensor.slice(1, start, len);
            Ok(part(x)?.gated_add_into(&changes[half].gate, &part(y)?, &part(&out)?)?)
        })?;
        Ok(out)
    }

    /// Calls with the first of the tokens that move alike, with their number, and with how they move.
    fn over(
        &self,
        tokens: usize,
        mut call: impl FnMut(usize, usize, &[Modulation; 2]) -> Result<()>,
    ) -> Result<()> {
        let ends = self.0.iter().skip(1).map(|(start, _)| *start).chain([tokens]);
        self.0.iter().zip(ends).try_for_each(|((start, changes), end)| call(*start, end - start, changes))
    }
}

impl Side<'_> {
    fn layer(&self, name: &str) -> String {
        format!("{}.{name}", self.block)
    }

    /// How the tokens are moved: by the evaluations' times, and from a token on by the end of time, whose row is the last.
    fn changes(
        &self,
        vector: &Tensor,
        items: usize,
        timeless_from: Option<usize>,
        probe: &mut Probe<'_>,
    ) -> Result<Changes> {
        let name = self.layer(&format!("{}_mod.1", self.names.side));
        let change = self.lease.linear(&name, vector)?;
        probe.show(format_args!("{name}"), &change);
        let both = |rows: &Tensor| -> Result<[Modulation; 2]> {
            let change = by_item(rows, items)?;
            Ok([Modulation::part(&change, 0, 6)?, Modulation::part(&change, 3, 6)?])
        };
        let mut changes = vec![(0, both(&own_times(&change, timeless_from)?)?)];
        if let Some(from) = timeless_from {
            changes.push((from, both(&change.slice(0, change.dim(0) - 1, 1)?)?));
        }
        Ok(Changes(changes))
    }

    /// Writes the queries, keys and values of these tokens into their place.
    fn heads(
        &self,
        x: &Tensor,
        changes: &Changes,
        rotation: &Rotation,
        place: &Heads,
        probe: &mut Probe<'_>,
    ) -> Result<()> {
        let norm = self.layer(&format!("{}_norm1", self.names.side));
        probe.show_step(format_args!("{norm}"), || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
        let x = changes.normed(x, 0)?;
        let (batch, tokens) = (x.dim(0), x.dim(1));
        for (i, out) in [&place.q, &place.k].into_iter().enumerate() {
            let (layer, norm) = (self.layer(self.names.heads[i]), self.layer(self.names.norms[i]));
            let heads = self.lease.linear(&layer, &x)?;
            probe.show(format_args!("{layer}"), &heads);
            let heads = heads.reshape([batch, tokens, self.config.heads, self.config.head_size])?;
            let weight = self.lease.weight(&format!("{norm}.weight"))?;
            probe.show_step(format_args!("{norm}"), || Ok(heads.rms_norm(Some(&weight), NORM_EPS)?))?;
            let tables = [&rotation.cos, &rotation.sin];
            heads.normed_rope_into(&weight, NORM_EPS, tables, RopeLayout::Interleaved, out)?;
        }
        let layer = self.layer(self.names.heads[2]);
        probe.show_step(format_args!("{layer}"), || Ok(self.lease.linear(&layer, &x)?))?;
        let hidden = self.config.hidden;
        // The heads of a token stand side by side, so this is a view.
        let out = place.v.reshape([batch, tokens, hidden])?;
        let values = LinearPart { rows: 0..hidden, activation: None, out: &out };
        Ok(self.lease.linear_in_parts(&layer, &x, &[values])?)
    }

    fn add_attended(
        &self,
        x: &Tensor,
        attended: &Tensor,
        changes: &Changes,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let layer = self.layer(self.names.out);
        let out = self.lease.linear(&layer, attended)?;
        probe.show(format_args!("{layer}"), &out);
        changes.add(x, &out, 0)
    }

    fn feed_forward(&self, x: &Tensor, changes: &Changes, probe: &mut Probe<'_>) -> Result<Tensor> {
        let layer = |name: &str| self.layer(&format!("{}_{name}", self.names.side));
        let norm = layer("norm2");
        probe.show_step(format_args!("{norm}"), || Ok(x.layer_norm(None, None, NORM_EPS)?))?;
        let inner = changes.normed(x, 1)?;
        let name = layer("mlp.net.0");
        let inner = self.lease.linear_then(&format!("{name}.proj"), &inner, Some(Activation::GeluTanh))?;
        probe.show(format_args!("{name}"), &inner);
        let name = layer("mlp.net.2");
        let out = self.lease.linear(&name, &inner)?;
        probe.show(format_args!("{name}"), &out);
        changes.add(x, &out, 1)
    }
}
