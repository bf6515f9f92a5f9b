//! Saved pictures that go to the program itself: for a command that writes one file or a pipe, not a folder.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The files that a workflow saved, in memory. Copies hold the same.
#[derive(Clone, Debug, Default)]
pub struct KeptPictures {
    files: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl KeptPictures {
    /// All files so far, in the order in which they were saved; they are the caller's now.
    #[must_use]
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.lock())
    }

    /// Keeps PNG files; the names under which a folder would have them.
    pub(crate) fn add(&self, prefix: &str, files: Vec<Vec<u8>>) -> Vec<String> {
        let mut kept = self.lock();
        let first = kept.len() + 1;
        let names = (first..first + files.len()).map(|number| format!("{prefix}_{number:05}_.png")).collect();
        kept.extend(files);
        names
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        // Files are put in whole, so what another thread left is good.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
