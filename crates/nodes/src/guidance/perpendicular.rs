//! Perp-Neg: away from an empty prompt, and from what of the negative is at right angles to the positive.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome, Schema};
use runtime::Instead;

use super::{changed, of_model};
use crate::Runtime;
use crate::class::class;
use crate::sampling_nodes::{Guider, Guiding};
use crate::value::{Conditioning, Entry};

const MODULE: &str = "comfy_extras.nodes_perpneg";

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(PerpNeg(Arc::clone(runtime)));
    catalogue.add(PerpNegGuider(Arc::clone(runtime)));
}

class! {
    /// Perp-Neg instead of the usual guidance of a model.
    PerpNeg in "_for_testing";
    |schema| Schema { is_experimental: true, is_deprecated: true, ..of_model(schema) }
        .input(Input::socket("empty_conditioning", "CONDITIONING"))
        .input(Input::float("neg_scale", 1.0, 0.0, 100.0, 0.01))
        .title("Perp-Neg (DEPRECATED by PerpNegGuider)")
        .output("MODEL")
        .module(MODULE);
    |runtime, call| {
        let empty = call.object::<Conditioning>("empty_conditioning")?;
        if !empty.entries.iter().all(counts_everywhere) {
            return Err(Failure::value(
                "the empty conditioning of PerpNeg has areas, masks or times, which the node cannot keep: give it a plain \
                 text, or take PerpNegGuider instead",
            ));
        }
        let empty = empty.entries.iter().map(|entry| Arc::new(entry.cond.clone())).collect();
        let scale = call.float("neg_scale")?;
        changed(call, |guidance| guidance.instead = Some(Instead::Perpendicular { empty, scale }))
    }
}

fn counts_everywhere(entry: &Entry) -> bool {
    let always = entry.start_percent == 0.0 && entry.end_percent == 1.0;
    always && entry.area.is_none() && entry.mask.is_none() && !entry.is_default
}

class! {
    /// Away from an empty prompt, without what the negative has in common with the positive.
    PerpNegGuider in "_for_testing";
    |schema| Schema { is_experimental: true, ..of_model(schema) }
        .input(Input::socket("positive", "CONDITIONING"))
        .input(Input::socket("negative", "CONDITIONING"))
        .input(Input::socket("empty_conditioning", "CONDITIONING"))
        .input(Input::float("cfg", 8.0, 0.0, 100.0, 0.1).with("round", 0.01))
        .input(Input::float("neg_scale", 1.0, 0.0, 100.0, 0.01))
        .output("GUIDER")
        .module(MODULE);
    |runtime, call| {
        let guiding = Guiding::Perpendicular {
            positive: call.object("positive")?,
            negative: call.object("negative")?,
            empty: call.object("empty_conditioning")?,
            cfg: call.float("cfg")?,
            negative_scale: call.float("neg_scale")?,
        };
        Ok(Outcome::object(Guider { model: call.object("model")?, guiding }))
    }
}
