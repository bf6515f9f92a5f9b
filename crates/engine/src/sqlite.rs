//! The store of one machine: jobs that wait or are claimed, and the records of those that ended, in a database.
//!
//! One SQLite file, of one process with a write-ahead log. A committed change survives the end of the process, however it
//! ends; the disk is waited for only when the log is copied into the file, which the worker does when it is
//! idle, so a machine that loses its power may lose the last changes, but never the file. There is one connection that writes and one that reads, so that long lists do not hold up the queue.

mod encoding;
pub(crate) mod exchange;
mod history;
mod jobs;
mod listing;
mod lock;
mod messages;
mod unfinished;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::error::Error;
use crate::job::{HistoryEntry, Job, JobFilter, JobPage, JobRecord, JobStatus};
use crate::now_ms;
use crate::queue::QueueView;
use crate::record::{Loss, Record};
use crate::store::{Abandoned, Choice, Claim, JobStore, Wake, WorkerName};
use jobs::Recovered;
use unfinished::{Queued, Unfinished};

/// Marks a SQLite file as one of ours: "GANT".
const APPLICATION_ID: i64 = 0x4741_4e54;

/// The steps from an empty file to the present schema; `user_version` says how many were taken. Steps are
/// added at the end and never changed.
const SCHEMA_STEPS: &[&str] = &[
    include_str!("sqlite/schema_1.sql"),
    include_str!("sqlite/schema_2.sql"),
    include_str!("sqlite/schema_3.sql"),
];

/// Pages of the log at which even a busy process copies it into the file: 64 MiB.
const LONGEST_LOG_PAGES: i64 = 16_384;

/// Bytes of changes after which an idle process copies the log into the file.
const LONG_LOG_BYTES: usize = 4 << 20;

/// Bytes of the log's file that are kept for its next use.
const KEPT_LOG_BYTES: i64 = 16 << 20;

/// How long a change waits for another program that has the file locked, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A queue and its history in a database. What waits or is claimed is in memory as well, with the secrets, which are
/// never written.
pub struct SqliteStore {
    path: String,
    unfinished: Mutex<Unfinished>,
    /// Who is told when something may be claimed.
    wakes: Mutex<Vec<Wake>>,
    history_limit: i64,
    writer: Mutex<Connection>,
    /// None in memory: there the writer reads, too.
    reader: Option<Mutex<Connection>>,
    /// Bytes of changes since the log was copied into the file.
    log_bytes: AtomicUsize,
    /// Held until the connections above are closed.
    _lock: Option<File>,
}

impl SqliteStore {
    /// Opens a database file, or one in memory. A damaged file is moved aside and a new one begun. At most
    /// `history_limit` finished jobs are remembered.
    ///
    /// # Errors
    /// The file cannot be opened, is another program's, or is open in another process.
    pub fn open(path: Option<&Path>, history_limit: usize) -> Result<SqliteStore, Error> {
        let history_limit = i64::try_from(history_limit).unwrap_or(i64::MAX);
        let Some(path) = path else { return SqliteStore::connect(None, history_limit) };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|source| Error::io(folder, source))?;
        }
        let lock = lock::take(path)?;
        let opened = match SqliteStore::connect(Some(path), history_limit) {
            Err(error) if error.is_damage() => {
                let aside = move_aside(path)?;
                let aside = aside.display();
                tracing::warn!("{error}. It is kept as {aside}, and the queue and the history begin empty");
                SqliteStore::connect(Some(path), history_limit)
            }
            opened => opened,
        };
        opened.map(|store| SqliteStore { _lock: Some(lock), ..store })
    }

    /// Makes the connections, brings the schema up to date, and reads what was waiting.
    fn connect(path: Option<&Path>, history_limit: i64) -> Result<SqliteStore, Error> {
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
        let mut store = SqliteStore {
            path: name,
            unfinished: Mutex::default(),
            wakes: Mutex::default(),
            history_limit,
            writer: Mutex::new(writer),
            reader: reader.map(Mutex::new),
            log_bytes: AtomicUsize::new(0),
            _lock: None,
        };
        store.unfinished = Mutex::new(store.restore()?);
        Ok(store)
    }

    /// What waits and what is claimed, locked. The database is never written meanwhile: that may take long.
    fn unfinished(&self) -> MutexGuard<'_, Unfinished> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job waits from now on.
    fn push(&self, queued: Queued) {
        self.unfinished().push(queued);
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
    }

    /// Copies the log into the file, if it has become long. Readers and the queue go on meanwhile.
    fn checkpoint(&self) {
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

impl JobStore for SqliteStore {
    fn take_number(&self, chosen: Option<f64>, front: bool) -> f64 {
        self.unfinished().take_number(chosen, front)
    }

    fn submit(&self, job: Job) -> Result<(), Error> {
        let counter = self.unfinished().counter();
        let sequence = self.insert(&job, counter)?;
        self.push(Queued { sequence, job: Arc::new(job), attempts: 0, lost_runs: 0 });
        Ok(())
    }

    fn claim_chosen(
        &self,
        worker: &WorkerName,
        lease: Duration,
        choose: &mut dyn FnMut(&Job) -> Choice,
    ) -> Result<Option<Claim>, Error> {
        let Some(claim) = self.unfinished().claim(worker, lease, choose) else { return Ok(None) };
        if let Err(error) = self.note_claim(&claim, lease) {
            let mut unfinished = self.unfinished();
            if let Some(queued) = unfinished.end(&claim) {
                unfinished.push(queued);
            }
            return Err(error);
        }
        Ok(Some(claim))
    }

    fn heartbeat(&self, claim: &Claim, lease: Duration) -> Result<bool, Error> {
        let is_held = self.unfinished().renew(claim, lease);
        if is_held {
            self.note_heartbeat(claim, lease)?;
        }
        Ok(is_held)
    }

    fn release(&self, claim: &Claim) -> Result<(), Error> {
        if !self.unfinished().is_held(claim) {
            return Ok(());
        }
        self.note_release(claim)?;
        let released = self.unfinished().end(claim);
        if let Some(queued) = released {
            self.push(queued.requeued());
        }
        Ok(())
    }

    fn finish(&self, claim: &Claim, record: &Record) -> Result<bool, Error> {
        if !self.unfinished().is_held(claim) {
            return Ok(false);
        }
        let kept = self.keep_record(claim.sequence, Some(claim), &claim.job, record);
        self.unfinished().end(claim);
        kept
    }

    fn redeliver(&self) -> Result<Vec<Abandoned>, Error> {
        let expired = self.unfinished().end_expired(Instant::now());
        let mut abandoned = Vec::new();
        for (queued, worker) in expired {
            tracing::warn!("worker {} has not renewed its claim in time", worker.0);
            match self.recover(queued.clone(), Loss::LeaseRanOut) {
                Ok(Recovered::Waits(queued)) => self.push(queued),
                Ok(Recovered::Failed(failed)) => abandoned.push(failed),
                Err(error) => {
                    // The next claim of it is written anyway.
                    self.push(queued.requeued());
                    return Err(error);
                }
            }
        }
        Ok(abandoned)
    }

    fn cancel(&self, ids: Option<&[String]>) -> Result<usize, Error> {
        let removed = self.unfinished().remove(ids);
        if let Err(error) = self.erase(&removed) {
            tracing::error!("deleted jobs will be back after a restart: {error}");
        }
        Ok(removed.len())
    }

    fn remaining(&self) -> usize {
        self.unfinished().len()
    }

    fn queue(&self) -> QueueView {
        self.unfinished().view()
    }

    fn find(&self, id: &str) -> Result<Option<JobRecord>, Error> {
        let unfinished = self.unfinished().find(id);
        if unfinished.is_some() {
            return Ok(unfinished);
        }
        let finished = self.entry(id)?;
        Ok(finished.map(|(status, entry)| JobRecord {
            job: Arc::new(entry.job.clone()),
            status,
            entry: Some(Arc::new(entry)),
        }))
    }

    fn list(&self, filter: &JobFilter) -> Result<JobPage, Error> {
        // The queue is looked at first: a job leaves it only after its record is in the database.
        let unfinished = self.unfinished().records();
        listing::page(self, unfinished, filter)
    }

    fn history(&self, max: Option<usize>, offset: Option<usize>) -> Result<Vec<HistoryEntry>, Error> {
        self.entries(max, offset)
    }

    fn finished(&self, id: &str) -> Result<Option<(JobStatus, HistoryEntry)>, Error> {
        self.entry(id)
    }

    fn forget(&self, ids: Option<&[String]>) -> Result<(), Error> {
        self.remove_entries(ids)
    }

    fn watch(&self, wake: Wake) {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).push(wake);
    }

    fn settle(&self) {
        self.checkpoint();
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
