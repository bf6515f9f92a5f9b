//! Model files: what each is, by its header alone, and which of them cannot be used.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use checkpoint::{Checkpoint, Error, HeaderFault, Refusal};
use meta::ByteSize;
use models::detect::{Part, Role, detect};
use models::diffusion::{DiffusionFamily, FAMILIES};
use models::workflow::WorkflowFile;
use runtime::Folders;
use serde_json::{Value, json};

use super::Place;
use super::check::Check;
use crate::drawing::goes_to;

/// The most files that are opened.
const MOST_FILES: usize = 500;
/// How long files are opened at most.
const LONGEST: Duration = Duration::from_secs(4);
/// The most files that are named for people; programs get all.
const MOST_LINES: usize = 12;

/// Folders whose files are models of a kind: the key, what belongs there, the loader that reads it.
const KINDS: [(&str, Role, &str); 7] = [
    ("diffusion_models", Role::Diffusion, "UNETLoader"),
    ("unet_gguf", Role::Diffusion, "UnetLoaderGGUF"),
    ("checkpoints", Role::Diffusion, "CheckpointLoaderSimple"),
    ("text_encoders", Role::Text, "DualCLIPLoader"),
    ("clip_gguf", Role::Text, "DualCLIPLoaderGGUF"),
    ("vae", Role::Autoencoder, "VAELoader"),
    ("loras", Role::Patch, "LoraLoader"),
];

/// Other folders, whose files are opened but may be anything.
const OTHERS: [&str; 8] = [
    "clip_vision",
    "style_models",
    "controlnet",
    "upscale_models",
    "embeddings",
    "model_patches",
    "gligen",
    "audio_encoders",
];

/// A file that can be opened.
pub(super) struct Model {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    key: &'static str,
    name: String,
    seems: String,
    precision: Option<String>,
    parts: Vec<Part>,
}

/// A file that cannot be opened.
struct Unusable {
    path: PathBuf,
    key: &'static str,
    why: Fault,
    text: String,
}

/// Why a file cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Pickle,
    Truncated,
    NoModel,
    Unreadable,
}

impl Fault {
    fn word(self) -> &'static str {
        match self {
            Fault::Pickle => "pickle",
            Fault::Truncated => "truncated",
            Fault::NoModel => "no model",
            Fault::Unreadable => "unreadable",
        }
    }

    fn of(error: &Error) -> Fault {
        match error {
            Error::Refused { reason, .. } => match reason {
                Refusal::Pickle | Refusal::Tar => Fault::Pickle,
                Refusal::Empty | Refusal::Zeros => Fault::Truncated,
                _ => Fault::NoModel,
            },
            Error::Header { fault: HeaderFault::Pickle { .. }, .. } => Fault::Pickle,
            Error::Truncated { .. } | Error::TruncatedHeader { .. } => Fault::Truncated,
            Error::Io { .. } => Fault::Unreadable,
            _ => Fault::NoModel,
        }
    }
}

/// What lies in the model folders.
#[derive(Default)]
pub(super) struct Found {
    pub(super) models: Vec<Model>,
    unusable: Vec<Unusable>,
    /// Files that were not opened, because there are so many or the disk is slow.
    left_out: usize,
    /// Folders that cannot be read, and why.
    closed: Vec<(PathBuf, String)>,
    /// Files that lie in the models folder itself, where no loader looks.
    astray: Vec<PathBuf>,
}

/// Opens the files of all model folders, header by header.
pub(super) fn look(folders: &Folders) -> Found {
    let start = Instant::now();
    let mut found = Found::default();
    let mut seen: Vec<PathBuf> = Vec::new();
    for key in KINDS.iter().map(|(key, ..)| *key).chain(OTHERS) {
        for name in folders.list(key) {
            let Some(path) = folders.find(key, &name) else { continue };
            if seen.contains(&path) {
                continue;
            }
            seen.push(path.clone());
            if seen.len() > MOST_FILES || start.elapsed() > LONGEST {
                found.left_out += 1;
                continue;
            }
            match open(&path, key, &name) {
                Ok(model) => found.models.push(model),
                Err(unusable) => found.unusable.push(unusable),
            }
        }
    }
    found.astray = astray(folders);
    found.closed = closed(folders);
    found
}

fn open(path: &Path, key: &'static str, name: &str) -> Result<Model, Unusable> {
    let checkpoint = Checkpoint::open(path).map_err(|error| Unusable {
        path: path.to_owned(),
        key,
        why: Fault::of(&error),
        text: error.to_string(),
    })?;
    let detected = detect(&checkpoint);
    Ok(Model {
        path: path.to_owned(),
        bytes: std::fs::metadata(path).map_or(0, |file| file.len()),
        key,
        name: name.to_owned(),
        seems: detected.seems(),
        precision: detected.parts.first().map(|part| part.precision.to_string()),
        parts: detected.parts,
    })
}

/// Model folders that are there but cannot be read: to a loader they seem empty.
fn closed(folders: &Folders) -> Vec<(PathBuf, String)> {
    let mut closed: Vec<(PathBuf, String)> = Vec::new();
    for place in KINDS.iter().flat_map(|(key, ..)| folders.places(key)) {
        let Err(error) = std::fs::read_dir(place) else { continue };
        if error.kind() != std::io::ErrorKind::NotFound && closed.iter().all(|(known, _)| known != place) {
            closed.push((place.clone(), error.to_string()));
        }
    }
    closed
}

/// Model files directly in the folder above the kinds.
fn astray(folders: &Folders) -> Vec<PathBuf> {
    let Some(models) = folders.places("vae").first().and_then(|place| place.parent()) else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir(models) else { return Vec::new() };
    let is_model = |path: &PathBuf| {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        matches!(end, "safetensors" | "sft" | "gguf" | "ckpt") && path.is_file()
    };
    let mut files: Vec<PathBuf> =
        entries.flatten().take(10_000).map(|entry| entry.path()).filter(is_model).collect();
    files.sort();
    files
}

impl Found {
    fn has(&self, file: &WorkflowFile) -> bool {
        self.models.iter().flat_map(|model| &model.parts).any(file.is_it)
    }

    /// What a family's pictures need and nothing has.
    fn missing(&self, family: &DiffusionFamily) -> Vec<&'static WorkflowFile> {
        family.workflow.files.iter().filter(|file| file.is_needed && !self.has(file)).collect()
    }

    /// Whether all files of some family's pictures are there.
    pub(super) fn is_complete(&self) -> bool {
        FAMILIES.iter().any(|family| self.missing(family).is_empty())
    }
}

pub(super) fn checks(found: &Found, place: &Place) -> Vec<Check> {
    let mut checks = vec![models(found, place), families(found, place)];
    checks.extend(misplaced(found, place));
    checks.extend(unreadable_folders(found));
    checks.extend(unusable(found));
    checks
}

fn models(found: &Found, place: &Place) -> Check {
    let mut by_folder: BTreeMap<&str, usize> = BTreeMap::new();
    for model in &found.models {
        *by_folder.entry(model.key).or_default() += 1;
    }
    let shown = |model: &Model| {
        json!({
            "folder": model.key,
            "name": model.name,
            "path": model.path,
            "bytes": model.bytes,
            "is": model.seems,
            "precision": model.precision,
        })
    };
    let facts = json!({
        "count": found.models.len(),
        "by_folder": by_folder,
        "not_opened": found.left_out,
        "files": found.models.iter().map(shown).collect::<Vec<Value>>(),
    });
    let more = if found.left_out == 0 {
        String::new()
    } else {
        format!(" {} more were not opened: there are many, or the disk is slow.", found.left_out)
    };
    let line = |model: &Model| {
        let precision = model.precision.as_ref().map_or(String::new(), |it| format!(", {it}"));
        format!("{}/{}: {}{precision}, {}", model.key, model.name, model.seems, ByteSize(model.bytes))
    };
    let check = if found.models.is_empty() {
        Check::attention(
            "models",
            format!("There are no models in {}.{more}", place.base.join("models").display()),
            "Put files there as said below, or name a folder that has some with --comfy-dir. The demo model is in \
             the program and needs no files.",
        )
    } else {
        let folders = by_folder.len();
        let (files, folders) = (plural(found.models.len(), "model file"), plural(folders, "folder"));
        Check::works("models", format!("{files} in {folders} can be opened.{more}"))
            .with_lines(bounded(&found.models.iter().map(line).collect::<Vec<_>>()))
    };
    check.with_facts(facts)
}

fn plural(count: usize, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}

fn bounded(lines: &[String]) -> Vec<String> {
    let mut shown: Vec<String> = lines.iter().take(MOST_LINES).cloned().collect();
    if lines.len() > MOST_LINES {
        shown.push(format!("and {} more (all of them with --json)", lines.len() - MOST_LINES));
    }
    shown
}

/// Which families have all files that a picture takes; what the one lacks that has most of them, if none has all.
fn families(found: &Found, place: &Place) -> Check {
    let missing: Vec<_> = FAMILIES.iter().map(|family| (*family, found.missing(family))).collect();
    let names = |files: &[&WorkflowFile]| files.iter().map(|file| file.what).collect::<Vec<_>>();
    let fact = |(family, files): &(&DiffusionFamily, Vec<&WorkflowFile>)| json!({ "family": family.name, "complete": files.is_empty(), "missing": names(files) });
    let facts = Value::Array(missing.iter().map(fact).collect());
    let complete: Vec<&str> =
        missing.iter().filter(|(_, files)| files.is_empty()).map(|(family, _)| family.name).collect();
    if !complete.is_empty() {
        let text = format!("All files of {} are there.", complete.join(", "));
        return Check::works("families", text).with_facts(facts);
    }
    // Of families that have equally many of their files the first.
    let needed =
        |family: &DiffusionFamily| family.workflow.files.iter().filter(|file| file.is_needed).count();
    let there = |family: &DiffusionFamily, files: &[&WorkflowFile]| needed(family) - files.len();
    let nearest = missing.iter().min_by_key(|(family, files)| Reverse(there(family, files)));
    let Some((family, files)) = nearest else {
        return Check::works("families", "There are no families.").with_facts(facts);
    };
    let (count, all) = (files.len(), needed(family));
    let pulled = family.downloads.first().map_or_else(String::new, |set| {
        format!(", or let `gantry pull {}` do that (`gantry pull --list` names others)", set.name)
    });
    Check::attention(
        "families",
        format!("{count} of {all} files that a picture by {} takes are missing.", family.name),
        format!(
            "Get these files and put them where the arrow points{pulled}; an all-in-one checkpoint in \
             models/checkpoints will do, too."
        ),
    )
    .with_lines(files.iter().map(|file| goes_to(file, &place.folders)).collect())
    .with_facts(facts)
}

/// Files in folders in which the loader for them does not look.
fn misplaced(found: &Found, place: &Place) -> Option<Check> {
    let right = |model: &Model| {
        let (_, wanted, _) = KINDS.iter().find(|(key, ..)| *key == model.key)?;
        let role = model.parts.first()?.role;
        if model.parts.iter().any(|part| part.role == *wanted) {
            return None;
        }
        let is_gguf = model.path.extension().is_some_and(|end| end == "gguf");
        let home = KINDS.iter().find(|(key, kind, _)| *kind == role && key.contains("gguf") == is_gguf)?;
        Some(*home)
    };
    let folder = |key: &str| match key {
        "unet_gguf" => "models/diffusion_models".to_owned(),
        "clip_gguf" => "models/text_encoders".to_owned(),
        key => format!("models/{key}"),
    };
    let wrong = found.models.iter().filter_map(|model| Some((model, right(model)?)));
    let mut lines: Vec<String> = wrong
        .map(|(model, (key, _, loader))| {
            let (path, seems) = (model.path.display(), &model.seems);
            format!("{path} is {seems}: {loader} looks for it in {}", folder(key))
        })
        .collect();
    let models = place.base.join("models");
    lines.extend(found.astray.iter().map(|path| {
        let home = Checkpoint::open(path).ok().and_then(|file| {
            let role = detect(&file).parts.first()?.role;
            KINDS.iter().find(|(_, kind, _)| *kind == role).map(|(key, ..)| folder(key))
        });
        let home = home.unwrap_or_else(|| "the folder of its kind".to_owned());
        format!("{} lies in {} itself: move it to {home}", path.display(), models.display())
    }));
    (!lines.is_empty()).then(|| {
        let (count, s) = (lines.len(), if lines.len() == 1 { " lies" } else { "s lie" });
        Check::attention(
            "misplaced_files",
            format!("{count} file{s} where the loader for it does not look."),
            "Move them as said.",
        )
        .with_facts(json!({ "files": lines }))
        .with_lines(bounded(&lines))
    })
}

fn unreadable_folders(found: &Found) -> Option<Check> {
    if found.closed.is_empty() {
        return None;
    }
    let lines: Vec<String> =
        found.closed.iter().map(|(path, why)| format!("{}: {why}", path.display())).collect();
    let says = format!("{} of models cannot be read.", plural(lines.len(), "folder"));
    let check = Check::broken(
        "model_folders",
        says,
        "Give this user the right to read them, or name others in their place.",
    );
    Some(check.with_facts(json!({ "folders": lines })).with_lines(bounded(&lines)))
}

/// Files that cannot be opened: those that are damaged are faults, pickles and strangers are not.
fn unusable(found: &Found) -> Vec<Check> {
    let facts = |files: &[&Unusable]| {
        let file = |it: &&Unusable| json!({ "path": it.path, "folder": it.key, "why": it.why.word(), "says": it.text });
        json!({ "files": files.iter().map(file).collect::<Vec<Value>>() })
    };
    let of = |faults: &[Fault]| -> Vec<&Unusable> {
        found.unusable.iter().filter(|it| faults.contains(&it.why)).collect()
    };
    let mut checks = Vec::new();
    let damaged = of(&[Fault::Truncated, Fault::NoModel, Fault::Unreadable]);
    if !damaged.is_empty() {
        let lines: Vec<String> = damaged.iter().map(|it| it.text.clone()).collect();
        let check = Check::broken(
            "damaged_files",
            format!("{} cannot be used.", plural(damaged.len(), "file")),
            "Fetch them again, or delete them.",
        );
        checks.push(check.with_facts(facts(&damaged)).with_lines(bounded(&lines)));
    }
    let pickles = of(&[Fault::Pickle]);
    if !pickles.is_empty() {
        let lines: Vec<String> = pickles.iter().map(|it| it.path.display().to_string()).collect();
        let check = Check::attention(
            "pickles",
            format!(
                "{} Python pickles that hold more than tensors. To read one is to run what its author put in, so Gantry does \
                 not.",
                if pickles.len() == 1 {
                    "1 file is one of the".to_owned()
                } else {
                    format!("{} files are", pickles.len())
                }
            ),
            "Get them as .safetensors; `gantry inspect FILE` prints the command that converts one.",
        );
        checks.push(check.with_facts(facts(&pickles)).with_lines(bounded(&lines)));
    }
    checks
}
