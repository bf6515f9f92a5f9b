//! Files that machines share: names in a bucket, bytes in the object store under what they are (BLAKE3).

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use disk::Draft;
use runtime::folders::Place;
use runtime::{FileExchange, Folders, OutputStore, SavedFile, Saving};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use crate::error::Error;
use crate::store::{FINISH_PATIENCE, NatsStore, PAUSE};

/// A file as the bucket lists it.
#[derive(Serialize, Deserialize)]
struct Listed {
    /// Place and name, with `/`.
    path: String,
    /// What it is.
    hash: String,
    bytes: u64,
}

/// The folders of this machine, which have what those of others have as soon as it is asked for.
pub struct SharedFiles {
    store: Arc<NatsStore>,
    folders: Folders,
    /// The folder under output and temp that what is saved here goes to, so that no two machines give one name twice.
    under: Option<String>,
    /// What files here are known to be.
    known: Mutex<HashMap<PathBuf, String>>,
}

impl fmt::Debug for SharedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedFiles").field("under", &self.under).finish_non_exhaustive()
    }
}

impl SharedFiles {
    /// The folders of a machine; what it saves goes under a name that is its own.
    #[must_use]
    pub fn new(store: Arc<NatsStore>, folders: Folders, under: Option<String>) -> SharedFiles {
        SharedFiles { store, folders, under, known: Mutex::default() }
    }

    fn note(&self, path: &Path, hash: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(path.to_owned(), hash.to_owned());
    }

    /// Whether the file here is that one. What was brought is not looked at again.
    fn is_here(&self, path: &Path, hash: &str) -> bool {
        if !path.is_file() {
            return false;
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned();
        let is_same = match known {
            Some(known) => known == hash,
            None => std::fs::read(path).is_ok_and(|bytes| hash_of(&bytes) == hash),
        };
        if is_same {
            self.note(path, hash);
        }
        is_same
    }

    fn listed(&self, place: Place, name: &str) -> Result<Option<Listed>, Error> {
        let found = self.store.connection.files.get(key(place, name));
        let found = self.store.threads.block_on(found);
        let found = found.map_err(|error| Error::request("tell where a file is", error))?;
        Ok(found.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    async fn fetch(&self, listed: &Listed) -> Result<Vec<u8>, Error> {
        let failed = |why: String| Error::Request { what: "give a file", why };
        let object = self.store.connection.objects.get(&listed.hash).await;
        let mut object = object.map_err(|error| failed(error.to_string()))?;
        let mut bytes = Vec::with_capacity(usize::try_from(listed.bytes).unwrap_or(0).min(1 << 30));
        object.read_to_end(&mut bytes).await.map_err(|error| failed(error.to_string()))?;
        match hash_of(&bytes) == listed.hash {
            true => Ok(bytes),
            false => Err(failed(format!("{} is not what it should be", listed.path))),
        }
    }

    async fn send(&self, listed: &Listed, bytes: &[u8], key: &str) -> Result<(), Error> {
        let failed = |why: String| Error::Request { what: "take a file", why };
        let connection = &self.store.connection;
        if connection.objects.info(&listed.hash).await.is_err() {
            let put = connection.objects.put(listed.hash.as_str(), &mut &*bytes).await;
            put.map_err(|error| failed(error.to_string()))?;
        }
        let text = serde_json::to_vec(listed).map_err(|error| failed(error.to_string()))?;
        connection.files.put(key, text.into()).await.map_err(|error| failed(error.to_string()))?;
        Ok(())
    }
}

impl FileExchange for SharedFiles {
    fn bring(&self, place: Place, name: &str) -> runtime::Result<bool> {
        let path = self.folders.inside(place, name)?;
        let told = |error: Error| runtime::Error::Told(error.to_string());
        let Some(listed) = self.listed(place, name).map_err(told)? else { return Ok(false) };
        if self.is_here(&path, &listed.hash) {
            return Ok(true);
        }
        let bytes = self.store.threads.block_on(self.fetch(&listed)).map_err(told)?;
        let failed = |source| runtime::Error::Io { path: path.clone(), source };
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(failed)?;
        Draft::of(folder, &bytes).and_then(|draft| draft.replace(&path)).map_err(failed)?;
        self.note(&path, &listed.hash);
        Ok(true)
    }

    fn share(&self, place: Place, name: &str) -> runtime::Result<()> {
        let path = self.folders.inside(place, name)?;
        let bytes =
            std::fs::read(&path).map_err(|source| runtime::Error::Io { path: path.clone(), source })?;
        let listed = Listed {
            path: format!("{}/{name}", place.name()),
            hash: hash_of(&bytes),
            bytes: bytes.len() as u64,
        };
        let until = Instant::now() + FINISH_PATIENCE;
        loop {
            match self.store.threads.block_on(self.send(&listed, &bytes, &key(place, name))) {
                Ok(()) => break,
                Err(error) if Instant::now() < until => {
                    tracing::warn!("{name} is not with the queue yet: {error}");
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(runtime::Error::Told(error.to_string())),
            }
        }
        self.note(&path, &listed.hash);
        Ok(())
    }
}

impl OutputStore for SharedFiles {
    fn begin(&self, place: Place, prefix: &str, size: (usize, usize)) -> runtime::Result<Box<dyn Saving>> {
        let prefix =
            self.under.as_ref().map_or_else(|| prefix.to_owned(), |under| format!("{under}/{prefix}"));
        let inner = OutputStore::begin(&self.folders, place, &prefix, size)?;
        let files = SharedFiles::new(Arc::clone(&self.store), self.folders.clone(), None);
        Ok(Box::new(SharedSaving { inner, files }))
    }

    fn read(&self, name: &str) -> runtime::Result<Vec<u8>> {
        self.path(name)?;
        OutputStore::read(&self.folders, name)
    }

    fn has(&self, name: &str) -> bool {
        self.path(name).is_ok_and(|path| path.exists())
    }

    fn pictures(&self, place: Place) -> Arc<[String]> {
        self.folders.pictures(place)
    }

    fn videos(&self, place: Place) -> Arc<[String]> {
        self.folders.videos(place)
    }

    fn sounds(&self, place: Place) -> Arc<[String]> {
        self.folders.sounds(place)
    }

    fn path(&self, name: &str) -> runtime::Result<PathBuf> {
        let (bare, place) = Place::of(name);
        if let Err(error) = self.bring(place.unwrap_or(Place::Input), bare) {
            tracing::warn!("{name} cannot be fetched: {error}");
        }
        self.folders.annotated(name)
    }
}

/// Files that are saved here and then with the queue, before anybody is told of them.
struct SharedSaving {
    inner: Box<dyn Saving>,
    files: SharedFiles,
}

impl SharedSaving {
    fn share(&self, saved: SavedFile) -> runtime::Result<SavedFile> {
        let name = match saved.subfolder.as_str() {
            "" => saved.name.clone(),
            folder => format!("{folder}/{}", saved.name),
        };
        self.files.share(saved.place, &name)?;
        Ok(saved)
    }
}

impl Saving for SharedSaving {
    fn save(&mut self, batch: usize, extension: &str, bytes: &[u8]) -> runtime::Result<SavedFile> {
        let saved = self.inner.save(batch, extension, bytes)?;
        self.share(saved)
    }

    fn save_draft(
        &mut self,
        batch: usize,
        extension: &str,
        write: &mut dyn FnMut(&mut Draft) -> runtime::Result<()>,
    ) -> runtime::Result<SavedFile> {
        let saved = self.inner.save_draft(batch, extension, write)?;
        self.share(saved)
    }
}

fn hash_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// The key of a file: names may have what keys may not.
fn key(place: Place, name: &str) -> String {
    format!("file.{}", hash_of(format!("{}/{name}", place.name()).as_bytes()))
}
