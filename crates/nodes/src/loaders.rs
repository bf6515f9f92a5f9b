//! Loaders: a file becomes a model. Each is written once; its variants for several devices are derived.
//!
//! | class | adds |
//! |---|---|
//! | the loader itself | nothing |
//! | `…MultiGPU` | where it computes |
//! | `…DisTorch2MultiGPU` | and where its bytes go, and whether it stays |
//! | `…DisTorchMultiGPU` | the same as older workflows have it, for GGUF loaders |

mod advanced;
mod checkpoints;
mod placing;
mod text_encoders;
mod variants;
mod vision;

use std::path::Path;
use std::sync::Arc;

use checkpoint::Checkpoint;
use graph::{Call, Catalogue, Failure, Input, Value};
use models::{Detected, detect};
use placement::PlanError;

use crate::studio::{Placing, Source};
use crate::{Error, Result, Studio};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, studio: &Arc<Studio>) {
    checkpoints::add(catalogue, studio);
    text_encoders::add(catalogue, studio);
    advanced::add(catalogue, studio);
    vision::add(catalogue, studio);
}

/// What a loader is for; it decides what its variants' device input is called and what they default to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoaderKind {
    /// Diffusion models, autoencoders and whole checkpoints.
    Weights,
    /// Text encoders.
    Text,
}

/// A node that loads models, without a word on devices.
trait Loader: Send + Sync + 'static {
    /// The class of the plain node.
    fn class(&self) -> &'static str;

    /// Its title.
    fn title(&self) -> &'static str;

    /// Where the plain node is listed.
    fn category(&self) -> &'static str;

    /// What it is for.
    fn kind(&self) -> LoaderKind {
        LoaderKind::Weights
    }

    /// Whether older workflows know it as `…DisTorchMultiGPU`.
    fn has_legacy_variant(&self) -> bool {
        self.class().contains("GGUF")
    }

    /// Whether the plain node has an optional `device` of its own.
    fn has_device_input(&self) -> bool {
        false
    }

    /// Whether the variant on a device also has an input for where the weights wait.
    fn has_offload_input(&self) -> bool {
        false
    }

    /// The pack that the plain node belongs to, if it is not ComfyUI's own.
    fn pack(&self) -> Option<&'static str> {
        self.has_legacy_variant().then_some("custom_nodes.ComfyUI-GGUF")
    }

    /// Its inputs, without any for devices.
    fn inputs(&self, studio: &Studio) -> Vec<Input>;

    /// The types of its outputs.
    fn outputs(&self) -> &'static [&'static str];

    /// The names of its outputs; their types if they have none of their own.
    fn output_names(&self) -> &'static [&'static str] {
        self.outputs()
    }

    /// Loads as the inputs say, and puts it where it is told.
    fn load(&self, studio: &Studio, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure>;
}

/// A file and what it is.
struct Found {
    file: Arc<Checkpoint>,
    detected: Detected,
}

impl Found {
    fn open(studio: &Studio, path: &Path) -> Result<Found> {
        let file = studio.open_file(path)?;
        let detected = detect(&file);
        Ok(Found { file, detected })
    }

    /// The file of an input's name, in the first of these folders that has it.
    fn named(studio: &Studio, call: &Call, input: &str, folders: &[&str]) -> Result<Found, Failure> {
        let name = call.text(input)?;
        let found = folders.iter().find_map(|folder| studio.find(folder, name).ok());
        let path = found.map_or_else(|| studio.find(folders[0], name), Ok)?;
        Ok(Found::open(studio, &path)?)
    }

    /// The diffusion model in it, registered.
    fn model(&self, studio: &Studio, cast: Option<crate::studio::Cast>, placing: &Placing) -> Result<Value> {
        let source = Source::diffusion(&self.file, &self.detected, cast, placing.clone())?;
        register(studio, &source)?;
        Ok(Value::object(crate::studio::Model::new(source)?))
    }

    /// The autoencoder in it, registered.
    fn vae(&self, studio: &Studio, placing: &Placing) -> Result<Value> {
        let source = Source::autoencoder(&self.file, &self.detected, placing.clone())?;
        register(studio, &source)?;
        Ok(Value::object(crate::studio::Vae { source: Arc::new(source) }))
    }
}

/// Registers a network. One that has no room to work at the usual size may have it at the size that it is used for:
/// whoever uses it plans for that, and tells if there is none.
fn register(studio: &Studio, source: &Source) -> Result<()> {
    match studio.register(source) {
        Err(Error::Plan(PlanError::NoRoom { .. })) => Ok(()),
        done => done,
    }
}

/// The names under several folder keys, sorted, each once.
fn names_of(studio: &Studio, keys: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = keys.iter().flat_map(|key| studio.names(key)).collect();
    names.sort();
    names.dedup();
    names
}

/// The GGUF files among those under a folder key.
fn gguf_names(studio: &Studio, keys: &[&str]) -> Vec<String> {
    let is_gguf = |name: &String| name.to_ascii_lowercase().ends_with(".gguf");
    names_of(studio, keys).into_iter().filter(is_gguf).collect()
}
