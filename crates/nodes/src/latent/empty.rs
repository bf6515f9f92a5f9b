//! Empty latents, to be filled by a sampler.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};
use sampling::Latent;

use crate::Runtime;
use crate::class::class;
use crate::image::pixels;
use crate::value::LatentImage;

/// Adds the class of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(EmptyLatentImage(Arc::clone(runtime)));
}

/// What an empty latent of a family looks like.
pub(crate) struct EmptyLatent {
    pub(crate) channels: usize,
    /// Pixels along one side of a value.
    pub(crate) pixels: usize,
    /// Frames for one latent frame after the first; none for still pictures.
    pub(crate) frames: Option<usize>,
}

impl EmptyLatent {
    pub(crate) fn empty(&self, runtime: &Runtime, call: &Call) -> Result<Outcome, Failure> {
        let batch = call.size("batch_size")?;
        let (height, width) = (call.size("height")? / self.pixels, call.size("width")? / self.pixels);
        let mut shape = vec![batch, self.channels];
        if let Some(frames) = self.frames {
            shape.push(call.size("length")?.saturating_sub(1) / frames + 1);
        }
        shape.extend([height, width]);
        let room = runtime.host.room(&shape)?;
        Ok(Outcome::object(LatentImage::new(room.latent(Latent::zeros(&shape)))))
    }
}

fn batch_size() -> Input {
    Input::int("batch_size", 1, 1, 4096).tooltip("How many are made at once.")
}

/// Width and height with a step and a least value, then frames if it is a video, then the batch.
pub(crate) fn sized(
    schema: Schema,
    [width, height]: [i64; 2],
    step: [i64; 2],
    length: Option<Input>,
) -> Schema {
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
    |runtime, call| EmptyLatent { channels: 4, pixels: 8, frames: None }.empty(runtime, call)
}
