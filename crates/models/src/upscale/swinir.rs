//! SwinIR: transformers over windows of the picture that shift with every block, in groups with residuals around them, and
//! one of four ways to the full size. HAT is the same with convolutions beside the attention, and with windows that see
//! beyond their border at the end of each group.

mod config;
mod hybrid;

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Activation, Tensor};

use super::exit::{channels_first, channels_last, mean};
use super::layers::{Layers, pixel_unshuffle};
use super::windows::{Partition, Places};
use super::{Sides, Upscaler, UpscalerFamily};
use crate::claims::Claims;
use crate::detect::{Neighbours, Part, Sign};
use crate::{Module, Result};
pub use config::Config;
use config::NAME;

/// The least side of a picture.
const LEAST: usize = 16;

/// The family.
pub const FAMILY: UpscalerFamily = UpscalerFamily {
    name: "SwinIR and HAT",
    signs: &[Sign::native("layers.0.residual_group.blocks.0.attn.relative_position_bias_table", sign)],
    read: |checkpoint, part| Ok(Box::new(SwinIr::read(checkpoint, part)?)),
};

/// A HAT has the same names, and convolutions beside its attention.
fn sign(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_hybrid = found.has("layers.0.residual_group.blocks.0.conv_block.cab.0.weight");
    let has_norm = found.has("layers.0.residual_group.blocks.0.norm1.weight");
    has_norm.then_some(Cow::Borrowed(if is_hybrid { "HAT" } else { NAME }))
}

/// A SwinIR: its sizes and how it computes.
#[derive(Clone, Debug)]
pub struct SwinIr {
    config: Config,
    prefix: String,
}

impl SwinIr {
    fn read(checkpoint: &Checkpoint, part: &Part) -> Result<SwinIr> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, NAME))?;
        Ok(SwinIr { config, prefix: part.prefix.clone() })
    }

    /// A group of blocks, with a convolution behind them and a residual around all: `[rows, columns, width]`.
    fn group(&self, lease: &Lease<'_>, group: usize, x: &Tensor) -> Result<Tensor> {
        let layers = Layers { lease };
        let heads = self.config.groups[group].heads;
        let window = [self.config.window; 2];
        let places = Places::new(lease.lane(), window)?;
        let mut inner = x.clone();
        for block in 0..self.config.groups[group].blocks {
            let name = format!("layers.{group}.residual_group.blocks.{block}");
            let shift = if block % 2 == 0 { [0; 2] } else { [self.config.window / 2; 2] };
            let normed = layers.norm(&format!("{name}.norm1"), &inner)?;
            let partition = Partition { window, shift };
            let seen = attention(layers, &format!("{name}.attn"), &normed, heads, (partition, &places))?;
            inner = inner.add(&seen)?;
            if self.config.hybrid.is_some() {
                inner = hybrid::add_convolved(layers, &format!("{name}.conv_block.cab"), &inner, &normed)?;
            }
            let hidden = layers.norm(&format!("{name}.norm2"), &inner)?;
            let hidden = layers.linear(&format!("{name}.mlp.fc1"), &hidden)?.activate(Activation::Gelu)?;
            inner = inner.add(&layers.linear(&format!("{name}.mlp.fc2"), &hidden)?)?;
        }
        if let Some(hybrid) = &self.config.hybrid {
            let name = format!("layers.{group}.residual_group.overlap_attn");
            inner = hybrid.attention(layers, &name, &inner, (self.config.window, heads))?;
        }
        let inner =
            channels_last(&layers.convolutions(&format!("layers.{group}.conv"), &channels_first(&inner)?)?)?;
        Ok(x.add(&inner)?)
    }
}

/// Attention within windows of `[rows, columns, width]`.
fn attention(
    layers: Layers<'_>,
    name: &str,
    x: &Tensor,
    heads: usize,
    (partition, places): (Partition, &Places),
) -> Result<Tensor> {
    let (size, width) = ([x.dim(0), x.dim(1)], x.dim(2));
    let windows = partition.gather(x)?;
    let (count, length) = (windows.dim(0), windows.dim(1));
    let qkv = layers.linear(&format!("{name}.qkv"), &windows)?;
    let qkv = qkv.reshape([count, length, 3, heads, width / heads])?;
    let part = |i: usize| qkv.slice(2, i, 1)?.reshape([count, length, heads, width / heads]);
    let table = layers.lease.weight(&format!("{name}.relative_position_bias_table"))?;
    let bias = places.bias(layers.lease.lane(), &table)?;
    let seen = partition.attend([&part(0)?, &part(1)?, &part(2)?], &bias, size)?;
    let seen = layers.linear(&format!("{name}.proj"), &seen.reshape([count, length, width])?)?;
    partition.scatter(&seen, size)
}

impl Module for SwinIr {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let config = &self.config;
        let mut entrance = claims.layer(&config.entrance, &[config.width, config.in_channels, 3, 3])?;
        entrance.extend(claims.layer("patch_embed.norm", &[config.width])?);
        let mut builder = Manifest::builder(claims.file(), NAME).block("in", true, entrance);
        for group in 0..config.groups.len() {
            let weights = config.group_weights(&claims, group)?;
            builder = builder.block(format!("layers.{group}"), false, weights);
        }
        let exit: Vec<WeightSpec> = config.exit_weights(&claims)?;
        Ok(builder.block("out", true, exit).finish()?)
    }

    /// What its layers add up is a picture, of which bf16 keeps eight bits; and some outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::F32]
    }
}

impl Upscaler for SwinIr {
    fn scale(&self) -> usize {
        self.config.scale()
    }

    fn channels(&self) -> [usize; 2] {
        let squared = self.config.unshuffle * self.config.unshuffle;
        [self.config.in_channels / squared, self.config.out_channels]
    }

    fn sides(&self) -> Sides {
        Sides { least: LEAST, multiple: self.config.window * self.config.unshuffle }
    }

    fn upscale(&self, session: &Session, pixels: &Tensor) -> Result<Tensor> {
        let Config { range, unshuffle, groups, .. } = &self.config;
        let (pixels, first, mut x) = {
            let lease = session.lease(0)?;
            let layers = Layers { lease: &lease };
            let pixels = lease.bring(pixels)?;
            let pixels = pixels.sub(&mean(&pixels, self.channels()[0])?)?.affine(*range, 0.0)?;
            let pixels = if *unshuffle > 1 { pixel_unshuffle(&pixels, *unshuffle)? } else { pixels };
            let first = layers.convolution(&self.config.entrance, &pixels)?;
            let x = layers.norm("patch_embed.norm", &channels_last(&first)?)?;
            (pixels, first, x)
        };
        for group in 0..groups.len() {
            let lease = session.lease(group + 1)?;
            x = self.group(&lease, group, &lease.bring(&x)?)?;
        }
        let lease = session.lease(groups.len() + 1)?;
        let layers = Layers { lease: &lease };
        let x = channels_first(&layers.norm("norm", &lease.bring(&x)?)?)?;
        let x = layers.convolutions("conv_after_body", &x)?.add(&lease.bring(&first)?)?;
        let out = self.config.exit.forward(layers, &x, &lease.bring(&pixels)?)?.affine(1.0 / range, 0.0)?;
        Ok(out.add(&mean(&out, self.config.out_channels)?)?)
    }
}
