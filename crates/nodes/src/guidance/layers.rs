//! Guidance away from what an altered model predicts: without some of its blocks, with other attention, for a picture that
//! is blurred where it looked.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema};
use models::diffusion::{Alteration, BlockGroup};
use runtime::{After, Altered, AwayFromAltered, Levels, Model};

use super::{changed, of_model, part_of_run};
use crate::Runtime;
use crate::class::class;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(SkipLayerGuidanceDiT(runtime()));
    catalogue.add(SkipLayerGuidanceDiTSimple(runtime()));
    catalogue.add(PerturbedAttentionGuidance(runtime()));
    catalogue.add(SelfAttentionGuidance(runtime()));
}

/// The blocks whose numbers a text has, whatever stands between them.
pub(crate) fn skipped_blocks(text: &str, group: BlockGroup) -> Vec<Alteration> {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
    numbers.map(|index| Alteration::SkipBlock { group, index }).collect()
}

/// How far and in which part of a run guidance goes away from an altered model.
pub(crate) fn away_inputs(schema: Schema) -> Schema {
    let schema = schema.input(Input::float("scale", 3.0, 0.0, 10.0, 0.1));
    Schema { is_experimental: true, ..part_of_run(schema, [0.01, 0.15], 0.001) }
}

/// The model with guidance away from itself without some blocks.
pub(crate) fn away_from_skipped(
    call: &Call,
    altered: Vec<Alteration>,
    rescaling: f64,
) -> Result<Outcome, Failure> {
    let (levels, scale) = (levels(call)?, call.float("scale")?);
    changed(call, |guidance| {
        if !altered.is_empty() {
            let away = AwayFromAltered { altered, levels, scale, rescaling };
            guidance.after.push(After::AwayFromAltered(away));
        }
    })
}

/// The levels between which a node counts.
pub(super) fn levels(call: &Call) -> Result<Levels, Failure> {
    let model = call.object::<Model>("model")?;
    Ok(Levels::between(&model.sampling, call.float("start_percent")?, call.float("end_percent")?))
}

/// The numbers of blocks, by their kinds.
fn block_inputs(schema: Schema) -> Schema {
    of_model(schema)
        .input(Input::text("double_layers", "7, 8, 9"))
        .input(Input::text("single_layers", "7, 8, 9"))
}

/// The blocks that a node's texts name.
fn named_blocks(call: &Call) -> Result<Vec<Alteration>, Failure> {
    let mut blocks = skipped_blocks(call.text("double_layers")?, BlockGroup::Double);
    blocks.extend(skipped_blocks(call.text("single_layers")?, BlockGroup::Single));
    Ok(blocks)
}

class! {
    /// Away from what the model predicts without some of its blocks.
    SkipLayerGuidanceDiT in "advanced/guidance";
    |schema| away_inputs(block_inputs(schema))
        .input(Input::float("rescaling_scale", 0.0, 0.0, 10.0, 0.01))
        .about("Guides away from what a transformer predicts without some of its blocks.")
        .output("MODEL")
        .module("comfy_extras.nodes_slg");
    |runtime, call| away_from_skipped(call, named_blocks(call)?, call.float("rescaling_scale")?)
}

class! {
    /// The negative prediction is made without some blocks.
    SkipLayerGuidanceDiTSimple in "advanced/guidance";
    |schema| Schema { is_experimental: true, ..part_of_run(block_inputs(schema), [0.0, 1.0], 0.001) }
        .about("Makes the negative prediction of a transformer without some of its blocks.")
        .output("MODEL")
        .module("comfy_extras.nodes_slg");
    |runtime, call| {
        let (levels, blocks) = (levels(call)?, named_blocks(call)?);
        changed(call, |guidance| {
            if !blocks.is_empty() {
                let altered = blocks.into_iter().map(|alteration| Altered { alteration, levels });
                guidance.negative_altered = altered.collect();
            }
        })
    }
}

class! {
    /// Away from what a UNet predicts when the tokens in its middle look at themselves alone.
    PerturbedAttentionGuidance in "model_patches/unet";
    |schema| of_model(schema)
        .input(Input::float("scale", 3.0, 0.0, 100.0, 0.01).with("round", 0.01))
        .output("MODEL")
        .module("comfy_extras.nodes_pag");
    |runtime, call| {
        let (altered, scale) = (vec![Alteration::OwnValues], call.float("scale")?);
        let away = AwayFromAltered { altered, levels: Levels::ALL, scale, rescaling: 0.0 };
        changed(call, |guidance| guidance.after.push(After::AwayFromAltered(away)))
    }
}

class! {
    /// Away from what a UNet predicts for a picture that is blurred where it looked.
    SelfAttentionGuidance in "_for_testing";
    |schema| Schema { is_experimental: true, ..of_model(schema) }
        .input(Input::float("scale", 0.5, -2.0, 5.0, 0.01))
        .input(Input::float("blur_sigma", 2.0, 0.0, 10.0, 0.1))
        .title("Self-Attention Guidance")
        .output("MODEL")
        .module("comfy_extras.nodes_sag");
    |runtime, call| {
        let (scale, sigma) = (call.float("scale")?, call.float("blur_sigma")?);
        changed(call, |guidance| guidance.after.push(After::AwayFromBlurred { scale, sigma }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_between_anything() {
        let skip = |index| Alteration::SkipBlock { group: BlockGroup::Single, index };
        assert_eq!(skipped_blocks("7, 8;19 a2", BlockGroup::Single), [skip(7), skip(8), skip(19), skip(2)]);
        assert_eq!(skipped_blocks("none", BlockGroup::Double), []);
    }
}
