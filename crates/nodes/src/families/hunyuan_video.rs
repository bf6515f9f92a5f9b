//! HunyuanVideo's own nodes, and those of its version 1.5: pictures that a video begins with.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome, Value};
use models::diffusion::latents::{VIDEO_KL_16, VIDEO_KL_32};
use runtime::Runtime;
use sampling::Latent;

use super::asked::{Asked, as_latent, both_changed, made_new, overwrite, sized};
use crate::Error;
use crate::class::class;
use crate::conditioning::{changed, three_outputs};
use crate::value::{ClipVisionOutput, LatentImage};

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
