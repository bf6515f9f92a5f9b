//! The folder as a whole: which cases there are, and which manifest describes which file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use testkit::{Manifest, Sums};

use crate::limits::{MANIFEST_BYTES, MOST_CASES, MOST_MANIFESTS, SUMS_BYTES, names_in, read_text};
use crate::quantised::QuantisedFiles;
use crate::{Case, Error};

/// An opened folder of reference values.
pub struct GoldenFolder {
    path: PathBuf,
    cases: Vec<String>,
    /// The manifests by the files that they describe, such as `vae/flux_ae.safetensors`.
    manifests: BTreeMap<String, PathBuf>,
    sums: Option<Sums>,
    quantised: QuantisedFiles,
}

/// The part of a manifest that says what it describes.
#[derive(Deserialize)]
struct Described {
    file: String,
}

impl GoldenFolder {
    /// Opens a folder: lists its cases, and reads of each manifest what it describes.
    ///
    /// # Errors
    /// It is no such folder, a manifest cannot be read, or two describe one file.
    pub fn open(path: &Path) -> Result<GoldenFolder, Error> {
        for missing in ["manifests", "runs", "inputs"] {
            if !path.join(missing).is_dir() {
                return Err(Error::NoGoldenFolder { path: path.to_owned(), missing });
            }
        }
        let runs = path.join("runs");
        let mut cases = names_in(&runs, MOST_CASES)?;
        cases.retain(|name| runs.join(name).is_dir());
        let quantised = QuantisedFiles::in_folder(&path.join("quant_files"))?;
        cases.extend(quantised.cases.iter().cloned());
        cases.sort_unstable();
        let folder = path.join("manifests");
        Ok(GoldenFolder {
            path: path.to_owned(),
            cases,
            manifests: manifests(&folder)?,
            sums: sums(&folder)?,
            quantised,
        })
    }

    /// The names of all cases, sorted.
    #[must_use]
    pub fn cases(&self) -> &[String] {
        &self.cases
    }

    /// Where the pictures are that workflows load.
    #[must_use]
    pub fn inputs(&self) -> PathBuf {
        self.path.join("inputs")
    }

    /// The names of the cases that somebody asks for, sorted: each by its name, or all that begin so. All of them if
    /// nothing is asked for.
    ///
    /// # Errors
    /// Something that is asked for is the name of none, and none begins so.
    pub fn select(&self, wanted: &[String]) -> Result<Vec<&str>, Error> {
        if wanted.is_empty() {
            return Ok(self.cases.iter().map(String::as_str).collect());
        }
        let mut chosen = Vec::new();
        for wanted in wanted {
            let before = chosen.len();
            match self.cases.iter().find(|name| *name == wanted) {
                Some(name) => chosen.push(name.as_str()),
                None => {
                    let beginning = wanted.strip_suffix('*').unwrap_or(wanted);
                    chosen.extend(
                        self.cases.iter().filter(|name| name.starts_with(beginning)).map(String::as_str),
                    );
                }
            }
            if chosen.len() == before {
                return Err(Error::NoCase { wanted: wanted.clone(), there: self.cases.join(", ") });
            }
        }
        chosen.sort_unstable();
        chosen.dedup();
        Ok(chosen)
    }

    /// Reads a case.
    ///
    /// # Errors
    /// It cannot be read, or names files that nothing describes.
    pub fn case(&self, name: &str) -> Result<Case, Error> {
        let folder = self.quantised.run(name).unwrap_or_else(|| self.path.join("runs").join(name));
        Case::read(&folder, name, self)
    }

    /// The packed vocabulary that a file needs beside it because its licence keeps it out of the file: `tokenizers` has
    /// it under a word of the file's name, such as `llama3_ranks.gz`.
    pub(crate) fn vocabulary(&self, file: &str) -> Option<PathBuf> {
        let name = Path::new(file).file_stem()?.to_str()?;
        let of_word = |word: &str| self.path.join("tokenizers").join(format!("{word}_ranks.gz"));
        name.split('_').map(of_word).find(|path| path.is_file())
    }

    /// The quantised files.
    pub(crate) fn quantised(&self) -> &QuantisedFiles {
        &self.quantised
    }

    /// Where the manifest of this name is.
    pub(crate) fn manifest_named(&self, name: &str) -> PathBuf {
        self.path.join("manifests").join(format!("{name}.json"))
    }

    /// The files that are described, sorted, the quantised ones last.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.manifests.keys().chain(self.quantised.files.keys()).map(String::as_str)
    }

    /// The manifest of a file, and where it is.
    pub(crate) fn manifest(&self, file: &str) -> Result<(Manifest, PathBuf), Error> {
        let Some(path) = self.manifests.get(file) else {
            let source = testkit::Error::Missing {
                file: self.path.join("manifests").display().to_string(),
                what: "manifest of",
                name: file.to_owned(),
            };
            return Err(Error::File { path: self.path.clone(), source: Box::new(source) });
        };
        let text = read_text(path, MANIFEST_BYTES)?;
        let manifest = Manifest::parse(&text)
            .map_err(|source| Error::File { path: path.clone(), source: Box::new(source) })?;
        Ok((manifest, path.clone()))
    }

    /// The listed sum of a file, if one is.
    pub(crate) fn sum(&self, file: &str) -> Option<&str> {
        self.sums.as_ref()?.get(file)
    }
}

/// The manifests of a folder by the files that they describe.
fn manifests(folder: &Path) -> Result<BTreeMap<String, PathBuf>, Error> {
    let mut found = BTreeMap::new();
    for name in names_in(folder, MOST_MANIFESTS)?.iter().filter(|name| name.ends_with(".json")) {
        let path = folder.join(name);
        let text = read_text(&path, MANIFEST_BYTES)?;
        let Described { file } =
            serde_json::from_str(&text).map_err(|source| Error::Json { path: path.clone(), source })?;
        if let Some(first) = found.insert(file.clone(), path.clone()) {
            return Err(Error::TwoManifests { first, second: path, file });
        }
    }
    Ok(found)
}

/// The sums of a folder, if it has a list.
pub(crate) fn sums(folder: &Path) -> Result<Option<Sums>, Error> {
    let path = folder.join("SHA256SUMS");
    if !path.is_file() {
        return Ok(None);
    }
    let text = read_text(&path, SUMS_BYTES)?;
    Sums::parse(&text).map(Some).map_err(|source| Error::File { path, source: Box::new(source) })
}
