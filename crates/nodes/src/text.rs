//! Prompts: text becomes a conditioning.

mod embeddings;
mod encoding;
mod generating;
mod looking;
mod lotus;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};

use crate::Runtime;
use crate::class::class;
use crate::value::Conditioning;
pub(crate) use encoding::{Prompts, SeenPicture, encode};
pub(crate) use looking::look;
use runtime::Clip;

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(CLIPTextEncode(runtime()));
    catalogue.add(CLIPSetLastLayer(runtime()));
    catalogue.add(T5TokenizerOptions(runtime()));
    lotus::add(catalogue, runtime());
    generating::add(catalogue, runtime());
}

/// A field for a prompt.
pub(crate) fn prompt_input(name: &str) -> Input {
    Input::new(name, graph::Kind::Text).with("multiline", true).with("dynamicPrompts", true)
}

/// The text encoders of a call; a checkpoint without any gives none.
pub(crate) fn clip_of(call: &Call) -> Result<Arc<Clip>, Failure> {
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
    |runtime, call| {
        let entry = encode(runtime, call, &*clip_of(call)?, Prompts::same(call.text("text")?))?;
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
    |runtime, call| {
        let layer = call.int("stop_at_clip_layer")?;
        let skip = usize::try_from(-layer).ok().filter(|skip| *skip > 0);
        let skip = skip.ok_or_else(|| Failure::value(format!("stop_at_clip_layer is {layer}; -1 is the last")))?;
        Ok(Outcome::object(Clip { skip: Some(skip), ..Clip::clone(&*clip_of(call)?) }))
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
    |runtime, call| {
        let lengths = Some((call.size("min_length")?, call.size("min_padding")?));
        Ok(Outcome::object(Clip { lengths, ..Clip::clone(&*clip_of(call)?) }))
    }
}
