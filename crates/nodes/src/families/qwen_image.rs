//! Qwen-Image's own nodes.

mod editing;

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome};
use runtime::Runtime;
use sampling::Latent;

use crate::class::class;
use crate::image::{MAX_RESOLUTION, pixels};
use crate::model_patches::{patch_inputs, patched, strength_input};
use crate::value::LatentImage;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(EmptyQwenImageLayeredLatentImage(Arc::clone(runtime)));
    catalogue.add(QwenImageDiffsynthControlnet(Arc::clone(runtime)));
    editing::add(catalogue, runtime);
}

/// Channels of a latent, and pixels along one side of its values.
const CHANNELS: usize = 16;
const PIXELS: usize = 8;

class! {
    EmptyQwenImageLayeredLatentImage in "latent/qwen";
    |schema| schema
        .title("Empty Qwen Image Layered Latent")
        .about("Makes empty latents for a picture and its layers.")
        .input(pixels("width", 640, 16, 16))
        .input(pixels("height", 640, 16, 16))
        .input(Input::int("layers", 3, 0, MAX_RESOLUTION).with("step", 1))
        .input(Input::int("batch_size", 1, 1, 4096))
        .output("LATENT")
        .module("comfy_extras.nodes_qwen");
    |runtime, call| {
        // The picture itself comes before its layers.
        let frames = call.size("layers")? + 1;
        let (height, width) = (call.size("height")? / PIXELS, call.size("width")? / PIXELS);
        let shape = [call.size("batch_size")?, CHANNELS, frames, height, width];
        let room = runtime.host.room(&shape)?;
        Ok(Outcome::object(LatentImage::new(room.latent(Latent::zeros(&shape)))))
    }
}

class! {
    /// A model that follows a picture by a patch.
    QwenImageDiffsynthControlnet in "advanced/loaders/qwen";
    |schema| patch_inputs(schema)
        .about("Makes a model follow a picture by a patch of it.")
        .input(Input::socket("image", "IMAGE"))
        .input(strength_input())
        .input(Input::socket("mask", "MASK").optional());
    |runtime, call| patched(call)
}
