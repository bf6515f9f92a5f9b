//! The same server with two workers: what clients rely on holds, whatever runs beside their jobs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the helpers serve the tests with one worker, too")]

/// How many jobs run at the same time.
pub(crate) const WORKERS: u16 = 2;

mod protocol {
    pub(crate) mod classes;
    pub(crate) mod client;
    mod jobs;
    mod load;
    mod own;
    mod sockets;
    mod v2;
    mod workers;
}
