//! The transformers of a UNet: every value of the picture is a token, which looks at all others and at the text.

use residency::Lease;
use tensor::{Activation, Mask, Tensor};

use super::altered::Attending;
use super::config::{Config, Unit};
use super::layers::group_norm;
use crate::{Probe, Result};

/// Added to the variance of groups of channels before a transformer.
const GROUP_EPS: f32 = 1e-6;
/// Added to the variance of a token.
pub(super) const NORM_EPS: f32 = 1e-5;

/// From a picture `[items, channels, height, width]` to the tokens of a transformer, `[items, height · width, channels]`.
pub(super) fn enter(lease: &Lease<'_>, unit: &Unit, image: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
    let name = &unit.name;
    let normed = group_norm(lease, &format!("{name}.norm"), image, GROUP_EPS)?;
    probe.show(format_args!("{name}.norm"), &normed);
    let (items, channels, values) = (image.dim(0), image.dim(1), image.dim(2) * image.dim(3));
    let tokens = normed.reshape([items, channels, values])?.transpose(1, 2)?.contiguous()?;
    drop(normed);
    Ok(lease.linear(&format!("{name}.proj_in"), &tokens)?)
}

/// What a transformer made of a picture's tokens, added to the picture.
pub(super) fn leave(lease: &Lease<'_>, unit: &Unit, image: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    let change = lease.linear(&format!("{}.proj_out", unit.name), tokens)?;
    let (items, channels, values) = (image.dim(0), image.dim(1), image.dim(2) * image.dim(3));
    let image_as_rows = image.reshape([items, channels, values])?;
    Ok(image_as_rows.add(&change.transpose(1, 2)?)?.reshape(*image.shape())?)
}

/// What the tokens of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// The values of a picture.
    Values,
    /// The frames of a video.
    Frames,
}

/// What tokens look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// Each other.
    Tokens,
    /// The text.
    Text,
}

/// One block of a transformer, in a unit that knows its place in the network.
pub(super) struct Block<'a> {
    pub(super) config: &'a Config,
    pub(super) lease: &'a Lease<'a>,
    pub(super) unit: &'a Unit,
    pub(super) stack: Stack,
    /// How tokens look at each other otherwise than trained.
    pub(super) attending: Attending<'a>,
}

impl Block<'_> {
    /// The tokens look at each other, then at the text, then each is changed by itself. Frames are changed by themselves
    /// before, too.
    pub(super) fn through(&self, x: &Tensor, text: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let x = self.see_each_other(x, probe)?;
        self.see_text(x, text, probe)
    }

    /// The first half: up to the tokens' look at each other.
    pub(super) fn see_each_other(&self, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let mut x = x.clone();
        if self.stack == Stack::Frames {
            let normed = self.norm("norm_in", &x, probe)?;
            x = x.add(&self.feed_forward("ff_in", &normed, probe)?)?;
        }
        let normed = self.norm("norm1", &x, probe)?;
        Ok(x.add(&self.attention(Sight::Tokens, [&normed, &normed], probe)?)?)
    }

    /// The second half: from the look at the text on.
    pub(super) fn see_text(&self, mut x: Tensor, text: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let normed = self.norm("norm2", &x, probe)?;
        x = x.add(&self.attention(Sight::Text, [&normed, text], probe)?)?;
        let normed = self.norm("norm3", &x, probe)?;
        x = x.add(&self.feed_forward("ff", &normed, probe)?)?;
        probe.show(format_args!("{}", self.name()), &x);
        Ok(x)
    }

    /// What tokens `[items, tokens, channels]` make of what they look at, `[items, seen, width]`; of which there may be one
    /// for several items that follow each other.
    fn attention(&self, sight: Sight, [x, seen]: [&Tensor; 2], probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = match sight {
            Sight::Tokens => self.layer("attn1"),
            Sight::Text => self.layer("attn2"),
        };
        let (items, channels) = (seen.dim(0), x.dim(2));
        let (heads, size) = self.config.heads.of(channels);
        let mut project = |part: &str, from: &Tensor| -> Result<Tensor> {
            let y = self.lease.linear(&format!("{name}.{part}"), from)?;
            probe.show(format_args!("{name}.{part}"), &y);
            Ok(y.reshape([items, from.dim(0) * from.dim(1) / items, heads, size])?)
        };
        let (q, k, v) = (project("to_q", x)?, project("to_k", seen)?, project("to_v", seen)?);
        let scale = 1.0 / (size as f32).sqrt();
        let attending = if sight == Sight::Tokens { self.attending } else { Attending::USUAL };
        attending.record(&q, &k, scale)?;
        let attended = if attending.own_values { v } else { q.attention(&k, &v, &Mask::None, scale)? };
        let out = self.lease.linear(&format!("{name}.to_out.0"), &attended.reshape(*x.shape())?)?;
        probe.show(format_args!("{name}"), &out);
        Ok(out)
    }

    /// Each token by itself: one half of a wider layer gates the other.
    fn feed_forward(&self, name: &str, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = self.layer(name);
        let inner = {
            let both = self.lease.linear(&format!("{name}.net.0.proj"), x)?;
            probe.show(format_args!("{name}.net.0.proj"), &both);
            let halves = both.chunk(2, 2)?;
            halves[1].gate(Activation::Gelu, &halves[0])?
        };
        probe.show(format_args!("{name}.net.0"), &inner);
        let out = self.lease.linear(&format!("{name}.net.2"), &inner)?;
        probe.show(format_args!("{name}"), &out);
        Ok(out)
    }

    fn norm(&self, name: &str, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = self.layer(name);
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        let normed = x.layer_norm(Some(&weight), bias.as_ref(), NORM_EPS)?;
        probe.show(format_args!("{name}"), &normed);
        Ok(normed)
    }

    /// What the names of the block's tensors begin with.
    fn name(&self) -> String {
        match self.stack {
            Stack::Values => self.unit.block_name(),
            Stack::Frames => self.unit.frames_name(),
        }
    }

    fn layer(&self, part: &str) -> String {
        format!("{}.{part}", self.name())
    }
}
