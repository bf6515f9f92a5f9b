//! Empty latents, to be filled by a sampler.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};
use sampling::Latent;

use crate::Studio;
use crate::image::pixels;
use crate::studio::class;
use crate::value::LatentImage;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, studio: &Arc<Studio>) {
    catalogue.add(EmptyLatentImage(Arc::clone(studio)));
    catalogue.add(EmptySD3LatentImage(Arc::clone(studio)));
    catalogue.add(EmptyFlux2LatentImage(Arc::clone(studio)));
    catalogue.add(EmptyHunyuanLatentVideo(Arc::clone(studio)));
    catalogue.add(EmptyLTXVLatentVideo(Arc::clone(studio)));
    catalogue.add(EmptyMochiLatentVideo(Arc::clone(studio)));
}

/// What an empty latent of a family looks like.
struct Family {
    channels: usize,
    /// Pixels along one side of a value.
    pixels: usize,
    /// Frames for one latent frame after the first; none for still pictures.
    frames: Option<usize>,
}

impl Family {
    fn empty(&self, studio: &Studio, call: &Call) -> Result<Outcome, Failure> {
        let batch = call.size("batch_size")?;
        let (height, width) = (call.size("height")? / self.pixels, call.size("width")? / self.pixels);
        let mut shape = vec![batch, self.channels];
        if let Some(frames) = self.frames {
            shape.push(call.size("length")?.saturating_sub(1) / frames + 1);
        }
        shape.extend([height, width]);
        let room = studio.host.room(&shape)?;
        let mut latent = LatentImage::new(room.latent(Latent::zeros(&shape)));
        latent.pixels_per_value = (self.pixels != 8).then_some(self.pixels);
        Ok(Outcome::object(latent))
    }
}

fn batch_size() -> Input {
    Input::int("batch_size", 1, 1, 4096).tooltip("How many are made at once.")
}

/// Width and height with a step and a least value, then frames if it is a video, then the batch.
fn sized(schema: Schema, [width, height]: [i64; 2], step: [i64; 2], length: Option<Input>) -> Schema {
    let [step, min] = step;
    let mut schema =
        schema.input(pixels("width", width, min, step)).input(pixels("height", height, min, step));
    if let Some(length) = length {
        schema = schema.input(length);
    }
    schema.input(batch_size()).output("LATENT")
}

class! {
    EmptyLatentImage in "latent";
    |schema| sized(schema.title("Empty Latent Image"), [512, 512], [8, 16], None)
        .about("Makes empty latents of four channels.");
    |studio, call| Family { channels: 4, pixels: 8, frames: None }.empty(studio, call)
}

class! {
    EmptySD3LatentImage in "latent/sd3";
    |schema| sized(schema, [1024, 1024], [16, 16], None).about("Makes empty latents of sixteen channels.");
    |studio, call| Family { channels: 16, pixels: 8, frames: None }.empty(studio, call)
}

class! {
    EmptyFlux2LatentImage in "latent";
    |schema| sized(schema.title("Empty Flux 2 Latent"), [1024, 1024], [16, 16], None)
        .about("Makes empty latents for FLUX.2.");
    |studio, call| Family { channels: 128, pixels: 16, frames: None }.empty(studio, call)
}

class! {
    EmptyHunyuanLatentVideo in "latent/video";
    |schema| sized(
        schema.title("Empty HunyuanVideo 1.0 Latent"),
        [848, 480],
        [16, 16],
        Some(pixels("length", 25, 1, 4)),
    )
    .about("Makes empty latent videos for HunyuanVideo, Wan and others.");
    |studio, call| Family { channels: 16, pixels: 8, frames: Some(4) }.empty(studio, call)
}

class! {
    EmptyLTXVLatentVideo in "latent/video/ltxv";
    |schema| sized(schema, [768, 512], [32, 64], Some(pixels("length", 97, 1, 8)))
        .about("Makes empty latent videos for LTX-Video.");
    |studio, call| Family { channels: 128, pixels: 32, frames: Some(8) }.empty(studio, call)
}

class! {
    EmptyMochiLatentVideo in "latent/video";
    |schema| sized(schema, [848, 480], [16, 16], Some(pixels("length", 25, 7, 6)))
        .about("Makes empty latent videos for Mochi.");
    |studio, call| Family { channels: 12, pixels: 8, frames: Some(6) }.empty(studio, call)
}
