//! Qwen-Image 2.1's own nodes.

use std::sync::Arc;

use graph::{Autogrow, Call, Catalogue, Failure, GrowingNames, Input, Kind, Outcome, Value};
use models::diffusion::Alteration;
use runtime::{Altered, Levels, Model, Runtime, Vae};
use sampling::Latent;

use crate::class::class;
use crate::image::{Method, Target, scale_image};
use crate::text::{Prompts, clip_of, encode, look, prompt_input};
use crate::value::{Conditioning, Image, LatentImage};
use crate::{Result, vae};

/// ComfyUI's module of these classes.
const MODULE: &str = "comfy_extras.nodes_qwen";
/// Channels of a latent, and pixels along one side of its values.
const CHANNELS: usize = 64;
const PIXELS: usize = 16;
/// Pixels along the side of what the text encoder sees as one: sides of pictures are multiples of it.
const CELL: usize = 32;
/// The side of the picture that is made if nothing says otherwise.
const USUAL_SIDE: usize = 1024;
/// The most pictures of a prompt.
const MOST_PICTURES: usize = 16;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(TextEncodeQwenImage21(Arc::clone(runtime)));
    catalogue.add(QwenImage21Cache(Arc::clone(runtime)));
}

class! {
    /// Prompts, with pictures to look at or to edit.
    TextEncodeQwenImage21 in "advanced/conditioning";
    |schema| schema
        .about("Encodes a prompt and a negative one about any number of pictures. With an autoencoder the model looks at the \
                pictures themselves, without one at what the text encoder sees in them.")
        .input(Input::socket("clip", "CLIP"))
        .input(prompt_input("prompt"))
        .input(prompt_input("negative_prompt"))
        .input(Input::socket("vae", "VAE").optional())
        .input(Input::int("resolution", USUAL_SIDE as i64, 0, 4096).with("step", CELL as i64))
        .input(Input::new("images", Kind::Autogrow(Box::new(Autogrow {
            input: Input::socket("image", "IMAGE"),
            names: GrowingNames::Listed((1..=MOST_PICTURES).map(|number| format!("image_{number}")).collect()),
            min: 0,
        }))))
        .named_output("CONDITIONING", "positive")
        .named_output("CONDITIONING", "negative")
        .named_output("LATENT", "latent")
        .module(MODULE);
    |runtime, call| {
        let resolution = call.size("resolution")?;
        let mut images = Vec::new();
        for number in 1..=MOST_PICTURES {
            if let Some(image) = call.object_if_given::<Image>(&format!("images.image_{number}"))? {
                images.push(fitted(&image.frames([0])?, resolution)?);
            }
        }
        let [positive, negative] =
            encoded(runtime, call, &images, [call.text("prompt")?, call.text("negative_prompt")?])?;
        let usual = if resolution == 0 { USUAL_SIDE } else { resolution };
        let (height, width) = images.first().map_or((usual, usual), |image| (image.height, image.width));
        let shape = [1, CHANNELS, height / PIXELS, width / PIXELS];
        let latent = LatentImage::new(runtime.host.room(&shape)?.latent(Latent::zeros(&shape)));
        Ok(Outcome::values([Value::object(positive), Value::object(negative), Value::object(latent)]))
    }
}

class! {
    /// Keys and values of the text and of the pictures to look at, computed in the first step only.
    QwenImage21Cache in "advanced/model";
    |schema| schema
        .about("Computes keys and values of the text and of pictures in the first step only: no later step changes them. They \
                stay where the model computes, in its own precision, whatever device and type are named; with device off every \
                step computes them.")
        .input(Input::socket("model", "MODEL"))
        .input(Input::choice("device", ["auto", "gpu", "cpu", "off"]))
        .input(Input::choice("dtype", ["default", "int8", "int4"]))
        .output("MODEL")
        .module(MODULE);
    |runtime, call| {
        let mut model = Model::clone(&*call.object::<Model>("model")?);
        if call.text("device")? != "off" {
            let alteration = Alteration::KeepReferences;
            model.guidance.altered.push(Altered { alteration, levels: Levels::ALL });
        }
        Ok(Outcome::object(model))
    }
}

/// A picture in the size in which it is looked at: as many pixels as a square of this side, or its own.
fn fitted(image: &Image, side: usize) -> Result<Image> {
    let (width, height) = (image.width as f64, image.height as f64);
    let target = match side {
        0 => [width, height],
        side => {
            let (side, ratio) = (side as f64, width / height.max(1.0));
            [(side * side * ratio).sqrt(), (side * side / ratio).sqrt()]
        }
    };
    let cell = CELL as f64;
    let [width, height] = target.map(|side| ((side / cell).round_ties_even() * cell).max(cell) as usize);
    scale_image(image, Target::new(width, height), Method::Lanczos)
}

/// A picture on white paper.
fn on_white(image: &Image) -> Result<Image> {
    if image.channels != 4 {
        return image.with_channels(3);
    }
    let pixel = |pixel: &[f32]| [0, 1, 2].map(|colour| pixel[colour] * pixel[3] + (1.0 - pixel[3]));
    let shape = [image.batch, image.height, image.width, 3];
    Image::collect(image.host(), shape, image.values.chunks_exact(4).flat_map(pixel))
}

/// Prompts about pictures, as conditionings.
fn encoded(
    runtime: &Runtime,
    call: &Call,
    images: &[Image],
    prompts: [&str; 2],
) -> Result<[Conditioning; 2], Failure> {
    let clip = clip_of(call)?;
    let autoencoder = call.object_if_given::<Vae>("vae")?;
    let seen = images
        .iter()
        .map(|image| look(runtime, call, &clip, &on_white(image)?))
        .collect::<Result<Vec<_>>>()?;
    let latents = match &autoencoder {
        Some(autoencoder) => images
            .iter()
            .map(|image| vae::encode(runtime, call, autoencoder, image))
            .collect::<Result<Vec<_>>>()?,
        None => Vec::new(),
    };
    let shown: Vec<String> = (1..=images.len())
        .map(|number| format!("<image{number}><|vision_start|><|image_pad|><|vision_end|>"))
        .collect();
    let one = |prompt: &str| -> Result<Conditioning, Failure> {
        let text = format!("{}{}", shown.join(" "), if prompt.is_empty() { " " } else { prompt });
        let leaves_out_pictures = autoencoder.is_some();
        let prompts = Prompts { pictures: &seen, leaves_out_pictures, ..Prompts::same(&text) };
        let mut entry = encode(runtime, call, &clip, prompts)?;
        for latent in &latents {
            entry.cond.reference_latents.push(latent.shared());
            entry.held.push(latent.clone());
        }
        Ok(Conditioning { entries: vec![entry] })
    };
    Ok([one(prompts[0])?, one(prompts[1])?])
}
