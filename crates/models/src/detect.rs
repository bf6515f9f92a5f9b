//! Detection: what a file is, from the names and shapes of its tensors and never from its own name.
//!
//! A file has parts: a diffusion model alone is one part, an all-in-one checkpoint has text encoders and an
//! autoencoder beside it. Each part has the prefix under which its tensors have the names that the model knows.

mod rules;

use std::fmt;

use checkpoint::{Checkpoint, Entry, Precision};
use meta::ByteSize;

use crate::{Error, Result};

/// What a file is.
#[derive(Clone, Debug, PartialEq)]
pub struct Detected {
    /// The file's name, for messages only.
    pub file: String,
    /// What is in it, the diffusion model first; empty if nothing was recognised.
    pub parts: Vec<Part>,
    /// The first tensors' names, for a message about a file that was not recognised.
    first_names: Vec<String>,
}

/// One model in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What it is for.
    pub role: Role,
    /// Its family and variant.
    pub family: Family,
    /// How its tensors are named.
    pub layout: Layout,
    /// What stands in front of its tensors' names.
    pub prefix: String,
    /// How most of it is stored.
    pub precision: Precision,
    /// Its stored bytes.
    pub bytes: u64,
}

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Denoises latents.
    Diffusion,
    /// Turns text into conditioning.
    Text,
    /// Turns latents into images and back.
    Autoencoder,
    /// Says what is in a picture.
    Vision,
    /// Changes the weights of another model.
    Patch,
    /// Anything else that is recognised.
    Other,
}

/// A model's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// FLUX.1.
    Flux(FluxVariant),
    /// A CLIP text encoder of this width: 768 is CLIP-L, 1280 CLIP-G.
    Clip {
        /// Values per token.
        width: usize,
    },
    /// A T5 encoder of this width: 4096 is T5-XXL.
    T5 {
        /// Values per token.
        width: usize,
    },
    /// A UMT5 encoder of this width, which has a position table in every layer.
    Umt5 {
        /// Values per token.
        width: usize,
    },
    /// The KL autoencoder for images, with this many latent channels: 16 for FLUX, 4 for SD.
    Kl {
        /// Channels of a latent.
        channels: usize,
    },
    /// Florence-2 with a language model of this width: 768 is base, 1024 large.
    Florence2 {
        /// Values per token.
        width: usize,
    },
    /// A LoRA or another patch for weights.
    Lora,
    /// A family that is recognised by name only.
    Named(&'static str),
}

/// Which FLUX.1 it is. Kontext has the tensors of dev and differs only in what it was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FluxVariant {
    /// With guidance: dev and Kontext.
    Dev,
    /// Without guidance.
    Schnell,
    /// With a masked image and its mask beside the latent.
    Fill,
    /// With a control image beside the latent: Canny and Depth.
    Control,
}

/// How a part's tensors are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As its authors published it; the names that this crate knows.
    Native,
    /// As the diffusers library writes it.
    Diffusers,
    /// As the transformers library writes it, where that differs from what was published first.
    Transformers,
    /// As llama.cpp names the tensors of language models.
    LlamaCpp,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Family::Flux(FluxVariant::Dev) => f.write_str("FLUX.1 dev"),
            Family::Flux(FluxVariant::Schnell) => f.write_str("FLUX.1 schnell"),
            Family::Flux(FluxVariant::Fill) => f.write_str("FLUX.1 Fill"),
            Family::Flux(FluxVariant::Control) => f.write_str("FLUX.1 Canny or Depth"),
            Family::Clip { width: 768 } => f.write_str("CLIP-L"),
            Family::Clip { width: 1280 } => f.write_str("CLIP-G"),
            Family::Clip { width } => write!(f, "CLIP of width {width}"),
            Family::T5 { width: 4096 } => f.write_str("T5-XXL"),
            Family::T5 { width } => write!(f, "T5 of width {width}"),
            Family::Umt5 { width: 4096 } => f.write_str("UMT5-XXL"),
            Family::Umt5 { width } => write!(f, "UMT5 of width {width}"),
            Family::Kl { channels } => write!(f, "KL, {channels} channels"),
            Family::Florence2 { width: 768 } => f.write_str("Florence-2 base"),
            Family::Florence2 { width: 1024 } => f.write_str("Florence-2 large"),
            Family::Florence2 { width } => write!(f, "Florence-2 of width {width}"),
            Family::Lora => f.write_str("LoRA"),
            Family::Named(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family;
        match self.role {
            Role::Diffusion => write!(f, "a diffusion model ({family})")?,
            Role::Text => write!(f, "a text encoder ({family})")?,
            Role::Autoencoder => write!(f, "an autoencoder ({family})")?,
            Role::Vision => write!(f, "a vision model ({family})")?,
            Role::Patch => write!(f, "a {family}")?,
            Role::Other => write!(f, "{family}")?,
        }
        match self.layout {
            Layout::Native => Ok(()),
            Layout::Diffusers => f.write_str(" with the tensor names of diffusers"),
            Layout::Transformers => f.write_str(" with the tensor names of transformers"),
            Layout::LlamaCpp => f.write_str(" with the tensor names of a language model converter"),
        }
    }
}

impl Detected {
    /// The family of the most important part.
    pub fn family(&self) -> Option<Family> {
        self.parts.first().map(|part| part.family)
    }

    /// The parts with this role.
    pub fn parts_for(&self, role: Role) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.role == role)
    }

    /// The first part with this role, or an error that says what the file is instead.
    pub fn part(&self, role: Role, wanted: &'static str) -> Result<&Part> {
        self.parts_for(role).next().ok_or_else(|| self.wrong_kind(wanted))
    }

    /// What the file seems to be, in words.
    pub fn seems(&self) -> String {
        match self.parts.as_slice() {
            [] if self.first_names.is_empty() => "a file without tensors".into(),
            [] => format!("unknown: its first tensors are {}", self.first_names.join(", ")),
            [only] => only.to_string(),
            [first, others @ ..] if first.role == Role::Diffusion => {
                let others: Vec<String> = others.iter().map(|part| part.family.to_string()).collect();
                format!("an all-in-one checkpoint of {} with {}", first.family, others.join(", "))
            }
            parts => parts.iter().map(Part::to_string).collect::<Vec<_>>().join(" and "),
        }
    }

    /// The error for a file that is something else than `wanted`.
    pub fn wrong_kind(&self, wanted: &'static str) -> Error {
        Error::WrongKind { file: self.file.clone(), wanted, seems: self.seems() }
    }
}

impl fmt::Display for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.file, self.seems())?;
        for part in &self.parts {
            writeln!(f, "  {part}, {}, {}", part.precision, ByteSize(part.bytes))?;
        }
        Ok(())
    }
}

/// Says what a file is.
pub fn detect(checkpoint: &Checkpoint) -> Detected {
    let mut parts: Vec<Part> = rules::find(checkpoint)
        .into_iter()
        .map(|found| {
            let entries =
                || checkpoint.entries().iter().filter(|entry| entry.name().starts_with(&found.prefix));
            let (precision, bytes) = (checkpoint.precision(entries()), entries().map(Entry::len).sum());
            Part {
                role: found.role,
                family: found.family,
                layout: found.layout,
                prefix: found.prefix,
                precision,
                bytes,
            }
        })
        .collect();
    parts.sort_by_key(|part| part.role);
    let first_names = checkpoint.entries().iter().take(3);
    let first_names = first_names.map(|entry| format!("{} {}", entry.name(), entry.shape())).collect();
    Detected { file: file_name(checkpoint), parts, first_names }
}

/// What a file seems to be, in words.
pub fn seems(checkpoint: &Checkpoint) -> String {
    detect(checkpoint).seems()
}

/// A file's name without its folder.
pub(crate) fn file_name(checkpoint: &Checkpoint) -> String {
    let path = checkpoint.path();
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
