//! How Radiance paints: patches of pixels come in, and each token of the last block gives the weights of small networks that
//! every pixel of its patch passes, with its colours and its place.

use meta::Shape;
use residency::Lease;
use sampling::{LatentSpec, Scaling};
use tensor::{Activation, ConvolutionShape, Lane, Padding, Tensor};

use super::config::Pixels;
use crate::Result;
use crate::diffusion::Alteration;
use crate::diffusion::batches::together;

/// Latents of the model without an autoencoder: pictures of values from -1 to 1.
pub(super) const LATENT: LatentSpec = LatentSpec {
    name: "pixels",
    channels: 3,
    scaling: Scaling::Uniform { scale: 1.0, shift: 0.0 },
    pixels_per_value: 1,
    frames_per_value: None,
    colours: &[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    background: [0.0; 3],
};

/// The sizes of the released model.
pub(super) const RELEASED: Pixels =
    Pixels { side: 16, width: 64, mlp: 256, waves: 8, blocks: 4, is_convolved: true, gives_picture: false };

/// Added to the mean square of values.
const NORM_EPS: f32 = 1e-6;
/// Added to that of generated weights, which are of length one but where they are zero.
const LENGTH_EPS: f32 = 1e-24;
/// Patches that are painted at once: the weights of a network for each of them are held meanwhile.
const AT_ONCE: usize = 256;

/// A picture that is being painted.
pub(super) struct Painting {
    /// The noisy pictures, `[items, channels, height, width]`.
    noisy: Tensor,
    /// One by the time of each, `[items, 1, 1, 1]`.
    by_time: Tensor,
    /// The values of the pixels, `[items, patches, pixels, width]`, once they have passed the first network.
    values: Option<Tensor>,
    /// Patches that are painted at once.
    at_once: usize,
}

impl Pixels {
    /// Pictures `[items, channels, height, width]` as patches, `[items, patches, channels · side · side]`, channel by
    /// channel. A size that is no multiple of a patch goes on from the other side.
    pub(super) fn patches(&self, picture: &Tensor) -> Result<Tensor> {
        let side = self.side;
        let [items, channels, height, width] = [0, 1, 2, 3].map(|axis| picture.dim(axis));
        let (rows, columns) = (height.div_ceil(side), width.div_ceil(side));
        let border = [(0, 0), (0, 0), (0, rows * side - height), (0, columns * side - width)];
        let whole = border[2].1 + border[3].1 == 0;
        let even = if whole { picture.clone() } else { picture.pad(&border, Padding::Circular)? };
        let patches = even.reshape([items, channels, rows, side, columns, side])?;
        let patches = patches.permute(&[0, 2, 4, 1, 3, 5])?;
        Ok(patches.reshape([items, rows * columns, channels * side * side])?)
    }

    /// How a pixel of a patch knows its place, `[1, pixels, waves · waves]`: cosines along both sides, the fast ones
    /// together fainter.
    fn places(&self, lane: &Lane) -> Result<Tensor> {
        let (side, count) = (self.side, self.waves);
        let cosine = |at: usize, wave: usize| {
            let place = at as f64 / side.saturating_sub(1).max(1) as f64;
            (place * wave as f64 * std::f64::consts::PI).cos()
        };
        let mut values = Vec::with_capacity(side * side * count * count);
        for (y, x) in (0..side).flat_map(|y| (0..side).map(move |x| (y, x))) {
            for (across, down) in (0..count).flat_map(|across| (0..count).map(move |down| (across, down))) {
                let faint = 1.0 + (across * down) as f64;
                values.push((cosine(x, across) * cosine(y, down) / faint) as f32);
            }
        }
        Ok(lane.tensor([1, side * side, count * count], &values)?)
    }

    /// Some patches `[patches, channels · side · side]` as values of pixels, `[patches, pixels, width]`.
    fn embedded(&self, lease: &Lease<'_>, patches: &Tensor, places: &Tensor) -> Result<Tensor> {
        let (count, pixels) = (patches.dim(0), self.side * self.side);
        let colours = patches.reshape([count, patches.dim(1) / pixels, pixels])?.permute(&[0, 2, 1])?;
        let places = places.broadcast([count, pixels, places.dim(2)])?;
        let both = Tensor::concat(&[&colours.contiguous()?, &places.contiguous()?], 2)?;
        Ok(lease.linear("nerf_image_embedder.embedder.0", &both)?)
    }

    /// Values of pixels `[patches, pixels, width]` through the networks that tokens `[patches, hidden]` give.
    fn through(&self, lease: &Lease<'_>, name: &str, values: &Tensor, tokens: &Tensor) -> Result<Tensor> {
        let (count, width, mlp) = (tokens.dim(0), self.width, self.mlp);
        let generated = lease.linear(&format!("{name}.param_generator"), tokens)?;
        // Columns of length one: rows of the transposed matrix, but for a factor that products take.
        let matrix = |part: usize, [from, to]: [usize; 2]| -> Result<Tensor> {
            let own = generated.slice(1, part * width * mlp, width * mlp)?.contiguous()?;
            let columns = own.reshape([count, from, to])?.permute(&[0, 2, 1])?.contiguous()?;
            Ok(columns.rms_norm(None, LENGTH_EPS / from as f32)?.transpose(1, 2)?)
        };
        let by = |size: usize| 1.0 / (size as f32).sqrt();
        let weight = lease.weight(&format!("{name}.norm.scale"))?;
        let normed = values.rms_norm(Some(&weight), NORM_EPS)?;
        let gate = normed.matmul(&matrix(0, [width, mlp])?, by(width))?;
        let inner = gate.gate(Activation::Silu, &normed.matmul(&matrix(1, [width, mlp])?, by(width))?)?;
        Ok(values.add(&inner.matmul(&matrix(2, [mlp, width])?, by(mlp))?)?)
    }
}

impl Painting {
    /// Noisy pictures with their times, one evaluation after the other, and how these depart from the model.
    pub(super) fn new(
        lease: &Lease<'_>,
        noisy: &[(&Tensor, f32)],
        altered: &[Alteration],
    ) -> Result<Painting> {
        let asked = altered.iter().rev().find_map(|alteration| match alteration {
            Alteration::PatchesAtOnce(0) => Some(usize::MAX),
            Alteration::PatchesAtOnce(count) => Some(*count),
            _ => None,
        });
        let pictures = noisy.iter().map(|(picture, _)| lease.bring(picture));
        let pictures = pictures.collect::<residency::Result<Vec<_>>>()?;
        let times: Vec<f32> =
            noisy.iter().flat_map(|(picture, time)| vec![1.0 / time; picture.dim(0)]).collect();
        Ok(Painting {
            noisy: together(&pictures.iter().collect::<Vec<_>>(), 0)?,
            by_time: lease.lane().tensor([times.len(), 1, 1, 1], &times)?,
            values: None,
            at_once: asked.unwrap_or(AT_ONCE),
        })
    }

    /// Through one of the networks, by the tokens of the last block, `[items, patches, hidden]`. Each picture is painted by
    /// itself, so that the company of others changes nothing.
    pub(super) fn block(
        &self,
        pixels: &Pixels,
        (lease, index): (&Lease<'_>, usize),
        tokens: &Tensor,
    ) -> Result<Painting> {
        let (items, count, hidden) = (tokens.dim(0), tokens.dim(1), tokens.dim(2));
        let name = format!("nerf_blocks.{index}");
        let (noisy, by_time) = (lease.bring(&self.noisy)?, lease.bring(&self.by_time)?);
        let before = match &self.values {
            Some(values) => lease.bring(values)?,
            None => pixels.patches(&noisy)?,
        };
        let places = pixels.places(lease.lane())?;
        let mut painted = Vec::new();
        for (item, start) in
            (0..items).flat_map(|item| (0..count).step_by(self.at_once).map(move |at| (item, at)))
        {
            let len = self.at_once.min(count - start);
            let own = |x: &Tensor| -> Result<Tensor> {
                Ok(x.slice(0, item, 1)?.slice(1, start, len)?.contiguous()?)
            };
            let tokens = own(tokens)?.reshape([len, hidden])?;
            let before = own(&before)?;
            let values = match &self.values {
                Some(_) => before.reshape([len, before.dim(2), before.dim(3)])?,
                None => pixels.embedded(lease, &before.reshape([len, before.dim(2)])?, &places)?,
            };
            painted.push(pixels.through(lease, &name, &values, &tokens)?);
        }
        let all = together(&painted.iter().collect::<Vec<_>>(), 0)?;
        let values = all.reshape([items, count, all.dim(1), all.dim(2)])?;
        Ok(Painting { noisy, by_time, values: Some(values), at_once: self.at_once })
    }

    /// The painted pictures, or the direction from them to noise: the last block of the manifest.
    pub(super) fn picture(&self, pixels: &Pixels, lease: &Lease<'_>, latent: &Shape) -> Result<Tensor> {
        let (side, [height, width]) = (pixels.side, [latent.dims()[2], latent.dims()[3]]);
        let (rows, columns) = (height.div_ceil(side), width.div_ceil(side));
        let values = match &self.values {
            Some(values) => lease.bring(values)?,
            // A model without any network would have nothing to paint with; its file is refused.
            None => lease.bring(&self.noisy)?,
        };
        let (items, inner) = (values.dim(0), pixels.width);
        let picture = values.reshape([items, rows, columns, side, side, inner])?;
        let picture = picture.permute(&[0, 1, 3, 2, 4, 5])?.contiguous()?;
        let picture = picture.reshape([items, rows * side, columns * side, inner])?;
        let name = if pixels.is_convolved { "nerf_final_layer_conv" } else { "nerf_final_layer" };
        let weight = lease.weight(&format!("{name}.norm.scale"))?;
        let picture = picture.rms_norm(Some(&weight), NORM_EPS)?;
        let painted = if pixels.is_convolved {
            let (weight, bias) =
                (lease.weight(&format!("{name}.conv.weight"))?, lease.find(&format!("{name}.conv.bias"))?);
            let picture = picture.permute(&[0, 3, 1, 2])?.contiguous()?;
            picture.convolution(&weight, bias.as_ref(), &ConvolutionShape::uniform(2, 1, 1))?
        } else {
            lease.linear(&format!("{name}.linear"), &picture)?.permute(&[0, 3, 1, 2])?
        };
        let painted = painted.slice(2, 0, height)?.slice(3, 0, width)?.contiguous()?;
        if !pixels.gives_picture {
            return Ok(painted);
        }
        Ok(lease.bring(&self.noisy)?.sub(&painted)?.mul(&lease.bring(&self.by_time)?)?)
    }
}
