//! What can go wrong in the engine itself. What goes wrong in a job is in its record.

use std::path::{Path, PathBuf};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database said no.
    #[error("{path}: {source}; move the file away to start with an empty queue and history")]
    Database {
        /// Where it is.
        path: String,
        /// What it said.
        source: rusqlite::Error,
    },
    /// A record cannot be read.
    #[error("the record of job {id} cannot be read: {source}")]
    Record {
        /// Which.
        id: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Another process has the database.
    #[error("{path} is in use by another process; end that one, or give this one a database of its own")]
    InUse {
        /// Where the database is.
        path: PathBuf,
    },
    /// The database's file does not hold together.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// Where the database is.
        path: String,
        /// The first thing that is wrong with it.
        what: String,
    },
    /// The database was written by a newer version.
    #[error(
        "{path} has schema {found} and this version knows schemas up to {known}; run the newer version, or move the file away"
    )]
    Newer {
        /// Where the database is.
        path: String,
        /// The file's schema.
        found: i64,
        /// The newest schema known here.
        known: i64,
    },
    /// The file is a database of another program.
    #[error("{path} is a database of another program; give a file of its own for the queue and history")]
    Foreign {
        /// Where the database is.
        path: String,
    },
    /// A file or folder beside the database.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A store on another machine said no, or nothing.
    #[error("{0}")]
    Remote(Box<dyn std::error::Error + Send + Sync>),
    /// The worker's thread cannot be started.
    #[error("the worker's thread cannot be started: {0}")]
    Thread(std::io::Error),
}

impl Error {
    /// What the system said of a file.
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Error {
        Error::Io { path: path.to_owned(), source }
    }

    /// Whether the database's file is no database, or a broken one.
    pub(crate) fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match self {
            Error::Damaged { .. } => true,
            Error::Database { source, .. } => {
                matches!(source.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
            }
            _ => false,
        }
    }
}
