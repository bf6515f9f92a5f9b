//! Upscalers.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Value};

use super::variants::add_with_variants;
use super::{Found, Loader};
use crate::upscale::UpscaleModel;
use crate::{Result, Runtime};
use runtime::{Placing, Source};

/// Adds the loader of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    add_with_variants(catalogue, runtime, UpscaleLoader);
}

/// The key of the folder that has them.
const KEY: &str = "upscale_models";

/// `UpscaleModelLoader`: a model that makes pictures larger.
struct UpscaleLoader;

impl Loader for UpscaleLoader {
    fn class(&self) -> &'static str {
        "UpscaleModelLoader"
    }

    fn title(&self) -> &'static str {
        "Load Upscale Model"
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("model_name", runtime.names(KEY))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("model_name", &[KEY])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["UPSCALE_MODEL"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "model_name", &[KEY])?;
        let source = Source::upscaler(&found.file, &found.detected, placing.clone())?;
        runtime.register(&source)?;
        Ok(vec![Value::object(UpscaleModel { source: Arc::new(source) })])
    }
}
