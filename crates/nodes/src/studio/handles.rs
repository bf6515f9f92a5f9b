//! The values of `MODEL`, `CLIP` and `VAE` links: handles that are cheap to copy and load on use.

use std::fmt;
use std::sync::Arc;

use graph::Object;
use models::detect::FluxVariant;
use models::text::{Layer, TextEncoder};
use patch::{KeyMap, PatchFile, PatchSet};
use sampling::{LatentFormat, ModelSampling};

use super::{Network, Source};
use crate::{Error, Result};

/// A LoRA file at a strength.
#[derive(Clone, Debug)]
pub(crate) struct Lora {
    pub(crate) file: Arc<PatchFile>,
    pub(crate) strength: f64,
}

/// A diffusion model, with what nodes changed about it: `MODEL`.
#[derive(Clone)]
pub struct Model {
    pub(crate) source: Arc<Source>,
    pub(crate) loras: Vec<Lora>,
    /// How it reads noise.
    pub(crate) sampling: Arc<ModelSampling>,
    /// How much masks become thresholds over the steps, if they do.
    pub(crate) differential: Option<f64>,
}

/// Text encoders that belong together: `CLIP`.
#[derive(Clone)]
pub struct Clip {
    pub(crate) kind: ClipKind,
    pub(crate) encoders: Vec<Arc<Source>>,
    pub(crate) loras: Vec<Lora>,
    /// The layer so many from the end, if a node said so.
    pub(crate) skip: Option<usize>,
    /// What a node said of the length of T5's prompts: at least so many tokens, and so much padding.
    pub(crate) lengths: Option<(usize, usize)>,
}

/// Which family a text is encoded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClipKind {
    /// FLUX.1: CLIP-L and T5.
    Flux,
    /// Stable Diffusion 1: CLIP-L.
    StableDiffusion,
    /// SDXL: CLIP-L and CLIP-G.
    Sdxl,
    /// Stable Diffusion 3: CLIP-L, CLIP-G and T5.
    Sd3,
}

/// An autoencoder: `VAE`.
#[derive(Clone)]
pub struct Vae {
    pub(crate) source: Arc<Source>,
}

impl Model {
    /// The model as its file has it.
    pub(crate) fn new(source: Source) -> Result<Model> {
        let sampling = match &source.network {
            // Schnell was distilled without a shift, the others expect the one of their training.
            Network::Flux(_, FluxVariant::Schnell) => ModelSampling::flow(1.0, 1.0),
            Network::Flux(..) => ModelSampling::flux(1.15),
            _ => return Err(Error::Told(format!("{} is no diffusion model", source.name()))),
        };
        Ok(Model {
            source: Arc::new(source),
            loras: Vec::new(),
            sampling: Arc::new(sampling),
            differential: None,
        })
    }

    /// The scale and the colours of its latents.
    pub(crate) fn format(&self) -> LatentFormat {
        LatentFormat::Flux
    }

    /// The same model that reads noise in another way.
    pub(crate) fn with_sampling(&self, sampling: ModelSampling) -> Model {
        Model { sampling: Arc::new(sampling), ..self.clone() }
    }
}

impl Clip {
    /// Encoders for a family.
    pub(crate) fn new(kind: ClipKind, encoders: Vec<Source>) -> Clip {
        let encoders = encoders.into_iter().map(Arc::new).collect();
        Clip { kind, encoders, loras: Vec::new(), skip: None, lengths: None }
    }

    /// The layer that CLIP's result is taken from, for an encoder that is used with `usual`.
    pub(crate) fn layer(&self, usual: Layer) -> Layer {
        match (self.skip, usual) {
            (None, usual) => usual,
            (Some(skip), Layer::SkipRaw(_)) => Layer::SkipRaw(skip),
            (Some(skip), _) => Layer::Skip(skip),
        }
    }
}

/// What LoRA files do to a network that stands alone or among others.
pub(crate) fn patch_set(source: &Source, beside: &[Arc<Source>], loras: &[Lora]) -> Result<PatchSet> {
    let mut set = PatchSet::new();
    if loras.is_empty() {
        return Ok(set);
    }
    let weights = source.weights()?.iter().map(|(name, shape)| (name.as_str(), shape));
    let keys = match &source.network {
        Network::Flux(..) => KeyMap::for_flux(weights),
        Network::Text(text) => {
            let all: Vec<_> = beside.iter().filter_map(|source| encoder_kind(source)).collect();
            KeyMap::for_text_encoder(weights, kind_of(&text.0), &all)
        }
        Network::Kl(_) | Network::Florence2(_) => KeyMap::native(weights),
    };
    for lora in loras {
        set.add(&lora.file, &keys, lora.strength)?;
    }
    Ok(set)
}

fn encoder_kind(source: &Source) -> Option<patch::TextEncoder> {
    match &source.network {
        Network::Text(text) => Some(kind_of(&text.0)),
        _ => None,
    }
}

/// The encoder that LoRA files mean by their names.
pub(crate) fn kind_of(encoder: &TextEncoder) -> patch::TextEncoder {
    match encoder {
        TextEncoder::T5(_) => patch::TextEncoder::T5,
        TextEncoder::Clip(clip) if clip.config().width >= 1280 => patch::TextEncoder::ClipG,
        TextEncoder::Clip(clip) if clip.config().width >= 1024 => patch::TextEncoder::ClipH,
        TextEncoder::Clip(_) => patch::TextEncoder::ClipL,
    }
}

macro_rules! handles {
    ($($name:ident => |$value:ident| $text:expr, $is_current:expr;)*) => {
        $(
            impl Object for $name {
                fn describe(&self) -> String {
                    let $value = self;
                    $text
                }

                fn is_current(&self) -> bool {
                    let $value = self;
                    $is_current
                }
            }

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(&self.describe())
                }
            }
        )*
    };
}

handles! {
    Model => |it| format!("model {} with {} LoRAs", it.source.name(), it.loras.len()),
        it.source.is_current() && are_current(&it.loras);
    Clip => |it| {
        let names: Vec<String> = it.encoders.iter().map(|encoder| encoder.name()).collect();
        format!("text encoders {}", names.join(", "))
    },
        it.encoders.iter().all(|encoder| encoder.is_current()) && are_current(&it.loras);
    Vae => |it| format!("autoencoder {}", it.source.name()), it.source.is_current();
}

/// Whether the files of LoRAs are as they were when they were opened.
fn are_current(loras: &[Lora]) -> bool {
    loras.iter().all(|lora| lora.file.is_unchanged())
}
