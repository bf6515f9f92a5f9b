//! What can go wrong with a file from the internet, and what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ureq::Body;
use ureq::http::Response;

/// The result of asking for a file.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file did not come.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no address.
    #[error(
        "'{text}' is no address of a file: write hf:OWNER/REPOSITORY/FILE, or a link that begins with https://"
    )]
    Address {
        /// The text.
        text: String,
    },
    /// There is no such file.
    #[error("{what}: there is no such file ({status})")]
    NotFound {
        /// The address.
        what: String,
        /// The server's status.
        status: u16,
    },
    /// The server wants to know who asks.
    #[error(
        "{what}: the server wants a token (401); make one on the hub's settings page and set HF_TOKEN to it"
    )]
    NeedsToken {
        /// The address.
        what: String,
    },
    /// The server knows who asks, and refuses.
    #[error(
        "{what}: the server refuses (403); for a gated model, open its page on the hub, accept its terms, and set HF_TOKEN to \
         a token of that account"
    )]
    Gated {
        /// The address.
        what: String,
    },
    /// The server answered something else.
    #[error("{what}: the server answered {status}")]
    Status {
        /// The address.
        what: String,
        /// The server's status.
        status: u16,
        /// After which time it wants to be asked again, if it says so.
        wait: Option<Duration>,
    },
    /// No answer, or one that broke off again and again.
    #[error("{what}: {source}; what has come so far is kept, so the same command goes on from there")]
    Connection {
        /// The address.
        what: String,
        /// Why.
        source: Box<ureq::Error>,
    },
    /// Another file came than the one that was promised.
    #[error("{what}: its sum is {got}, and not {expected} as promised; it was thrown away, ask for it again")]
    WrongSum {
        /// The address.
        what: String,
        /// The promised sum.
        expected: String,
        /// What came.
        got: String,
    },
    /// The disk has no room.
    #[error("{path}: the file takes {wanted} more bytes, and the disk has {free}")]
    NoRoom {
        /// Where it goes.
        path: PathBuf,
        /// What is missing of it.
        wanted: u64,
        /// What there is.
        free: u64,
    },
    /// Somebody ended it.
    #[error("{what}: stopped; what has come so far is kept, so the same command goes on from there")]
    Stopped {
        /// The address.
        what: String,
    },
    /// The disk refuses.
    #[error("{path}: {source}")]
    Disk {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// What an answer means that is no success.
    pub(crate) fn of_answer(what: &str, response: &Response<Body>) -> Error {
        let what = what.to_owned();
        match response.status().as_u16() {
            401 => Error::NeedsToken { what },
            403 => Error::Gated { what },
            status @ (404 | 410) => Error::NotFound { what, status },
            status => {
                let asked = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
                let wait = asked.and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
                Error::Status { what, status, wait }
            }
        }
    }

    /// After which time the server wants to be asked again, if it said so.
    pub(crate) fn asked_wait(&self) -> Option<Duration> {
        match self {
            Error::Status { wait, .. } => *wait,
            _ => None,
        }
    }

    /// Whether asking again may help.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Error::Connection { .. } => true,
            Error::Status { status, .. } => *status == 408 || *status == 429 || *status >= 500,
            _ => false,
        }
    }
}
