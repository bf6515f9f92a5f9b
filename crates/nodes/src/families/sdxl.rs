//! Stable Diffusion XL's own nodes.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome};
use models::conditioning::PictureSizes;
use runtime::Runtime;

use crate::class::class;
use crate::image::MAX_RESOLUTION;
use crate::text::{Prompts, clip_of, encode, prompt_input};
use crate::value::Conditioning;

const MODULE: &str = "comfy_extras.nodes_clip_sdxl";

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(CLIPTextEncodeSDXL(runtime()));
    catalogue.add(CLIPTextEncodeSDXLRefiner(runtime()));
}

fn side(name: &str, default: i64) -> Input {
    Input::int(name, default, 0, MAX_RESOLUTION)
}

/// Two inputs as height and width.
fn pair(call: &Call, height: &str, width: &str) -> Result<Option<[f32; 2]>, Failure> {
    Ok(Some([call.size(height)? as f32, call.size(width)? as f32]))
}

class! {
    /// A prompt for each text encoder, and the sizes that the model is told.
    CLIPTextEncodeSDXL in "advanced/conditioning";
    |schema| schema
        .input(Input::socket("clip", "CLIP"))
        .input(side("width", 1024))
        .input(side("height", 1024))
        .input(side("crop_w", 0))
        .input(side("crop_h", 0))
        .input(side("target_width", 1024))
        .input(side("target_height", 1024))
        .input(prompt_input("text_g"))
        .input(prompt_input("text_l"))
        .output("CONDITIONING")
        .module(MODULE);
    |runtime, call| {
        let prompts = Prompts {
            own: &[("clip_l", call.text("text_l")?)],
            others: call.text("text_g")?,
            is_even: true,
            ..Prompts::default()
        };
        let mut entry = encode(runtime, call, &*clip_of(call)?, prompts)?;
        entry.cond.sizes = PictureSizes {
            original: pair(call, "height", "width")?,
            cut: pair(call, "crop_h", "crop_w")?,
            target: pair(call, "target_height", "target_width")?,
            aesthetics: None,
        };
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

class! {
    /// A prompt, a size and how good the picture is to be.
    CLIPTextEncodeSDXLRefiner in "advanced/conditioning";
    |schema| schema
        .input(Input::float("ascore", 6.0, 0.0, 1000.0, 0.01))
        .input(side("width", 1024))
        .input(side("height", 1024))
        .input(prompt_input("text"))
        .input(Input::socket("clip", "CLIP"))
        .output("CONDITIONING")
        .module(MODULE);
    |runtime, call| {
        let mut entry = encode(runtime, call, &*clip_of(call)?, Prompts::same(call.text("text")?))?;
        entry.cond.sizes = PictureSizes {
            original: pair(call, "height", "width")?,
            aesthetics: Some(call.float("ascore")? as f32),
            ..PictureSizes::default()
        };
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}
