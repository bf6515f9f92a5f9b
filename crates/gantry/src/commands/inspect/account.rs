//! What a file is, whether it can be run here, and an account of its tensors: each is used, not used, or of no part.

use std::sync::Arc;

use checkpoint::{Checkpoint, Entry};
use meta::DeviceId;
use models::detect::{Part, Role, detect};
use runtime::{Placing, Source, runnable};
use serde::Serialize;

/// The most names of tensors that are shown; JSON has all.
const SHOWN: usize = 8;

/// What a file is, part by part.
#[derive(Serialize)]
pub(super) struct Account {
    is: String,
    /// Whether its most important part can be run, or used, here.
    pub(super) runs: bool,
    pub(super) parts: Vec<PartAccount>,
    /// Tensors that belong to no part.
    pub(super) outside: Vec<String>,
}

/// What one part of a file is.
#[derive(Serialize)]
pub(super) struct PartAccount {
    is: String,
    prefix: String,
    /// The family that reads it.
    family: Option<&'static str>,
    precision: String,
    bytes: u64,
    pub(super) runs: bool,
    /// How it is used, or why it cannot be.
    pub(super) how: String,
    /// Tensors that no weight is read from; none if the part was not read.
    pub(super) unused: Option<Vec<String>>,
    #[serde(skip)]
    name: String,
}

impl Account {
    /// Reads every part of a file as a loader would, without its weights.
    pub(super) fn of(file: &Arc<Checkpoint>) -> Account {
        let found = detect(file);
        let parts: Vec<PartAccount> = found.parts.iter().map(|part| PartAccount::of(file, part)).collect();
        let is_outside = |entry: &&Entry| {
            !found.parts.iter().any(|part| part.has(entry.name())) && !file.is_companion(entry)
        };
        Account {
            is: found.seems(),
            runs: parts.first().is_some_and(|part| part.runs),
            parts,
            outside: names(file.entries().iter().filter(is_outside).map(Entry::name)),
        }
    }

    /// The same in lines for people.
    pub(super) fn to_text(&self) -> String {
        let mut text = match self.parts.as_slice() {
            [] => format!(
                "It is {}.\nNothing here can run it; what can be run is {}.\n",
                self.is,
                runnable(Role::Diffusion)
            ),
            [only] => format!("It is {}, which {}.\n", only.is, only.how),
            parts => {
                let line = |part: &PartAccount| format!("  {}, which {}\n", part.is, part.how);
                format!("It is {}:\n{}", self.is, parts.iter().map(line).collect::<String>())
            }
        };
        for part in &self.parts {
            let unused = part.unused.as_deref().unwrap_or_default();
            text += &listed(unused, &format!("not used by {}", part.name));
        }
        // Of a file that is not recognised no tensor belongs anywhere.
        if !self.parts.is_empty() {
            text += &listed(&self.outside, "of no part that is known here");
        }
        text
    }
}

impl PartAccount {
    fn of(file: &Arc<Checkpoint>, part: &Part) -> PartAccount {
        let (runs, how, unused) = verdict(file, part);
        PartAccount {
            is: part.to_string(),
            prefix: part.prefix.clone(),
            family: part.reader.map(|reader| reader.name()),
            precision: part.precision.to_string(),
            bytes: part.bytes,
            runs,
            how,
            unused,
            name: part.name.to_string(),
        }
    }
}

/// Whether a part can be used, how or why not, and which of its tensors nothing reads.
fn verdict(file: &Arc<Checkpoint>, part: &Part) -> (bool, String, Option<Vec<String>>) {
    match part.role {
        Role::Patch => return (true, "a LoRA loader puts into a model".to_owned(), None),
        Role::Embedding => return (true, "a prompt names as embedding:NAME".to_owned(), None),
        Role::Diffusion
        | Role::Text
        | Role::Autoencoder
        | Role::Vision
        | Role::Audio
        | Role::Control
        | Role::ModelPatch
        | Role::Upscale
        | Role::LatentUpscale
        | Role::Other => {}
    }
    let read = || {
        let source = Source::of_part(file, part, Placing::automatic(DeviceId::CPU))?;
        Ok(names(source.unused()?.into_iter()))
    };
    match read() {
        Ok(unused) => {
            let family = part.reader.map_or("", |reader| reader.name());
            (true, format!("can be run here (family: {family})"), Some(unused))
        }
        Err(runtime::Error::NotYet { known, .. }) => {
            (false, format!("cannot be run yet; what can is {known}"), None)
        }
        Err(error) => (false, format!("cannot be run: {error}"), None),
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.map(str::to_owned).collect()
}

/// A line with the number of tensors, and one for each of the first of them.
fn listed(names: &[String], what: &str) -> String {
    let mut text = match names.len() {
        0 => return String::new(),
        1 => format!("1 tensor is {what}:\n"),
        count => format!("{count} tensors are {what}:\n"),
    };
    for name in names.iter().take(SHOWN) {
        text += &format!("  {name}\n");
    }
    if names.len() > SHOWN {
        text += &format!("  and {} more (all of them with --json)\n", names.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use meta::{Encoding, Shape};
    use testkit::{GgufWriter, Manifest, SafetensorsWriter, ScratchDir};

    use super::*;

    /// The account of a file that is written from a bundled manifest.
    fn account(manifest: &str, change: impl FnOnce(&mut Manifest)) -> Account {
        let dir = ScratchDir::new().unwrap();
        let mut manifest = Manifest::bundled(manifest).unwrap();
        change(&mut manifest);
        let path = dir.join("file.safetensors");
        let mut writer = SafetensorsWriter::new();
        for tensor in &manifest.tensors {
            let bytes = vec![0; tensor.encoding.bytes(&tensor.shape).unwrap() as usize];

            writer = writer.tensor(tensor.name.clone(), tensor.encoding, tensor.shape, bytes);
        }
        writer.write(&path).unwrap();
        Account::of(&Arc::new(Checkpoint::open(&path).unwrap()))
    }

    #[test]
    fn a_whole_model_runs_and_every_tensor_is_used() {
        for name in ["flux_dev_micro", "sd3_micro", "clip_l_tiny", "clip_g_tiny", "t5xxl_tiny", "flux_ae"] {
            let account = account(name, |_| {});
            assert!(account.runs, "{name}: {}", account.to_text());
            let is_whole = account.parts.iter().all(|part| part.unused.as_ref().is_some_and(Vec::is_empty));
            assert!(is_whole && account.outside.is_empty(), "{name}: {}", account.to_text());
        }
        let account = account("flux_dev_micro", |_| {});
        assert_eq!(
            account.to_text(),
            "It is a diffusion model (FLUX.1 dev), which can be run here (family: FLUX.1).\n"
        );
    }

    #[test]
    fn what_nothing_reads_is_listed_to_a_bound() {
        let account = account("flux_dev_micro", |manifest| {
            let extra = manifest.tensors[0].clone();
            for number in 0..11 {
                let mut tensor = extra.clone();
                tensor.name = format!("novel_blocks.{number}.weight");
                manifest.tensors.push(tensor);
            }
        });
        assert!(account.runs);
        assert_eq!(account.parts[0].unused.as_ref().unwrap().len(), 11);
        let text = account.to_text();
        assert!(
            text.contains("\n11 tensors are not used by FLUX.1 dev:\n  novel_blocks.0.weight\n"),
            "{text}"
        );
        assert!(text.ends_with("  and 3 more (all of them with --json)\n"), "{text}");
    }

    #[test]
    fn what_is_missing_is_told_as_reading_tells_it() {
        let account = account("flux_dev_micro", |manifest| {
            manifest.tensors.retain(|tensor| tensor.name != "single_blocks.0.linear2.weight");
        });
        assert!(!account.runs && account.parts[0].unused.is_none());
        let text = account.to_text();
        let told = "which cannot be run: file.safetensors has no tensor single_blocks.0.linear2.weight, which FLUX.1 needs";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn what_cannot_run_yet_says_what_can_and_checkpoints_tell_all_parts() {
        let unread = |manifest: &mut Manifest| {
            manifest.tensors[0].name = "clip_text_pooled_proj.0.weight".to_owned();
        };
        let text = account("lumina2_tiny", unread).to_text();
        let told = "It is a diffusion model (NewBie), which cannot be run yet; what can is FLUX.1 dev, ";
        assert!(text.starts_with(told), "{text}");
        let account = account("sd15_tiny", |_| {});
        assert!(account.runs && account.parts.iter().all(|part| part.runs), "{}", account.to_text());
        let text = account.to_text();
        assert!(text.starts_with("It is an all-in-one checkpoint of SD1.5 with "), "{text}");
        assert!(text.contains("\n  a text encoder (CLIP-L), which can be run here (family: "), "{text}");
    }

    #[test]
    fn patches_and_unknown_files_are_told_for_what_they_are() {
        let account = account("flux_dev_micro_lora_kohya", |_| {});
        assert!(account.runs);
        assert_eq!(account.to_text(), "It is a LoRA, which a LoRA loader puts into a model.\n");

        let dir = ScratchDir::new().unwrap();
        let path = dir.join("strange.gguf");
        let values = vec![0; 24];
        let file = GgufWriter::new()
            .value("general.architecture", "flux")
            .tensor("a.b", Encoding::F32, Shape::from([2, 3]), values)
            .finish()
            .unwrap();
        std::fs::write(&path, file).unwrap();
        let account = Account::of(&Arc::new(Checkpoint::open(&path).unwrap()));
        assert!(!account.runs);
        assert_eq!(account.outside, ["a.b"]);
        let text = account.to_text();
        assert!(text.starts_with("It is FLUX.1 by its own account, though its tensors have names"), "{text}");
        assert!(text.contains("Nothing here can run it; what can be run is FLUX.1 dev, "), "{text}");
    }
}
