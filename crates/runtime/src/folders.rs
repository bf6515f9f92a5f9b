//! Where files are: model folders by kind, and the folders for inputs, outputs, temporary files and users.
//!
//! Names that come from outside are relative and are read without touching the disk first: `..` is taken
//! back, and what would leave its folder is refused. Links on the disk are the user's own and are followed.

mod extra_paths;
mod listing;
mod saving;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use indexmap::IndexMap;

use crate::{Error, Result};
use listing::Listings;
pub use saving::SavePlace;

/// The folders of one server.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// Pictures that workflows load.
    pub input: PathBuf,
    /// What workflows save.
    pub output: PathBuf,
    /// Previews; emptied at start and end.
    pub temp: PathBuf,
    /// Settings and stored workflows, one folder per user.
    pub user: PathBuf,
    /// Model folders by key, such as `diffusion_models`.
    models: IndexMap<String, ModelFolder>,
    /// What was found in them.
    listings: Listings,
    /// Names that other machines have, by key: they are listed, and cannot be found here.
    elsewhere: Arc<RwLock<BTreeMap<String, Vec<String>>>>,
}

/// Where everything is, before it is looked at. [`Layout::at`] has ComfyUI's names; change what differs.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Model folders by kind, such as `checkpoints`.
    pub models: PathBuf,
    /// Packs of nodes.
    pub custom_nodes: PathBuf,
    /// Pictures that workflows load.
    pub input: PathBuf,
    /// What workflows save.
    pub output: PathBuf,
    /// Previews.
    pub temp: PathBuf,
    /// Settings and stored workflows.
    pub user: PathBuf,
}

/// A folder that clients name by a word: `input`, `output` or `temp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Pictures that workflows load.
    Input,
    /// What workflows save.
    Output,
    /// Previews.
    Temp,
}

/// The folders of one kind of model.
#[derive(Clone, Debug, Default)]
struct ModelFolder {
    /// Searched in order.
    places: Vec<PathBuf>,
    extensions: Extensions,
    /// Files by name that are in none of the places.
    files: Vec<(String, PathBuf)>,
}

/// Endings that count, without the dot; `None` for all.
type Extensions = Option<&'static [&'static str]>;

const MODEL_EXTENSIONS: &[&str] = &["ckpt", "pt", "pt2", "bin", "pth", "safetensors", "pkl", "sft"];
const GGUF_EXTENSIONS: &[&str] = &["gguf"];

/// The keys, their folders under the models folder, and the endings that count. The GGUF keys are those of the
/// pack that loads such files; they search the same folders as the keys without it.
const MODEL_FOLDERS: &[(&str, &[&str], Extensions)] = &[
    ("checkpoints", &["checkpoints"], Some(MODEL_EXTENSIONS)),
    ("configs", &["configs"], Some(&["yaml"])),
    ("loras", &["loras"], Some(MODEL_EXTENSIONS)),
    ("vae", &["vae"], Some(MODEL_EXTENSIONS)),
    ("text_encoders", &["text_encoders", "clip"], Some(MODEL_EXTENSIONS)),
    ("diffusion_models", &["unet", "diffusion_models"], Some(MODEL_EXTENSIONS)),
    ("clip_vision", &["clip_vision"], Some(MODEL_EXTENSIONS)),
    ("style_models", &["style_models"], Some(MODEL_EXTENSIONS)),
    ("embeddings", &["embeddings"], Some(MODEL_EXTENSIONS)),
    ("diffusers", &["diffusers"], Some(&["folder"])),
    ("vae_approx", &["vae_approx"], Some(MODEL_EXTENSIONS)),
    ("controlnet", &["controlnet", "t2i_adapter"], Some(MODEL_EXTENSIONS)),
    ("gligen", &["gligen"], Some(MODEL_EXTENSIONS)),
    ("upscale_models", &["upscale_models"], Some(MODEL_EXTENSIONS)),
    ("latent_upscale_models", &["latent_upscale_models"], Some(MODEL_EXTENSIONS)),
    ("custom_nodes", &[], None),
    ("hypernetworks", &["hypernetworks"], Some(MODEL_EXTENSIONS)),
    ("photomaker", &["photomaker"], Some(MODEL_EXTENSIONS)),
    ("classifiers", &["classifiers"], Some(&[""])),
    ("model_patches", &["model_patches"], Some(MODEL_EXTENSIONS)),
    ("audio_encoders", &["audio_encoders"], Some(MODEL_EXTENSIONS)),
    ("LLM", &["LLM"], Some(MODEL_EXTENSIONS)),
    ("unet_gguf", &["unet", "diffusion_models"], Some(GGUF_EXTENSIONS)),
    ("clip_gguf", &["text_encoders", "clip"], Some(GGUF_EXTENSIONS)),
];

/// Models that workflows save are found again: the key, and the folder under the output folder.
const OUTPUT_MODEL_FOLDERS: &[(&str, &str)] = &[
    ("checkpoints", "checkpoints"),
    ("text_encoders", "clip"),
    ("vae", "vae"),
    ("diffusion_models", "diffusion_models"),
    ("loras", "loras"),
];

impl Layout {
    /// Everything under one folder, as ComfyUI has it.
    #[must_use]
    pub fn at(base: &Path) -> Layout {
        Layout {
            models: base.join("models"),
            custom_nodes: base.join("custom_nodes"),
            input: base.join("input"),
            output: base.join("output"),
            temp: base.join("temp"),
            user: base.join("user"),
        }
    }
}

impl Folders {
    /// Everything under one folder, as ComfyUI has it.
    #[must_use]
    pub fn at(base: &Path) -> Folders {
        Folders::new(&Layout::at(base))
    }

    /// The folders of a layout. Nothing is read or made yet.
    #[must_use]
    pub fn new(layout: &Layout) -> Folders {
        let mut folders = Folders {
            input: absolute(&layout.input),
            output: absolute(&layout.output),
            temp: absolute(&layout.temp),
            user: absolute(&layout.user),
            ..Folders::default()
        };
        let models = absolute(&layout.models);
        for (key, names, extensions) in MODEL_FOLDERS {
            let places = names.iter().map(|name| models.join(name)).collect();
            let folder = ModelFolder { places, extensions: *extensions, files: Vec::new() };
            folders.models.insert((*key).to_owned(), folder);
        }
        folders.add("custom_nodes", &absolute(&layout.custom_nodes));
        for (key, name) in OUTPUT_MODEL_FOLDERS {
            folders.add(key, &folders.output.join(name));
        }
        folders
    }

    /// The file names under a key (`checkpoints`, `loras`, …; `unet` and `clip` are understood), as
    /// loaders list them: relative, with sub-folders, sorted.
    #[must_use]
    pub fn list(&self, key: &str) -> Vec<String> {
        self.listing(key).to_vec()
    }

    /// The same, shared: what is found is kept until the date of a folder changes.
    #[must_use]
    pub fn listing(&self, key: &str) -> Arc<[String]> {
        let key = without_alias(key);
        let Some(folder) = self.models.get(key) else { return Arc::from([]) };
        let here = self.listings.files(key, &folder.places, folder.extensions, &folder.files);
        let elsewhere = self.elsewhere.read().unwrap_or_else(PoisonError::into_inner);
        let Some(names) = elsewhere.get(key).filter(|names| !names.is_empty()) else { return here };
        let mut all: Vec<String> = here.iter().chain(names).cloned().collect();
        all.sort();
        all.dedup();
        all.into()
    }

    /// Lists these names from now on beside what is here: files that other machines have, by key.
    pub fn set_elsewhere(&self, names: BTreeMap<String, Vec<String>>) {
        *self.elsewhere.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// The file of that name under a key, if there is one.
    #[must_use]
    pub fn find(&self, key: &str, name: &str) -> Option<PathBuf> {
        let folder = self.models.get(without_alias(key))?;
        let relative = taken_back(name);
        if relative.as_os_str().is_empty() {
            return None;
        }
        let found = folder.places.iter().map(|place| place.join(&relative)).find(|path| path.is_file());
        found.or_else(|| {
            let added = folder.files.iter().find(|(added, _)| added == name);
            added.map(|(_, path)| path.clone())
        })
    }

    /// The folders of a key.
    #[must_use]
    pub fn places(&self, key: &str) -> &[PathBuf] {
        self.models.get(without_alias(key)).map_or(&[], |folder| &folder.places)
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(String::as_str)
    }

    /// Adds a folder to a key, which is made if it is new and then takes files of any kind.
    pub fn add(&mut self, key: &str, place: &Path) {
        self.add_place(key, place, false);
    }

    /// Adds a file to a key under a name, wherever it is. A file of that name in the key's folders goes before it.
    pub fn add_file(&mut self, key: &str, name: &str, path: &Path) {
        let folder = self.models.entry(without_alias(key).to_owned()).or_default();
        folder.files.retain(|(other, _)| other != name);
        folder.files.push((name.to_owned(), path.to_owned()));
        self.listings = Listings::default();
    }

    /// Adds a folder to a key, before all others or after them.
    fn add_place(&mut self, key: &str, place: &Path, is_first: bool) {
        let key = without_alias(key);
        // Files of another format lie beside the others, so their key follows.
        let follower = match key {
            "diffusion_models" => Some("unet_gguf"),
            "text_encoders" => Some("clip_gguf"),
            _ => None,
        };
        for key in [Some(key), follower].into_iter().flatten() {
            let folder = self.models.entry(key.to_owned()).or_default();
            folder.add_place(place, is_first, &self.output);
        }
        self.listings = Listings::default();
    }

    /// The folder that a word stands for.
    #[must_use]
    pub fn directory(&self, place: Place) -> &Path {
        match place {
            Place::Input => &self.input,
            Place::Output => &self.output,
            Place::Temp => &self.temp,
        }
    }

    /// The path of a file in one of the three folders. It need not exist.
    ///
    /// # Errors
    /// The name leaves the folder, or is empty.
    pub fn inside(&self, place: Place, name: &str) -> Result<PathBuf> {
        let base = self.directory(place);
        let path = normalized(&base.join(name));
        if path != *base && path.starts_with(base) {
            return Ok(path);
        }
        let text = format!("\"{name}\" is outside the {} folder; give a name inside it", place.name());
        Err(Error::Told(text))
    }

    /// The path that a name such as `x.png` or `x.png [output]` stands for; input if it does not say.
    ///
    /// # Errors
    /// The name leaves its folder, or is empty.
    pub fn annotated(&self, name: &str) -> Result<PathBuf> {
        let (name, place) = Place::of(name);
        self.inside(place.unwrap_or(Place::Input), name)
    }

    /// The names of the pictures that lie directly in one of the three folders, sorted.
    #[must_use]
    pub fn pictures(&self, place: Place) -> Arc<[String]> {
        self.listings.pictures(place.name(), self.directory(place))
    }

    /// The names of the videos that lie directly in one of the three folders, sorted.
    #[must_use]
    pub fn videos(&self, place: Place) -> Arc<[String]> {
        self.listings.videos(place.name(), self.directory(place))
    }

    /// The names of the files with sound that lie directly in one of the three folders, videos among them, sorted.
    #[must_use]
    pub fn sounds(&self, place: Place) -> Arc<[String]> {
        self.listings.sounds(place.name(), self.directory(place))
    }
}

impl ModelFolder {
    fn add_place(&mut self, place: &Path, is_first: bool, output: &Path) {
        let known = self.places.iter().position(|known| known == place);
        match (known, is_first) {
            (Some(position), true) => {
                let place = self.places.remove(position);
                self.places.insert(0, place);
            }
            (Some(_), false) => {}
            (None, true) => self.places.insert(0, place.to_owned()),
            (None, false) => {
                // What workflows saved is searched last.
                let is_output = |known: &PathBuf| !output.as_os_str().is_empty() && known.starts_with(output);
                let end = self.places.iter().position(is_output).unwrap_or(self.places.len());
                self.places.insert(end, place.to_owned());
            }
        }
    }
}

impl Place {
    /// The word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Place::Input => "input",
            Place::Output => "output",
            Place::Temp => "temp",
        }
    }

    /// The folder of a word.
    #[must_use]
    pub fn named(word: &str) -> Option<Place> {
        [Place::Input, Place::Output, Place::Temp].into_iter().find(|place| place.name() == word)
    }

    /// Parts a name such as `x.png [output]` into the name and the folder.
    #[must_use]
    pub fn of(name: &str) -> (&str, Option<Place>) {
        for place in [Place::Output, Place::Input, Place::Temp] {
            let rest = name.strip_suffix(']').and_then(|name| name.strip_suffix(place.name()));
            if let Some(rest) = rest.and_then(|name| name.strip_suffix('[')) {
                return (rest.strip_suffix(' ').unwrap_or(rest), Some(place));
            }
        }
        (name, None)
    }
}

/// Older names of two keys.
fn without_alias(key: &str) -> &str {
    match key {
        "unet" => "diffusion_models",
        "clip" => "text_encoders",
        _ => key,
    }
}

/// A name as it is seen from the root of a folder: `..` leads no further up than that.
fn taken_back(name: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    path
}

/// A path without `.` and `..`, by its text alone.
fn normalized(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

/// The path from the root; as it is if the working directory is gone.
fn absolute(path: &Path) -> PathBuf {
    normalized(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}
