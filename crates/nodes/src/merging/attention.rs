//! Attention made stronger or weaker: its layers times numbers.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};
use runtime::{Clip, Model, ScaleRule, WeightPatch};

use crate::Runtime;
use crate::class::class;

/// What the name of a layer has that attends over frames.
const OVER_FRAMES: &str = ".time_stack.";

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(UNetSelfAttentionMultiply(runtime()));
    catalogue.add(UNetCrossAttentionMultiply(runtime()));
    catalogue.add(CLIPAttentionMultiply(runtime()));
    catalogue.add(UNetTemporalAttentionMultiply(runtime()));
}

/// An experimental class with some factors.
fn factors(schema: Schema, of: Input, output: &str, names: &[&str]) -> Schema {
    let schema = Schema { is_experimental: true, ..schema.input(of) };
    let factor = |schema: Schema, name: &&str| schema.input(Input::float(name, 1.0, 0.0, 10.0, 0.01));
    names.iter().fold(schema, factor).output(output).module("comfy_extras.nodes_attention_multiply")
}

const LAYERS: [&str; 4] = ["q", "k", "v", "out"];

/// The factors of four layers.
fn rules(call: &Call, layers: [&'static str; 4]) -> Result<WeightPatch, Failure> {
    let rule =
        |(input, layer): (&str, &'static str)| Ok(ScaleRule { layer, part: None, by: call.float(input)? });
    let rules = LAYERS.into_iter().zip(layers).map(rule).collect::<Result<Vec<_>, Failure>>()?;
    Ok(WeightPatch::Scale(Arc::new(rules)))
}

/// The model that a node is given, patched.
fn patched(call: &Call, patch: WeightPatch) -> Result<Outcome, Failure> {
    let mut model = Model::clone(&*call.object::<Model>("model")?);
    model.loras.push(patch);
    Ok(Outcome::object(model))
}

class! {
    /// The layers of self-attention times numbers.
    UNetSelfAttentionMultiply in "_for_testing/attention_experiments";
    |schema| factors(schema, Input::socket("model", "MODEL"), "MODEL", &LAYERS);
    |runtime, call| patched(call, rules(call, ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0"])?)
}

class! {
    /// The layers of attention to the text times numbers.
    UNetCrossAttentionMultiply in "_for_testing/attention_experiments";
    |schema| factors(schema, Input::socket("model", "MODEL"), "MODEL", &LAYERS);
    |runtime, call| patched(call, rules(call, ["attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0"])?)
}

class! {
    /// The layers of a text encoder's attention times numbers.
    CLIPAttentionMultiply in "_for_testing/attention_experiments";
    |schema| factors(schema, Input::socket("clip", "CLIP"), "CLIP", &LAYERS);
    |runtime, call| {
        let layers = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"];
        let mut clip = Clip::clone(&*call.object::<Clip>("clip")?);
        clip.loras.push(rules(call, layers)?);
        Ok(Outcome::object(clip))
    }
}

class! {
    /// The results of attention within and over frames times numbers.
    UNetTemporalAttentionMultiply in "_for_testing/attention_experiments";
    |schema| {
        let names = ["self_structural", "self_temporal", "cross_structural", "cross_temporal"];
        factors(schema, Input::socket("model", "MODEL"), "MODEL", &names)
    };
    |runtime, call| {
        let rule = |layer, over_frames, input: &str| {
            Ok(ScaleRule { layer, part: Some((OVER_FRAMES, over_frames)), by: call.float(input)? })
        };
        let rules = [
            rule("attn1.to_out.0", false, "self_structural"),
            rule("attn1.to_out.0", true, "self_temporal"),
            rule("attn2.to_out.0", false, "cross_structural"),
            rule("attn2.to_out.0", true, "cross_temporal"),
        ];
        let rules = rules.into_iter().collect::<Result<Vec<_>, Failure>>()?;
        patched(call, WeightPatch::Scale(Arc::new(rules)))
    }
}
