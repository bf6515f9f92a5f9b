//! A node that panics fails its job and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::class::Failure;

/// Calls into a node class; a panic becomes a failure.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // Nothing of ours is half changed when a class panics: it only has shared borrows.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "no message".to_owned());
        Err(Failure::error("RuntimeError", format!("the node panicked, which is a bug in it: {text}")))
    })
}
