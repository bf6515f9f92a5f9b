//! Pictures that are written anew for an answer: `nodes` knows the formats, this file bounds the work.

use std::io;
use std::path::{Path, PathBuf};

use super::Files;
use super::reply::{Answer, Refusal, blocking};

/// The largest file that is read as a picture.
const MAX_FILE_BYTES: u64 = 512 << 20;

impl Files {
    /// Reads a picture file and makes something of it, a few pictures at a time.
    pub(super) async fn with_picture<F>(&self, path: PathBuf, make: F) -> Answer<Vec<u8>>
    where
        F: FnOnce(&[u8]) -> Answer<Vec<u8>> + Send + 'static,
    {
        let _turn = self.picture_turns.acquire().await.map_err(|_| Refusal::Fault)?;
        blocking(move || make(&read(&path)?)).await
    }
}

fn read(path: &Path) -> Answer<Vec<u8>> {
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::from(io::ErrorKind::NotFound).into());
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(Refusal::Malformed("the file is too large for a picture"));
    }
    Ok(std::fs::read(path)?)
}
