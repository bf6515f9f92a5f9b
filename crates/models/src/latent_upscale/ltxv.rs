//! The spatial upscaler of LTX-Video's latents: residual blocks over the video, frames doubled in size, and as many blocks
//! again. Formulas and names are those of the authors' code (Lightricks/LTX-Video,
//! `ltx_video/models/autoencoders/latent_upsampler.py`).

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Activation, ConvolutionShape, Tensor};

use super::{LatentUpscaler, LatentUpscalerFamily};
use crate::claims::Claims;
use crate::detect::{Neighbours, Part, Sign};
use crate::{Error, Module, Result};

/// What errors call the family.
const NAME: &str = "the spatial upscaler of LTX-Video";
/// Groups that channels are normalised in.
const GROUPS: usize = 32;
/// Added to the variance of a group.
const NORM_EPS: f32 = 1e-5;
/// By how much each side of a frame grows.
const SCALE: usize = 2;

/// The family.
pub const FAMILY: LatentUpscalerFamily = LatentUpscalerFamily {
    name: NAME,
    signs: &[Sign::native("post_upsample_res_blocks.0.conv2.bias", named)],
    read: |checkpoint, part| Ok(Box::new(Ltxv::read(checkpoint, part)?)),
};

/// Models that double the frames' sides alone.
fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let doubles = found.dims("upsampler.0.weight").is_some_and(|dims| dims.len() == 4);
    let has_time = found.dims("initial_conv.weight").is_some_and(|dims| dims.len() == 5);
    (doubles && has_time).then_some(Cow::Borrowed("LTX-Video, spatial"))
}

/// The upscaler: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Ltxv {
    channels: usize,
    inner: usize,
    /// Residual blocks before frames grow, and behind.
    blocks: [usize; 2],
    prefix: String,
}

/// The two rows of residual blocks.
const ROWS: [&str; 2] = ["res_blocks", "post_upsample_res_blocks"];

impl Ltxv {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Ltxv> {
        let claims = Claims::new(checkpoint, &part.prefix, NAME);
        let [inner, channels, _, _, _] = claims.dims("initial_conv.weight")?;
        if !inner.is_multiple_of(GROUPS) {
            let expected = format!("[a multiple of {GROUPS}, {channels}, 3, 3, 3]");
            return Err(claims.misfit("initial_conv.weight", expected));
        }
        let blocks = ROWS.map(|row| claims.count(|i| format!("{row}.{i}.conv1.weight")));
        Ok(Ltxv { channels, inner, blocks, prefix: part.prefix.clone() })
    }

    /// The place of a block in the manifest and its name, row by row; frames grow in the last of the first row's, or in the
    /// first block of all.
    fn names(&self, row: usize) -> impl Iterator<Item = String> + use<> {
        (0..self.blocks[row]).map(move |i| format!("{}.{i}", ROWS[row]))
    }
}

impl LatentUpscaler for Ltxv {
    fn channels(&self) -> usize {
        self.channels
    }

    fn scale(&self) -> usize {
        SCALE
    }

    fn enlarge(&self, session: &Session, latent: &Tensor) -> Result<Tensor> {
        if latent.rank() != 5 || latent.dim(1) != self.channels || latent.dims().contains(&0) {
            return Err(Error::Input {
                what: "the latent",
                expected: format!("[batch, {}, frames, height, width]", self.channels),
                got: format!("of shape {}", latent.shape()),
            });
        }
        let mut place = 0;
        let mut next = || {
            let lease = session.lease(place);
            place += 1;
            lease
        };
        let mut x = {
            let lease = next()?;
            let x = convolution(&lease, "initial_conv", &lease.bring(latent)?)?;
            normed(&lease, "initial_norm", &x)?.activate(Activation::Silu)?
        };
        for name in self.names(0) {
            x = residual(&next()?, &name, &x)?;
        }
        x = doubled(&next()?, &x)?;
        for name in self.names(1) {
            x = residual(&next()?, &name, &x)?;
        }
        let lease = next()?;
        convolution(&lease, "final_conv", &lease.bring(&x)?)
    }
}

/// A residual block.
fn residual(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let x = lease.bring(x)?;
    let inner = convolution(lease, &format!("{name}.conv1"), &x)?;
    let inner = normed(lease, &format!("{name}.norm1"), &inner)?.activate(Activation::Silu)?;
    let inner = convolution(lease, &format!("{name}.conv2"), &inner)?;
    Ok(normed(lease, &format!("{name}.norm2"), &inner)?.add(&x)?.activate(Activation::Silu)?)
}

/// Frames with sides of twice the length: four times the channels, which become pixels.
fn doubled(lease: &Lease<'_>, x: &Tensor) -> Result<Tensor> {
    let x = lease.bring(x)?;
    let [items, channels, frames, height, width] = [0, 1, 2, 3, 4].map(|axis| x.dim(axis));
    let pictures = x.permute(&[0, 2, 1, 3, 4])?.contiguous()?;
    let pictures = pictures.reshape([items * frames, channels, height, width])?;
    let large = convolution(lease, "upsampler.0", &pictures)?;
    let large = large.reshape([items, frames, channels, SCALE, SCALE, height, width])?;
    let large = large.permute(&[0, 2, 1, 5, 3, 6, 4])?.contiguous()?;
    Ok(large.reshape([items, channels, frames, SCALE * height, SCALE * width])?)
}

/// A convolution that keeps the size.
fn convolution(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
    Ok(x.convolution(&weight, bias.as_ref(), &ConvolutionShape::uniform(x.rank() - 2, 1, 1))?)
}

fn normed(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
    Ok(x.group_norm(GROUPS, Some(&weight), bias.as_ref(), NORM_EPS)?)
}

impl Module for Ltxv {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let (inner, channels) = (self.inner, self.channels);
        let mut entrance = claims.layer("initial_conv", &[inner, channels, 3, 3, 3])?;
        entrance.extend(claims.layer("initial_norm", &[inner])?);
        let mut builder = Manifest::builder(claims.file(), NAME).block("in", true, entrance);
        let block = |name: &str| -> Result<Vec<WeightSpec>> {
            let mut weights = Vec::new();
            for part in ["1", "2"] {
                weights.extend(claims.layer(&format!("{name}.conv{part}"), &[inner, inner, 3, 3, 3])?);
                weights.extend(claims.layer(&format!("{name}.norm{part}"), &[inner])?);
            }
            Ok(weights)
        };
        for name in self.names(0) {
            builder = builder.block(name.clone(), false, block(&name)?);
        }
        let larger = claims.layer("upsampler.0", &[SCALE * SCALE * inner, inner, 3, 3])?;
        builder = builder.block("upsampler", false, larger);
        for name in self.names(1) {
            builder = builder.block(name.clone(), false, block(&name)?);
        }
        let exit = claims.layer("final_conv", &[channels, inner, 3, 3, 3])?;
        Ok(builder.block("out", true, exit).finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
