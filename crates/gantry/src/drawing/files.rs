//! The files of a model: which of them has which part, and the names that loaders know them by.

use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use checkpoint::Checkpoint;
use models::detect::{Detected, Family, FluxVariant, Role, detect};

use crate::cli::DrawArgs;
use crate::flux_parts::{FLUX_PARTS, FluxPart};

/// The strengths that nodes take for a LoRA.
pub(crate) const STRENGTHS: RangeInclusive<f64> = -100.0..=100.0;

/// The files of a FLUX.1 model, by the names that loaders list.
pub(crate) struct ModelFiles {
    /// The diffusion model.
    pub(crate) model: String,
    /// The text encoders, unless the model's file is a checkpoint that has both. Of a kind that both files have, the
    /// first one's counts.
    pub(crate) encoders: Option<[String; 2]>,
    /// The autoencoder, unless the model's file has it.
    pub(crate) autoencoder: Option<String>,
    /// LoRAs, each at its strength.
    pub(crate) loras: Vec<(String, f64)>,
    /// Whether the model was distilled with guidance, and is told one.
    pub(crate) takes_guidance: bool,
    /// Those that loaders do not list by themselves.
    pub(crate) offers: Vec<Offer>,
}

/// A file that is listed under a folder's key although it lies elsewhere.
pub(crate) struct Offer {
    pub(crate) key: &'static str,
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// A file that was given, and what is in it.
struct Given<'a> {
    path: &'a Path,
    found: Detected,
}

impl ModelFiles {
    /// The files that the flags name; a part that no file has is told with the flag that gives it.
    pub(crate) fn given(args: &DrawArgs) -> Result<ModelFiles> {
        let [diffusion, clip_l, t5, autoencoder] = &FLUX_PARTS;
        let model = Given::open(diffusion.flag, &args.model)?;
        if !diffusion.is_in(&model.found) {
            return Err(model.found.wrong_kind("a FLUX.1 diffusion model").into());
        }
        let mut offers = Vec::new();
        let own = model.path;
        let clip_l = elsewhere(&model, clip_l, args.clip_l.as_deref())?;
        let t5 = elsewhere(&model, t5, args.t5.as_deref())?;
        let encoders = match (clip_l, t5) {
            (None, None) => None,
            // What was given goes before what the model's file has of the same kind.
            (Some(given), other) | (other, Some(given)) => Some([given, other.unwrap_or(own)]),
        };
        let vae = elsewhere(&model, autoencoder, args.vae.as_deref())?;
        let vae = vae.or_else(|| encoders.map(|_| own));
        let key = if encoders.is_none() { "checkpoints" } else { diffusion.key };
        Ok(ModelFiles {
            model: offer(&mut offers, key, own),
            encoders: encoders.map(|files| files.map(|file| offer(&mut offers, FLUX_PARTS[1].key, file))),
            autoencoder: vae.map(|file| offer(&mut offers, autoencoder.key, file)),
            loras: args.lora.iter().map(|text| lora(&mut offers, text)).collect::<Result<_>>()?,
            takes_guidance: model.found.parts_for(Role::Diffusion).any(|part| takes_guidance(&part.family)),
            offers,
        })
    }
}

impl<'a> Given<'a> {
    fn open(flag: &'static str, path: &'a Path) -> Result<Given<'a>> {
        let file = Checkpoint::open(path).context(flag)?;
        Ok(Given { path, found: detect(&file) })
    }
}

/// Schnell was distilled without guidance.
fn takes_guidance(family: &Family) -> bool {
    !matches!(family, Family::Flux(FluxVariant::Schnell))
}

/// The file that was given for a part; none if the model's own file has it.
fn elsewhere<'a>(model: &Given<'_>, part: &FluxPart, given: Option<&'a Path>) -> Result<Option<&'a Path>> {
    let Some(path) = given else {
        ensure!(
            part.is_in(&model.found),
            "{} has no {}: give the file that has it with {} FILE",
            model.path.display(),
            part.described(),
            part.flag
        );
        return Ok(None);
    };
    let file = Given::open(part.flag, path)?;
    if !part.is_in(&file.found) {
        let (what, seems) = (part.what.trim_start_matches("the "), file.found.seems());
        bail!("{}: {} has no {what} for FLUX.1: it is {seems}", part.flag, path.display());
    }
    Ok(Some(path))
}

/// `FILE:STRENGTH`, or `FILE` at strength 1.
fn lora(offers: &mut Vec<Offer>, text: &str) -> Result<(String, f64)> {
    let split =
        text.rsplit_once(':').and_then(|(file, strength)| Some((file, strength.parse::<f64>().ok()?)));
    let (path, strength) = split.unwrap_or((text, 1.0));
    ensure!(
        STRENGTHS.contains(&strength),
        "--lora {text}: a strength is a number from {} to {}",
        STRENGTHS.start(),
        STRENGTHS.end()
    );
    let file = Given::open("--lora", Path::new(path))?;
    ensure!(
        file.found.parts.is_empty() || file.found.parts_for(Role::Patch).next().is_some(),
        "--lora {path}: this is no LoRA but {}",
        file.found.seems()
    );
    Ok((offer(offers, "loras", file.path), strength))
}

/// Lists a file under a key; its name there, as short as it can be told from the others' by.
fn offer(offers: &mut Vec<Offer>, key: &'static str, path: &Path) -> String {
    let key = match key {
        "diffusion_models" if has_gguf_name(path) => "unet_gguf",
        "text_encoders" if has_gguf_name(path) => "clip_gguf",
        key => key,
    };
    let of_key = || offers.iter().filter(|other| other.key == key);
    if let Some(known) = of_key().find(|other| other.path == path) {
        return known.name.clone();
    }
    let folders: Vec<_> = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .map(|part| part.as_os_str().to_string_lossy())
        .collect();
    let is_free = |name: &String| of_key().all(|other| other.name != *name);
    let short = (0..folders.len()).rev().map(|from| folders[from..].join("/")).find(is_free);
    // Paths that differ in nothing but `..` and the like.
    let name = short.unwrap_or_else(|| format!("{}/{}", offers.len(), folders.join("/")));
    offers.push(Offer { key, name: name.clone(), path: path.to_owned() });
    name
}

fn has_gguf_name(path: &Path) -> bool {
    path.file_name().is_some_and(|name| is_gguf(&name.to_string_lossy()))
}

/// Whether loaders for GGUF files list a name.
pub(super) fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_are_told_apart_by_their_folders() {
        let mut offers = Vec::new();
        let mut name = |key, path: &str| offer(&mut offers, key, Path::new(path));
        assert_eq!(name("text_encoders", "/a/text_encoder/model.safetensors"), "model.safetensors");
        assert_eq!(
            name("text_encoders", "/a/text_encoder_2/model.safetensors"),
            "text_encoder_2/model.safetensors"
        );
        assert_eq!(name("vae", "/a/vae/model.safetensors"), "model.safetensors");
        assert_eq!(name("text_encoders", "/a/text_encoder/model.safetensors"), "model.safetensors");
        assert_eq!(name("loras", "x"), "x");
        assert_eq!(name("loras", "../x"), "4/x");
        assert_eq!(name("diffusion_models", "b/c.GGUF"), "c.GGUF");
        assert_eq!((offers.len(), offers[5].key), (6, "unet_gguf"));
    }

    #[test]
    fn wrong_strengths_are_told_before_a_file_is_opened() {
        for text in ["a:nan", "a:1e9", "a:inf", "a:-101"] {
            let error = lora(&mut Vec::new(), text).unwrap_err().to_string();
            assert_eq!(error, format!("--lora {text}: a strength is a number from -100 to 100"));
        }
    }
}
