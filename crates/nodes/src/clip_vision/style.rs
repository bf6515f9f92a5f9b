//! Style models: what a tower saw becomes tokens behind those of a text, or before those of every text of a model.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Catalogue, Failure, Input, Object, Outcome};
use models::conditioning::TokenBias;
use models::vision::redux::Redux;
use models::vision::uso::{SeenAtLevels, StyleProjector};

use super::vision_network;
use crate::class::class;
use crate::conditioning::{after, changed_or_failed};
use crate::value::{Array, ClipVisionOutput, Entry};
use crate::{Error, Result, Runtime};
use runtime::{Caller, ModelPatch, Source, Wanted, Work};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(StyleModelApply(Arc::clone(runtime)));
}

/// A style model: `STYLE_MODEL`.
#[derive(Clone)]
pub(crate) struct StyleModelHandle {
    pub(crate) source: Arc<Source>,
}

impl Object for StyleModelHandle {
    fn is_current(&self) -> bool {
        self.source.is_current()
    }

    fn describe(&self) -> String {
        format!("style model {}", self.source.name())
    }
}

impl fmt::Debug for StyleModelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

class! {
    /// A text with the tokens of pictures behind it.
    StyleModelApply in "conditioning/style_model";
    |schema| schema
        .input(Input::socket("conditioning", "CONDITIONING"))
        .input(Input::socket("style_model", "STYLE_MODEL"))
        .input(Input::socket("clip_vision_output", "CLIP_VISION_OUTPUT"))
        .input(Input::float("strength", 1.0, 0.0, 10.0, 0.001))
        .input(Input::choice("strength_type", ["multiply", "attn_bias"]))
        .title("Apply Style Model")
        .output("CONDITIONING");
    |runtime, call| {
        let strength = call.float("strength")? as f32;
        let is_bias = call.text("strength_type")? == "attn_bias";
        let mut tokens = tokens_of(runtime, call)?;
        if !is_bias {
            tokens.values.iter_mut().for_each(|value| *value *= strength);
        }
        let bias = if is_bias { bias_of(strength) } else { 0.0 };
        let styled = changed_or_failed(call, "conditioning", |entry| add_tokens(entry, &tokens, bias))?;
        Ok(Outcome::object(styled))
    }
}

/// The tokens of all pictures, one after the other: `[1, tokens, width]`.
fn tokens_of(runtime: &Runtime, call: &Call) -> Result<Array, Failure> {
    let handle = call.object::<StyleModelHandle>("style_model")?;
    let seen = call.object::<ClipVisionOutput>("clip_vision_output")?;
    let Some(redux) = vision_network::<Redux>(&handle.source) else {
        return Err(Failure::value(format!("{} is no style model", handle.source.name())));
    };
    let shape = seen.last.array_shape()?;
    let caller = Caller::of(&call.job);
    let wanted = Wanted { source: &handle.source, beside: &[], loras: &[], work: &Work::Look };
    let values = runtime.with_session(wanted, &caller, |opened| {
        let started = Instant::now();
        let features = opened.session.lane()?.tensor(shape, &seen.last.values)?;
        let tokens = redux.tokens(&opened.session, &features)?.to_vec()?;
        runtime.note_evaluation(opened, started);
        Ok(tokens)
    })?;
    Ok(Array { shape: vec![1, shape[0] * shape[1], redux.width], values })
}

/// What a style projector makes of pictures, `[pictures, tokens, width]`.
pub(crate) fn style_of(runtime: &Runtime, call: &Call) -> Result<Array, Failure> {
    let patch = call.object::<ModelPatch>("model_patch")?;
    let seen = call.object::<ClipVisionOutput>("clip_vision_output")?;
    let Some(projector) = vision_network::<StyleProjector>(&patch.source) else {
        let (name, part) = (patch.source.name(), &patch.source.part);
        return Err(Failure::value(format!("{name} is {part}; choose the style projector of USO")));
    };
    let Some([middle, early]) = &seen.earlier else {
        return Err(Failure::value(
            "the style projector looks at what layers 11 and 20 from the end of a SigLIP model give, and this vision model \
             has none: choose sigclip_vision_patch14_384",
        ));
    };
    let levels = [&seen.penultimate, middle, early];
    let caller = Caller::of(&call.job);
    let wanted = Wanted { source: &patch.source, beside: &[], loras: &[], work: &Work::Look };
    let (shape, values) = runtime.with_session(wanted, &caller, |opened| {
        let started = Instant::now();
        let lane = opened.session.lane()?;
        let mut tensors = Vec::with_capacity(levels.len());
        for level in levels {
            tensors.push(lane.tensor(level.array_shape()?, &level.values)?);
        }
        let seen = SeenAtLevels { penultimate: &tensors[0], middle: &tensors[1], early: &tensors[2] };
        let tokens = projector.tokens(&opened.session, seen)?;
        let told = (tokens.dims().to_vec(), tokens.to_vec()?);
        runtime.note_evaluation(opened, started);
        Ok(told)
    })?;
    Ok(Array { shape, values })
}

/// What is added to the scores of tokens for a strength. The reference keeps it in 16 bits.
fn bias_of(strength: f32) -> f32 {
    let bias = strength.ln();
    if bias.is_infinite() {
        return bias;
    }
    // What is left of 24 bits of a value after 13 of them were split off.
    let high = bias * 8193.0;
    high - (high - bias)
}

/// The entry with these tokens behind its text, which are looked at by that much more.
fn add_tokens(entry: &mut Entry, tokens: &Array, bias: f32) -> Result<(), Failure> {
    let (start, count) = (entry.cond.tokens(), tokens.shape[1]);
    let text = &entry.cond.text;
    if text.shape.last() != tokens.shape.last() {
        return Err(Failure::value(format!(
            "the style model gives tokens of {} values, but the text has {:?}: it is for another kind of model",
            tokens.shape[2],
            text.shape.last().copied().unwrap_or(0),
        )));
    }
    entry.cond.text = Arc::new(after(text, tokens)?);
    if let Some(mask) = &entry.cond.attention_mask {
        let mut longer = Vec::clone(mask);
        longer.resize(start + count, true);
        entry.cond.attention_mask = Some(Arc::new(longer));
    }
    if bias != 0.0 {
        entry.cond.attention_bias.push(TokenBias { start, tokens: count, bias });
    }
    Ok(())
}

impl crate::value::Features {
    /// Pictures, tokens and values per token.
    fn array_shape(&self) -> Result<[usize; 3]> {
        <[usize; 3]>::try_from(self.shape.as_slice())
            .map_err(|_| Error::Told(format!("what a vision model saw has the shape {:?}", self.shape)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strengths_become_biases_of_16_bits() {
        assert_eq!(bias_of(1.0), 0.0);
        // By half::f16: ln 0.5 and ln 2.5.
        assert_eq!(bias_of(0.5), -0.693_359_4);
        assert_eq!(bias_of(2.5), 0.916_503_9);
        assert_eq!(bias_of(0.0), f32::NEG_INFINITY);
    }
}
