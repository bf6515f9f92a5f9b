//! HunyuanVideo's own nodes, and those of its version 1.5: pictures that a video begins with.

mod latents;
mod text;

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome, Value};
use models::diffusion::latents::{VIDEO_KL_16, VIDEO_KL_32};
use runtime::{Runtime, Vae};
use sampling::Latent;

use super::asked::{Asked, as_latent, axes, both_changed, made_new, overwrite, sized};
use crate::class::class;
use crate::conditioning::{changed, three_outputs};
use crate::image::{CROPS, LATENT_METHODS, Method, Target, pixels, scale_image, scale_latent};
use crate::upscale::LatentUpscaleModel;
use crate::value::{ClipVisionOutput, Image, LatentImage};
use crate::{Error, vae};

/// Where ComfyUI has these classes.
const MODULE: &str = "comfy_extras.nodes_hunyuan";
/// How a model is told the pictures that a video begins with.
const BESIDE: &str = "v1 (concat)";
const IN_PLACE: &str = "v2 (replace)";
const CUSTOM: &str = "custom";

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(HunyuanImageToVideo(Arc::clone(runtime)));
    catalogue.add(HunyuanVideo15ImageToVideo(Arc::clone(runtime)));
    catalogue.add(HunyuanVideo15SuperResolution(Arc::clone(runtime)));
    catalogue.add(HunyuanVideo15LatentUpscaleWithModel(Arc::clone(runtime)));
    latents::add(catalogue, runtime);
    text::add(catalogue, runtime);
}

class! {
    /// A video that begins with a picture: beside the latent, in place of its first frames, or to be looked at.
    HunyuanImageToVideo in "conditioning/video_models";
    |schema| {
        let schema = schema
            .input(Input::socket("positive", "CONDITIONING"))
            .input(Input::socket("vae", "VAE"));
        sized(schema, [848, 480, 53], 16)
            .input(Input::choice("guidance_type", [BESIDE, IN_PLACE, CUSTOM]))
            .input(Input::socket("start_image", "IMAGE").optional())
            .named_output("CONDITIONING", "positive")
            .named_output("LATENT", "latent")
            .module(MODULE)
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let mut latent = asked.empty(runtime, &VIDEO_KL_16, 0)?;
        let Some(start) = asked.first_pictures(call, "start_image")? else {
            let positive = changed(call, "positive", |_| ())?;
            return Ok(Outcome::values([Value::object(positive), Value::object(latent)]));
        };
        let (picture, shape) = (asked.encode(runtime, call, &start)?, asked.shape(&VIDEO_KL_16));
        let mask = made_new(runtime, shape, &start)?;
        let kind = call.text("guidance_type")?;
        let beside = if kind == BESIDE { Some(as_latent(runtime, &mask, shape)?) } else { None };
        let positive = changed(call, "positive", |entry| {
            match &beside {
                Some(mask) => {
                    entry.cond.concat_latent = Some(picture.shared());
                    entry.cond.concat_mask = Some(mask.shared());
                    entry.held.extend([picture.clone(), mask.clone()]);
                }
                None if kind == IN_PLACE => entry.cond.guiding_frame = Some(0.0),
                None => {
                    entry.cond.reference_latents = vec![picture.shared()];
                    entry.held.push(picture.clone());
                }
            }
        })?;
        if kind == IN_PLACE {
            let mut one = Latent::zeros(&shape);
            overwrite(&mut one, &picture, 0);
            let all = [asked.batch, shape[1], shape[2], shape[3], shape[4]];
            let room = runtime.host.room(&all)?;
            let samples = Latent::new(all.to_vec(), one.values().repeat(asked.batch)).map_err(Error::from)?;
            latent = LatentImage { noise_mask: Some(mask), ..LatentImage::new(room.latent(samples)) };
        }
        Ok(Outcome::values([Value::object(positive), Value::object(latent)]))
    }
}

class! {
    /// A video that begins with a picture, which stands beside the latent and is looked at by a vision model.
    HunyuanVideo15ImageToVideo in "conditioning/video_models";
    |schema| {
        let schema = schema
            .input(Input::socket("positive", "CONDITIONING"))
            .input(Input::socket("negative", "CONDITIONING"))
            .input(Input::socket("vae", "VAE"));
        let schema = sized(schema, [848, 480, 33], 16)
            .input(Input::socket("start_image", "IMAGE").optional())
            .input(Input::socket("clip_vision_output", "CLIP_VISION_OUTPUT").optional());
        three_outputs(schema).module(MODULE)
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let shape = asked.shape(&VIDEO_KL_32);
        let beside = match asked.first_pictures(call, "start_image")? {
            None => None,
            Some(start) => {
                let encoded = asked.encode(runtime, call, &start)?;
                let room = runtime.host.room(&shape)?;
                let mut picture = Latent::zeros(&shape);
                overwrite(&mut picture, &encoded, 0);
                let mask = as_latent(runtime, &made_new(runtime, shape, &start)?, shape)?;
                Some((room.latent(picture), mask))
            }
        };
        let seen = call.object_if_given::<ClipVisionOutput>("clip_vision_output")?;
        let vision = seen.map(|seen| Arc::new(seen.last.array()));
        let [positive, negative] = both_changed(call, |entry| {
            if let Some((picture, mask)) = &beside {
                entry.cond.concat_latent = Some(picture.shared());
                entry.cond.concat_mask = Some(mask.shared());
                entry.held.extend([picture.clone(), mask.clone()]);
            }
            if let Some(vision) = &vision {
                entry.cond.vision = Some(Arc::clone(vision));
            }
        })?;
        let latent = asked.empty(runtime, &VIDEO_KL_32, 0)?;
        Ok(Outcome::values([Value::object(positive), Value::object(negative), Value::object(latent)]))
    }
}

class! {
    /// A video that is made anew in its size: it stands beside the latent, with noise over it.
    HunyuanVideo15SuperResolution in "conditioning/video_models";
    |schema| {
        let schema = schema
            .input(Input::socket("positive", "CONDITIONING"))
            .input(Input::socket("negative", "CONDITIONING"))
            .input(Input::socket("vae", "VAE").optional())
            .input(Input::socket("start_image", "IMAGE").optional())
            .input(Input::socket("clip_vision_output", "CLIP_VISION_OUTPUT").optional())
            .input(Input::socket("latent", "LATENT"))
            .input(Input::float("noise_augmentation", 0.7, 0.0, 1.0, 0.01));
        three_outputs(schema).module(MODULE)
    };
    |runtime, call| {
        let latent = call.object::<LatentImage>("latent")?;
        let [batch, channels, frames, height, width] = axes(&latent.samples);
        if channels != VIDEO_KL_32.channels {
            let wanted = VIDEO_KL_32.channels;
            let told = format!("the latent has {channels} channels, but those of HunyuanVideo 1.5 have {wanted}");
            return Err(Failure::value(told));
        }
        let shape = [batch, 2 * channels + 2, frames, height, width];
        let room = runtime.host.room(&shape)?;
        let mut beside = Latent::zeros(&shape);
        let volume = frames * height * width;
        for item in 0..batch {
            let own = &mut beside.values_mut()[item * shape[1] * volume..][..shape[1] * volume];
            let video = &latent.samples.values()[item * channels * volume..][..channels * volume];
            own[(channels + 1) * volume..][..channels * volume].copy_from_slice(video);
            own[(2 * channels + 1) * volume..].fill(1.0);
        }
        if let Some(start) = call.object_if_given::<Image>("start_image")? {
            let target = Target::cropped(width * VIDEO_KL_32.pixels_per_value, height * VIDEO_KL_32.pixels_per_value);
            let start = scale_image(&start, target, Method::Bilinear)?.with_channels(3)?;
            let picture = vae::encode(runtime, call, &*call.object::<Vae>("vae")?, &start)?;
            put_in_front(&mut beside, &picture, channels);
        }
        let (beside, share) = (room.latent(beside), call.float("noise_augmentation")? as f32);
        let seen = call.object_if_given::<ClipVisionOutput>("clip_vision_output")?;
        let vision = seen.map(|seen| Arc::new(seen.last.array()));
        let [positive, negative] = both_changed(call, |entry| {
            entry.cond.concat_latent = Some(beside.shared());
            entry.cond.noise_augmentation = Some(share);
            entry.held.push(beside.clone());
            if let Some(vision) = &vision {
                entry.cond.vision = Some(Arc::clone(vision));
            }
        })?;
        let latent = LatentImage::clone(&latent);
        Ok(Outcome::values([Value::object(positive), Value::object(negative), Value::object(latent)]))
    }
}

/// Writes a picture into the first channels of what stands beside every item of a latent, and says behind them in which
/// frame it is.
fn put_in_front(beside: &mut Latent, picture: &Latent, channels: usize) {
    let ([batch, all, frames, height, width], [_, given, have, ..]) = (axes(beside), axes(picture));
    let (volume, plane) = (frames * height * width, height * width);
    let shared = have.min(frames) * plane;
    for item in 0..batch {
        let own = &mut beside.values_mut()[item * all * volume..][..all * volume];
        for channel in 0..channels.min(given) {
            let picture = &picture.values()[channel * have * plane..][..shared];
            own[channel * volume..][..shared].copy_from_slice(picture);
        }
        own[(channels + 1) * volume..][..plane].fill(1.0);
    }
}

class! {
    /// Latents scaled to a size in pixels, then refined by a network.
    HunyuanVideo15LatentUpscaleWithModel in "latent";
    |schema| schema
        .title("Hunyuan Video 15 Latent Upscale With Model")
        .input(Input::socket("model", "LATENT_UPSCALE_MODEL"))
        .input(Input::socket("samples", "LATENT"))
        .input(Input::choice("upscale_method", LATENT_METHODS).with("default", "bilinear"))
        .input(pixels("width", 1280, 0, 8))
        .input(pixels("height", 720, 0, 8))
        .input(Input::choice("crop", CROPS))
        .output("LATENT")
        .module(MODULE);
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let [_, _, _, rows, columns] = axes(&latent.samples);
        let follows = |length: usize, of: usize, side: usize| {
            ((length * side) as f64 / of.max(1) as f64).round_ties_even().max(64.0) as usize
        };
        let (width, height) = match (call.size("width")?, call.size("height")?) {
            (0, 0) => return Ok(Outcome::one(call.value("samples")?.clone())),
            (0, height) => (follows(columns, rows, height.max(64)), height.max(64)),
            (width, 0) => (width.max(64), follows(rows, columns, width.max(64))),
            (width, height) => (width.max(64), height.max(64)),
        };
        let side = |length: usize| (length / VIDEO_KL_32.pixels_per_value).max(1);
        let is_cropped = call.text("crop")? == "center";
        let target = Target { width: side(width), height: side(height), is_cropped };
        let large = scale_latent(&latent.samples, target, Method::named(call.text("upscale_method")?)?)?;
        let refined = call.object::<LatentUpscaleModel>("model")?.enlarge(runtime, call, &large)?;
        Ok(Outcome::object(LatentImage::new(refined)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_stands_in_front_of_the_video_that_is_made_larger() {
        // Two channels of two frames of one value, beside which six channels stand.
        let mut beside = Latent::zeros(&[1, 6, 2, 1, 1]);
        let picture = Latent::new(vec![1, 2, 1, 1, 1], vec![3.0, 4.0]).unwrap();
        put_in_front(&mut beside, &picture, 2);
        let expected = [[3.0, 0.0], [4.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]];
        assert_eq!(beside.values(), expected.concat());
    }
}
