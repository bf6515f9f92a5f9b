//! Prompts about the picture that a video begins with, which the text encoder looks at.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome};
use models::text::ChatTemplate;
use runtime::Runtime;

use crate::class::class;
use crate::text::{Prompts, SeenPicture, clip_of, encode, prompt_input};
use crate::value::{Array, ClipVisionOutput, Conditioning};

/// Adds the class of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(TextEncodeHunyuanVideo_ImageToVideo(Arc::clone(runtime)));
}

/// The conversation about the picture that a video begins with.
const VIDEO_TEMPLATE: ChatTemplate = ChatTemplate::new(
    "<|start_header_id|>system<|end_header_id|>\n\n<image>\nDescribe the video by detailing the following aspects \
     according to the reference image: 1. The main content and theme of the video.2. The color, shape, size, texture, \
     quantity, text, and spatial relationships of the objects.3. Actions, events, behaviors temporal relationships, \
     physical movement changes of the objects.4. background environment, light, style and atmosphere.5. camera angles, \
     movements, and transitions used in the video:<|eot_id|>\n\n<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>\
     <|start_header_id|>assistant<|end_header_id|>\n\n",
);

class! {
    /// A prompt about the picture that a video begins with, of whose parts some go to the video model.
    TextEncodeHunyuanVideo_ImageToVideo in "advanced/conditioning";
    |schema| schema
        .input(Input::socket("clip", "CLIP"))
        .input(Input::socket("clip_vision_output", "CLIP_VISION_OUTPUT"))
        .input(prompt_input("prompt"))
        .input(Input::int("image_interleave", 2, 1, 512))
        .output("CONDITIONING")
        .module(super::MODULE);
    |runtime, call| {
        let seen = call.object::<ClipVisionOutput>("clip_vision_output")?;
        let projected = seen.projected.as_ref().ok_or_else(|| Failure::value(
            "clip_vision_output has no tokens for a language model: load the vision tower of LLaVA, \
             llava_llama3_vision.safetensors, with CLIPVisionLoader",
        ))?;
        let [pictures, parts, width] = <[usize; 3]>::try_from(projected.shape.as_slice())
            .map_err(|_| Failure::value(format!("what the vision tower saw has the shape {:?}", projected.shape)))?;
        let picture = |i: usize| SeenPicture {
            values: Array {
                shape: vec![parts, width],
                values: projected.values[i * parts * width..(i + 1) * parts * width].to_vec(),
            },
            deep: Vec::new(),
            grid: None,
        };
        let pictures: Vec<SeenPicture> = (0..pictures).map(picture).collect();
        let prompts = Prompts {
            pictures: &pictures,
            picture_step: call.size("image_interleave")?,
            template: Some(&VIDEO_TEMPLATE),
            ..Prompts::same(call.text("prompt")?)
        };
        let entry = encode(runtime, call, &*clip_of(call)?, prompts)?;
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}
