//! `LotusConditioning`: what the Lotus depth and normal models are told, which is always nothing: the empty prompt through
//! the text encoder of Stable Diffusion 2.
//!
//! ComfyUI has the resulting numbers in its program. They are part of a program under another licence, so they are not
//! here: they are computed from the encoder's own file, which gives the same vectors.

use std::path::Path;
use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Outcome};
use models::detect;
use models::detect::{Family, Role};
use models::text::{EncodeOptions, Layer, PromptOptions, TextEncoder};
use residency::Cancel;

use crate::studio::{Network, Placing, Source, Wanted, Work, class};
use crate::value::{Array, Conditioning, Entry};
use crate::{Error, Result, Studio};

/// Adds the class of this file.
pub(super) fn add(catalogue: &mut Catalogue, studio: Arc<Studio>) {
    catalogue.add(LotusConditioning(studio));
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
    |studio, call| {
        let entry = Entry::new(encode_nothing(studio, call)?, None);
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

fn encode_nothing(studio: &Studio, call: &Call) -> Result<Array, Failure> {
    let source = find(studio)?;
    let Network::Text(text) = &source.network else {
        return Err(Failure::value(format!("{} is no text encoder", source.name())));
    };
    let (encoder, tokenizer) = &**text;
    let has_all = matches!(encoder, TextEncoder::Clip(clip) if clip.config().layers >= LAYERS);
    let layer = if has_all { Layer::Skip(2) } else { Layer::Last };
    let tokens = tokenizer.tokenize("", PromptOptions::default());
    let work = Work::text(&tokens);
    let wanted = Wanted { source: &source, beside: &[], loras: &[], work: &work };
    let cancel = Cancel::from(Arc::clone(&call.job.cancel));
    let array = studio.with_session(wanted, &cancel, |opened| {
        let options = EncodeOptions { layer, ..EncodeOptions::default() };
        let encoded = encoder.encode(&opened.session, &tokens, options)?;
        let kept = encoded.cond.slice(1, 0, TOKENS)?;
        Ok(Array { shape: kept.dims().to_vec(), values: kept.to_vec()? })
    })?;
    Ok(array)
}

/// The first text encoder of Stable Diffusion 2 that there is.
fn find(studio: &Studio) -> Result<Source> {
    let named = |folder: &'static str| {
        let names = studio.names(folder).into_iter();
        names.filter_map(move |name| studio.find(folder, &name).ok())
    };
    let found = FOLDERS.into_iter().flat_map(named).find_map(|path| encoder_in(studio, &path));
    found.ok_or_else(|| {
        let folder = studio.folders.places(FOLDERS[0]).first().cloned().unwrap_or_default();
        Error::Told(format!(
            "there is no text encoder of Stable Diffusion 2 (OpenCLIP ViT-H, {WIDTH} values per token), which Lotus is told \
             nothing with: put text_encoder/model.safetensors of a Stable Diffusion 2 repository into {} under any name",
            folder.display()
        ))
    })
}

/// The encoder in a file, if it has one; what cannot be read has none.
fn encoder_in(studio: &Studio, path: &Path) -> Option<Source> {
    let file = studio.open_file(path).ok()?;
    let detected = detect(&file);
    let fits = |family: Family| family == Family::Clip { width: WIDTH };
    if !detected.parts_for(Role::Text).any(|part| fits(part.family)) {
        return None;
    }
    let sources = Source::encoders(&file, &detected, &Placing::automatic(studio.compute)).ok()?;
    sources.into_iter().find(|source| match &source.network {
        Network::Text(text) => text.0.width() == WIDTH,
        _ => false,
    })
}
