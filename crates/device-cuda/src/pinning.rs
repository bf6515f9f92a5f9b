//! Mapped files pinned where they lie, so that weights stream from the page cache itself: no copy of them is made, and
//! loading takes no longer than the driver needs to look up the pages.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use device::{Memory, Result, SharedBytes};

use crate::context::Context;

/// A region of memory that is only read. It is pinned when it is first copied from: pinning ahead in a thread would keep
/// the driver from everything else meanwhile.
pub(crate) struct PinnedRegion {
    context: Arc<Context>,
    bytes: SharedBytes,
    /// Whether that worked; one that cannot be pinned is copied from as ordinary memory is.
    pinned: OnceLock<bool>,
}

impl PinnedRegion {
    /// Whether the card can read it by itself.
    pub(crate) fn is_pinned(&self) -> bool {
        *self.pinned.get_or_init(|| self.pin().is_ok())
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::from((*self.bytes).as_ref()).cast()
    }

    fn pin(&self) -> Result<()> {
        self.context.enter()?;
        let action = format!("pinning {} bytes of a mapped file", self.len());
        // SAFETY: the bytes live as long as this value, which unpins them before it goes.
        let pinned = unsafe { self.context.driver().pin_read_only(self.start(), self.len()) };
        self.context.check(&action, pinned)
    }
}

/// Prepares regions to be pinned. The first is pinned now, to learn whether it works here at all.
pub(crate) fn pin(context: &Arc<Context>, regions: Vec<SharedBytes>) -> Option<Vec<Arc<dyn Memory>>> {
    let region = |bytes| PinnedRegion { context: Arc::clone(context), bytes, pinned: OnceLock::new() };
    let regions: Vec<PinnedRegion> = regions.into_iter().map(region).collect();
    let works = regions.first().is_none_or(PinnedRegion::is_pinned);
    works.then(|| regions.into_iter().map(|region| Arc::new(region) as Arc<dyn Memory>).collect())
}

// SAFETY: the bytes are shared and only read; they live and stay where they are for as long as this value holds them.
unsafe impl Memory for PinnedRegion {
    fn len(&self) -> usize {
        (*self.bytes).as_ref().len()
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        Some(self.start())
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for PinnedRegion {
    fn drop(&mut self) {
        if self.pinned.get() == Some(&true) {
            self.context.leave("unpinning a mapped file", |driver| driver.unpin(self.start()));
        }
    }
}
