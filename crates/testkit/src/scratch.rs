//! Folders for tests that write files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use crate::Error;

/// A new, empty folder that is removed, with all it holds, when this value goes away.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    /// Makes a folder in the system's place for temporary files.
    pub fn new() -> Result<ScratchDir, Error> {
        ScratchDir::within(&env::temp_dir())
    }

    /// Makes a folder in another one.
    pub fn within(folder: &Path) -> Result<ScratchDir, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("gantry-test-{}-{number}", process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(ScratchDir { path }),
                // An earlier process with the same id left one behind.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(Error::Io { action: "make folder", path, source }),
            }
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn join(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.path.join(relative)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // What cannot be removed (a file still mapped on some systems) is left to the operating system.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_folder_is_new_and_leaves() {
        let (a, b) = (ScratchDir::new().unwrap(), ScratchDir::new().unwrap());
        assert_ne!(a.path(), b.path());
        fs::create_dir(a.join("inner")).unwrap();
        fs::write(a.join("inner/file"), "x").unwrap();
        let path = a.path().to_owned();
        drop(a);
        assert!(!path.exists());
        assert!(b.path().is_dir());
    }
}
