//! Audio encoders.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Value};

use super::variants::add_with_variants;
use super::{Found, Loader, LoaderKind};
use crate::audio::AudioEncoderHandle;
use crate::{Result, Runtime};
use runtime::{Placing, Source};

/// Adds the loader of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    add_with_variants(catalogue, runtime, AudioLoader);
}

/// The key of the folder that has them.
const KEY: &str = "audio_encoders";

/// `AudioEncoderLoader`: a model that listens.
struct AudioLoader;

impl Loader for AudioLoader {
    fn class(&self) -> &'static str {
        "AudioEncoderLoader"
    }

    fn title(&self) -> &'static str {
        "AudioEncoderLoader"
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn kind(&self) -> LoaderKind {
        LoaderKind::Text
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("audio_encoder_name", runtime.names(KEY))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("audio_encoder_name", &[KEY])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["AUDIO_ENCODER"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "audio_encoder_name", &[KEY])?;
        let source = Source::audio(&found.file, &found.detected, placing.clone())?;
        runtime.register(&source)?;
        Ok(vec![Value::object(AudioEncoderHandle { source: Arc::new(source) })])
    }
}
