//! Stable Diffusion 2's own nodes.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome};
use models::conditioning::SeenPicture;
use runtime::Runtime;

use crate::class::class;
use crate::conditioning::changed;
use crate::value::ClipVisionOutput;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(unCLIPConditioning(Arc::clone(runtime)));
}

class! {
    /// What a vision tower saw in pictures that the result is to be like.
    unCLIPConditioning in "conditioning";
    |schema| schema
        .input(Input::socket("conditioning", "CONDITIONING"))
        .input(Input::socket("clip_vision_output", "CLIP_VISION_OUTPUT"))
        .input(Input::float("strength", 1.0, -10.0, 10.0, 0.01))
        .input(Input::float("noise_augmentation", 0.0, 0.0, 1.0, 0.01))
        .output("CONDITIONING");
    |runtime, call| {
        let strength = call.float("strength")? as f32;
        let seen = SeenPicture {
            embeds: Arc::new(call.object::<ClipVisionOutput>("clip_vision_output")?.embeds.array()),
            strength,
            noise_augmentation: call.float("noise_augmentation")?,
        };
        let told = changed(call, "conditioning", |entry| {
            if strength != 0.0 {
                entry.cond.seen_pictures.push(seen.clone());
            }
        })?;
        Ok(Outcome::object(told))
    }
}
