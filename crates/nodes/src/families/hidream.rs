//! HiDream's own nodes.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome};
use runtime::Runtime;

use crate::class::class;
use crate::text::{Prompts, clip_of, encode, prompt_input};
use crate::value::Conditioning;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CLIPTextEncodeHiDream(Arc::clone(runtime)));
}

class! {
    /// A prompt for each text encoder.
    CLIPTextEncodeHiDream in "advanced/conditioning";
    |schema| schema
        .input(Input::socket("clip", "CLIP"))
        .input(prompt_input("clip_l"))
        .input(prompt_input("clip_g"))
        .input(prompt_input("t5xxl"))
        .input(prompt_input("llama"))
        .output("CONDITIONING")
        .module("comfy_extras.nodes_hidream");
    |runtime, call| {
        let own = [
            ("clip_l", call.text("clip_l")?),
            ("t5xxl", call.text("t5xxl")?),
            ("llama", call.text("llama")?),
        ];
        let prompts = Prompts { own: &own, ..Prompts::same(call.text("clip_g")?) };
        let entry = encode(runtime, call, &*clip_of(call)?, prompts)?;
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}
