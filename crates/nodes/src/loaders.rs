//! Loaders: a file becomes a model. Each is written once; its variants for several devices are derived.
//!
//! | class | adds |
//! |---|---|
//! | the loader itself | nothing |
//! | `…MultiGPU` | where it computes |
//! | `…DisTorch2MultiGPU` | and where its bytes go, and whether it stays |
//! | `…DisTorchMultiGPU` | the same as older workflows have it, for GGUF loaders |

mod advanced;
mod audio;
mod checkpoints;
mod clip_vision;
mod control;
mod model_patches;
mod placing;
mod selecting;
mod text_encoders;
mod upscale;
mod variants;
mod vision;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::{Checkpoint, NewTensor, SafetensorsHead};
use graph::{Call, Catalogue, Failure, Input, Value};
use meta::{DType, Shape};
use models::vae::pixels;
use models::{Detected, detect};

use crate::{Result, Runtime};
use runtime::{Placing, Source};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    checkpoints::add(catalogue, runtime);
    text_encoders::add(catalogue, runtime);
    advanced::add(catalogue, runtime);
    upscale::add(catalogue, runtime);
    vision::add(catalogue, runtime);
    clip_vision::add(catalogue, runtime);
    control::add(catalogue, runtime);
    model_patches::add(catalogue, runtime);
    audio::add(catalogue, runtime);
    selecting::add(catalogue, runtime);
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

    /// The inputs that name files, with the folders that they are looked for in.
    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        Vec::new()
    }

    /// Its inputs, without any for devices.
    fn inputs(&self, runtime: &Runtime) -> Vec<Input>;

    /// The types of its outputs.
    fn outputs(&self) -> &'static [&'static str];

    /// The names of its outputs; their types if they have none of their own.
    fn output_names(&self) -> &'static [&'static str] {
        self.outputs()
    }

    /// Loads as the inputs say, and puts it where it is told.
    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure>;
}

/// What a loader says of a diffusion model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WeightType {
    /// The type that they are cast to; none if they stay as they are.
    cast: Option<DType>,
    /// Whether products with weights of 8 bits are of 8 bits, where the device has such.
    fp8_products: bool,
}

/// A file and what it is.
struct Found {
    file: Arc<Checkpoint>,
    detected: Detected,
}

impl Found {
    fn open(runtime: &Runtime, path: &Path) -> Result<Found> {
        let file = runtime.open_file(path)?;
        let detected = detect(&file);
        Ok(Found { file, detected })
    }

    /// What stands for an autoencoder where latents are pictures: there is no file of it.
    fn pixels() -> Result<Found> {
        let tensor =
            NewTensor { name: pixels::TENSOR.to_owned(), dtype: DType::F32, shape: Shape::from([1]) };
        let mut bytes = SafetensorsHead::new(Path::new(pixels::NAME), &[], &[tensor])?.bytes().to_vec();
        bytes.extend(1.0f32.to_le_bytes());
        let file = Arc::new(Checkpoint::from_memory((pixels::NAME, bytes.into()), Vec::new())?);
        let detected = detect(&file);
        Ok(Found { file, detected })
    }

    /// The file of an input's name, in the first of these folders that has it.
    fn named(runtime: &Runtime, call: &Call, input: &str, folders: &[&str]) -> Result<Found, Failure> {
        let name = call.text(input)?;
        Ok(Found::open(runtime, &path_of(runtime, name, folders)?)?)
    }

    /// The diffusion model in it, registered.
    fn model(&self, runtime: &Runtime, as_said: WeightType, placing: &Placing) -> Result<Value> {
        let WeightType { cast, fp8_products } = as_said;
        let source = Source::diffusion(&self.file, &self.detected, cast, placing.clone())?
            .with_products(runtime.products(fp8_products));
        runtime.register(&source)?;
        Ok(Value::object(runtime::Model::new(source)?))
    }

    /// The autoencoder in it, registered.
    fn vae(&self, runtime: &Runtime, placing: &Placing) -> Result<Value> {
        let source = Source::autoencoder(&self.file, &self.detected, placing.clone())?;
        runtime.register(&source)?;
        Ok(Value::object(runtime::Vae { source: Arc::new(source) }))
    }
}

/// The file of a name in the first of these folders that has it.
fn path_of(runtime: &Runtime, name: &str, folders: &[&str]) -> Result<PathBuf> {
    let found = folders.iter().find_map(|folder| runtime.find(folder, name).ok());
    found.map_or_else(|| runtime.find(folders.first().copied().unwrap_or_default(), name), Ok)
}

/// The names under several folder keys, sorted, each once.
fn names_of(runtime: &Runtime, keys: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = keys.iter().flat_map(|key| runtime.names(key)).collect();
    names.sort();
    names.dedup();
    names
}

/// The GGUF files among those under a folder key.
fn gguf_names(runtime: &Runtime, keys: &[&str]) -> Vec<String> {
    let is_gguf = |name: &String| name.to_ascii_lowercase().ends_with(".gguf");
    names_of(runtime, keys).into_iter().filter(is_gguf).collect()
}
