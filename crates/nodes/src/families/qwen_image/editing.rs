//! Prompts about pictures that are to be edited, which the text encoder looks at.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome};
use models::text::ChatTemplate;
use runtime::{Runtime, Vae};

use crate::class::class;
use crate::image::{Method, Target, scale_image};
use crate::text::{Prompts, SeenPicture, clip_of, encode, look, prompt_input};
use crate::value::{Conditioning, Entry, Image};
use crate::{Result, vae};

/// ComfyUI's module of these classes.
const MODULE: &str = "comfy_extras.nodes_qwen";
/// Pixels that pictures have for the autoencoder, and for the tower where it gets its own.
const MEGAPIXEL: f64 = 1024.0 * 1024.0;
const TOWER_PIXELS: f64 = 384.0 * 384.0;
/// The side of a latent value, of which the sides of pictures for the autoencoder are multiples.
const VALUE: f64 = 8.0;
/// The conversation about several pictures, which the prompt itself shows.
const TEMPLATE: ChatTemplate = ChatTemplate {
    yields_to: &["<|im_start|>", "<|start_header_id|>"],
    ..ChatTemplate::new(
        "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, \
         background), then explain how the user's text instruction should alter or modify the image. Generate a new image \
         that meets the user's requirements while maintaining consistency with the original input where appropriate.\
         <|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    )
};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(TextEncodeQwenImageEdit(Arc::clone(runtime)));
    catalogue.add(TextEncodeQwenImageEditPlus(Arc::clone(runtime)));
}

class! {
    /// A prompt about a picture, which is to be edited.
    TextEncodeQwenImageEdit in "advanced/conditioning";
    |schema| schema
        .input(Input::socket("clip", "CLIP"))
        .input(prompt_input("prompt"))
        .input(Input::socket("vae", "VAE").optional())
        .input(Input::socket("image", "IMAGE").optional())
        .output("CONDITIONING")
        .module(MODULE);
    |runtime, call| {
        let clip = clip_of(call)?;
        let image = call.object_if_given::<Image>("image")?;
        let image = image.map(|image| scaled(&image, MEGAPIXEL, 1.0)).transpose()?;
        let seen = image.iter().map(|image| look(runtime, call, &clip, image)).collect::<Result<Vec<_>>>()?;
        let prompts = Prompts { pictures: &seen, ..Prompts::same(call.text("prompt")?) };
        let mut entry = encode(runtime, call, &clip, prompts)?;
        if let Some(image) = &image {
            refer(runtime, call, &mut entry, image)?;
        }
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

class! {
    /// A prompt about up to three pictures, which are to be edited or used.
    TextEncodeQwenImageEditPlus in "advanced/conditioning";
    |schema| schema
        .input(Input::socket("clip", "CLIP"))
        .input(prompt_input("prompt"))
        .input(Input::socket("vae", "VAE").optional())
        .input(Input::socket("image1", "IMAGE").optional())
        .input(Input::socket("image2", "IMAGE").optional())
        .input(Input::socket("image3", "IMAGE").optional())
        .output("CONDITIONING")
        .module(MODULE);
    |runtime, call| {
        let clip = clip_of(call)?;
        let (mut shown, mut images) = (String::new(), Vec::new());
        for (number, input) in ["image1", "image2", "image3"].into_iter().enumerate() {
            if let Some(image) = call.object_if_given::<Image>(input)? {
                shown += &format!("Picture {}: <|vision_start|><|image_pad|><|vision_end|>", number + 1);
                images.push(image);
            }
        }
        let seen = images
            .iter()
            .map(|image| look(runtime, call, &clip, &scaled(image, TOWER_PIXELS, 1.0)?))
            .collect::<Result<Vec<SeenPicture>>>()?;
        let text = shown + call.text("prompt")?;
        let prompts = Prompts { pictures: &seen, template: Some(&TEMPLATE), ..Prompts::same(&text) };
        let mut entry = encode(runtime, call, &clip, prompts)?;
        for image in &images {
            refer(runtime, call, &mut entry, &scaled(image, MEGAPIXEL, VALUE)?)?;
        }
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

/// A picture of about so many pixels, with sides that are multiples of a number.
fn scaled(image: &Image, pixels: f64, multiple: f64) -> Result<Image> {
    let (width, height) = (image.width as f64, image.height as f64);
    let factor = (pixels / (width * height)).sqrt();
    let side = |side: f64| ((side * factor / multiple).round_ties_even() * multiple).max(1.0) as usize;
    scale_image(image, Target::new(side(width), side(height)), Method::Area)
}

/// Adds a picture's latent to what the model looks at, if there is an autoencoder for it.
fn refer(runtime: &Runtime, call: &Call, entry: &mut Entry, image: &Image) -> Result<(), Failure> {
    if let Some(autoencoder) = call.object_if_given::<Vae>("vae")? {
        let latent = vae::encode(runtime, call, &autoencoder, &image.with_channels(3)?)?;
        entry.cond.reference_latents.push(latent.shared());
        entry.held.push(latent);
    }
    Ok(())
}
