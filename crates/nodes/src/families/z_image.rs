//! Nodes of Z-Image and Lumina 2.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome};
use runtime::Runtime;

use crate::class::class;
use crate::model_patches::{patch_inputs, patched, strength_input};
use crate::text::{Prompts, clip_of, encode, prompt_input};
use crate::value::Conditioning;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CLIPTextEncodeLumina2(Arc::clone(runtime)));
    catalogue.add(ZImageFunControlnet(Arc::clone(runtime)));
}

/// What Lumina was told in training before a prompt, by the names of the two ways.
const SYSTEM_PROMPTS: [(&str, &str); 2] = [
    (
        "superior",
        "You are an assistant designed to generate superior images with the superior degree of image-text alignment based \
         on textual prompts or user prompts.",
    ),
    (
        "alignment",
        "You are an assistant designed to generate high-quality images with the highest degree of image-text alignment \
         based on textual prompts.",
    ),
];

class! {
    /// A prompt behind one of the two that Lumina 2 was trained with.
    CLIPTextEncodeLumina2 in "conditioning";
    |schema| schema
        .about("Encodes a prompt behind one of the two that Lumina 2 was trained with.")
        .input(Input::choice("system_prompt", SYSTEM_PROMPTS.iter().map(|(name, _)| *name)))
        .input(prompt_input("user_prompt"))
        .input(Input::socket("clip", "CLIP"))
        .title("CLIP Text Encode for Lumina2")
        .output("CONDITIONING")
        .module("comfy_extras.nodes_lumina2");
    |runtime, call| {
        let wanted = call.text("system_prompt")?;
        let system = SYSTEM_PROMPTS.iter().find(|(name, _)| *name == wanted).map_or("", |(_, text)| *text);
        let prompt = format!("{system} <Prompt Start> {}", call.text("user_prompt")?);
        let entry = encode(runtime, call, &*clip_of(call)?, Prompts::same(&prompt))?;
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

class! {
    /// A model that follows a picture by a patch, or fills in a part of one.
    ZImageFunControlnet in "advanced/loaders/zimage";
    |schema| patch_inputs(schema)
        .about("Makes a model follow a picture by a patch of it, or fill in a part of one.")
        .input(strength_input())
        .input(Input::socket("image", "IMAGE").optional())
        .input(Input::socket("inpaint_image", "IMAGE").optional())
        .input(Input::socket("mask", "MASK").optional());
    |runtime, call| patched(call)
}
