//! Stable Diffusion 3's own nodes.

use std::sync::Arc;

use graph::{Catalogue, Input};
use runtime::{Model, Runtime};
use sampling::ModelSampling;

use crate::class::class;
use crate::latent::{EmptyLatent, sized};
use crate::sampling_nodes::{MODEL_MODULE, with_sampling};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(EmptySD3LatentImage(runtime()));
    catalogue.add(ModelSamplingSD3(runtime()));
}

class! {
    EmptySD3LatentImage in "latent/sd3";
    |schema| sized(schema, [1024, 1024], [16, 16], None).about("Makes empty latents of sixteen channels.");
    |runtime, call| EmptyLatent { channels: 16, pixels: 8, frames: None }.empty(runtime, call)
}

class! {
    /// A shifted flow whose times count to a thousand.
    ModelSamplingSD3 in "advanced/model";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::float("shift", 3.0, 0.0, 100.0, 0.01))
        .output("MODEL")
        .module(MODEL_MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        Ok(with_sampling(&model, ModelSampling::flow(call.float("shift")?, 1000.0)))
    }
}
