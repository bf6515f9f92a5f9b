//! `LotusConditioning`: what the Lotus depth and normal models are told, which is always nothing: the empty prompt through
//! the text encoder of Stable Diffusion 2.
//!
//! ComfyUI has the resulting numbers in its program. They are part of a program under another licence, so they are not
//! here: they are computed from the encoder's own file, which gives the same vectors.

use std::path::Path;
use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Outcome};
use models::detect;
use models::text::{EncodeOptions, Layer, PromptOptions};

use crate::class::class;
use crate::value::{Array, Conditioning, Entry};
use crate::{Error, Result, Runtime};
use meta::DeviceId;
use runtime::{Caller, Network, Placing, Source, Wanted, Work};

/// Adds the class of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: Arc<Runtime>) {
    catalogue.add(LotusConditioning(runtime));
}

/// Values per token of OpenCLIP ViT-H.
const WIDTH: usize = 1024;
/// Its layers. Stable Diffusion 2 takes the result of the last but one, and some files leave out the last.
const LAYERS: usize = 24;
/// The empty prompt without filling: its start and its end. They see nothing of what follows, so the filling may stay.
const TOKENS: usize = 2;
/// Where the encoder may lie, alone or in a checkpoint.
const FOLDERS: [&str; 2] = ["text_encoders", "checkpoints"];

class! {
    /// The empty prompt for Lotus.
    LotusConditioning in "conditioning/lotus";
    |schema| schema.named_output("CONDITIONING", "conditioning").module("comfy_extras.nodes_lotus");
    |runtime, call| {
        let entry = Entry::text(encode_nothing(runtime, call)?, None);
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

fn encode_nothing(runtime: &Runtime, call: &Call) -> Result<Array, Failure> {
    let source = find(runtime, runtime.device_for(&call.job))?;
    let Network::Text(text) = &*source.network else {
        return Err(Failure::value(format!("{} is no text encoder", source.name())));
    };
    let encoder = &text.encoder;
    let layer = if encoder.layers() >= LAYERS { Layer::Skip(2) } else { Layer::Last };
    let tokens = text.tokenizer.tokenize("", PromptOptions::default(), 0);
    let work = Work::text(&tokens);
    let wanted = Wanted { source: &source, beside: &[], loras: &[], work: &work };
    let caller = Caller::of(&call.job);
    let array = runtime.with_session(wanted, &caller, |opened| {
        let options = EncodeOptions { layer, ..EncodeOptions::default() };
        let encoded = encoder.encode(&opened.session, &tokens, options)?;
        let kept = encoded.cond.slice(1, 0, TOKENS)?;
        Ok(Array { shape: kept.dims().to_vec(), values: kept.to_vec()? })
    })?;
    Ok(array)
}

/// The first text encoder of Stable Diffusion 2 that there is.
fn find(runtime: &Runtime, device: DeviceId) -> Result<Source> {
    let named = |folder: &'static str| {
        let names = runtime.names(folder).into_iter();
        names.filter_map(move |name| runtime.find(folder, &name).ok())
    };
    let found = FOLDERS.into_iter().flat_map(named).find_map(|path| encoder_in(runtime, &path, device));
    found.ok_or_else(|| {
        let folder = runtime.folders.places(FOLDERS[0]).first().cloned().unwrap_or_default();
        Error::Told(format!(
            "there is no text encoder of Stable Diffusion 2 (OpenCLIP ViT-H, {WIDTH} values per token), which Lotus is told \
             nothing with: put text_encoder/model.safetensors of a Stable Diffusion 2 repository into {} under any name",
            folder.display()
        ))
    })
}

/// The encoder in a file, if it has one; what cannot be read has none.
fn encoder_in(runtime: &Runtime, path: &Path, device: DeviceId) -> Option<Source> {
    let file = runtime.open_file(path).ok()?;
    let detected = detect(&file);
    let sources = Source::encoders(&file, &detected, &Placing::following(device)).ok()?;
    sources.into_iter().find(|source| match &*source.network {
        Network::Text(text) => text.encoder.key() == "clip_h" && text.encoder.width() == WIDTH,
        _ => false,
    })
}
