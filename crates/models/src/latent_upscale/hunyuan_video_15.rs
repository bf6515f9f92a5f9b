//! The upscalers of HunyuanVideo 1.5's latents: they refine latents that were enlarged plainly, by residual blocks of
//! convolutions that look back in time. Formulas and names are those of the authors' code (Tencent-Hunyuan/HunyuanVideo-1.5).

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Activation, ConvolutionShape, Padding, Tensor, Window};

use super::{LatentUpscaler, LatentUpscalerFamily};
use crate::claims::Claims;
use crate::detect::{Part, Sign};
use crate::{Error, Module, Result};

/// What errors call the family.
const NAME: &str = "an upscaler of HunyuanVideo 1.5's latents";
/// Pixels along each side of a kernel.
const KERNEL: usize = 3;
/// The convolutions of a plain block, by their numbers.
const LAYERS: [usize; 3] = [0, 2, 4];
/// Added to the mean square of channels.
const NORM_EPS: f32 = 1e-24;

/// The family.
pub const FAMILY: LatentUpscalerFamily = LatentUpscalerFamily {
    name: NAME,
    signs: &[
        Sign::native("blocks.0.block.0.conv.weight", |found| {
            let is_whole = found.has("in_conv.conv.weight") && found.has("out_conv.conv.weight");
            is_whole.then_some(Cow::Borrowed("HunyuanVideo 1.5, 720p"))
        }),
        Sign::native("up.0.block.0.conv1.conv.weight", |found| {
            // Autoencoders have such stages behind a middle.
            let is_whole = found.has("conv_in.conv.weight") && found.has("norm_out.gamma");
            let is_alone = !found.has("mid.block_1.conv1.conv.weight");
            (is_whole && is_alone).then_some(Cow::Borrowed("HunyuanVideo 1.5, 1080p"))
        }),
    ],
    read: |checkpoint, part| Ok(Box::new(HunyuanVideo15::read(checkpoint, part)?)),
};

/// The upscaler: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct HunyuanVideo15 {
    channels: usize,
    inner: usize,
    kind: Kind,
    prefix: String,
}

/// The two kinds that there are.
#[derive(Clone, Debug)]
enum Kind {
    /// So many residual blocks of one width.
    Plain(usize),
    /// Residual blocks with norms, by their names, with the channels that come out.
    Staged(Vec<(String, usize)>),
}

impl HunyuanVideo15 {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<HunyuanVideo15> {
        let claims = Claims::new(checkpoint, &part.prefix, NAME);
        let prefix = part.prefix.clone();
        if claims.find("in_conv.conv.weight").is_some() {
            let [inner, channels, _, _, _] = claims.dims("in_conv.conv.weight")?;
            let blocks = claims.count(|i| format!("blocks.{i}.block.0.conv.weight"));
            return Ok(HunyuanVideo15 { channels, inner, kind: Kind::Plain(blocks), prefix });
        }
        let [inner, channels, _, _, _] = claims.dims("conv_in.conv.weight")?;
        if !inner.is_multiple_of(channels) {
            return Err(claims
                .misfit("conv_in.conv.weight", format!("[a multiple of {channels}, {channels}, 3, 3, 3]")));
        }
        let mut blocks = Vec::new();
        let name = |stage: usize, block: usize| format!("up.{stage}.block.{block}");
        for stage in 0..claims.count(|stage| format!("{}.conv1.conv.weight", name(stage, 0))) {
            for block in 0..claims.count(|block| format!("{}.conv1.conv.weight", name(stage, block))) {
                let name = name(stage, block);
                let [to, _, _, _, _] = claims.dims(&format!("{name}.conv1.conv.weight"))?;
                blocks.push((name, to));
            }
        }
        Ok(HunyuanVideo15 { channels, inner, kind: Kind::Staged(blocks), prefix })
    }

    /// The names of the first and the last convolution.
    fn ends(&self) -> [&'static str; 2] {
        match self.kind {
            Kind::Plain(_) => ["in_conv", "out_conv"],
            Kind::Staged(_) => ["conv_in", "conv_out"],
        }
    }
}

impl LatentUpscaler for HunyuanVideo15 {
    fn channels(&self) -> usize {
        self.channels
    }

    fn scale(&self) -> usize {
        1
    }

    fn enlarge(&self, session: &Session, latent: &Tensor) -> Result<Tensor> {
        if latent.rank() != 5 || latent.dim(1) != self.channels || latent.dims().contains(&0) {
            return Err(Error::Input {
                what: "the latent",
                expected: format!("[batch, {}, frames, height, width]", self.channels),
                got: format!("of shape {}", latent.shape()),
            });
        }
        let [first, last] = self.ends();
        let mut x = {
            let lease = session.lease(0)?;
            let x = lease.bring(latent)?;
            let inner = looking_back(&lease, first, &x)?;
            match self.kind {
                Kind::Plain(_) => inner,
                Kind::Staged(_) => inner.add(&repeated(&x, self.inner / self.channels)?)?,
            }
        };
        let blocks = match &self.kind {
            Kind::Plain(blocks) => *blocks,
            Kind::Staged(blocks) => blocks.len(),
        };
        for index in 0..blocks {
            let lease = session.lease(1 + index)?;
            let own = lease.bring(&x)?;
            x = match &self.kind {
                Kind::Plain(_) => plain(&lease, &format!("blocks.{index}"), &own)?,
                Kind::Staged(blocks) => normed_block(&lease, &blocks[index].0, &own)?,
            };
        }
        let lease = session.lease(1 + blocks)?;
        let x = lease.bring(&x)?;
        match self.kind {
            Kind::Plain(_) => looking_back(&lease, last, &x),
            Kind::Staged(_) => {
                looking_back(&lease, last, &normed(&lease, "norm_out", &x)?.activate(Activation::Silu)?)
            }
        }
    }
}

/// Every channel so many times in a row.
fn repeated(x: &Tensor, times: usize) -> Result<Tensor> {
    let [items, channels, frames, height, width] = [0, 1, 2, 3, 4].map(|axis| x.dim(axis));
    let all = x.reshape([items, channels, 1, frames, height, width])?;
    let all = all.broadcast([items, channels, times, frames, height, width])?.contiguous()?;
    Ok(all.reshape([items, channels * times, frames, height, width])?)
}

/// A residual block of three convolutions.
fn plain(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let mut inner = x.clone();
    for layer in LAYERS {
        inner = if layer == 0 { inner } else { inner.activate(Activation::Silu)? };
        inner = looking_back(lease, &format!("{name}.block.{layer}"), &inner)?;
    }
    Ok(x.add(&inner)?)
}

/// A residual block of two convolutions behind norms.
fn normed_block(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let half = |part: usize, x: &Tensor| -> Result<Tensor> {
        let inner = normed(lease, &format!("{name}.norm{part}"), x)?.activate(Activation::Silu)?;
        looking_back(lease, &format!("{name}.conv{part}"), &inner)
    };
    let inner = half(2, &half(1, x)?)?;
    let short = format!("{name}.nin_shortcut");
    let around = match lease.find(&format!("{short}.weight"))? {
        None => x.clone(),
        Some(weight) => {
            let bias = lease.find(&format!("{short}.bias"))?;
            x.convolution(&weight, bias.as_ref(), &ConvolutionShape::uniform(3, 1, 0))?
        }
    };
    Ok(around.add(&inner)?)
}

/// Channels of each place, brought to one mean square.
fn normed(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    Ok(x.rms_norm_over(1, Some(&lease.weight(&format!("{name}.gamma"))?), NORM_EPS)?)
}

/// A convolution over its own frame and those before, with the border's values around it.
fn looking_back(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let weight = lease.weight(&format!("{name}.conv.weight"))?;
    let bias = lease.find(&format!("{name}.conv.bias"))?;
    let time = Window { stride: 1, pad_before: KERNEL - 1, pad_after: 0, dilation: 1 };
    let side = Window::padded(1);
    let shape = ConvolutionShape { window: vec![time, side, side], padding: Padding::Replicate, groups: 1 };
    Ok(x.convolution(&weight, bias.as_ref(), &shape)?)
}

impl Module for HunyuanVideo15 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let (inner, channels) = (self.inner, self.channels);
        let convolution = |name: &str, to: usize, from: usize| {
            claims.layer(&format!("{name}.conv"), &[to, from, KERNEL, KERNEL, KERNEL])
        };
        let norm = |name: &str, channels: usize| -> Result<WeightSpec> {
            let mut weight = claims.weight(&format!("{name}.gamma"), &[channels, 1, 1, 1])?;
            weight.shape = Shape::from([channels]);
            Ok(weight)
        };
        let [first, last] = self.ends();
        let entrance = convolution(first, inner, channels)?;
        let mut builder = Manifest::builder(claims.file(), NAME).block("in", true, entrance);
        let mut width = inner;
        match &self.kind {
            Kind::Plain(blocks) => {
                for index in 0..*blocks {
                    let mut weights = Vec::new();
                    for layer in LAYERS {
                        weights.extend(convolution(&format!("blocks.{index}.block.{layer}"), inner, inner)?);
                    }
                    builder = builder.block(format!("blocks.{index}"), false, weights);
                }
            }
            Kind::Staged(blocks) => {
                for (name, to) in blocks {
                    let mut weights =
                        vec![norm(&format!("{name}.norm1"), width)?, norm(&format!("{name}.norm2"), *to)?];
                    weights.extend(convolution(&format!("{name}.conv1"), *to, width)?);
                    weights.extend(convolution(&format!("{name}.conv2"), *to, *to)?);
                    if width != *to {
                        weights
                            .extend(claims.layer(&format!("{name}.nin_shortcut"), &[*to, width, 1, 1, 1])?);
                    }
                    width = *to;
                    builder = builder.block(name.clone(), false, weights);
                }
            }
        }
        let mut exit = convolution(last, channels, width)?;
        if let Kind::Staged(_) = self.kind {
            exit.push(norm("norm_out", width)?);
        }
        Ok(builder.block("out", true, exit).finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
