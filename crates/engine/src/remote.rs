//! Workers that are elsewhere: what an engine without workers of its own asks of them.

use residency::FreeRequest;

/// The workers that take their jobs from a shared store.
pub trait RemoteWorkers: Send + Sync {
    /// Tells those that run jobs to end them, or only the one named; whether there was one.
    fn interrupt(&self, id: Option<&str>) -> bool;

    /// Asks all of them for memory, between their jobs.
    fn free(&self, request: FreeRequest);
}
