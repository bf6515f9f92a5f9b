//! The files of a model: which of them has which part, and the names that loaders know them by.

use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use checkpoint::Checkpoint;
use models::conditioning::CondInput;
use models::detect::{Detected, Reader, Role, detect};
use models::diffusion::{self, DiffusionFamily};
use models::downloads;
use models::vae::pixels;
use models::workflow::WorkflowFile;
use runtime::Folders;

use crate::cli::DrawArgs;

/// Where text encoders and autoencoders lie.
const TEXT_FOLDER: &str = "text_encoders";
const AUTOENCODER_FOLDER: &str = "vae";
/// The folders of diffusion models.
const MODEL_FOLDERS: [&str; 2] = ["diffusion_models", "checkpoints"];
/// The strengths that nodes take for a LoRA.
pub(crate) const STRENGTHS: RangeInclusive<f64> = -100.0..=100.0;

/// The files of a model that was pulled by its short name.
pub(crate) struct Pulled {
    model: PathBuf,
    others: Vec<PathBuf>,
}

impl Pulled {
    /// The files of a short name, where pulling puts them; none if there is no such name.
    pub(crate) fn find(name: &str, folders: &Folders) -> Result<Option<Pulled>> {
        let Some(set) = downloads::all().find(|set| set.name == name) else { return Ok(None) };
        if !set.files.iter().any(|file| MODEL_FOLDERS.contains(&file.folder)) {
            bail!(
                "{name}: {} draws nothing by itself; its files go beside a model, in a workflow",
                set.title
            );
        }
        let (mut model, mut others, mut missing) = (None, Vec::new(), Vec::new());
        for file in set.files {
            let name = file.address.rsplit('/').next().unwrap_or_default();
            let places = folders.places(file.folder).iter().map(|place| place.join(name));
            match places.into_iter().find(|path| path.is_file()) {
                None => missing.push(name),
                Some(path) if [TEXT_FOLDER, AUTOENCODER_FOLDER].contains(&file.folder) => others.push(path),
                Some(path) if MODEL_FOLDERS.contains(&file.folder) => model = model.or(Some(path)),
                Some(_) => {}
            }
        }
        match model {
            Some(model) if missing.is_empty() => Ok(Some(Pulled { model, others })),
            _ => bail!("{name}: not here yet: {}; `gantry pull {name}` gets them", missing.join(", ")),
        }
    }
}

/// The files of a model, by the names that loaders list.
pub(crate) struct ModelFiles {
    /// The model's family.
    pub(crate) family: &'static DiffusionFamily,
    /// The diffusion model.
    pub(crate) model: String,
    /// The text encoders, unless the model's file is a checkpoint that has all of them. Of a kind that two files have, the
    /// first one's counts.
    pub(crate) encoders: Option<Vec<String>>,
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
    /// The files that the flags name, and for parts that they do not, those that were pulled; a part that no file has is
    /// told with the flag that gives it.
    pub(crate) fn given(args: &DrawArgs, pulled: Option<&Pulled>) -> Result<ModelFiles> {
        let model = Given::open("--model", pulled.map_or(args.model.as_path(), |pulled| &pulled.model))?;
        let others = pulled.map_or(&[][..], |pulled| &pulled.others);
        let others = others.iter().map(|path| Given::open("--model", path)).collect::<Result<Vec<_>>>()?;
        let file_of = |part: &WorkflowFile| {
            let other = || others.iter().find(|other| part.is_in(&other.found)).map(|other| other.path);
            args.file(part.flag).or_else(other)
        };
        let part = model.found.part(Role::Diffusion, "a diffusion model")?;
        let Some(Reader::Diffusion(family)) = part.reader.filter(|_| part.is_native()) else {
            let known: Vec<&str> = diffusion::FAMILIES.iter().map(|family| family.variants).collect();
            bail!(
                "{} is {part}, which cannot be drawn with yet; what can is {}",
                model.found.file,
                known.join(", ")
            );
        };
        let takes = (family.read)(&Checkpoint::open(model.path)?, part)?.takes();
        let mut offers = Vec::new();
        let own = model.path;
        let (mut encoders, mut inside) = (Vec::new(), false);
        for file in family.workflow.files.iter().filter(|file| file.folder == TEXT_FOLDER) {
            match elsewhere(&model, file, file_of(file))? {
                Some(path) => encoders.push(path),
                None => inside |= file.is_in(&model.found),
            }
        }
        // What was given goes before what the model's file has of the same kind.
        if inside && !encoders.is_empty() {
            encoders.push(own);
        }
        let encoders = (!encoders.is_empty()).then_some(encoders);
        let mut autoencoder = None;
        for file in family.workflow.files.iter().filter(|file| file.folder == AUTOENCODER_FOLDER) {
            autoencoder = elsewhere(&model, file, file_of(file))?.or(autoencoder);
        }
        let autoencoder = autoencoder.or_else(|| encoders.as_ref().map(|_| own));
        let paints_pixels = !family.workflow.files.iter().any(|file| file.folder == AUTOENCODER_FOLDER);
        let autoencoder = match autoencoder {
            _ if paints_pixels => Some(pixels::NAME.to_owned()),
            autoencoder => autoencoder.map(|file| offer(&mut offers, AUTOENCODER_FOLDER, file)),
        };
        let key = if encoders.is_none() { "checkpoints" } else { "diffusion_models" };
        let encoder = |offers: &mut Vec<Offer>, files: Vec<&Path>| {
            files.into_iter().map(|file| offer(offers, TEXT_FOLDER, file)).collect()
        };
        Ok(ModelFiles {
            family,
            model: offer(&mut offers, key, own),
            encoders: encoders.map(|files| encoder(&mut offers, files)),
            autoencoder,
            loras: args.lora.iter().map(|text| lora(&mut offers, text)).collect::<Result<_>>()?,
            takes_guidance: takes.contains(&CondInput::Guidance),
            offers,
        })
    }
}

/// What it is, its files, and the folder that they go to.
pub(crate) fn goes_to(file: &WorkflowFile, folders: &Folders) -> String {
    // Kinds have older names for their folders, too; the one with the name of the kind is today's.
    let places = folders.places(file.folder);
    let place = places.iter().find(|place| place.ends_with(file.folder)).or_else(|| places.first());
    let place = place.map_or(String::new(), |place| format!(" -> {}", place.display()));
    format!("{} ({}){place}", file.what, file.names)
}

impl<'a> Given<'a> {
    fn open(flag: &'static str, path: &'a Path) -> Result<Given<'a>> {
        let file = Checkpoint::open(path).context(flag)?;
        Ok(Given { path, found: detect(&file) })
    }
}

/// The file that was given for a part; none if the model's own file has it.
fn elsewhere<'a>(
    model: &Given<'_>,
    part: &WorkflowFile,
    given: Option<&'a Path>,
) -> Result<Option<&'a Path>> {
    let Some(path) = given else {
        ensure!(
            part.is_in(&model.found) || !part.is_needed,
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
        bail!("{}: {} has no {what} for this model: it is {seems}", part.flag, path.display());
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

    #[test]
    fn pulled_files_are_found_by_their_short_name() {
        let dir = testkit::ScratchDir::new().unwrap();
        let folders = Folders::at(dir.path());
        assert!(Pulled::find("no-such-model", &folders).unwrap().is_none());
        let alone = Pulled::find("flux-uso", &folders).err().unwrap().to_string();
        assert!(alone.contains("go beside a model"), "{alone}");
        let set = downloads::all().find(|set| set.files.len() > 2).unwrap();
        let error = Pulled::find(set.name, &folders).err().unwrap().to_string();
        assert!(error.contains(&format!("`gantry pull {}` gets them", set.name)), "{error}");
        for file in set.files {
            let place = &folders.places(file.folder)[0];
            std::fs::create_dir_all(place).unwrap();
            std::fs::write(place.join(file.address.rsplit('/').next().unwrap()), "x").unwrap();
        }
        let pulled = Pulled::find(set.name, &folders).unwrap().unwrap();
        assert_eq!(pulled.others.len() + 1, set.files.len());
        assert!(pulled.model.is_file());
    }
}
