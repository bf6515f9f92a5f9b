//! How much is read and written at most: a folder of reference values comes from somewhere else.

use std::fs;
use std::path::Path;

use crate::Error;

/// Cases of a folder.
pub(crate) const MOST_CASES: usize = 10_000;
/// Manifests of a folder.
pub(crate) const MOST_MANIFESTS: usize = 10_000;
/// Bytes of a manifest.
pub(crate) const MANIFEST_BYTES: u64 = 64 << 20;
/// Bytes of a workflow.
pub(crate) const WORKFLOW_BYTES: u64 = 16 << 20;
/// Bytes of a list of sums.
pub(crate) const SUMS_BYTES: u64 = 16 << 20;
/// Bytes of a vocabulary, unpacked.
pub(crate) const VOCABULARY_BYTES: u64 = 64 << 20;
/// Bytes of one model file that is rebuilt.
pub(crate) const MODEL_BYTES: u64 = 64 << 30;

/// The text of a file that has at most so many bytes.
pub(crate) fn read_text(path: &Path, most: u64) -> Result<String, Error> {
    let error = |source| Error::Io { action: "read", path: path.to_owned(), source };
    let bytes = fs::metadata(path).map_err(error)?.len();
    if bytes > most {
        return Err(Error::TooLarge { path: path.to_owned(), bytes, most });
    }
    fs::read_to_string(path).map_err(error)
}

/// The names in a folder, sorted, of which there may be at most so many.
pub(crate) fn names_in(path: &Path, most: usize) -> Result<Vec<String>, Error> {
    let error = |source| Error::Io { action: "list", path: path.to_owned(), source };
    let mut names = Vec::new();
    for item in fs::read_dir(path).map_err(error)? {
        // A name that is no text is none of a case or a manifest.
        names.extend(item.map_err(error)?.file_name().into_string().ok());
        if names.len() > most {
            return Err(Error::TooMany { path: path.to_owned(), most });
        }
    }
    names.sort_unstable();
    Ok(names)
}
