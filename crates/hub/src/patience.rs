//! How often and after which time a request is made again.

use std::thread;
use std::time::Duration;

use crate::{Error, Result};

/// How often a request is made again in a row without success.
const TRIES: u32 = 6;
/// The first wait between two tries; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait that a server may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(120);
/// How long it takes at most until a wait that is not wanted ends.
const SLICE: Duration = Duration::from_millis(100);

/// What is left of it.
pub(crate) struct Patience {
    tries: u32,
    wait: Duration,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { tries: 0, wait: FIRST_WAIT }
    }

    /// Waits after a failure, as long as the server asked for if it did; gives the failure back if asking again does not
    /// help, or has not helped often enough.
    pub(crate) fn wait_after(&mut self, error: Error, is_wanted: impl Fn() -> bool) -> Result<()> {
        self.tries += 1;
        if !error.may_pass() || self.tries > TRIES {
            return Err(error);
        }
        let wait = error.asked_wait().unwrap_or(self.wait).min(LONGEST_WAIT);
        let mut waited = Duration::ZERO;
        while waited < wait && is_wanted() {
            thread::sleep(SLICE.min(wait - waited));
            waited += SLICE;
        }
        self.wait *= 2;
        Ok(())
    }
}
