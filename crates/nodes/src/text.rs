//! Prompts: text becomes a conditioning.

mod embeddings;
mod encoding;
mod lotus;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};

use crate::Studio;
use crate::conditioning::changed;
use crate::studio::{Clip, class};
use crate::value::Conditioning;
use encoding::{Prompts, encode};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, studio: &Arc<Studio>) {
    let studio = || Arc::clone(studio);
    catalogue.add(CLIPTextEncode(studio()));
    catalogue.add(CLIPTextEncodeFlux(studio()));
    catalogue.add(CLIPSetLastLayer(studio()));
    catalogue.add(FluxGuidance(studio()));
    catalogue.add(FluxDisableGuidance(studio()));
    catalogue.add(T5TokenizerOptions(studio()));
    lotus::add(catalogue, studio());
}

/// A field for a prompt.
fn prompt_input(name: &str) -> Input {
    Input::new(name, graph::Kind::Text).with("multiline", true).with("dynamicPrompts", true)
}

fn guidance_input() -> Input {
    Input::float("guidance", 3.5, 0.0, 100.0, 0.1)
}

/// The text encoders of a call; a checkpoint without any gives none.
fn clip_of(call: &Call) -> Result<Arc<Clip>, Failure> {
    if call.inputs.first("clip").is_some_and(graph::Value::is_none) {
        return Err(Failure::error(
            "RuntimeError",
            "there is no text encoder: the checkpoint has none; load one with a CLIP loader and link it instead",
        ));
    }
    call.object("clip")
}

class! {
    /// A prompt for all text encoders.
    CLIPTextEncode in "conditioning";
    |schema| schema
        .input(prompt_input("text"))
        .input(Input::socket("clip", "CLIP"))
        .title("CLIP Text Encode (Prompt)")
        .output("CONDITIONING");
    |studio, call| {
        let entry = encode(studio, call, &*clip_of(call)?, Prompts::same(call.text("text")?))?;
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
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
    |studio, call| {
        let prompts = Prompts { clip: call.text("clip_l")?, t5: call.text("t5xxl")? };
        let mut entry = encode(studio, call, &*clip_of(call)?, prompts)?;
        entry.guidance = Some(call.float("guidance")? as f32);
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

class! {
    /// Takes CLIP's result from an earlier layer.
    CLIPSetLastLayer in "conditioning";
    |schema| schema
        .input(Input::socket("clip", "CLIP"))
        .input(Input::new("stop_at_clip_layer", graph::Kind::Int)
            .with("default", -1)
            .with("min", -24)
            .with("max", -1)
            .with("step", 1))
        .title("CLIP Set Last Layer")
        .output("CLIP");
    |studio, call| {
        let layer = call.int("stop_at_clip_layer")?;
        let skip = usize::try_from(-layer).ok().filter(|skip| *skip > 0);
        let skip = skip.ok_or_else(|| Failure::value(format!("stop_at_clip_layer is {layer}; -1 is the last")))?;
        Ok(Outcome::object(Clip { skip: Some(skip), ..Clip::clone(&*clip_of(call)?) }))
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
    |studio, call| {
        let guidance = call.float("guidance")? as f32;
        let told = changed(call, "conditioning", |entry| {
            entry.guidance = Some(guidance);
            entry.guidance_off = false;
        })?;
        Ok(Outcome::object(told))
    }
}

class! {
    /// A distilled model is told no guidance.
    FluxDisableGuidance in "advanced/conditioning/flux";
    |schema| schema
        .input(Input::socket("conditioning", "CONDITIONING"))
        .output("CONDITIONING")
        .module("comfy_extras.nodes_flux");
    |studio, call| {
        Ok(Outcome::object(changed(call, "conditioning", |entry| entry.guidance_off = true)?))
    }
}

class! {
    /// How long T5's prompts are at least.
    T5TokenizerOptions in "_for_testing/conditioning";
    |schema| Schema {
        is_experimental: true,
        ..schema
            .input(Input::socket("clip", "CLIP"))
            .input(Input::int("min_padding", 0, 0, 10_000).with("step", 1))
            .input(Input::int("min_length", 0, 0, 10_000).with("step", 1))
            .output("CLIP")
            .module("comfy_extras.nodes_cond")
    };
    |studio, call| {
        let lengths = Some((call.size("min_length")?, call.size("min_padding")?));
        Ok(Outcome::object(Clip { lengths, ..Clip::clone(&*clip_of(call)?) }))
    }
}
