//! LoRA: patches put on models and text encoders.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome, Value};
use patch::{PatchFile, unclaimed};

use crate::class::class;
use crate::{Error, Result, Runtime};
use runtime::{Clip, Lora, Model, WeightPatch, patch_set};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(LoraLoader(Arc::clone(runtime)));
    catalogue.add(LoraLoaderModelOnly(Arc::clone(runtime)));
}

/// Names of tensors that are told when nothing takes them.
const TOLD: usize = 8;

fn strength_input(name: &str) -> Input {
    Input::float(name, 1.0, -100.0, 100.0, 0.01)
}

class! {
    /// A LoRA on a model and its text encoders.
    LoraLoader in "loaders";
    |runtime, schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::socket("clip", "CLIP"))
        .input(Input::choice("lora_name", runtime.names("loras")))
        .input(strength_input("strength_model"))
        .input(strength_input("strength_clip"))
        .title("Load LoRA")
        .output("MODEL")
        .output("CLIP");
    |runtime, call| {
        let (model, clip) = (call.object::<Model>("model")?, call.object_if_given::<Clip>("clip")?);
        let strengths = (call.float("strength_model")?, call.float("strength_clip")?);
        let (model, clip) = patched(runtime, call.text("lora_name")?, &model, clip.as_deref(), strengths)?;
        let clip = clip.map_or(Value::Literal(graph::Literal::Null), Value::object);
        Ok(Outcome::values([Value::object(model), clip]))
    }
}

class! {
    /// A LoRA on a model alone.
    LoraLoaderModelOnly in "loaders";
    |runtime, schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::choice("lora_name", runtime.names("loras")))
        .input(strength_input("strength_model"))
        .output("MODEL");
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let strengths = (call.float("strength_model")?, 0.0);
        let (model, _) = patched(runtime, call.text("lora_name")?, &model, None, strengths)?;
        Ok(Outcome::object(model))
    }
}

/// A model and its text encoders with a LoRA more. What does not fit is told now, and not when they are used.
fn patched(
    runtime: &Runtime,
    name: &str,
    model: &Model,
    clip: Option<&Clip>,
    (strength, clip_strength): (f64, f64),
) -> Result<(Model, Option<Clip>), Failure> {
    if strength == 0.0 && clip_strength == 0.0 {
        return Ok((model.clone(), clip.cloned()));
    }
    let path = runtime.find("loras", name)?;
    let file = runtime.open_file(&path)?;
    let file = Arc::new(PatchFile::read(&file).map_err(Error::from)?);
    let lora = |strength: f64| WeightPatch::Lora(Lora { file: Arc::clone(&file), strength });
    let mut sets = vec![patch_set(&model.source, &[], &[lora(strength)])?];
    let clip_lora = [lora(clip_strength)];
    for encoder in clip.iter().flat_map(|clip| &clip.encoders) {
        let beside = clip.map_or(&[][..], |clip| &clip.encoders);
        sets.push(patch_set(encoder, beside, &clip_lora)?);
    }
    let left = unclaimed(&sets.iter().collect::<Vec<_>>());
    if !left.is_empty() {
        let some: Vec<&str> = left.iter().take(TOLD).copied().collect();
        let more = if left.len() > TOLD { ", …" } else { "" };
        let (count, names) = (left.len(), some.join(", "));
        tracing::warn!(
            "{name}: no weight of this model takes {count} of its tensors, and they are left out: {names}{more}. \
             If the picture does not change, the LoRA is for another model."
        );
    }
    let mut model = model.clone();
    if strength != 0.0 {
        model.loras.push(lora(strength));
    }
    let clip = clip.map(|clip| {
        let mut clip = clip.clone();
        clip.loras.extend(clip_lora.into_iter().filter(|_| clip_strength != 0.0));
        clip
    });
    Ok((model, clip))
}
