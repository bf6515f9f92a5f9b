//! A video that is to be made, as nodes of several families are told it.

use std::sync::Arc;

use graph::{Call, Failure, Input, Schema};
use runtime::host::Samples;
use runtime::{Runtime, Vae};
use sampling::{Latent, LatentSpec};

use crate::conditioning::changed;
use crate::image::{Method, Target, pixels, scale_image};
use crate::value::{Conditioning, Entry, Image, LatentImage, Mask};
use crate::{Error, Result, vae};

/// Frames of a video behind the first that one frame of a latent stands for.
pub(super) const FRAMES: usize = 4;

/// Width, height, length and number of videos.
pub(super) fn sized(schema: Schema, [width, height, length]: [i64; 3], step: i64) -> Schema {
    schema
        .input(pixels("width", width, step, step))
        .input(pixels("height", height, step, step))
        .input(pixels("length", length, 1, FRAMES as i64))
        .input(Input::int("batch_size", 1, 1, 4096))
}

/// A video that is to be made, as a node is told it.
pub(super) struct Asked {
    pub(super) vae: Arc<Vae>,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) length: usize,
    pub(super) batch: usize,
}

impl Asked {
    pub(super) fn of(call: &Call) -> Result<Asked, Failure> {
        Ok(Asked {
            vae: call.object::<Vae>("vae")?,
            width: call.size("width")?,
            height: call.size("height")?,
            length: call.size("length")?.max(1),
            batch: call.size("batch_size")?,
        })
    }

    /// Frames of its latent.
    pub(super) fn frames(&self) -> usize {
        (self.length - 1) / FRAMES + 1
    }

    /// The shape of a latent of one video.
    pub(super) fn shape(&self, spec: &LatentSpec) -> [usize; 5] {
        let side = |pixels: usize| pixels / spec.pixels_per_value;
        [1, spec.channels, self.frames(), side(self.height), side(self.width)]
    }

    /// Empty latents, with so many frames more.
    pub(super) fn empty(&self, runtime: &Runtime, spec: &LatentSpec, more: usize) -> Result<LatentImage> {
        let [_, channels, frames, height, width] = self.shape(spec);
        let shape = [self.batch, channels, frames + more, height, width];
        Ok(LatentImage::new(runtime.host.room(&shape)?.latent(Latent::zeros(&shape))))
    }

    /// The first pictures of an input, in its size; at most as many as it has frames.
    pub(super) fn first_pictures(&self, call: &Call, input: &str) -> Result<Option<Image>, Failure> {
        let Some(image) = call.object_if_given::<Image>(input)? else { return Ok(None) };
        Ok(Some(self.fitted(&image.frames(0..self.length)?)?))
    }

    /// Pictures in its size, without transparency.
    pub(super) fn fitted(&self, image: &Image) -> Result<Image> {
        if image.batch == 0 {
            return Err(Error::Told("there is no picture in the batch; link one with at least one".into()));
        }
        let target = Target::cropped(self.width, self.height);
        scale_image(image, target, Method::Bilinear)?.with_channels(3)
    }

    pub(super) fn encode(&self, runtime: &Runtime, call: &Call, image: &Image) -> Result<Samples> {
        vae::encode(runtime, call, &self.vae, image)
    }
}

/// Writes frames of one latent over those of another, from a channel on and as many as both have.
pub(super) fn overwrite(to: &mut Latent, from: &Latent, channel: usize) {
    let ([_, channels, frames, height, width], [_, given, have, ..]) = (axes(to), axes(from));
    let (volume, plane) = (frames * height * width, height * width);
    let own = have * plane;
    let shared = have.min(frames) * plane;
    for c in 0..given.min(channels - channel) {
        to.values_mut()[(channel + c) * volume..][..shared]
            .copy_from_slice(&from.values()[c * own..][..shared]);
    }
}

/// Where frames of a latent are made new, `[frames, height, width]`: behind those of the pictures.
pub(super) fn made_new(
    runtime: &Runtime,
    [_, _, frames, height, width]: [usize; 5],
    pictures: &Image,
) -> Result<Mask> {
    let (given, plane) = ((pictures.batch - 1) / FRAMES + 1, height * width);
    let values = (0..frames * plane).map(|at| f32::from(at / plane.max(1) >= given));
    Mask::collect(&runtime.host, [frames, height, width], values)
}

/// A mask as a latent of one channel.
pub(super) fn as_latent(
    runtime: &Runtime,
    mask: &Mask,
    [_, _, frames, height, width]: [usize; 5],
) -> Result<Samples> {
    let shape = [1, 1, frames, height, width];
    let room = runtime.host.room(&shape)?;
    Ok(room.latent(Latent::new(shape.to_vec(), mask.values.to_vec())?))
}

/// The axes of a latent video.
pub(super) fn axes(latent: &Latent) -> [usize; 5] {
    match *latent.shape() {
        [batch, channels, frames, height, width] => [batch, channels, frames, height, width],
        [batch, channels, height, width] => [batch, channels, 1, height, width],
        _ => [0; 5],
    }
}

/// Both conditionings with every entry changed.
pub(super) fn both_changed(call: &Call, change: impl Fn(&mut Entry)) -> Result<[Conditioning; 2], Failure> {
    Ok([changed(call, "positive", &change)?, changed(call, "negative", &change)?])
}
