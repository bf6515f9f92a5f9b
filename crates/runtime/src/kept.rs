//! Saved files that go to the program itself: for a command that writes one file or a pipe, not a folder.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use disk::Draft;

use crate::folders::{Folders, Place};
use crate::outputs::{OutputStore, SavedFile, Saving};
use crate::{Error, Result};

/// The files that a workflow saved, in memory; all else is in folders. Copies hold the same.
#[derive(Clone, Debug, Default)]
pub struct KeptPictures {
    files: Arc<Mutex<Vec<Vec<u8>>>>,
    folders: Folders,
}

impl KeptPictures {
    /// None yet. What is loaded comes from folders, and previews go there.
    pub(crate) fn new(folders: Folders) -> KeptPictures {
        KeptPictures { files: Arc::default(), folders }
    }

    /// All files so far, in the order in which they were saved; they are the caller's now.
    #[must_use]
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        // Files are put in whole, so what another thread left is good.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutputStore for KeptPictures {
    fn begin(&self, place: Place, prefix: &str, size: (usize, usize)) -> Result<Box<dyn Saving>> {
        if place != Place::Output {
            return self.folders.begin(place, prefix, size);
        }
        Ok(Box::new(InMemory { kept: self.clone(), prefix: prefix.to_owned() }))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.folders.read(name)
    }

    fn has(&self, name: &str) -> bool {
        self.folders.has(name)
    }

    fn pictures(&self, place: Place) -> Arc<[String]> {
        OutputStore::pictures(&self.folders, place)
    }

    fn videos(&self, place: Place) -> Arc<[String]> {
        OutputStore::videos(&self.folders, place)
    }

    fn sounds(&self, place: Place) -> Arc<[String]> {
        OutputStore::sounds(&self.folders, place)
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        OutputStore::path(&self.folders, name)
    }
}

struct InMemory {
    kept: KeptPictures,
    prefix: String,
}

impl Saving for InMemory {
    /// The name is the one under which a folder would have it.
    fn save(&mut self, _batch: usize, extension: &str, bytes: &[u8]) -> Result<SavedFile> {
        let mut files = self.kept.lock();
        files.push(bytes.to_vec());
        let name = format!("{}_{:05}_.{extension}", self.prefix, files.len());
        Ok(SavedFile { name, subfolder: String::new(), place: Place::Output })
    }

    /// It is written in the folder for files that go, and read from there.
    fn save_draft(
        &mut self,
        batch: usize,
        extension: &str,
        write: &mut dyn FnMut(&mut Draft) -> Result<()>,
    ) -> Result<SavedFile> {
        let folder = self.kept.folders.directory(Place::Temp).to_owned();
        let told = |source| Error::Io { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(told)?;
        let mut draft = Draft::new(&folder).map_err(told)?;
        write(&mut draft)?;
        let bytes = std::fs::read(draft.path()).map_err(told)?;
        self.save(batch, extension, &bytes)
    }
}
