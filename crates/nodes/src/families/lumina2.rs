//! Lumina 2's own nodes.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome};
use runtime::Runtime;

use crate::class::class;
use crate::text::{Prompts, clip_of, encode, prompt_input};
use crate::value::Conditioning;

/// What prompts are put behind, by name.
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

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CLIPTextEncodeLumina2(Arc::clone(runtime)));
}

class! {
    /// A prompt behind one of the model's instructions.
    CLIPTextEncodeLumina2 in "conditioning";
    |schema| schema
        .title("CLIP Text Encode for Lumina2")
        .about("Encodes a prompt behind one of the two instructions that the model was trained with.")
        .input(Input::choice("system_prompt", SYSTEM_PROMPTS.map(|(name, _)| name)))
        .input(prompt_input("user_prompt"))
        .input(Input::socket("clip", "CLIP"))
        .output("CONDITIONING")
        .module("comfy_extras.nodes_lumina2");
    |runtime, call| {
        let (name, prompt) = (call.text("system_prompt")?, call.text("user_prompt")?);
        let system = SYSTEM_PROMPTS.iter().find(|(known, _)| *known == name);
        let (_, system) = system.ok_or_else(|| Failure::value(format!("there is no system_prompt {name:?}")))?;
        let text = format!("{system} <Prompt Start> {prompt}");
        let entry = encode(runtime, call, &*clip_of(call)?, Prompts::same(&text))?;
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}
