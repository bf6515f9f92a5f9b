//! What can go wrong before the server listens.

use std::net::SocketAddr;
use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong before the server listens. Later errors are answers to requests.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No address to listen on.
    #[error("there is no address to listen on; write one such as 127.0.0.1")]
    NoAddress,
    /// A host name that cannot be looked up.
    #[error("{name}: no address of that name can be found ({source}); write an IP address such as 127.0.0.1")]
    UnknownAddress {
        /// As written.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Others could use the machine.
    #[error(
        "listening on {address} lets other machines use this one; set a token that they must show, or allow \
         them explicitly to come without one"
    )]
    TokenNeeded {
        /// The address that is not of this machine alone.
        address: SocketAddr,
    },
    /// A token that no header can carry.
    #[error("the token must be visible ASCII without spaces, commas and semicolons, and not empty")]
    UnusableToken,
    /// The port cannot be had.
    #[error("cannot listen on {address}: {source}; end the program that uses it, or choose another port")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// A certificate or key that cannot be read.
    #[error("{path}: {reason}; it must be a PEM file")]
    TlsFile {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A certificate and key that cannot be used.
    #[error("the certificate and its key cannot be used: {0}")]
    Tls(#[from] tokio_rustls::rustls::Error),
    /// A header value that cannot be sent.
    #[error("{value:?} cannot be sent as the allowed origin; write one such as https://example.org, or *")]
    CorsOrigin {
        /// As written.
        value: String,
    },
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The system has no more threads or no event queue.
    #[error("the server cannot start its threads: {0}")]
    Threads(std::io::Error),
}
