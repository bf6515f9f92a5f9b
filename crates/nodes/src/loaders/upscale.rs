//! Upscalers, of pictures and of latents.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Value};

use super::variants::add_with_variants;
use super::{Found, Loader};
use crate::upscale::{LatentUpscaleModel, UpscaleModel};
use crate::{Result, Runtime};
use runtime::{Placing, Source};

/// Adds the loaders of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    add_with_variants(catalogue, runtime, UpscaleLoader);
    add_with_variants(catalogue, runtime, LatentUpscaleLoader);
}

/// The keys of the folders that have them.
const KEY: &str = "upscale_models";
const LATENT_KEY: &str = "latent_upscale_models";

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

/// `LatentUpscaleModelLoader`: a model that makes latents larger.
struct LatentUpscaleLoader;

impl Loader for LatentUpscaleLoader {
    fn class(&self) -> &'static str {
        "LatentUpscaleModelLoader"
    }

    fn title(&self) -> &'static str {
        "Load Latent Upscale Model"
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("model_name", runtime.names(LATENT_KEY))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("model_name", &[LATENT_KEY])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["LATENT_UPSCALE_MODEL"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "model_name", &[LATENT_KEY])?;
        let source = Source::latent_upscaler(&found.file, &found.detected, placing.clone())?;
        runtime.register(&source)?;
        Ok(vec![Value::object(LatentUpscaleModel { source: Arc::new(source) })])
    }
}
