//! Vision towers, alone and in a checkpoint, and style models.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Literal, Value};
use models::vision::clip_vision::ClipVision;
use models::vision::redux::Redux;

use super::checkpoints::load_whole;
use super::variants::add_with_variants;
use super::{Found, Loader, LoaderKind};
use crate::clip_vision::{StyleModelHandle, TowerHandle};
use crate::{Result, Runtime};
use runtime::{Placing, Source};

/// Adds the loaders of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    add_with_variants(catalogue, runtime, Tower);
    add_with_variants(catalogue, runtime, CheckpointWithTower);
    add_with_variants(catalogue, runtime, CheckpointWithoutText);
    add_with_variants(catalogue, runtime, StyleModel);
}

impl Found {
    /// The vision tower in it, registered.
    pub(super) fn tower(&self, runtime: &Runtime, placing: &Placing) -> Result<Value> {
        let part = ClipVision::part(&self.detected)?;
        let source = Source::of_part(&self.file, part, placing.clone())?;
        runtime.register(&source)?;
        Ok(Value::object(TowerHandle { source: Arc::new(source) }))
    }
}

/// `CLIPVisionLoader`: a vision tower alone.
struct Tower;

impl Loader for Tower {
    fn class(&self) -> &'static str {
        "CLIPVisionLoader"
    }

    fn title(&self) -> &'static str {
        "Load CLIP Vision"
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn kind(&self) -> LoaderKind {
        LoaderKind::Text
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("clip_name", runtime.names("clip_vision"))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("clip_name", &["clip_vision"])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["CLIP_VISION"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "clip_name", &["clip_vision"])?;
        Ok(vec![found.tower(runtime, placing)?])
    }
}

/// `unCLIPCheckpointLoader`: a whole checkpoint with the tower that its model was trained with.
struct CheckpointWithTower;

impl Loader for CheckpointWithTower {
    fn class(&self) -> &'static str {
        "unCLIPCheckpointLoader"
    }

    fn title(&self) -> &'static str {
        "unCLIPCheckpointLoader"
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("ckpt_name", runtime.names("checkpoints"))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("ckpt_name", &["checkpoints"])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["MODEL", "CLIP", "VAE", "CLIP_VISION"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let mut values = load_whole(runtime, call, [placing, placing, placing])?;
        values.push(tower_of_checkpoint(runtime, call, placing)?);
        Ok(values)
    }
}

/// The tower of a whole checkpoint. A part that the file lacks is nothing; the nodes that need it say so.
fn tower_of_checkpoint(runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Value, Failure> {
    let found = Found::named(runtime, call, "ckpt_name", &["checkpoints"])?;
    match ClipVision::part(&found.detected) {
        Ok(_) => Ok(found.tower(runtime, placing)?),
        Err(_) => Ok(Value::Literal(Literal::Null)),
    }
}

/// `ImageOnlyCheckpointLoader`: a whole checkpoint of a model that is told pictures and no text.
struct CheckpointWithoutText;

impl Loader for CheckpointWithoutText {
    fn class(&self) -> &'static str {
        "ImageOnlyCheckpointLoader"
    }

    fn title(&self) -> &'static str {
        "Image Only Checkpoint Loader (img2vid model)"
    }

    fn category(&self) -> &'static str {
        "loaders/video_models"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("ckpt_name", runtime.names("checkpoints"))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("ckpt_name", &["checkpoints"])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["MODEL", "CLIP_VISION", "VAE"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let mut values = load_whole(runtime, call, [placing, placing, placing])?;
        // In the place of the text encoders.
        values[1] = tower_of_checkpoint(runtime, call, placing)?;
        Ok(values)
    }
}

/// `StyleModelLoader`: a model that turns what a tower saw into tokens.
struct StyleModel;

impl Loader for StyleModel {
    fn class(&self) -> &'static str {
        "StyleModelLoader"
    }

    fn title(&self) -> &'static str {
        "Load Style Model"
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("style_model_name", runtime.names("style_models"))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("style_model_name", &["style_models"])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["STYLE_MODEL"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "style_model_name", &["style_models"])?;
        let part = Redux::part(&found.detected).map_err(crate::Error::from)?;
        let source = Source::of_part(&found.file, part, placing.clone())?;
        runtime.register(&source)?;
        Ok(vec![Value::object(StyleModelHandle { source: Arc::new(source) })])
    }
}
