//! Stable Video Diffusion's own nodes.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Value};
use models::conditioning::Motion;
use runtime::host::Values;
use runtime::{Runtime, Vae};
use sampling::{Latent, noise};

use crate::class::class;
use crate::clip_vision::{TowerHandle, see};
use crate::conditioning::three_outputs;
use crate::image::{MAX_RESOLUTION, Method, Target, scale_image};
use crate::value::{Array, Conditioning, Entry, Image, LatentImage};
use crate::{Error, vae};

/// Pixels along one side of a latent value, and channels of a latent.
const PIXELS: usize = 8;
const CHANNELS: usize = 4;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(SVD_img2vid_Conditioning(Arc::clone(runtime)));
}

class! {
    /// The picture that a video starts with, and how it is to move.
    SVD_img2vid_Conditioning in "conditioning/video_models";
    |schema| {
        let schema = schema
            .input(Input::socket("clip_vision", "CLIP_VISION"))
            .input(Input::socket("init_image", "IMAGE"))
            .input(Input::socket("vae", "VAE"))
            .input(Input::int("width", 1024, 16, MAX_RESOLUTION).with("step", 8))
            .input(Input::int("height", 576, 16, MAX_RESOLUTION).with("step", 8))
            .input(Input::int("video_frames", 14, 1, 4096))
            .input(Input::int("motion_bucket_id", 127, 1, 1023))
            .input(Input::int("fps", 6, 1, 1024))
            .input(Input::float("augmentation_level", 0.0, 0.0, 10.0, 0.01));
        three_outputs(schema).module("comfy_extras.nodes_video_model")
    };
    |runtime, call| {
        let (tower, image) = (call.object::<TowerHandle>("clip_vision")?, call.object::<Image>("init_image")?);
        let seen = see(runtime, call, &tower, &image, true)?.embeds;
        let motion = Motion {
            frames_per_second: call.size("fps")? as f32,
            amount: call.size("motion_bucket_id")? as f32,
            augmentation: call.float("augmentation_level")? as f32,
        };
        let (width, height) = (call.size("width")?, call.size("height")?);
        let pixels = scale_image(&image, Target::cropped(width, height), Method::Bilinear)?;
        let pixels = with_noise(&pixels, motion.augmentation)?;
        let picture = vae::encode(runtime, call, &*call.object::<Vae>("vae")?, &pixels)?;
        let nothing = runtime.host.room(picture.shape())?.latent(Latent::zeros(picture.shape()));
        // Pictures are tokens of one text.
        let tokens = seen.values.len() / seen.shape.last().copied().unwrap_or(1).max(1);
        let shape = vec![1, tokens, seen.values.len() / tokens.max(1)];
        let entry = |values: Vec<f32>, beside: &runtime::host::Samples| {
            let mut entry = Entry::text(Array { shape: shape.clone(), values }, None);
            entry.cond.motion = Some(motion);
            entry.cond.concat_latent = Some(beside.shared());
            entry.held.push(beside.clone());
            Value::object(Conditioning { entries: vec![entry] })
        };
        Ok(Outcome::values([
            entry(seen.values.to_vec(), &picture),
            entry(vec![0.0; seen.values.len()], &nothing),
            Value::object(LatentImage::new(empty_video(runtime, call, [height, width])?)),
        ]))
    }
}

/// A picture with so much noise. The reference's is another in every run; this one is always the same.
fn with_noise(image: &Image, amount: f32) -> Result<Image, Failure> {
    if amount <= 0.0 {
        return Ok(image.clone());
    }
    let noise = noise::prepare_noise(0, &image.shape(), None).map_err(Error::from)?;
    let noised = image.values.iter().zip(noise.values()).map(|(value, noise)| value + noise * amount);
    Ok(Image::of(image.shape(), Values::new(image.host(), noised.collect())?))
}

/// The latents of a video's frames.
fn empty_video(
    runtime: &Runtime,
    call: &Call,
    [height, width]: [usize; 2],
) -> Result<runtime::host::Samples, Failure> {
    let shape = [call.size("video_frames")?, CHANNELS, height / PIXELS, width / PIXELS];
    Ok(runtime.host.room(&shape)?.latent(Latent::zeros(&shape)))
}
