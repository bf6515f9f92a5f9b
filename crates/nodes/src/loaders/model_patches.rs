//! Patches of diffusion models.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Value};

use super::variants::add_with_variants;
use super::{Found, Loader};
use crate::{Result, Runtime};
use runtime::{ModelPatch, Placing, Source};

/// Adds the loader of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    add_with_variants(catalogue, runtime, PatchLoader);
}

/// The key of the folder that has them.
const KEY: &str = "model_patches";

/// `ModelPatchLoader`: a network that changes a diffusion model's image between its blocks.
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
        let source = Source::model_patch(&found.file, &found.detected, placing.clone())?;
        runtime.register(&source)?;
        Ok(vec![Value::object(ModelPatch { source: Arc::new(source) })])
    }
}
