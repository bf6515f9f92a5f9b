//! Models that loaders have named and nothing has opened yet: their files are read while another model computes, so that
//! the second expert of a video model, or an autoencoder, need not wait for the disk.

use std::sync::{Mutex, MutexGuard, PoisonError};

use residency::{ModelId, ReadingAhead, Residency};

/// The models, in the order in which they were named.
#[derive(Debug, Default)]
pub(crate) struct Upcoming(Mutex<Vec<ModelId>>);

/// The reading of their files, until this is dropped.
pub(crate) struct Beside<'a> {
    upcoming: &'a Upcoming,
    reading: ReadingAhead,
}

impl Upcoming {
    /// A loader named a model.
    pub(crate) fn named(&self, id: ModelId) {
        let mut models = self.lock();
        if !models.contains(&id) {
            models.push(id);
        }
    }

    /// Reads the files of those that still have no copies, if there are some.
    pub(crate) fn read_beside(&self, residency: &Residency) -> Option<Beside<'_>> {
        let models = {
            let mut models = self.lock();
            models.retain(|id| residency.contains(*id) && !residency.is_staged(*id));
            models.clone()
        };
        if models.is_empty() {
            return None;
        }
        let reading = residency.read_ahead(&models)?;
        Some(Beside { upcoming: self, reading })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ModelId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        let done = self.reading.done();
        self.upcoming.lock().retain(|id| !done.contains(id));
    }
}
