//! A patch file: its tensors, grouped by the layer they change.

use std::collections::HashMap;
use std::sync::Arc;

use checkpoint::{Checkpoint, Entry, EntryBytes};
use meta::DType;

use crate::group::{Group, Meaning};
use crate::signature::Signature;
use crate::suffix::{self, Part, Split};
use crate::{Adapter, Error, Factor, Naming, Result};

/// Bytes at each end of a tensor that count for a file's signature. Retraining changes all values, so these suffice,
/// and reading a signature costs one page per tensor rather than the whole file.
const SAMPLE_BYTES: usize = 256;

/// A LoRA file or one of its relatives, read and recognised. It keeps the file mapped.
#[derive(Clone, Debug)]
pub struct PatchFile {
    name: Arc<str>,
    signature: u64,
    changes: Vec<Change>,
    unrecognised: Vec<String>,
}

/// What a file says about one layer.
#[derive(Clone, Debug)]
pub struct Change {
    pub(crate) key: Arc<str>,
    pub(crate) naming: Naming,
    pub(crate) weight: Vec<Arc<Adapter>>,
    pub(crate) bias: Option<Arc<Adapter>>,
    pub(crate) names: Vec<String>,
}

impl Change {
    /// The layer's name in the file: a tensor's name without its ending.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How the file names its tensors.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// What happens to the layer's weight, in order.
    pub fn weight(&self) -> &[Arc<Adapter>] {
        &self.weight
    }

    /// What happens to the layer's bias.
    pub fn bias(&self) -> Option<&Arc<Adapter>> {
        self.bias.as_ref()
    }

    /// The names of the file's tensors for this layer.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

impl PatchFile {
    /// Groups the tensors of an opened file. Tensors whose names mean nothing here are listed, not refused; a group
    /// that lacks a part is an error.
    pub fn read(checkpoint: &Checkpoint) -> Result<PatchFile> {
        PatchFile::grouped(checkpoint, suffix::split)
    }

    /// What a file adds to the weights and biases of a model: its tensors under a prefix, as far as the model has one of
    /// that name.
    ///
    /// # Errors
    /// One of them is no float.
    pub fn of_differences(
        checkpoint: &Checkpoint,
        prefix: &str,
        is_of_model: impl Fn(&str) -> bool,
    ) -> Result<PatchFile> {
        PatchFile::grouped(checkpoint, |name| {
            let name = name.strip_prefix(prefix).filter(|name| is_of_model(name))?;
            suffix::split_difference(name)
        })
    }

    /// The tensors of a file by what their names say.
    fn grouped(checkpoint: &Checkpoint, split: impl Fn(&str) -> Option<Split<'_>>) -> Result<PatchFile> {
        let name = checkpoint.path().display().to_string();
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut unrecognised = Vec::new();
        for entry in checkpoint.entries() {
            let Some(Split { key, part, naming }) = split(entry.name()) else {
                unrecognised.push(entry.name().to_owned());
                continue;
            };
            let at = *places.entry(key).or_insert_with(|| {
                groups.push(Group { file: &name, key, naming, parts: Vec::new() });
                groups.len() - 1
            });
            let group = &mut groups[at];
            if let Some((_, first)) = group.parts.iter().find(|(other, _)| *other == part) {
                let (first, second) = (first.name().to_owned(), entry.name().to_owned());
                return Err(Error::Duplicate { file: name, first, second });
            }
            // Endings such as `.alpha` are everyone's; the matrices say who wrote the file.
            if matches!(part, Part::Up | Part::Down) {
                group.naming = naming;
            }
            group.parts.push((part, factor(checkpoint, entry, part, &name)?));
        }
        let mut changes = Vec::new();
        for group in groups {
            let (key, naming) = (group.key, group.naming);
            let all: Vec<String> = group.parts.iter().map(|(_, factor)| factor.name().to_owned()).collect();
            let Meaning { weight, bias, unused } = group.resolve()?;
            if weight.is_empty() && bias.is_none() {
                unrecognised.extend(all);
                continue;
            }
            let names = all.into_iter().filter(|name| !unused.contains(name)).collect();
            unrecognised.extend(unused);
            changes.push(Change { key: key.into(), naming, weight, bias, names });
        }
        Ok(PatchFile { name: name.into(), signature: signature_of(checkpoint), changes, unrecognised })
    }

    /// The file's path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stands for this file and its contents; the same in every run. Path, sizes, names, shapes and both ends of
    /// every tensor count.
    pub fn signature(&self) -> u64 {
        self.signature
    }

    /// What the file changes, in its order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Tensors whose names mean nothing here.
    pub fn unrecognised(&self) -> &[String] {
        &self.unrecognised
    }

    /// Stored bytes of all patches.
    pub fn bytes(&self) -> u64 {
        self.adapters().map(|adapter| adapter.bytes()).sum()
    }

    /// Whether the file is as it was when it was opened. If it is not, it has to be opened anew.
    pub fn is_unchanged(&self) -> bool {
        let factors: Vec<&Factor> = self.adapters().flat_map(|adapter| adapter.factors()).collect();
        let files = EntryBytes::one_of_each_file(factors.iter().map(|factor| factor.bytes()));
        files.iter().all(|bytes| bytes.verify().is_ok())
    }

    fn adapters(&self) -> impl Iterator<Item = &Arc<Adapter>> {
        self.changes.iter().flat_map(|change| change.weight.iter().chain(&change.bias))
    }
}

/// A tensor of the file. Only an alpha may be an integer.
fn factor(checkpoint: &Checkpoint, entry: &Entry, part: Part, file: &str) -> Result<Factor> {
    let float = entry.encoding().dtype().is_none_or(DType::is_float);
    if entry.is_empty() || !(float || part == Part::Alpha) {
        return Err(Error::Value {
            file: file.to_owned(),
            name: entry.name().to_owned(),
            expected: "one or more floats",
            got: format!("{} of shape {}", entry.encoding(), entry.shape()),
        });
    }
    Ok(Factor::new(checkpoint, entry))
}

/// Stands for a file and its contents, as [`PatchFile::signature`] does.
#[must_use]
pub fn signature_of(checkpoint: &Checkpoint) -> u64 {
    let mut all = Signature::new();
    for (path, len) in checkpoint.files() {
        all.bytes(path.as_os_str().as_encoded_bytes()).number(len);
    }
    for entry in checkpoint.entries() {
        let bytes = checkpoint.bytes(entry);
        all.bytes(entry.name().as_bytes()).bytes(entry.encoding().name().as_bytes());
        entry.shape().dims().iter().for_each(|dim| {
            all.number(*dim as u64);
        });
        all.bytes(&bytes[..bytes.len().min(SAMPLE_BYTES)]);
        all.bytes(&bytes[bytes.len().saturating_sub(SAMPLE_BYTES)..]);
    }
    all.finish()
}
