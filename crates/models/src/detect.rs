//! Detection: what a file is, from the names and shapes of its tensors and never from its own name.
//!
//! A file has parts: a diffusion model alone is one part, an all-in-one checkpoint has text encoders and an
//! autoencoder beside it. Each part has the prefix under which its tensors have the names that the model knows.

mod named;
mod signs;

use std::borrow::Cow;
use std::fmt;

use checkpoint::{Checkpoint, Entry, Precision};
use meta::ByteSize;

use crate::audio::{self, AudioFamily};
use crate::control::{self, ControlFamily};
use crate::diffusion::model_patches::{self, PatchFamily};
use crate::diffusion::{self, DiffusionFamily};
use crate::latent_upscale::{self, LatentUpscalerFamily};
use crate::text::{self, TextArchitecture};
use crate::upscale::{self, UpscalerFamily};
use crate::vae::{self, AutoencoderFamily};
use crate::vision::{self, VisionFamily};
use crate::{Error, Result};

pub use signs::{Neighbours, Sign};

/// What a file is.
#[derive(Clone, Debug, PartialEq)]
pub struct Detected {
    /// The file's name, for messages only.
    pub file: String,
    /// What is in it, the diffusion model first; empty if nothing was recognised.
    pub parts: Vec<Part>,
    /// The first tensors' names, for a message about a file that was not recognised.
    first_names: Vec<String>,
    /// What the file itself says that it is, for the same message.
    said: Option<Cow<'static, str>>,
}

/// One model in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What it is for.
    pub role: Role,
    /// What the field calls it, with its variant: `FLUX.1 dev`, `CLIP-L`.
    pub name: Cow<'static, str>,
    /// Who can read it, unless it is known by name only.
    pub reader: Option<Reader>,
    /// How its tensors are named.
    pub layout: Layout,
    /// What stands in front of its tensors' names.
    pub prefix: String,
    /// How most of it is stored.
    pub precision: Precision,
    /// Its stored bytes.
    pub bytes: u64,
    /// The prefixes of other parts that lie within its own.
    inner: Vec<String>,
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
    /// Says what is in a sound.
    Audio,
    /// Tells a diffusion model to follow a picture.
    Control,
    /// Changes a diffusion model's image between its blocks.
    ModelPatch,
    /// Makes pictures larger, or better at their size.
    Upscale,
    /// Makes latents larger.
    LatentUpscale,
    /// Changes the weights of another model.
    Patch,
    /// Learned vectors that a prompt names.
    Embedding,
    /// Anything else that is recognised.
    Other,
}

/// Who reads a part of a file.
#[derive(Clone, Copy, Debug)]
pub enum Reader {
    /// A family of diffusion models.
    Diffusion(&'static DiffusionFamily),
    /// An architecture of text encoders.
    Text(&'static TextArchitecture),
    /// A family of autoencoders.
    Autoencoder(&'static AutoencoderFamily),
    /// A family of vision models.
    Vision(&'static VisionFamily),
    /// A family of audio encoders.
    Audio(&'static AudioFamily),
    /// A kind of control networks.
    Control(&'static ControlFamily),
    /// A kind of model patches.
    ModelPatch(&'static PatchFamily),
    /// A family of upscalers.
    Upscale(&'static UpscalerFamily),
    /// A family of networks that make latents larger.
    LatentUpscale(&'static LatentUpscalerFamily),
}

impl Reader {
    /// The name of the family or architecture.
    pub fn name(&self) -> &'static str {
        match self {
            Reader::Diffusion(family) => family.name,
            Reader::Text(architecture) => architecture.name,
            Reader::Autoencoder(family) => family.name,
            Reader::Vision(family) => family.name,
            Reader::Audio(family) => family.name,
            Reader::Control(family) => family.name,
            Reader::ModelPatch(family) => family.name,
            Reader::Upscale(family) => family.name,
            Reader::LatentUpscale(family) => family.name,
        }
    }
}

impl PartialEq for Reader {
    fn eq(&self, other: &Reader) -> bool {
        self.name() == other.name()
    }
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

impl Part {
    /// Whether its tensors have the names that its family knows.
    pub fn is_native(&self) -> bool {
        self.layout == Layout::Native
    }

    /// Whether a tensor is its own: under its prefix, and not of another part that lies within it.
    pub fn has(&self, name: &str) -> bool {
        let prefix = &self.prefix;
        name.starts_with(prefix.as_str()) && !self.inner.iter().any(|inner| name.starts_with(inner.as_str()))
    }

    /// Whether a family or architecture of this name reads it.
    pub fn is_read_by(&self, name: &str) -> bool {
        self.reader.is_some_and(|reader| reader.name() == name)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = &self.name;
        match self.role {
            Role::Diffusion => write!(f, "a diffusion model ({family})")?,
            Role::Text => write!(f, "a text encoder ({family})")?,
            Role::Autoencoder => write!(f, "an autoencoder ({family})")?,
            Role::Vision => write!(f, "a vision model ({family})")?,
            Role::Audio => write!(f, "an audio encoder ({family})")?,
            Role::Control => write!(f, "a control network ({family})")?,
            Role::ModelPatch => write!(f, "a model patch ({family})")?,
            Role::Upscale => write!(f, "an upscaler ({family})")?,
            Role::LatentUpscale => write!(f, "an upscaler of latents ({family})")?,
            Role::Patch => write!(f, "a {family}")?,
            Role::Embedding | Role::Other => write!(f, "{family}")?,
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
    /// What the field calls the most important part.
    pub fn name(&self) -> Option<&str> {
        self.parts.first().map(|part| &*part.name)
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
            [] => match &self.said {
                Some(said) => format!(
                    "{said} by its own account, though its tensors have names that are not known here: the first are {}",
                    self.first_names.join(", ")
                ),
                None => format!(
                    "of a kind that is not known here: its first tensors are {}",
                    self.first_names.join(", ")
                ),
            },
            [only] => only.to_string(),
            [first, others @ ..] if first.role == Role::Diffusion => {
                let others: Vec<String> = others.iter().map(|part| part.name.to_string()).collect();
                format!("an all-in-one checkpoint of {} with {}", first.name, others.join(", "))
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
    let mut parts = find(checkpoint);
    parts.sort_by_key(|part| part.role);
    let first_names = checkpoint.entries().iter().take(3);
    let first_names = first_names.map(|entry| format!("{} {}", entry.name(), entry.shape())).collect();
    let said = checkpoint.metadata().architecture().map(named::by_architecture);
    Detected { file: file_name(checkpoint), parts, first_names, said }
}

/// Ends and middles of names that only patches have.
const PATCH_MARKS: [&str; 8] = [
    ".lora_down.",
    ".lora_up.",
    ".lora_A.",
    ".lora_B.",
    ".lora.down.",
    ".hada_w1_",
    ".lokr_w1",
    ".dora_scale",
];

/// Every part of a file.
fn find(checkpoint: &Checkpoint) -> Vec<Part> {
    let part = |role, name, reader, layout, prefix: &str| {
        let entries = || checkpoint.entries().iter().filter(|entry| entry.name().starts_with(prefix));
        let (precision, bytes) = (checkpoint.precision(entries()), entries().map(Entry::len).sum());
        Part { role, name, reader, layout, prefix: prefix.to_owned(), precision, bytes, inner: Vec::new() }
    };
    // A patch has the names of the layers it is for, so it would look like them.
    let is_patch = |entry: &Entry| PATCH_MARKS.iter().any(|mark| entry.name().contains(mark));
    if checkpoint.entries().iter().any(is_patch) {
        return vec![part(Role::Patch, Cow::Borrowed("LoRA"), None, Layout::Native, "")];
    }
    let mut parts: Vec<Part> = Vec::new();
    for (role, reader, sign) in all_signs() {
        for entry in checkpoint.entries() {
            let Some(prefix) = signs::prefix_before(entry.name(), sign.tensor) else { continue };
            // A prefix has one part of each role at most, and a diffusion model none inside of it.
            let known = |part: &Part| part.role == role && part.prefix == prefix;
            let inside = |part: &Part| part.role == role && prefix.starts_with(&part.prefix);
            // A control network has the layers of the models that it is for.
            let controls = |part: &Part| part.role == Role::Control && part.prefix == prefix;
            let taken =
                |part: &Part| known(part) || controls(part) || (role == Role::Diffusion && inside(part));
            if parts.iter().any(taken) {
                continue;
            }
            if let Some(name) = (sign.name)(&Neighbours { checkpoint, entry, prefix }) {
                parts.push(part(role, name, reader, sign.layout, prefix));
            }
        }
    }
    set_inner(&mut parts);
    parts
}

/// Tells each part which others lie within its prefix.
fn set_inner(parts: &mut [Part]) {
    let prefixes: Vec<String> = parts.iter().map(|part| part.prefix.clone()).collect();
    for part in parts {
        let is_inner = |prefix: &&String| **prefix != part.prefix && prefix.starts_with(&part.prefix);
        part.inner = prefixes.iter().filter(is_inner).cloned().collect();
    }
}

/// Every sign that there is, in the order in which they are tried.
fn all_signs() -> impl Iterator<Item = (Role, Option<Reader>, &'static Sign)> {
    let control = control::FAMILIES.iter().flat_map(|family| {
        family.signs.iter().map(|sign| (Role::Control, Some(Reader::Control(family)), sign))
    });
    let patches = model_patches::FAMILIES.iter().flat_map(|family| {
        family.signs.iter().map(|sign| (Role::ModelPatch, Some(Reader::ModelPatch(family)), sign))
    });
    let named = named::NAMED.iter().map(|(role, sign)| (*role, None, sign));
    let diffusion = diffusion::FAMILIES.iter().flat_map(|family| {
        family.signs.iter().map(|sign| (Role::Diffusion, Some(Reader::Diffusion(family)), sign))
    });
    let text = text::ARCHITECTURES.iter().flat_map(|architecture| {
        architecture.signs.iter().map(|sign| (Role::Text, Some(Reader::Text(architecture)), sign))
    });
    let autoencoders = vae::FAMILIES.iter().flat_map(|family| {
        family.signs.iter().map(|sign| (Role::Autoencoder, Some(Reader::Autoencoder(family)), sign))
    });
    let vision = vision::FAMILIES.iter().flat_map(|family| {
        family.signs.iter().map(|sign| (Role::Vision, Some(Reader::Vision(family)), sign))
    });
    let audio = audio::FAMILIES
        .iter()
        .flat_map(|family| family.signs.iter().map(|sign| (Role::Audio, Some(Reader::Audio(family)), sign)));
    let upscale = upscale::FAMILIES.iter().flat_map(|family| {
        family.signs.iter().map(|sign| (Role::Upscale, Some(Reader::Upscale(family)), sign))
    });
    let latents = latent_upscale::FAMILIES.iter().flat_map(|family| {
        family.signs.iter().map(|sign| (Role::LatentUpscale, Some(Reader::LatentUpscale(family)), sign))
    });
    let control = control.chain(patches);
    let others = autoencoders.chain(vision).chain(audio).chain(upscale).chain(latents);
    control.chain(named).chain(diffusion).chain(text).chain(others)
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
