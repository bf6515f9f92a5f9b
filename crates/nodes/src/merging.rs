//! Models and text encoders merged: the weights of one come into those of another while they are staged, from their own
//! file, so that there is no second model in memory.

mod attention;
mod blocks;
mod saving;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};
use runtime::{Clip, Model, Share, Shares, WeightPatch};

use crate::Runtime;
use crate::class::class;

const MODULE: &str = "comfy_extras.nodes_model_merging";

/// Adds the classes of this folder.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime_of = || Arc::clone(runtime);
    catalogue.add(ModelMergeSimple(runtime_of()));
    catalogue.add(ModelMergeSubtract(runtime_of()));
    catalogue.add(ModelMergeAdd(runtime_of()));
    catalogue.add(CLIPMergeSimple(runtime_of()));
    catalogue.add(CLIPMergeSubtract(runtime_of()));
    catalogue.add(CLIPMergeAdd(runtime_of()));
    blocks::add(catalogue);
    attention::add(catalogue, runtime);
    saving::add(catalogue, runtime);
}

/// The first of two models with the second merged into it.
fn merged_models(call: &Call, shares: Shares) -> Result<Outcome, Failure> {
    let (first, second) = (call.object::<Model>("model1")?, call.object::<Model>("model2")?);
    let mut model = Model::clone(&first);
    model.loras.push(WeightPatch::merge(&[Arc::clone(&second.source)], &second.loras, shares));
    Ok(Outcome::object(model))
}

/// The first of two sets of text encoders with the second merged into it.
fn merged_encoders(call: &Call, share: Share) -> Result<Outcome, Failure> {
    let (first, second) = (call.object::<Clip>("clip1")?, call.object::<Clip>("clip2")?);
    let mut clip = Clip::clone(&first);
    clip.loras.push(WeightPatch::merge(&second.encoders, &second.loras, Shares::of_all(share)));
    Ok(Outcome::object(clip))
}

/// Two of a kind that are merged.
fn two(schema: Schema, kind: &str) -> Schema {
    let name = kind.to_lowercase();
    schema
        .input(Input::socket(&format!("{name}1"), kind))
        .input(Input::socket(&format!("{name}2"), kind))
        .output(kind)
        .module(MODULE)
}

/// A share of the first of two.
fn ratio_input(name: &str) -> Input {
    Input::float(name, 1.0, 0.0, 1.0, 0.01)
}

fn multiplier_input() -> Input {
    Input::float("multiplier", 1.0, -10.0, 10.0, 0.01)
}

/// The second taken away from the first, and the rest multiplied.
fn difference(multiplier: f64) -> Share {
    Share { keeps: multiplier, adds: -multiplier }
}

/// Both in full.
const SUM: Share = Share { keeps: 1.0, adds: 1.0 };

class! {
    /// Between two models.
    ModelMergeSimple in "advanced/model_merging";
    |schema| two(schema, "MODEL").input(ratio_input("ratio"));
    |runtime, call| merged_models(call, Shares::of_all(Share::between(call.float("ratio")?)))
}

class! {
    /// What the first model has and the second has not.
    ModelMergeSubtract in "advanced/model_merging";
    |schema| two(schema, "MODEL").input(multiplier_input());
    |runtime, call| merged_models(call, Shares::of_all(difference(call.float("multiplier")?)))
}

class! {
    /// Both models, added.
    ModelMergeAdd in "advanced/model_merging";
    |schema| two(schema, "MODEL");
    |runtime, call| merged_models(call, Shares::of_all(SUM))
}

class! {
    /// Between two sets of text encoders.
    CLIPMergeSimple in "advanced/model_merging";
    |schema| two(schema, "CLIP").input(ratio_input("ratio"));
    |runtime, call| merged_encoders(call, Share::between(call.float("ratio")?))
}

class! {
    /// What the first set of text encoders has and the second has not.
    CLIPMergeSubtract in "advanced/model_merging";
    |schema| two(schema, "CLIP").input(multiplier_input());
    |runtime, call| merged_encoders(call, difference(call.float("multiplier")?))
}

class! {
    /// Both sets of text encoders, added.
    CLIPMergeAdd in "advanced/model_merging";
    |schema| two(schema, "CLIP");
    |runtime, call| merged_encoders(call, SUM)
}
