//! A real server on a free port, with small node classes, spoken to over HTTP and WebSocket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// How many jobs run at the same time.
pub(crate) const WORKERS: u16 = 1;

mod protocol {
    pub(crate) mod classes;
    pub(crate) mod client;
    mod dashboard;
    mod guards;
    mod jobs;
    mod load;
    mod own;
    mod secret;
    mod sockets;
    mod tls;
    mod tooltips;
    mod v2;
}
