//! Files from the internet. A file is looked at before a byte of it moves (how large, which sum, whether it comes in
//! ranges), comes in several ranges at a time, goes on where it was broken off, and has its name only when it is whole
//! and has the right sum.
//!
//! ```text
//! Address ── Hub::look ──> Remote ── Hub::fetch ──> disk::Unfinished ── sum ──> the file
//! ```
#![forbid(unsafe_code)]

mod address;
mod error;
mod fetch;
mod notes;
mod patience;
mod remote;

use std::time::Duration;

pub use address::Address;
pub use error::{Error, Result};
pub use fetch::{Fetched, Watch};
pub use remote::Remote;

/// Where files of the hub are unless another endpoint is said.
pub const ENDPOINT: &str = "https://huggingface.co";

/// How long a connection may take to stand.
const CONNECT_TIME: Duration = Duration::from_secs(20);
/// How long an answer may take to begin.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// How long a range may take; what has come of it by then is kept, and the rest is asked for again.
const RANGE_TIME: Duration = Duration::from_secs(120);

/// Bytes that one request asks for.
const PIECE: u64 = 16 << 20;

/// Where files come from, and as whom they are asked for.
pub struct Hub {
    agent: ureq::Agent,
    endpoint: String,
    token: Option<String>,
    piece_bytes: u64,
}

impl Hub {
    /// A hub at its usual address, or at another (`HF_ENDPOINT`), asked with a token if one is given (`HF_TOKEN`). The
    /// token goes to the endpoint only. Proxies are those that the environment names.
    #[must_use]
    pub fn new(endpoint: Option<String>, token: Option<String>) -> Hub {
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIME))
            .timeout_recv_response(Some(ANSWER_TIME))
            .timeout_recv_body(Some(RANGE_TIME))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent("gantry")
            .build()
            .new_agent();
        let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned());
        Hub { agent, endpoint: endpoint.trim_end_matches('/').to_owned(), token, piece_bytes: PIECE }
    }

    /// The same, with requests for pieces of another size.
    #[must_use]
    pub fn with_pieces_of(self, bytes: u64) -> Hub {
        Hub { piece_bytes: bytes.max(1), ..self }
    }
}
