//! Departures of a UNet from its training, for every evaluation: FreeU, and blocks at a smaller size.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};
use models::diffusion::{Alteration, Amount, FreeU, Shrink};
use runtime::{Altered, Levels};
use tensor::ResizeMode;

use super::layers::levels;
use super::{changed, of_model, part_of_run};
use crate::Runtime;
use crate::class::class;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(FreeUNode(Arc::clone(runtime)));
    catalogue.add(FreeU_V2(Arc::clone(runtime)));
    catalogue.add(PatchModelAddDownscale(Arc::clone(runtime)));
}

/// The numbers of FreeU.
fn free_inputs(schema: Schema, backbone: [f64; 2]) -> Schema {
    let number = |name: &str, default: f64| Input::float(name, default, 0.0, 10.0, 0.01);
    of_model(schema)
        .input(number("b1", backbone[0]))
        .input(number("b2", backbone[1]))
        .input(number("s1", 0.9))
        .input(number("s2", 0.2))
        .output("MODEL")
        .module("comfy_extras.nodes_freelunch")
}

/// The model that a node is given, with a departure of every evaluation between some levels.
fn altered(call: &Call, alteration: Alteration, levels: Levels) -> Result<Outcome, Failure> {
    changed(call, |guidance| guidance.altered.push(Altered { alteration, levels }))
}

fn free(call: &Call, by_mean: bool) -> Result<Outcome, Failure> {
    let amount = |name: &str| Ok::<_, Failure>(Amount(call.float(name)? as f32));
    let free =
        FreeU { backbone: [amount("b1")?, amount("b2")?], skip: [amount("s1")?, amount("s2")?], by_mean };
    altered(call, Alteration::FreeU(free), Levels::ALL)
}

class! {
    /// What comes from below made stronger, and the slow part of what skips the middle weaker.
    FreeUNode called "FreeU" in "model_patches/unet";
    |schema| free_inputs(schema, [1.1, 1.2]);
    |runtime, call| free(call, false)
}

class! {
    /// The same, stronger where the activations are large.
    FreeU_V2 in "model_patches/unet";
    |schema| free_inputs(schema, [1.3, 1.4]);
    |runtime, call| free(call, true)
}

const METHODS: [&str; 5] = ["bicubic", "nearest-exact", "bilinear", "area", "bislerp"];

/// How activations change their size.
fn method(call: &Call, input: &str) -> Result<ResizeMode, Failure> {
    Ok(match call.text(input)? {
        "bicubic" => ResizeMode::Bicubic,
        "nearest-exact" => ResizeMode::NearestExact,
        "bilinear" => ResizeMode::Bilinear,
        "area" => ResizeMode::Area,
        other => {
            return Err(Failure::value(format!(
                "{input}: {other} cannot change the size of what is inside of a model; choose bicubic, nearest-exact, \
                 bilinear or area"
            )));
        }
    })
}

class! {
    /// Blocks from one on compute at a smaller size, early in a run.
    PatchModelAddDownscale in "model_patches/unet";
    |schema| {
        let schema = of_model(schema)
            .input(Input::int("block_number", 3, 1, 32))
            .input(Input::float("downscale_factor", 2.0, 0.1, 9.0, 0.001));
        part_of_run(schema, [0.0, 0.35], 0.001)
            .input(Input::boolean("downscale_after_skip", true))
            .input(Input::choice("downscale_method", METHODS))
            .input(Input::choice("upscale_method", METHODS))
            .title("PatchModelAddDownscale (Kohya Deep Shrink)")
            .output("MODEL")
            .module("comfy_extras.nodes_model_downscale")
    };
    |runtime, call| {
        let shrink = Shrink {
            block: call.size("block_number")?,
            factor: Amount(call.float("downscale_factor")? as f32),
            after_skip: call.boolean("downscale_after_skip")?,
            down: method(call, "downscale_method")?,
            up: method(call, "upscale_method")?,
        };
        altered(call, Alteration::Shrink(shrink), levels(call)?)
    }
}
