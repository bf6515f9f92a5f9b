//! Where the tokens of a model stand: scaled and shifted.

use std::sync::Arc;

use graph::{Catalogue, Input};
use models::diffusion::{Alteration, Amount, Placed};
use runtime::{Altered, Levels};

use super::{changed, of_model};
use crate::Runtime;
use crate::class::class;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(ScaleROPE(Arc::clone(runtime)));
}

/// The axes of positions as the inputs call them, in the order in which models have them.
const AXES: [&str; 3] = ["t", "y", "x"];

class! {
    /// Positions along the columns, the rows and the frames of a video, multiplied and moved.
    ScaleROPE in "advanced/model_patches";
    |schema| {
        let both = |schema: graph::Schema, axis: &str| {
            schema
                .input(Input::float(&format!("scale_{axis}"), 1.0, 0.0, 100.0, 0.1))
                .input(Input::float(&format!("shift_{axis}"), 0.0, -256.0, 256.0, 0.1))
        };
        AXES.iter()
            .rev()
            .fold(of_model(schema), |schema, axis| both(schema, axis))
            .output("MODEL")
            .module("comfy_extras.nodes_rope")
    };
    |runtime, call| {
        let number = |name: &str, axis: &str| call.float(&format!("{name}_{axis}"));
        let mut placed = Placed::COUNTED;
        for (at, axis) in AXES.iter().enumerate() {
            placed.scale[at] = Amount(number("scale", axis)? as f32);
            placed.shift[at] = Amount(number("shift", axis)? as f32);
        }
        let alteration = Alteration::Placed(placed);
        changed(call, |guidance| guidance.altered.push(Altered { alteration, levels: Levels::ALL }))
    }
}
