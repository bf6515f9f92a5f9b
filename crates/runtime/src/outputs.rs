//! Where the files of workflows are: what they save, and the pictures that they load. Folders, or something else.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use disk::Draft;

use crate::folders::{Folders, Place, SavePlace};
use crate::{Error, Result};

/// A store of the files that workflows save and load. Names are those that clients see: relative, with `/`, and with a
/// place such as `[output]` behind them where it is not the usual one.
pub trait OutputStore: fmt::Debug + Send + Sync {
    /// Begins to save files under a prefix such as `project/%year%-%month%/cat`. `size` is the width and height of the
    /// picture, for `%width%` and `%height%`.
    ///
    /// # Errors
    /// The prefix leaves its place, or the place cannot be written.
    fn begin(&self, place: Place, prefix: &str, size: (usize, usize)) -> Result<Box<dyn Saving>>;

    /// The bytes of the file that a name such as `x.png` or `x.png [output]` stands for; an input if it does not say.
    ///
    /// # Errors
    /// The name leaves its place, or there is no such file.
    fn read(&self, name: &str) -> Result<Vec<u8>>;

    /// Whether there is a file of that name.
    fn has(&self, name: &str) -> bool;

    /// The names of the pictures that lie directly in a place, sorted.
    fn pictures(&self, place: Place) -> Arc<[String]>;

    /// The names of the videos that lie directly in a place, sorted.
    fn videos(&self, place: Place) -> Arc<[String]>;

    /// The names of the files with sound that lie directly in a place, videos among them, sorted.
    fn sounds(&self, place: Place) -> Arc<[String]>;

    /// Where the file of a name is, for those that are too large to be read as a whole.
    ///
    /// # Errors
    /// The name leaves its place.
    fn path(&self, name: &str) -> Result<PathBuf>;
}

/// Files that machines share: each has its own folders, and they bring each other what is missing there.
pub trait FileExchange: fmt::Debug + Send + Sync {
    /// Brings a file of a place into the folder here, unless it is there as it should be; whether others have it.
    ///
    /// # Errors
    /// It cannot be fetched or written.
    fn bring(&self, place: Place, name: &str) -> Result<bool>;

    /// Lets others have a file of a place as it is in the folder here.
    ///
    /// # Errors
    /// It cannot be read or sent.
    fn share(&self, place: Place, name: &str) -> Result<()>;
}

/// Files that one call saves, one after the other.
pub trait Saving {
    /// Saves a file, the `batch`th of this call, whole and under the next free name.
    ///
    /// # Errors
    /// It cannot be written; then nothing of it is left.
    fn save(&mut self, batch: usize, extension: &str, bytes: &[u8]) -> Result<SavedFile>;

    /// The same for a file that `write` writes piece by piece.
    ///
    /// # Errors
    /// `write` failed, or it cannot be written; then nothing of it is left.
    fn save_draft(
        &mut self,
        batch: usize,
        extension: &str,
        write: &mut dyn FnMut(&mut Draft) -> Result<()>,
    ) -> Result<SavedFile>;
}

/// A file that was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedFile {
    /// Its name.
    pub name: String,
    /// Where it is under its place, with `/`; empty for that itself.
    pub subfolder: String,
    /// Its place.
    pub place: Place,
}

impl OutputStore for Folders {
    fn begin(&self, place: Place, prefix: &str, size: (usize, usize)) -> Result<Box<dyn Saving>> {
        Ok(Box::new(InFolder { place, to: self.save_place(place, prefix, size)? }))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path: PathBuf = self.annotated(name)?;
        std::fs::read(&path).map_err(|source| Error::Io { path, source })
    }

    fn has(&self, name: &str) -> bool {
        self.annotated(name).is_ok_and(|path| path.exists())
    }

    fn pictures(&self, place: Place) -> Arc<[String]> {
        Folders::pictures(self, place)
    }

    fn videos(&self, place: Place) -> Arc<[String]> {
        Folders::videos(self, place)
    }

    fn sounds(&self, place: Place) -> Arc<[String]> {
        Folders::sounds(self, place)
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        self.annotated(name)
    }
}

struct InFolder {
    place: Place,
    to: SavePlace,
}

impl Saving for InFolder {
    fn save(&mut self, batch: usize, extension: &str, bytes: &[u8]) -> Result<SavedFile> {
        let name = self.to.save(batch, extension, bytes)?;
        Ok(SavedFile { name, subfolder: self.to.subfolder.clone(), place: self.place })
    }

    fn save_draft(
        &mut self,
        batch: usize,
        extension: &str,
        write: &mut dyn FnMut(&mut Draft) -> Result<()>,
    ) -> Result<SavedFile> {
        let name = self.to.save_draft(batch, extension, write)?;
        Ok(SavedFile { name, subfolder: self.to.subfolder.clone(), place: self.place })
    }
}
