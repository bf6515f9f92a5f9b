//! Patches of diffusion models.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Value};
use models::vision::uso::StyleProjector;

use super::variants::add_with_variants;
use super::{Found, Loader};
use crate::{Result, Runtime};
use runtime::{ModelPatch, Placing, Source};

/// Adds the loaders of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    add_with_variants(catalogue, runtime, PatchLoader);
    add_with_variants(catalogue, runtime, GroundingLoader);
}

/// The key of the folder that has them.
const KEY: &str = "model_patches";
/// The key of the folder that has those that are told what is to be where.
const GROUNDING_KEY: &str = "gligen";

/// `ModelPatchLoader`: a network that changes a diffusion model's image between its blocks, or makes tokens of a style for it.
struct PatchLoader;

impl Loader for PatchLoader {
    fn class(&self) -> &'static str {
        "ModelPatchLoader"
    }

    fn title(&self) -> &'static str {
        "ModelPatchLoader"
    }

    fn category(&self) -> &'static str {
        "advanced/loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("name", runtime.names(KEY))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("name", &[KEY])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["MODEL_PATCH"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "name", &[KEY])?;
        let source = match StyleProjector::part(&found.detected) {
            Ok(part) => Source::of_part(&found.file, part, placing.clone())?,
            Err(_) => Source::model_patch(&found.file, &found.detected, placing.clone())?,
        };
        runtime.register(&source)?;
        Ok(vec![Value::object(ModelPatch { source: Arc::new(source) })])
    }
}

/// `GLIGENLoader`: a network by which a diffusion model is told what is to be where.
struct GroundingLoader;

impl Loader for GroundingLoader {
    fn class(&self) -> &'static str {
        "GLIGENLoader"
    }

    fn title(&self) -> &'static str {
        "GLIGENLoader"
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("gligen_name", runtime.names(GROUNDING_KEY))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("gligen_name", &[GROUNDING_KEY])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["GLIGEN"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "gligen_name", &[GROUNDING_KEY])?;
        let source = Source::model_patch(&found.file, &found.detected, placing.clone())?;
        if source.patch_network()?.text_width().is_none() {
            let (name, part) = (source.name(), &source.part);
            let told =
                format!("{name} is {part}, which is not told what is to be where; choose a GLIGEN file");
            return Err(Failure::value(told));
        }
        runtime.register(&source)?;
        Ok(vec![Value::object(ModelPatch { source: Arc::new(source) })])
    }
}
