//! Chroma Radiance's own nodes: empty pictures, and how many patches are painted at once.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome};
use models::diffusion::Alteration;
use runtime::{Altered, Levels, Model, Runtime};

use crate::class::class;
use crate::image::MAX_RESOLUTION;
use crate::latent::{EmptyLatent, sized};

/// Where ComfyUI has these classes.
const MODULE: &str = "comfy_extras.nodes_chroma_radiance";

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(EmptyChromaRadianceLatentImage(Arc::clone(runtime)));
    catalogue.add(ChromaRadianceOptions(Arc::clone(runtime)));
}

class! {
    /// Empty pictures, for a model without an autoencoder.
    EmptyChromaRadianceLatentImage in "latent/chroma_radiance";
    |schema| sized(schema, [1024, 1024], [16, 16], None).module(MODULE);
    |runtime, call| EmptyLatent { channels: 3, pixels: 1, frames: None }.empty(runtime, call)
}

class! {
    /// How many patches a model paints at once: fewer take less memory, and the picture is the same.
    ChromaRadianceOptions in "model_patches/chroma_radiance";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::boolean("preserve_wrapper", true))
        .input(Input::float("start_sigma", 1.0, 0.0, 1.0, 0.01))
        .input(Input::float("end_sigma", 0.0, 0.0, 1.0, 0.01))
        .input(Input::int("nerf_tile_size", -1, -1, MAX_RESOLUTION))
        .output("MODEL")
        .module(MODULE);
    |runtime, call| {
        let mut model = Model::clone(&*call.object::<Model>("model")?);
        if let Ok(count) = usize::try_from(call.int("nerf_tile_size")?) {
            let levels = Levels { from: call.float("start_sigma")?, to: call.float("end_sigma")? };
            model.guidance.altered.push(Altered { alteration: Alteration::PatchesAtOnce(count), levels });
        }
        Ok(Outcome::object(model))
    }
}
