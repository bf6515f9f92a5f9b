//! Model files that change while their models are loaded: what was computed from them is not trusted, and the next use
//! opens them anew.

use crate::Result;
use crate::loading::{Loaded, Opened};
use crate::{Runtime, Source};

impl Runtime {
    /// Lets go of what was loaded from a file that is known to have changed, or to have lost parts.
    pub(crate) fn forget_damaged(&self, loaded: &mut Option<Loaded>, source: &Source) {
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

/// Works with open networks. What comes of it counts only if the files that weights were read from meanwhile stayed as
/// they were, so a changed one is the error, whatever else went wrong because of it.
pub(crate) fn trusted<'a, T>(
    opened: impl IntoIterator<Item = &'a Opened>,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let done = work();
    if !done.as_ref().is_err_and(crate::Error::is_cancelled) {
        opened.into_iter().try_for_each(|opened| opened.session.verify())?;
    }
    done
}
