//! Florence-2: a folder with a model, its settings and its tokenizer. Nothing is downloaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Value};

use super::variants::add_with_variants;
use super::{Found, Loader, LoaderKind};
use crate::vision::Florence2Handle;
use crate::{Error, Result, Runtime};
use runtime::{Placing, Source};

/// Adds the loaders of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    add_with_variants(catalogue, runtime, Florence2Loader { published: true });
    add_with_variants(catalogue, runtime, Florence2Loader { published: false });
}

/// The key of the folder that has them.
const KEY: &str = "LLM";
/// The file of a model's folder that has the weights.
const WEIGHTS: &str = "model.safetensors";
/// The same as a Python pickle, as some were published.
const PICKLE: &str = "pytorch_model.bin";
/// The models that were published, by owner and name.
const PUBLISHED: [&str; 14] = [
    "microsoft/Florence-2-base",
    "microsoft/Florence-2-base-ft",
    "microsoft/Florence-2-large",
    "microsoft/Florence-2-large-ft",
    "HuggingFaceM4/Florence-2-DocVQA",
    "thwri/CogFlorence-2.1-Large",
    "thwri/CogFlorence-2.2-Large",
    "gokaygokay/Florence-2-SD3-Captioner",
    "gokaygokay/Florence-2-Flux-Large",
    "MiaoshouAI/Florence-2-base-PromptGen-v1.5",
    "MiaoshouAI/Florence-2-large-PromptGen-v1.5",
    "MiaoshouAI/Florence-2-base-PromptGen-v2.0",
    "MiaoshouAI/Florence-2-large-PromptGen-v2.0",
    "PJMixers-Images/Florence-2-base-Castollux-v0.5",
];

/// `DownloadAndLoadFlorence2Model`, which lists what was published, and `Florence2ModelLoader`, which lists what is there.
/// The type of activations and the kind of attention are the device's choice, so `precision` and `attention` change
/// nothing, and there is nothing to convert.
struct Florence2Loader {
    published: bool,
}

impl Loader for Florence2Loader {
    fn class(&self) -> &'static str {
        if self.published { "DownloadAndLoadFlorence2Model" } else { "Florence2ModelLoader" }
    }

    fn title(&self) -> &'static str {
        self.class()
    }

    fn category(&self) -> &'static str {
        "Florence2"
    }

    fn kind(&self) -> LoaderKind {
        LoaderKind::Weights
    }

    fn has_offload_input(&self) -> bool {
        // Weights that leave a device are still in their file, so it does not matter where they would wait.
        true
    }

    fn pack(&self) -> Option<&'static str> {
        Some(crate::vision::PACK)
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        let model = if self.published {
            Input::choice("model", PUBLISHED).with("default", PUBLISHED[0])
        } else {
            let about = "A folder of models/LLM with model.safetensors, config.json and tokenizer.json.";
            Input::choice("model", folders_there(runtime)).tooltip(about)
        };
        let precision = Input::choice("precision", ["fp16", "bf16", "fp32"]);
        let precision = if self.published { precision.with("default", "fp16") } else { precision };
        vec![
            model,
            precision,
            Input::choice("attention", ["flash_attention_2", "sdpa", "eager"]).with("default", "sdpa"),
            Input::socket("lora", "PEFTLORA").optional(),
            Input::boolean("convert_to_safetensors", false).optional(),
        ]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["FL2MODEL"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["florence2_model"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        if call.inputs.first("lora").is_some_and(|lora| !lora.is_none()) {
            return Err(Failure::value("LoRAs for Florence-2 cannot be used yet; unlink the input \"lora\""));
        }
        let path = weights_of(runtime, call.text("model")?)?;
        let found = Found::open(runtime, &path)?;
        let source = Source::vision(&found.file, &found.detected, placing.clone())?;
        runtime.register(&source)?;
        Ok(vec![Value::object(Florence2Handle { source: Arc::new(source) })])
    }
}

/// The folders with weights, as the loader lists them.
fn folders_there(runtime: &Runtime) -> Vec<String> {
    let names = runtime.names(KEY);
    let folder = |name: &String| {
        let path = Path::new(name);
        let is_weights = path.file_name().is_some_and(|file| file == WEIGHTS || file == PICKLE);
        path.parent().filter(|_| is_weights).and_then(Path::to_str).map(str::to_owned)
    };
    let mut folders: Vec<String> =
        names.iter().filter_map(folder).filter(|folder| !folder.is_empty()).collect();
    folders.dedup();
    folders
}

/// The weights of a model. Its folder has the model's name without its owner.
fn weights_of(runtime: &Runtime, model: &str) -> Result<PathBuf> {
    let name = model.rsplit('/').next().unwrap_or(model);
    let find = |file: &str| {
        [model, name].into_iter().find_map(|name| runtime.folders.find(KEY, &format!("{name}/{file}")))
    };
    find(WEIGHTS).or_else(|| find(PICKLE)).ok_or_else(|| missing(runtime, model, name))
}

/// What to put where.
fn missing(runtime: &Runtime, model: &str, name: &str) -> Error {
    let places = runtime.folders.places(KEY);
    let folder = places.first().cloned().unwrap_or_default().join(name);
    let folder = folder.display();
    Error::Told(format!(
        "there is no {folder}/{WEIGHTS}. Nothing is downloaded here: put {WEIGHTS}, config.json, generation_config.json, \
         preprocessor_config.json and tokenizer.json (or vocab.json and merges.txt) of {model} into {folder}"
    ))
}
