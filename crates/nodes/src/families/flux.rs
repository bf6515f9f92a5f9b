//! FLUX.1's own nodes.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome, Schema};
use models::conditioning::CondInput;
use runtime::{Model, Runtime};
use sampling::ModelSampling;

use crate::class::class;
use crate::clip_vision::style_of;
use crate::conditioning::{after, changed};
use crate::image::{MAX_RESOLUTION, Method, Target, scale_image};
use crate::model_patches::MODULE as MODEL_PATCH_MODULE;
use crate::sampling_nodes::{MODEL_MODULE, with_sampling};
use crate::text::{Prompts, clip_of, encode, prompt_input};
use crate::value::{Conditioning, Guidance, Image};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(CLIPTextEncodeFlux(runtime()));
    catalogue.add(FluxGuidance(runtime()));
    catalogue.add(FluxDisableGuidance(runtime()));
    catalogue.add(FluxKontextMultiReferenceLatentMethod(runtime()));
    catalogue.add(FluxKontextImageScale(runtime()));
    catalogue.add(ModelSamplingFlux(runtime()));
    catalogue.add(USOStyleReference(runtime()));
}

fn guidance_input() -> Input {
    Input::float("guidance", 3.5, 0.0, 100.0, 0.1)
}

class! {
    /// A prompt for each text encoder of FLUX.
    CLIPTextEncodeFlux in "advanced/conditioning/flux";
    |schema| schema
        .input(Input::socket("clip", "CLIP"))
        .input(prompt_input("clip_l"))
        .input(prompt_input("t5xxl"))
        .input(guidance_input())
        .output("CONDITIONING")
        .module("comfy_extras.nodes_flux");
    |runtime, call| {
        let prompts = Prompts {
            own: &[("clip_l", call.text("clip_l")?)],
            others: call.text("t5xxl")?,
            ..Prompts::default()
        };
        let mut entry = encode(runtime, call, &*clip_of(call)?, prompts)?;
        entry.cond.guidance = Guidance::Scale(call.float("guidance")? as f32);
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

class! {
    /// The guidance that a distilled model is told.
    FluxGuidance in "advanced/conditioning/flux";
    |schema| schema
        .input(Input::socket("conditioning", "CONDITIONING"))
        .input(guidance_input())
        .output("CONDITIONING")
        .module("comfy_extras.nodes_flux");
    |runtime, call| {
        let guidance = Guidance::Scale(call.float("guidance")? as f32);
        Ok(Outcome::object(changed(call, "conditioning", |entry| entry.cond.guidance = guidance)?))
    }
}

class! {
    /// A distilled model is told no guidance.
    FluxDisableGuidance in "advanced/conditioning/flux";
    |schema| schema
        .input(Input::socket("conditioning", "CONDITIONING"))
        .output("CONDITIONING")
        .module("comfy_extras.nodes_flux");
    |runtime, call| {
        Ok(Outcome::object(changed(call, "conditioning", |entry| entry.cond.guidance = Guidance::Off)?))
    }
}

class! {
    /// A flow shifted by the size of the picture.
    ModelSamplingFlux in "advanced/model";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::float("max_shift", 1.15, 0.0, 100.0, 0.01))
        .input(Input::float("base_shift", 0.5, 0.0, 100.0, 0.01))
        .input(Input::int("width", 1024, 16, MAX_RESOLUTION).with("step", 8))
        .input(Input::int("height", 1024, 16, MAX_RESOLUTION).with("step", 8))
        .output("MODEL")
        .module(MODEL_MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let (base, max) = (call.float("base_shift")?, call.float("max_shift")?);
        let shift = ModelSampling::shift_for_size(base, max, call.size("width")?, call.size("height")?);
        Ok(with_sampling(&model, ModelSampling::exponential_flow(shift)))
    }
}

class! {
    /// Where reference latents stand.
    FluxKontextMultiReferenceLatentMethod in "advanced/conditioning/flux";
    |schema| Schema {
        is_experimental: true,
        ..schema
            .input(Input::socket("conditioning", "CONDITIONING"))
            .input(Input::choice(
                "reference_latents_method",
                ["offset", "index", "uxo/uno", "index_timestep_zero"],
            ))
            .output("CONDITIONING")
            .title("Edit Model Reference Method")
            .module("comfy_extras.nodes_flux")
    };
    |runtime, call| {
        let method = match call.text("reference_latents_method")? {
            uxo if uxo.contains("uxo") || uxo.contains("uso") => "uxo",
            other => other,
        };
        let placed = changed(call, "conditioning", |entry| entry.cond.reference_method = Some(method.to_owned()))?;
        Ok(Outcome::object(placed))
    }
}

/// The sizes that FLUX Kontext was trained on: width and height.
const KONTEXT_SIZES: [(usize, usize); 17] = [
    (672, 1568),
    (688, 1504),
    (720, 1456),
    (752, 1392),
    (800, 1328),
    (832, 1248),
    (880, 1184),
    (944, 1104),
    (1024, 1024),
    (1104, 944),
    (1184, 880),
    (1248, 832),
    (1328, 800),
    (1392, 752),
    (1456, 720),
    (1504, 688),
    (1568, 672),
];

class! {
    FluxKontextImageScale in "advanced/conditioning/flux";
    |schema| schema
        .about("Scales a picture to the nearest of the sizes that FLUX Kontext knows.")
        .input(Input::socket("image", "IMAGE"))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let aspect = image.width as f64 / image.height as f64;
        let distance = |(width, height): &(usize, usize)| (aspect - *width as f64 / *height as f64).abs();
        let nearest = KONTEXT_SIZES.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let (width, height) = *nearest.expect("the list is not empty");
        Ok(Outcome::object(scale_image(&image, Target::cropped(width, height), Method::Lanczos)?))
    }
}

class! {
    /// A model whose every text has the tokens of pictures before it.
    USOStyleReference in "advanced/model_patches/flux";
    |schema| {
        let schema = schema
            .about("Puts what a style projector makes of pictures before every text that a model is given.")
            .input(Input::socket("model", "MODEL"))
            .input(Input::socket("model_patch", "MODEL_PATCH"))
            .input(Input::socket("clip_vision_output", "CLIP_VISION_OUTPUT"))
            .output("MODEL")
            .module(MODEL_PATCH_MODULE);
        Schema { is_experimental: true, ..schema }
    };
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        if !model.diffusion()?.takes().contains(&CondInput::InFront) {
            let (name, part) = (model.source.name(), &model.source.part.name);
            let told = format!("{name} is {part}, which reads no tokens of a style: choose a FLUX.1 model");
            return Err(Failure::value(told));
        }
        let tokens = style_of(runtime, call)?;
        // What was put there before stands behind it.
        let tokens = match &model.in_front {
            Some(before) if before.shape[0] != tokens.shape[0] => {
                return Err(Failure::value(format!(
                    "the model has a style of {} pictures, and this one is of {}: give each the same number of them",
                    before.shape[0], tokens.shape[0]
                )));
            }
            Some(before) => after(&tokens, before)?,
            None => tokens,
        };
        Ok(Outcome::object(Model { in_front: Some(Arc::new(tokens)), ..Model::clone(&model) }))
    }
}
