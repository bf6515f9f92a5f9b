//! Text encoders: one file or several that belong together.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Value};
use meta::DType;
use models::detect::{Part, Reader, Role};
use models::text::{TextRecipe, name_of, recipes};
use models::vision::TOWERS;

use super::variants::add_with_variants;
use super::{Found, Loader, LoaderKind, names_of};
use crate::{Error, Result, Runtime};
use runtime::{Clip, Placing, Source};

/// Adds the loaders of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    for gguf in [false, true] {
        for files in [Files::One, Files::Two, Files::Three, Files::Four] {
            add_with_variants(catalogue, runtime, TextEncoders { files, gguf });
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
const ONE_FILE: [&str; 20] = [
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
    "krea2",
    "flux3",
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

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        let names = names_of(runtime, self.folders());
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

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let family = if self.families().is_empty() { "" } else { call.text("type")? };
        let (mut encoders, mut tower) = (Vec::new(), None);
        for input in self.names() {
            let found = Found::named(runtime, call, input, self.folders())?;
            encoders.extend(Source::encoders(&found.file, &found.detected, placing)?);
            let is_tower = |part: &&Part| TOWERS.iter().any(|tower| part.is_read_by(tower.name));
            if let Some(part) = found.detected.parts_for(Role::Vision).find(is_tower) {
                tower = Some(Source::of_part(&found.file, part, placing.clone())?);
            }
        }
        let clip = clip(runtime, family, encoders)?;
        if let Some(tower) = &tower {
            runtime.register(tower)?;
        }
        Ok(vec![Value::object(Clip { tower: tower.map(Arc::new), ..clip })])
    }
}

/// The text encoders of a whole checkpoint, for its own family where that is known.
pub(super) fn clip_of_checkpoint(runtime: &Runtime, found: &Found, placing: &Placing) -> Result<Value> {
    let encoders = Source::encoders(&found.file, &found.detected, placing)?;
    let keys: Vec<&str> = encoders.iter().filter_map(Source::encoder_key).collect();
    let own = found.detected.parts_for(Role::Diffusion).find_map(|part| match part.reader {
        Some(Reader::Diffusion(family)) => {
            family.text.iter().find(|recipe| recipe.fits(&keys)).or(family.text.first())
        }
        _ => None,
    });
    let own = own.map_or("", |recipe| recipe.name);
    Ok(Value::object(clip(runtime, own, encoders)?))
}

/// Encoders as one value, registered: by the family that was named, else by what they are.
fn clip(runtime: &Runtime, family: &str, mut encoders: Vec<Source>) -> Result<Clip> {
    let keys: Vec<&str> = encoders.iter().filter_map(Source::encoder_key).collect();
    let recipe = TextRecipe::find(family, &keys).ok_or_else(|| {
        let named = |(source, key): (&Source, &&str)| format!("{} ({})", source.name(), name_of(key));
        let names: Vec<String> = encoders.iter().zip(&keys).map(named).collect();
        let wanted = if family.is_empty() { "these files together" } else { family };
        let known: Vec<String> = recipes().map(TextRecipe::described).collect();
        let (last, others) =
            known.split_last().map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
        Error::Told(format!(
            "{} cannot be used for {wanted}; what can is {} and {last}",
            names.join(", "),
            others.join(", ")
        ))
    })?;
    round_weights(recipe, &mut encoders)?;
    for encoder in &encoders {
        runtime.register(encoder)?;
    }
    Ok(Clip::new(recipe, encoders))
}

/// Has the weights of encoders cast where the recipe wants them in the type of another one's file.
fn round_weights(recipe: &TextRecipe, encoders: &mut [Source]) -> Result<()> {
    for part in recipe.encoders {
        let Some(like) = part.rounded_like else { continue };
        let of = |key: &str| encoders.iter().position(|source| source.encoder_key() == Some(key));
        let (Some(own), Some(other)) = (of(part.key), of(like)) else { continue };
        if let Some(dtype @ (DType::BF16 | DType::F16)) = encoders[other].plain_type()? {
            encoders[own].cast = Some(dtype);
        }
    }
    Ok(())
}
