//! What can go wrong between this process and the queue.

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers.
    #[error(
        "the queue {address} cannot be reached: {why}; check that nats-server runs there with JetStream (-js)"
    )]
    Unreachable {
        /// Where.
        address: String,
        /// What the client said.
        why: String,
    },
    /// The server does not know us.
    #[error(
        "the queue {address} refuses these credentials: {why}; check user, password, token or the file of credentials"
    )]
    Credentials {
        /// Where.
        address: String,
        /// What the server said.
        why: String,
    },
    /// TLS does not come about: the server is not who it should be, or does not know who we are.
    #[error(
        "the queue {address} and this machine do not trust each other: {why}; check the certificates that vouch for the queue, the name in its certificate, and our own certificate if it asks for one"
    )]
    Trust {
        /// Where.
        address: String,
        /// What the client said.
        why: String,
    },
    /// A file of certificates or of a key cannot be used.
    #[error("the certificate or key {path} cannot be read: {source}")]
    CertificateFile {
        /// Which.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file of credentials cannot be used.
    #[error("the credentials file {path} cannot be read: {source}")]
    CredentialsFile {
        /// Which.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another version made the queue.
    #[error(
        "the queue of pool {pool} speaks protocol {found} and this version speaks {known}; run the same version everywhere, or use another pool"
    )]
    Protocol {
        /// Which pool.
        pool: String,
        /// What the queue has.
        found: String,
        /// What is known here.
        known: u32,
    },
    /// A name that no subject can have.
    #[error("the pool {0:?} is no name; use letters, digits, - and _")]
    Pool(String),
    /// A request failed.
    #[error("the queue did not {what}: {why}")]
    Request {
        /// What was asked.
        what: &'static str,
        /// What was said.
        why: String,
    },
    /// The threads of the connection cannot be started.
    #[error("the threads of the connection cannot be started: {0}")]
    Threads(std::io::Error),
}

impl Error {
    /// A request failed.
    pub(crate) fn request(what: &'static str, why: impl std::fmt::Display) -> Error {
        Error::Request { what, why: why.to_string() }
    }
}

impl From<Error> for engine::Error {
    fn from(error: Error) -> engine::Error {
        engine::Error::Remote(Box::new(error))
    }
}
