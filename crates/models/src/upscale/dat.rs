//! DAT: transformers whose blocks look at windows and at channels in turns, each with a convolution beside the attention, and
//! where each of the two says how much of the other counts.

mod attention;
mod config;

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Tensor};

use super::exit::{channels_first, channels_last, mean};
use super::layers::Layers;
use super::{Sides, Upscaler, UpscalerFamily};
use crate::claims::Claims;
use crate::detect::{Neighbours, Part, Sign};
use crate::{Module, Result};
use attention::Block;
pub use config::Config;
use config::NAME;

/// The family.
pub const FAMILY: UpscalerFamily = UpscalerFamily {
    name: "DAT",
    signs: &[Sign::native("layers.0.blocks.0.attn.attns.0.pos.pos_proj.weight", sign)],
    read: |checkpoint, part| Ok(Box::new(Dat::read(checkpoint, part)?)),
};

fn sign(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    found.has("layers.0.blocks.0.attn.dwconv.0.weight").then_some(Cow::Borrowed(NAME))
}

/// A DAT: its sizes and how it computes.
#[derive(Clone, Debug)]
pub struct Dat {
    config: Config,
    prefix: String,
}

impl Dat {
    fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Dat> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, NAME))?;
        Ok(Dat { config, prefix: part.prefix.clone() })
    }

    /// A group of blocks, with a convolution behind them and a residual around all: `[rows, columns, width]`.
    fn group(&self, lease: &Lease<'_>, group: usize, x: &Tensor) -> Result<Tensor> {
        let layers = Layers { lease };
        let mut inner = x.clone();
        for block in 0..self.config.groups[group].blocks {
            let name = format!("layers.{group}.blocks.{block}");
            let normed = layers.norm(&format!("{name}.norm1"), &inner)?;
            let attention =
                Block { layers, name: format!("{name}.attn"), heads: self.config.groups[group].heads };
            let seen = if block % 2 == 0 {
                attention.spatial(&normed, self.config.split, Config::is_shifted(group, block))?
            } else {
                attention.channels(&normed)?
            };
            inner = inner.add(&seen)?;
            let normed = layers.norm(&format!("{name}.norm2"), &inner)?;
            inner = inner.add(&feed_forward(layers, &format!("{name}.ffn"), &normed)?)?;
        }
        let inner = layers.convolutions(&format!("layers.{group}.conv"), &channels_first(&inner)?)?;
        Ok(x.add(&channels_last(&inner)?)?)
    }
}

/// Two products with half of the values between them gated by a convolution of the other half.
fn feed_forward(layers: Layers<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let hidden = layers.linear(&format!("{name}.fc1"), x)?.activate(Activation::Gelu)?;
    let halves = hidden.chunk(2, 2)?;
    let gate = layers.norm(&format!("{name}.sg.norm"), &halves[1].contiguous()?)?;
    let gate = layers.depthwise(&format!("{name}.sg.conv"), &channels_first(&gate)?)?;
    let gated = halves[0].mul(&channels_last(&gate)?)?;
    layers.linear(&format!("{name}.fc2"), &gated)
}

impl Module for Dat {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let config = &self.config;
        let mut entrance = claims.layer("conv_first", &[config.width, config.channels, 3, 3])?;
        entrance.extend(claims.layer("before_RG.1", &[config.width])?);
        let mut builder = Manifest::builder(claims.file(), NAME).block("in", true, entrance);
        for group in 0..config.groups.len() {
            builder = builder.block(format!("layers.{group}"), false, config.group_weights(&claims, group)?);
        }
        Ok(builder.block("out", true, config.exit_weights(&claims)?).finish()?)
    }

    /// What its layers add up is a picture, of which bf16 keeps eight bits; and some outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::F32]
    }
}

impl Upscaler for Dat {
    fn scale(&self) -> usize {
        self.config.exit.scale()
    }

    fn channels(&self) -> [usize; 2] {
        [self.config.channels; 2]
    }

    fn sides(&self) -> Sides {
        Sides { least: 16, multiple: 1 }
    }

    fn upscale(&self, session: &Session, pixels: &Tensor) -> Result<Tensor> {
        let groups = self.config.groups.len();
        let (first, mut x) = {
            let lease = session.lease(0)?;
            let layers = Layers { lease: &lease };
            let pixels = lease.bring(pixels)?;
            let first =
                layers.convolution("conv_first", &pixels.sub(&mean(&pixels, self.config.channels)?)?)?;
            let x = layers.norm("before_RG.1", &channels_last(&first)?)?;
            (first, x)
        };
        for group in 0..groups {
            let lease = session.lease(group + 1)?;
            x = self.group(&lease, group, &lease.bring(&x)?)?;
        }
        let lease = session.lease(groups + 1)?;
        let layers = Layers { lease: &lease };
        let x = channels_first(&layers.norm("norm", &lease.bring(&x)?)?)?;
        let x = layers.convolutions("conv_after_body", &x)?.add(&lease.bring(&first)?)?;
        let out = self.config.exit.forward(layers, &x, &first)?;
        Ok(out.add(&mean(&out, self.config.channels)?)?)
    }
}
