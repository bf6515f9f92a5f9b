//! What transformers over pictures share at both ends: the mean that is taken off, and the ways to the full size.

use residency::WeightSpec;
use tensor::{ResizeMode, Tensor};

use super::layers::{Layers, pixel_shuffle};
use crate::Result;
use crate::claims::Claims;

/// The mean of the colours that they were trained with.
const MEAN: [f32; 3] = [0.4488, 0.4371, 0.4040];
/// Factors of what is negative: at the exit, and before it.
const SLOPE: f32 = 0.2;
const SLOPE_BEFORE: f32 = 0.01;
/// The most doublings of the size that make sense.
const MAX_STEPS: usize = 4;

/// The way to the full size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Convolutions whose channels become pixels, by these factors.
    Shuffles(Vec<usize>),
    /// One of them that gives the picture.
    Shuffle(usize),
    /// Pixels repeated, with a convolution behind each doubling.
    Doublings(usize),
    /// A picture of the same size.
    Same,
}

impl Exit {
    /// The way, by the layers that a file has.
    pub(super) fn read(claims: &Claims<'_>, out_channels: usize) -> Result<Exit> {
        let is_there = |name: &str| claims.find(name).is_some();
        if is_there("conv_before_upsample.0.weight") {
            if is_there("conv_up1.weight") {
                return Ok(Exit::Doublings(
                    claims.count(|i| format!("conv_up{}.weight", i + 1)).min(MAX_STEPS),
                ));
            }
            let mut steps = Vec::new();
            for step in 0..claims.count(|i| format!("upsample.{}.weight", 2 * i)).min(MAX_STEPS) {
                let [to, from, _, _] = claims.dims(&format!("upsample.{}.weight", 2 * step))?;
                steps.push((to / from).isqrt().max(1));
            }
            return Ok(Exit::Shuffles(steps));
        }
        if is_there("upsample.0.weight") {
            let [to, _, _, _] = claims.dims("upsample.0.weight")?;
            return Ok(Exit::Shuffle((to / out_channels).isqrt().max(1)));
        }
        Ok(Exit::Same)
    }

    /// By how much the sides grow.
    pub(super) fn scale(&self) -> usize {
        match self {
            Exit::Shuffles(steps) => steps.iter().product(),
            Exit::Shuffle(by) => *by,
            Exit::Doublings(count) => 1 << count,
            Exit::Same => 1,
        }
    }

    /// Its weights, from so many channels to those of a picture.
    pub(super) fn weights(&self, claims: &Claims<'_>, width: usize, out: usize) -> Result<Vec<WeightSpec>> {
        let mut weights = Vec::new();
        let mut layer = |name: &str, to: usize, from: usize| -> Result<()> {
            weights.extend(claims.layer(name, &[to, from, 3, 3])?);
            Ok(())
        };
        let inner = || -> Result<usize> { Ok(claims.dims::<4>("conv_before_upsample.0.weight")?[0]) };
        match self {
            Exit::Shuffles(steps) => {
                let inner = inner()?;
                layer("conv_before_upsample.0", inner, width)?;
                for (step, by) in steps.iter().enumerate() {
                    layer(&format!("upsample.{}", 2 * step), inner * by * by, inner)?;
                }
                layer("conv_last", out, inner)?;
            }
            Exit::Shuffle(by) => layer("upsample.0", out * by * by, width)?,
            Exit::Doublings(count) => {
                let inner = inner()?;
                layer("conv_before_upsample.0", inner, width)?;
                for double in 1..=*count {
                    layer(&format!("conv_up{double}"), inner, inner)?;
                }
                layer("conv_hr", inner, inner)?;
                layer("conv_last", out, inner)?;
            }
            Exit::Same => layer("conv_last", out, width)?,
        }
        Ok(weights)
    }

    /// From what the groups found to a picture of full size; `pixels` is what they were given.
    pub(super) fn forward(&self, layers: Layers<'_>, x: &Tensor, pixels: &Tensor) -> Result<Tensor> {
        match self {
            Exit::Shuffles(steps) => {
                let mut x = layers.convolution("conv_before_upsample.0", x)?.leaky_relu(SLOPE_BEFORE)?;
                for (step, by) in steps.iter().enumerate() {
                    x = pixel_shuffle(&layers.convolution(&format!("upsample.{}", 2 * step), &x)?, *by)?;
                }
                layers.convolution("conv_last", &x)
            }
            Exit::Shuffle(by) => pixel_shuffle(&layers.convolution("upsample.0", x)?, *by),
            Exit::Doublings(count) => {
                let mut x = layers.convolution("conv_before_upsample.0", x)?.leaky_relu(SLOPE_BEFORE)?;
                for double in 1..=*count {
                    x = x.resize(x.dim(2) * 2, x.dim(3) * 2, ResizeMode::Nearest)?;
                    x = layers.convolution(&format!("conv_up{double}"), &x)?.leaky_relu(SLOPE)?;
                }
                let x = layers.convolution("conv_hr", &x)?.leaky_relu(SLOPE)?;
                layers.convolution("conv_last", &x)
            }
            Exit::Same => Ok(pixels.add(&layers.convolution("conv_last", x)?)?),
        }
    }
}

/// One convolution, or three narrow ones in its place, or none.
pub(super) fn convolutions(claims: &Claims<'_>, name: &str, width: usize) -> Result<Vec<WeightSpec>> {
    if claims.find(&format!("{name}.weight")).is_some() {
        return claims.layer(name, &[width, width, 3, 3]);
    }
    if claims.find(&format!("{name}.0.weight")).is_none() {
        return Ok(Vec::new());
    }
    let narrow = width / 4;
    let mut weights = claims.layer(&format!("{name}.0"), &[narrow, width, 3, 3])?;
    weights.extend(claims.layer(&format!("{name}.2"), &[narrow, narrow, 1, 1])?);
    weights.extend(claims.layer(&format!("{name}.4"), &[width, narrow, 3, 3])?);
    Ok(weights)
}

/// What is taken from the pixels of a picture of so many channels before anything else.
pub(super) fn mean(like: &Tensor, channels: usize) -> Result<Tensor> {
    let values = if channels == MEAN.len() { MEAN.to_vec() } else { vec![0.0; channels] };
    Ok(like.lane().tensor([1, channels, 1, 1], &values)?)
}

/// `[rows, columns, channels]` as `[1, channels, rows, columns]`.
pub(super) fn channels_first(x: &Tensor) -> Result<Tensor> {
    let [rows, columns, channels] = [x.dim(0), x.dim(1), x.dim(2)];
    Ok(x.permute(&[2, 0, 1])?.contiguous()?.reshape([1, channels, rows, columns])?)
}

/// The other way.
pub(super) fn channels_last(x: &Tensor) -> Result<Tensor> {
    let [channels, rows, columns] = [x.dim(1), x.dim(2), x.dim(3)];
    Ok(x.reshape([channels, rows, columns])?.permute(&[1, 2, 0])?.contiguous()?)
}
