//! Steps that are guessed from those before: EasyCache and LazyCache.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Schema};
use runtime::Reusing;
use sampling::ReuseRule;

use super::{changed, of_model, part_of_run};
use crate::Runtime;
use crate::class::class;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(EasyCache(Arc::clone(runtime)));
    catalogue.add(LazyCache(Arc::clone(runtime)));
}

/// When a step is guessed.
fn rule_inputs(schema: Schema) -> Schema {
    let schema = of_model(schema).input(Input::float("reuse_threshold", 0.2, 0.0, 3.0, 0.01));
    Schema { is_experimental: true, ..part_of_run(schema, [0.15, 0.95], 0.01) }
        .input(Input::boolean("verbose", false))
        .output("MODEL")
        .module("comfy_extras.nodes_easycache")
}

fn rule(call: &Call) -> Result<ReuseRule, Failure> {
    Ok(ReuseRule {
        threshold: call.float("reuse_threshold")?,
        start_percent: call.float("start_percent")?,
        end_percent: call.float("end_percent")?,
    })
}

class! {
    /// Evaluations whose input has hardly changed are guessed.
    EasyCache in "advanced/debug/model";
    |schema| rule_inputs(schema)
        .title("EasyCache")
        .about("Guesses what the model gives where its input has hardly changed, and leaves its weights where they are.");
    |runtime, call| {
        let rule = rule(call)?;
        changed(call, |guidance| guidance.reuse = Some(Reusing::Evaluations(rule)))
    }
}

class! {
    /// Steps whose latent has hardly changed are guessed.
    LazyCache in "advanced/debug/model";
    |schema| rule_inputs(schema)
        .title("LazyCache")
        .about("Guesses whole steps where the latent has hardly changed, and leaves the weights where they are.");
    |runtime, call| {
        let rule = rule(call)?;
        changed(call, |guidance| guidance.reuse = Some(Reusing::Steps(rule)))
    }
}
