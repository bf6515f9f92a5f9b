//! The model files on disk: rebuilt when a case needs them, each once, several at a time.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use disk::Draft;
use testkit::{Manifest, Sha256Sink};

use crate::limits::{MODEL_BYTES, VOCABULARY_BYTES};
use crate::{Error, GoldenFolder};

/// A folder that has model files as loaders look for them: `diffusion_models/…`, `vae/…` and so on.
pub struct ModelsFolder {
    path: PathBuf,
    /// What is known to be there.
    ready: Mutex<HashSet<String>>,
}

/// What was done to have some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Built {
    /// Files that were written.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl ModelsFolder {
    /// Model files below a folder, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn at(path: &Path) -> Result<ModelsFolder, Error> {
        let error = |source| Error::Io { action: "make folder", path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(error)?;
        Ok(ModelsFolder { path: path.to_owned(), ready: Mutex::default() })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sees to it that these files are there. One that an earlier run left is taken as it is if its length, its head
    /// and both ends of its tensors are those of the manifest; what is written is checked against its sum.
    ///
    /// # Errors
    /// A manifest is damaged, a file cannot be written, or its sum is another than the listed one.
    pub fn ensure<'a>(
        &self,
        golden: &GoldenFolder,
        files: impl IntoIterator<Item = &'a str>,
    ) -> Result<Built, Error> {
        // Whoever comes second waits, and then finds what it needs.
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let missing: Vec<&str> = files.into_iter().filter(|file| !ready.contains(*file)).collect();
        let mut built = Built::default();
        // Making values fills all cores, taking the sum of a file only one: several at a time keep both busy.
        for some in missing.chunks(std::thread::available_parallelism().map_or(2, Into::into)) {
            let results: Vec<Result<u64, Error>> = std::thread::scope(|scope| {
                let builders: Vec<_> =
                    some.iter().map(|file| scope.spawn(|| self.build(golden, file))).collect();
                let ended = |builder: std::thread::ScopedJoinHandle<'_, _>| {
                    builder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                builders.into_iter().map(ended).collect()
            });
            for (file, bytes) in some.iter().zip(results) {
                let bytes = bytes?;
                ready.insert((*file).to_owned());
                built.files += usize::from(bytes > 0);
                built.bytes += bytes;
            }
        }
        Ok(built)
    }

    /// Bytes that were written; none if the file is there.
    fn build(&self, golden: &GoldenFolder, file: &str) -> Result<u64, Error> {
        if let Some(bytes) = golden.quantised().build(golden, file, &self.path.join(file))? {
            return Ok(bytes);
        }
        let (manifest, source) = golden.manifest(file)?;
        let wrong = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { path, source: Box::new(source) }
        };
        let bytes = manifest.len_bytes().map_err(wrong(&source))?;
        if bytes > MODEL_BYTES {
            return Err(Error::ModelTooLarge { path: source, bytes, most: MODEL_BYTES });
        }
        let path = self.path.join(&manifest.file);
        if let Some(packed) = golden.vocabulary(file) {
            put_vocabulary(&packed, &path.with_extension("tokenizer.model"))?;
        }
        if manifest.seems_to_be(&path).map_err(wrong(&path))? {
            return Ok(0);
        }
        let sum = write(&manifest, &path, &source)?;
        match golden.sum(file) {
            Some(expected) if expected != sum => {
                // A file that is not what it should be must not be found by the next run.
                let _ = fs::remove_file(&path);
                Err(Error::WrongSum { file: file.to_owned(), expected: expected.to_owned(), got: sum })
            }
            _ => Ok(bytes),
        }
    }
}

/// Unpacks a vocabulary beside the model file that needs it.
fn put_vocabulary(packed: &Path, path: &Path) -> Result<(), Error> {
    let error = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    };
    if path.is_file() {
        return Ok(());
    }
    let bytes = fs::read(packed).map_err(error("read", packed))?;
    let text = unpacked(&bytes).ok_or_else(|| std::io::Error::other("it is no gzip file"));
    let text = text.map_err(error("unpack", packed))?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(error("make folder", folder))?;
    }
    disk::write(path, &text).map_err(error("write", path))
}

/// The contents of a gzip file: behind ten bytes, and a name if a bit says so.
fn unpacked(bytes: &[u8]) -> Option<Vec<u8>> {
    let head = bytes.get(..10)?;
    let name = match head[3] {
        0 => 0,
        8 => bytes[10..].iter().position(|byte| *byte == 0)? + 1,
        _ => return None,
    };
    let limit = usize::try_from(VOCABULARY_BYTES).ok()?;
    miniz_oxide::inflate::decompress_to_vec_with_limit(&bytes[10 + name..], limit).ok()
}

/// Writes a file; its sum. It appears under its name only when it is whole.
fn write(manifest: &Manifest, path: &Path, source: &Path) -> Result<String, Error> {
    let error = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(error("make folder", folder))?;
    }
    let mut written =
        Summed { file: Draft::beside(path).map_err(error("write", path))?, sum: Sha256Sink::new() };
    manifest
        .stream(&mut written)
        .map_err(|wrong| Error::File { path: source.to_owned(), source: Box::new(wrong) })?;
    written.file.replace(path).map_err(error("rename to", path))?;
    Ok(written.sum.finish())
}

/// A file that is written, and its sum.
struct Summed {
    file: Draft,
    sum: Sha256Sink,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sum.write_all(&bytes[..written])?;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}
