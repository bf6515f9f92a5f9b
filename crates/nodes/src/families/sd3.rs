//! Stable Diffusion 3's own nodes.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome, Schema};
use models::diffusion::BlockGroup;
use runtime::{Model, Runtime};
use sampling::ModelSampling;

use crate::class::class;
use crate::control::{apply, both_inputs, strength_and_time};
use crate::guidance::{away_from_skipped, away_inputs, skipped_blocks};
use crate::latent::{EmptyLatent, sized};
use crate::sampling_nodes::{MODEL_MODULE, with_sampling};
use crate::text::{Prompts, clip_of, encode, prompt_input};
use crate::value::{Conditioning, Image};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(EmptySD3LatentImage(runtime()));
    catalogue.add(ModelSamplingSD3(runtime()));
    catalogue.add(CLIPTextEncodeSD3(runtime()));
    catalogue.add(SkipLayerGuidanceSD3(runtime()));
    catalogue.add(ControlNetApplySD3(runtime()));
}

class! {
    EmptySD3LatentImage in "latent/sd3";
    |schema| sized(schema, [1024, 1024], [16, 16], None).about("Makes empty latents of sixteen channels.");
    |runtime, call| EmptyLatent { channels: 16, pixels: 8, frames: None }.empty(runtime, call)
}

class! {
    /// A shifted flow whose times count to a thousand.
    ModelSamplingSD3 in "advanced/model";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::float("shift", 3.0, 0.0, 100.0, 0.01))
        .output("MODEL")
        .module(MODEL_MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        Ok(with_sampling(&model, ModelSampling::flow(call.float("shift")?, 1000.0)))
    }
}

class! {
    /// Away from what the model predicts without some of its blocks.
    SkipLayerGuidanceSD3 in "advanced/guidance";
    |schema| {
        let schema = schema.input(Input::socket("model", "MODEL")).input(Input::text("layers", "7, 8, 9"));
        away_inputs(schema).output("MODEL").module("comfy_extras.nodes_sd3")
    };
    |runtime, call| {
        let skipped = skipped_blocks(call.text("layers")?, BlockGroup::Double);
        away_from_skipped(call, skipped, 0.0)
    }
}

class! {
    /// A prompt for each text encoder. An encoder with an empty prompt is told nothing, or the empty prompt.
    CLIPTextEncodeSD3 in "advanced/conditioning";
    |schema| schema
        .input(Input::socket("clip", "CLIP"))
        .input(prompt_input("clip_l"))
        .input(prompt_input("clip_g"))
        .input(prompt_input("t5xxl"))
        .input(Input::choice("empty_padding", ["none", "empty_prompt"]))
        .output("CONDITIONING")
        .module("comfy_extras.nodes_sd3");
    |runtime, call| {
        let (clip_l, clip_g, t5) = (call.text("clip_l")?, call.text("clip_g")?, call.text("t5xxl")?);
        let unpadded = call.text("empty_padding")? == "none";
        let no_clips = unpadded && clip_l.is_empty() && clip_g.is_empty();
        let prompts = Prompts {
            own: &[("clip_l", clip_l), ("clip_g", clip_g)],
            others: t5,
            left_out: if no_clips { &["clip_l", "clip_g"] } else { &[] },
            unfilled: if unpadded && t5.is_empty() { &["t5xxl"] } else { &[] },
            ..Prompts::default()
        };
        let entry = encode(runtime, call, &*clip_of(call)?, prompts)?;
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

class! {
    /// Conditionings that follow a picture which the network sees as a latent.
    ControlNetApplySD3 in "conditioning/controlnet";
    |schema| {
        let schema =
            both_inputs(schema).input(Input::socket("vae", "VAE")).input(Input::socket("image", "IMAGE"));
        let schema = strength_and_time(schema).title("Apply Controlnet with VAE");
        Schema { is_deprecated: true, ..schema.module("comfy_extras.nodes_sd3") }
    };
    |runtime, call| apply(call, call.object::<Image>("image")?, None)
}
