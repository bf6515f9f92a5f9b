//! FLUX.2's own nodes.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome, Schema};
use models::diffusion::Alteration;
use runtime::{Altered, Levels, Model, Runtime};
use sampling::nodes;

use crate::class::class;
use crate::latent::{EmptyLatent, sized};
use crate::sampling_nodes::give_sigmas;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(EmptyFlux2LatentImage(runtime()));
    catalogue.add(Flux2Scheduler(runtime()));
    catalogue.add(FluxKVCache(runtime()));
}

/// A class that clients mark as experimental.
fn experimental(mut schema: Schema) -> Schema {
    schema.is_experimental = true;
    schema
}

class! {
    EmptyFlux2LatentImage in "latent";
    |schema| sized(schema.title("Empty Flux 2 Latent"), [1024, 1024], [16, 16], None)
        .about("Makes empty latents for FLUX.2.");
    |runtime, call| EmptyLatent { channels: 128, pixels: 16, frames: None }.empty(runtime, call)
}

class! {
    /// The levels of FLUX.2 for a picture size.
    Flux2Scheduler in "sampling/custom_sampling/schedulers";
    |schema| schema
        .input(Input::int("steps", 20, 1, 4096))
        .input(Input::int("width", 1024, 16, 16384).with("step", 1))
        .input(Input::int("height", 1024, 16, 16384).with("step", 1))
        .output("SIGMAS")
        .module("comfy_extras.nodes_flux");
    |runtime, call| give_sigmas(nodes::size_dependent_flow(call.size("steps")?, call.size("width")?, call.size("height")?))
}

class! {
    /// Keys and values of pictures to look at, computed in the first step only.
    FluxKVCache in "";
    |schema| experimental(schema)
        .title("Flux KV Cache")
        .about("Computes keys and values of reference latents in the first step only, for models that were trained so, like \
                FLUX.2 klein 9B KV. Reference latents are read as at the end of time.")
        .input(Input::socket("model", "MODEL"))
        .output("MODEL")
        .module("comfy_extras.nodes_flux");
    |runtime, call| {
        let mut model = Model::clone(&*call.object::<Model>("model")?);
        let alteration = Alteration::KeepReferences;
        model.guidance.altered.push(Altered { alteration, levels: Levels::ALL });
        Ok(Outcome::object(model))
    }
}
