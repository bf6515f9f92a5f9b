//! Wan's own nodes: what a video starts from, ends with, follows and is steered by.

mod animate;
mod beside;
mod camera;
mod sound;
mod speech;
mod steering;
mod tracks;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Schema};
use models::diffusion::latents::{VIDEO_16, VIDEO_48};
use runtime::Runtime;
use runtime::host::Samples;
use sampling::{Latent, LatentSpec};

use super::asked::{Asked, FRAMES, axes, both_changed, overwrite, sized};
use crate::value::{ClipVisionOutput, Image};
use crate::{Error, Result, vae};

/// Where ComfyUI has most of these classes.
const MODULE: &str = "comfy_extras.nodes_wan";
/// The grey of frames that nobody gave.
const GREY: f32 = 0.5;

/// What to do about the classes of a pack that runs these models in its own way.
pub(super) fn instead(class: &str) -> Option<&'static str> {
    let is_of_wrapper = ["WanVideo", "LoadWanVideo"].iter().any(|start| class.starts_with(start));
    is_of_wrapper.then_some(
        "it is of ComfyUI-WanVideoWrapper, which does not run here; its models do: use UNETLoader, CLIPLoader of the type wan, \
         VAELoader, WanImageToVideo and KSampler, or their MultiGPU forms",
    )
}

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    animate::add(catalogue, runtime);
    beside::add(catalogue, runtime);
    camera::add(catalogue, runtime);
    sound::add(catalogue, runtime);
    speech::add(catalogue, runtime);
    steering::add(catalogue, runtime);
    tracks::add(catalogue, runtime);
}

/// Two texts, an autoencoder, and the usual size.
fn conditioned(schema: Schema) -> Schema {
    let schema = schema
        .input(Input::socket("positive", "CONDITIONING"))
        .input(Input::socket("negative", "CONDITIONING"))
        .input(Input::socket("vae", "VAE"));
    sized(schema, [832, 480, 81], 16).module(MODULE)
}

impl Asked {
    /// The latents that its autoencoder makes.
    fn spec(&self) -> Result<&'static LatentSpec> {
        let channels = vae::latent_channels(&self.vae)?;
        let known = [&VIDEO_16, &VIDEO_48].into_iter().find(|spec| spec.channels == channels);
        known.ok_or_else(|| {
            let name = self.vae.source.name();
            Error::Told(format!(
                "{name} makes latents of {channels} channels; load the autoencoder of Wan 2.1 or 2.2"
            ))
        })
    }

    /// As many grey frames as the video has, some of them replaced: by pictures, from a frame on.
    fn filled_up(&self, runtime: &Runtime, given: &[(&Image, usize)]) -> Result<Image> {
        let shape = [self.length, self.height, self.width, 3];
        let room = runtime.host.room(&shape)?;
        let mut values = room.vector()?;
        values.resize(shape.iter().product(), GREY);
        let frame = self.height * self.width * 3;
        for (image, start) in given {
            values[start * frame..][..image.values.len()].copy_from_slice(&image.values);
        }
        Ok(Image::of(shape, room.hold(values)))
    }
}

/// What the autoencoder's values are where the model's are zero.
fn zeros_of(spec: &LatentSpec, shape: &[usize]) -> Result<Latent> {
    Ok(spec.to_autoencoder(&Latent::zeros(shape))?)
}

/// A mask of a latent's size with a channel for each frame that a frame of the latent stands for: 0 for the frames that are
/// given, counted as if the first were four, 1 for the others.
fn made_new(runtime: &Runtime, shape: [usize; 5], is_given: impl Fn(usize) -> bool) -> Result<Samples> {
    let [_, _, frames, height, width] = shape;
    let shape = [1, FRAMES, frames, height, width];
    let room = runtime.host.room(&shape)?;
    let (mut mask, plane) = (Latent::zeros(&shape), height * width);
    for (at, values) in mask.values_mut().chunks_exact_mut(plane.max(1)).enumerate() {
        let (channel, frame) = (at / frames, at % frames);
        values.fill(if is_given(frame * FRAMES + channel) { 0.0 } else { 1.0 });
    }
    Ok(room.latent(mask))
}

/// What a vision tower saw, if it is linked.
fn seen(call: &Call, input: &str) -> Result<Option<Arc<ClipVisionOutput>>, Failure> {
    call.object_if_given::<ClipVisionOutput>(input)
}
