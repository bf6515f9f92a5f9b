//! Model files that change while their models are loaded: what was computed from them is not trusted, and the next use
//! opens them anew.

use super::loading::{Loaded, Opened};
use super::{Source, Studio};
use crate::Result;

impl Studio {
    /// Lets go of what was loaded from a file that is known to have changed, or to have lost parts.
    pub(super) fn forget_damaged(&self, loaded: &mut Option<Loaded>, source: &Source) {
        let is_damaged = |id| self.residency.is_intact(id).is_ok_and(|intact| !intact);
        if loaded.as_ref().is_some_and(|known| is_damaged(known.id()))
            && let Some(known) = loaded.take()
        {
            tracing::warn!("{} changed on disk: it is loaded anew", source.file.path().display());
            // Somebody else may have unloaded it meanwhile.
            let _ = self.residency.unload(known.id());
        }
    }
}

/// Works with an open network. What comes of it counts only if the files that weights were read from meanwhile stayed as
/// they were, so a changed one is the error, whatever else went wrong because of it.
pub(super) fn trusted<T>(opened: &Opened, work: impl FnOnce(&Opened) -> Result<T>) -> Result<T> {
    let done = work(opened);
    if !done.as_ref().is_err_and(crate::Error::is_cancelled) {
        opened.session.verify()?;
    }
    done
}
