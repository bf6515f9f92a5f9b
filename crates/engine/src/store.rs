//! The database: jobs that wait or run, and the records of those that ended.
//!
//! One SQLite file with a write-ahead log. A committed change survives the end of the process, however it
//! ends; the disk is waited for only when the log is copied into the file, which the worker does when it is
//! idle, so a machine that loses its power may lose the last changes, but never the file. There is one connection that writes and one that reads, so that long lists do not hold up the queue.

mod encoding;
mod history;
mod jobs;
mod lock;
mod messages;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::error::Error;
use crate::now_ms;
use crate::queue::Queued;

/// Marks a SQLite file as one of ours: "GANT".
const APPLICATION_ID: i64 = 0x4741_4e54;

/// The steps from an empty file to the present schema; `user_version` says how many were taken. Steps are
/// added at the end and never changed.
const SCHEMA_STEPS: &[&str] = &[include_str!("store/schema_1.sql")];

/// Pages of the log at which even a busy process copies it into the file: 64 MiB.
const LONGEST_LOG_PAGES: i64 = 16_384;

/// Bytes of changes after which an idle process copies the log into the file.
const LONG_LOG_BYTES: usize = 4 << 20;

/// Bytes of the log's file that are kept for its next use.
const KEPT_LOG_BYTES: i64 = 16 << 20;

/// How long a change waits for another program that has the file locked, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The database of one engine.
pub(crate) struct Store {
    path: String,
    history_limit: i64,
    writer: Mutex<Connection>,
    /// None in memory: there the writer reads, too.
    reader: Option<Mutex<Connection>>,
    /// Bytes of changes since the log was copied into the file.
    log_bytes: AtomicUsize,
    /// Held until the connections above are closed.
    _lock: Option<File>,
}

/// What was waiting when the process ended.
pub(crate) struct Restored {
    /// The queue's counter.
    pub(crate) counter: u64,
    /// The jobs, those that were running included.
    pub(crate) pending: Vec<Queued>,
}

impl Store {
    /// Opens a database file, or one in memory. A damaged file is moved aside and a new one begun.
    pub(crate) fn open(path: Option<&Path>, history_limit: i64) -> Result<(Store, Restored), Error> {
        let Some(path) = path else { return Store::connect(None, history_limit) };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|source| Error::io(folder, source))?;
        }
        let lock = lock::take(path)?;
        let opened = match Store::connect(Some(path), history_limit) {
            Err(error) if error.is_damage() => {
                let aside = move_aside(path)?;
                let aside = aside.display();
                tracing::warn!("{error}. It is kept as {aside}, and the queue and the history begin empty");
                Store::connect(Some(path), history_limit)
            }
            opened => opened,
        };
        opened.map(|(store, restored)| (Store { _lock: Some(lock), ..store }, restored))
    }

    /// Makes the connections, brings the schema up to date, and reads what was waiting.
    fn connect(path: Option<&Path>, history_limit: i64) -> Result<(Store, Restored), Error> {
        let name =
            path.map_or_else(|| "the database in memory".to_owned(), |path| path.display().to_string());
        let failed = |source| Error::Database { path: name.clone(), source };
        let was_closed = path.is_none_or(|path| !beside(path, "-wal").exists());
        let mut writer = connection(path).map_err(failed)?;
        update_schema(&mut writer, &name)?;
        if !was_closed {
            check(&writer, &name)?;
        }
        let reader = path.map(|path| connection(Some(path))).transpose().map_err(failed)?;
        let store = Store {
            path: name,
            history_limit,
            writer: Mutex::new(writer),
            reader: reader.map(Mutex::new),
            log_bytes: AtomicUsize::new(0),
            _lock: None,
        };
        let restored = store.restore()?;
        Ok((store, restored))
    }

    /// Copies the log into the file, if it has become long. Readers and the queue go on meanwhile.
    pub(crate) fn checkpoint(&self) {
        let Some(reader) = &self.reader else { return };
        if self.log_bytes.load(Ordering::Relaxed) < LONG_LOG_BYTES {
            return;
        }
        self.log_bytes.store(0, Ordering::Relaxed);
        let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = reader.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            tracing::warn!("{}: the log cannot be copied into the file: {error}", self.path);
        }
    }

    /// Gives the room of what was deleted back to the file system.
    fn shrink(&self) -> Result<(), Error> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // Each step gives one page back.
        let shrink = || {
            let mut statement = writer.prepare("PRAGMA incremental_vacuum")?;
            let mut pages = statement.query([])?;
            while pages.next()?.is_some() {}
            Ok(())
        };
        shrink().map_err(|source| self.failed(source))
    }

    /// Makes a change as a whole or not at all; `bytes` is about how large it is.
    fn write<T>(
        &self,
        bytes: usize,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.log_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let result =
            writer.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|transaction| {
                let value = change(&transaction)?;
                transaction.commit()?;
                Ok(value)
            });
        result.map_err(|source| self.failed(source))
    }

    /// Reads, beside changes that are being made.
    fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let connection = self.reader.as_ref().unwrap_or(&self.writer);
        let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        query(&connection).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: rusqlite::Error) -> Error {
        Error::Database { path: self.path.clone(), source }
    }
}

fn connection(path: Option<&Path>) -> rusqlite::Result<Connection> {
    let connection = path.map_or_else(Connection::open_in_memory, Connection::open)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // A new file can shrink when history is forgotten.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", LONGEST_LOG_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", KEPT_LOG_BYTES)?;
    Ok(connection)
}

/// Takes the steps that the file's schema lacks. Refuses files of newer versions and of other programs.
fn update_schema(connection: &mut Connection, path: &str) -> Result<(), Error> {
    let failed = |source| Error::Database { path: path.to_owned(), source };
    let known = SCHEMA_STEPS.len();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let number =
        |pragma| transaction.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).map_err(failed);
    let (application, found) = (number("application_id")?, number("user_version")?);
    let tables = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
    if application != APPLICATION_ID && tables.map_err(failed)? > 0 {
        return Err(Error::Foreign { path: path.to_owned() });
    }
    let taken = usize::try_from(found).ok().filter(|taken| *taken <= known);
    let Some(taken) = taken else {
        return Err(Error::Newer { path: path.to_owned(), found, known: known as i64 });
    };
    let steps = || {
        for step in &SCHEMA_STEPS[taken..] {
            transaction.execute_batch(step)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", known as i64)
    };
    if taken < known {
        steps().map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

/// Looks through a file that was not closed in an orderly way: the machine itself may have gone down.
fn check(connection: &Connection, path: &str) -> Result<(), Error> {
    let found = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    match found.map_err(|source| Error::Database { path: path.to_owned(), source })? {
        fine if fine == "ok" => Ok(()),
        what => Err(Error::Damaged { path: path.to_owned(), what }),
    }
}

/// Renames a damaged database, with its log, so that nothing of it is lost. Its new place.
fn move_aside(path: &Path) -> Result<PathBuf, Error> {
    let mark = format!(".damaged-{}", now_ms());
    for suffix in ["-wal", "-shm", ""] {
        let from = beside(path, suffix);
        match fs::rename(&from, beside(path, &format!("{mark}{suffix}"))) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            moved => moved.map_err(|source| Error::io(&from, source))?,
        }
    }
    Ok(beside(path, &mark))
}

/// A file whose name is that of the database and something more.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
