//! What a run tells ends with the run, although a node's thread may outlive it.

use std::sync::{Arc, PoisonError, RwLock};

use crate::event::{Observer, RunEvent};

/// An observer that can be shut.
pub(super) struct Gate {
    observer: Arc<dyn Observer>,
    is_open: RwLock<bool>,
}

impl Gate {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Gate {
        Gate { observer, is_open: RwLock::new(true) }
    }

    /// After this nothing more is told; it waits for what is being told.
    pub(super) fn shut(&self) {
        *self.is_open.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Observer for Gate {
    fn event(&self, event: RunEvent) {
        let is_open = self.is_open.read().unwrap_or_else(PoisonError::into_inner);
        if *is_open {
            self.observer.event(event);
        }
    }
}
