//! Asking work to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

/// Says that a job should stop. Its work looks at it often and then fails with [`Error::Cancelled`]; what it was about to
/// write is undefined. Handles share the flag.
#[derive(Clone, Debug)]
pub struct Cancel(Option<Arc<AtomicBool>>);

impl Cancel {
    /// For work that nobody stops.
    pub const NEVER: Cancel = Cancel(None);

    /// Asks for the stop.
    pub fn cancel(&self) {
        if let Some(flag) = &self.0 {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Whether it can be asked for: if not, waiting needs no looking.
    pub fn is_possible(&self) -> bool {
        self.0.is_some()
    }

    /// An error if it was asked for.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

impl Default for Cancel {
    /// A stop that nobody has asked for yet.
    fn default() -> Cancel {
        Cancel::from(Arc::<AtomicBool>::default())
    }
}

impl From<Arc<AtomicBool>> for Cancel {
    /// A stop that whoever holds the flag asks for.
    fn from(flag: Arc<AtomicBool>) -> Cancel {
        Cancel(Some(flag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_share_the_flag_and_never_is_never() {
        let flag = Arc::new(AtomicBool::new(false));
        let (one, other) = (Cancel::from(Arc::clone(&flag)), Cancel::default());
        let same = one.clone();
        one.cancel();
        assert!(same.is_cancelled() && flag.load(Ordering::Relaxed) && !other.is_cancelled());
        assert_eq!((same.check(), other.check()), (Err(Error::Cancelled), Ok(())));
        Cancel::NEVER.cancel();
        assert!(!Cancel::NEVER.is_cancelled() && !Cancel::NEVER.is_possible() && other.is_possible());
    }
}
