//! Nodes that change the steps of a model: stages of guidance, departures from its training, guessed steps.

mod formulas;
mod layers;
mod perpendicular;
mod positions;
mod reuse;
mod unet;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};
use runtime::{Guidance, Model};

use crate::Runtime;

pub(crate) use layers::{away_from_skipped, away_inputs, skipped_blocks};

/// Adds the classes of this folder.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    formulas::add(catalogue, runtime);
    layers::add(catalogue, runtime);
    positions::add(catalogue, runtime);
    perpendicular::add(catalogue, runtime);
    reuse::add(catalogue, runtime);
    unet::add(catalogue, runtime);
}

/// The model that a node is given, with other guidance.
fn changed(call: &Call, change: impl FnOnce(&mut Guidance)) -> Result<Outcome, Failure> {
    let mut model = Model::clone(&*call.object::<Model>("model")?);
    change(&mut model.guidance);
    Ok(Outcome::object(model))
}

/// A declaration that begins with a model.
fn of_model(schema: Schema) -> Schema {
    schema.input(Input::socket("model", "MODEL"))
}

/// The inputs that say in which part of a run something counts.
fn part_of_run(schema: Schema, [start, end]: [f64; 2], step: f64) -> Schema {
    schema.input(Input::float("start_percent", start, 0.0, 1.0, step)).input(Input::float(
        "end_percent",
        end,
        0.0,
        1.0,
        step,
    ))
}
