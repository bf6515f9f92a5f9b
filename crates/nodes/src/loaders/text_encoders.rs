//! Text encoders: one file or several that belong together.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Value};

use super::variants::add_with_variants;
use super::{Found, Loader, LoaderKind, names_of};
use crate::studio::{Clip, ClipKind, Network, Placing, Source, kind_of};
use crate::{Error, Result, Studio};

/// Adds the loaders of this file.
pub(super) fn add(catalogue: &mut Catalogue, studio: &Arc<Studio>) {
    for gguf in [false, true] {
        for files in [Files::One, Files::Two, Files::Three, Files::Four] {
            add_with_variants(catalogue, studio, TextEncoders { files, gguf });
        }
    }
}

/// How many files a loader takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Files {
    One,
    Two,
    Three,
    Four,
}

/// `CLIPLoader`, `DualCLIPLoader`, `TripleCLIPLoader` and `QuadrupleCLIPLoader`, and the same for GGUF files.
struct TextEncoders {
    files: Files,
    gguf: bool,
}

/// The families that one file can be for.
const ONE_FILE: [&str; 18] = [
    "stable_diffusion",
    "stable_cascade",
    "sd3",
    "stable_audio",
    "mochi",
    "ltxv",
    "pixart",
    "cosmos",
    "lumina2",
    "wan",
    "hidream",
    "chroma",
    "ace",
    "omnigen2",
    "qwen_image",
    "hunyuan_image",
    "flux2",
    "ovis",
];

/// The families that two files can be for.
const TWO_FILES: [&str; 10] = [
    "sdxl",
    "sd3",
    "flux",
    "hunyuan_video",
    "hidream",
    "hunyuan_image",
    "hunyuan_video_15",
    "kandinsky5",
    "kandinsky5_image",
    "newbie",
];

impl TextEncoders {
    fn names(&self) -> &'static [&'static str] {
        match self.files {
            Files::One => &["clip_name"],
            Files::Two => &["clip_name1", "clip_name2"],
            Files::Three => &["clip_name1", "clip_name2", "clip_name3"],
            Files::Four => &["clip_name1", "clip_name2", "clip_name3", "clip_name4"],
        }
    }

    fn folders(&self) -> &'static [&'static str] {
        if self.gguf { &["text_encoders", "clip_gguf"] } else { &["text_encoders"] }
    }

    fn families(&self) -> &'static [&'static str] {
        match self.files {
            Files::One => &ONE_FILE,
            Files::Two => &TWO_FILES,
            Files::Three | Files::Four => &[],
        }
    }
}

impl Loader for TextEncoders {
    fn class(&self) -> &'static str {
        match (self.files, self.gguf) {
            (Files::One, false) => "CLIPLoader",
            (Files::Two, false) => "DualCLIPLoader",
            (Files::Three, false) => "TripleCLIPLoader",
            (Files::Four, false) => "QuadrupleCLIPLoader",
            (Files::One, true) => "CLIPLoaderGGUF",
            (Files::Two, true) => "DualCLIPLoaderGGUF",
            (Files::Three, true) => "TripleCLIPLoaderGGUF",
            (Files::Four, true) => "QuadrupleCLIPLoaderGGUF",
        }
    }

    fn title(&self) -> &'static str {
        match (self.files, self.gguf) {
            (Files::One, false) => "Load CLIP",
            (Files::Two, false) => "DualCLIPLoader",
            (Files::Three, false) => "TripleCLIPLoader",
            (Files::Four, false) => "QuadrupleCLIPLoader",
            (Files::One, true) => "Load CLIP (GGUF)",
            (Files::Two, true) => "DualCLIPLoader (GGUF)",
            (Files::Three, true) => "TripleCLIPLoader (GGUF)",
            (Files::Four, true) => "QuadrupleCLIPLoader (GGUF)",
        }
    }

    fn category(&self) -> &'static str {
        if self.gguf { "bootleg" } else { "advanced/loaders" }
    }

    fn kind(&self) -> LoaderKind {
        LoaderKind::Text
    }

    fn has_device_input(&self) -> bool {
        !self.gguf && matches!(self.files, Files::One | Files::Two)
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        self.names().iter().map(|name| (*name, self.folders())).collect()
    }

    fn inputs(&self, studio: &Studio) -> Vec<Input> {
        let names = names_of(studio, self.folders());
        let files = self.names().iter().map(|input| Input::choice(input, names.clone()));
        let mut inputs: Vec<Input> = files.collect();
        if !self.families().is_empty() {
            inputs.push(Input::choice("type", self.families().iter().copied()));
        }
        inputs
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["CLIP"]
    }

    fn load(&self, studio: &Studio, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let family = if self.families().is_empty() { "" } else { call.text("type")? };
        let mut encoders = Vec::new();
        for input in self.names() {
            let found = Found::named(studio, call, input, self.folders())?;
            encoders.extend(Source::encoders(&found.file, &found.detected, placing)?);
        }
        Ok(vec![clip(studio, family, encoders)?])
    }
}

/// The text encoders of a whole checkpoint.
pub(super) fn clip_of_checkpoint(studio: &Studio, found: &Found, placing: &Placing) -> Result<Value> {
    clip(studio, "", Source::encoders(&found.file, &found.detected, placing)?)
}

/// Encoders as one value, registered: by the family that was named, else by what they are.
fn clip(studio: &Studio, family: &str, encoders: Vec<Source>) -> Result<Value> {
    use patch::TextEncoder::{ClipG, ClipL, T5};
    let kinds: Vec<patch::TextEncoder> = encoders
        .iter()
        .filter_map(|source| match &source.network {
            Network::Text(text) => Some(kind_of(&text.0)),
            _ => None,
        })
        .collect();
    let has = |wanted: &[patch::TextEncoder]| wanted.iter().all(|kind| kinds.contains(kind));
    let kind = match family {
        "flux" if has(&[ClipL, T5]) => Some(ClipKind::Flux),
        "sdxl" if has(&[ClipL, ClipG]) => Some(ClipKind::Sdxl),
        "stable_diffusion" if has(&[ClipL]) => Some(ClipKind::StableDiffusion),
        "sd3" | "" if has(&[ClipL, ClipG, T5]) => Some(ClipKind::Sd3),
        "" if has(&[ClipL, ClipG]) => Some(ClipKind::Sdxl),
        "" if has(&[ClipL, T5]) => Some(ClipKind::Flux),
        "" if has(&[ClipL]) => Some(ClipKind::StableDiffusion),
        _ => None,
    };
    let kind = kind.ok_or_else(|| {
        let names: Vec<String> = encoders.iter().map(Source::name).zip(&kinds).map(told).collect();
        let wanted = if family.is_empty() { "these files together" } else { family };
        Error::Told(format!(
            "{} cannot be used for {wanted}; what can is flux (CLIP-L and T5), sdxl (CLIP-L and CLIP-G), \
             stable_diffusion (CLIP-L) and sd3 (CLIP-L, CLIP-G and T5)",
            names.join(", ")
        ))
    })?;
    for encoder in &encoders {
        studio.register(encoder)?;
    }
    Ok(Value::object(Clip::new(kind, encoders)))
}

fn told((name, kind): (String, &patch::TextEncoder)) -> String {
    format!("{name} ({kind:?})")
}
