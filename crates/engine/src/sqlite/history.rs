//! Jobs that ended, in the database.

use std::sync::Arc;

use graph::{Literal, Map, map};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::encoding::{self, Reading, text};
use super::{LONG_LOG_BYTES, SqliteStore};
use crate::error::Error;
use crate::job::{HistoryEntry, Job, JobFilter, JobRecord, JobStatus, SortBy};
use crate::record::Record;
use crate::store::Claim;

/// What a list shows of a finished job.
const COLUMNS: &str = "prompt_id, number, client_id, outputs, was_requeued, status, shown, meta, messages, created, \
                       workflow_id, worker";

/// Which finished jobs a list has: those whose state is in a set of bits, of a workflow if one is named, and
/// none whose id is in the queue.
const LISTED: &str = "FROM history WHERE ((?1 >> status) & 1) AND (?2 IS NULL OR workflow_id = ?2) \
                      AND prompt_id NOT IN (SELECT value FROM json_each(?3))";

/// Where a finished job stands in a list.
pub(super) struct Listed {
    /// Its row.
    pub(super) id: i64,
    /// What the list is sorted by.
    pub(super) key: i64,
    /// Its place among all jobs, for equal keys.
    pub(super) sequence: i64,
}

impl SqliteStore {
    /// Keeps the record of a job, in whose place among waiting and claimed ones it comes; of a claimed one only if the
    /// claim is still in force. Whether it was kept.
    pub(super) fn keep_record(
        &self,
        sequence: i64,
        claim: Option<&Claim>,
        job: &Job,
        record: &Record,
    ) -> Result<bool, Error> {
        let shown = encoding::nodes_text(&record.outputs);
        let meta = encoding::identities_text(&record.identities);
        let messages = encoding::messages_text(&job.prompt_id, &record.messages);
        let outputs = encoding::ids_text(&job.outputs);
        self.write(shown.len() + meta.len() + messages.len(), |transaction| {
            if let Some(claim) = claim
                && !is_in_force(transaction, claim)?
            {
                return Ok(false);
            }
            // A client can use an id again; the later job counts.
            transaction.prepare_cached("DELETE FROM history WHERE prompt_id = ?1")?.execute([&job.prompt_id])?;
            transaction
                .prepare_cached(
                    "INSERT INTO history (prompt_id, sequence, number, client_id, outputs, was_requeued, status,
                                          created, duration, workflow_id, shown, meta, messages, worker)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
                )?
                .execute(params![
                    job.prompt_id,
                    sequence,
                    job.number,
                    job.client_id,
                    outputs,
                    job.was_requeued,
                    encoding::status_code(record.status),
                    job.created(),
                    record.duration_ms(),
                    job.workflow_id(),
                    shown,
                    meta,
                    messages,
                    record.worker,
                ])?;
            transaction.prepare_cached("DELETE FROM job WHERE sequence = ?1")?.execute([sequence])?;
            drop_oldest(transaction, self.history_limit)?;
            Ok(true)
        })
    }

    /// Finished jobs, oldest first: the last `max`, or with `offset` a slice.
    pub(super) fn entries(
        &self,
        max: Option<usize>,
        offset: Option<usize>,
    ) -> Result<Vec<HistoryEntry>, Error> {
        let (direction, offset) =
            if offset.is_none() && max.is_some() { ("DESC", 0) } else { ("ASC", count(offset.or(Some(0)))) };
        let query = format!(
            "SELECT {COLUMNS}, prompt, extra_data FROM history JOIN body USING (sequence)
             WHERE id IN (SELECT id FROM history ORDER BY id {direction} LIMIT ?1 OFFSET ?2) ORDER BY id"
        );
        let entries = self.read(|connection| {
            let mut statement = connection.prepare_cached(&query)?;
            statement.query_map([count(max), offset], whole_entry)?.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let readable = |(_, entry): (JobStatus, Result<HistoryEntry, Error>)| {
            entry.inspect_err(|error| tracing::warn!("{error}; it is left out of the history")).ok()
        };
        Ok(entries.into_iter().filter_map(readable).collect())
    }

    /// One finished job, whole.
    pub(super) fn entry(&self, id: &str) -> Result<Option<(JobStatus, HistoryEntry)>, Error> {
        let query = format!(
            "SELECT {COLUMNS}, prompt, extra_data FROM history JOIN body USING (sequence) WHERE prompt_id = ?1"
        );
        let found = self
            .read(|connection| connection.prepare_cached(&query)?.query_row([id], whole_entry).optional())?;
        found.map(|(status, entry)| Ok((status, entry?))).transpose()
    }

    /// Forgets finished jobs: those named, or all.
    pub(super) fn remove_entries(&self, ids: Option<&[String]>) -> Result<(), Error> {
        // Forgetting all changes most pages of the file.
        let bytes = if ids.is_none() { LONG_LOG_BYTES } else { 0 };
        self.write(bytes, |transaction| {
            let Some(ids) = ids else {
                return transaction.execute("DELETE FROM history", []).map(drop);
            };
            let mut statement = transaction.prepare_cached("DELETE FROM history WHERE prompt_id = ?1")?;
            ids.iter().try_for_each(|id| statement.execute([id]).map(drop))
        })?;
        if ids.is_none() {
            self.shrink()?;
        }
        Ok(())
    }

    /// The finished jobs that a list has, as far as its end, in its order, and how many there are in all.
    /// Jobs of `unfinished` ids are in the list already.
    pub(super) fn listed(
        &self,
        filter: &JobFilter,
        unfinished: &[&str],
    ) -> Result<(Vec<Listed>, usize), Error> {
        let statuses = [JobStatus::Completed, JobStatus::Failed, JobStatus::Cancelled];
        let wanted = statuses.into_iter().filter(|status| filter.has(*status));
        let bits = wanted.fold(0, |bits, status| bits | 1_i64 << encoding::status_code(status));
        if bits == 0 {
            return Ok((Vec::new(), 0));
        }
        let key = match filter.sort_by {
            SortBy::Created => "created",
            SortBy::Duration => "duration",
        };
        let direction = if filter.ascending { "ASC" } else { "DESC" };
        let rows = format!(
            "SELECT id, {key}, sequence {LISTED} ORDER BY {key} {direction}, sequence {direction} LIMIT ?4"
        );
        let limit = count(filter.limit.map(|limit| limit.saturating_add(filter.offset)));
        let unfinished = encoding::texts(unfinished);
        self.read(|connection| {
            let total = connection
                .prepare_cached(&format!("SELECT count(*) {LISTED}"))?
                .query_row(params![bits, filter.workflow_id, unfinished], |row| row.get::<_, i64>(0))?;
            let mut statement = connection.prepare_cached(&rows)?;
            let read =
                |row: &Row<'_>| Ok(Listed { id: row.get(0)?, key: row.get(1)?, sequence: row.get(2)? });
            let listed = statement.query_map(params![bits, filter.workflow_id, unfinished, limit], read)?;
            Ok((listed.collect::<rusqlite::Result<Vec<Listed>>>()?, usize::try_from(total).unwrap_or(0)))
        })
    }

    /// What a list shows of a finished job; `None` if it was forgotten meanwhile, or cannot be read.
    pub(super) fn list_item(&self, id: i64) -> Result<Option<JobRecord>, Error> {
        let query = format!("SELECT {COLUMNS} FROM history WHERE id = ?1");
        let read = |row: &Row<'_>| Ok((encoding::finished_status(row.get(5)?), list_entry(row)?));
        let found =
            self.read(|connection| connection.prepare_cached(&query)?.query_row([id], read).optional())?;
        let Some((status, entry)) = found else { return Ok(None) };
        let entry = entry.inspect_err(|error| tracing::warn!("{error}; it is left out of the list"));
        Ok(entry.ok().map(|entry| JobRecord {
            job: Arc::new(entry.job.clone()),
            status,
            entry: Some(Arc::new(entry)),
        }))
    }
}

/// Whether the database has a claim as the worker does: no other has taken the job since.
fn is_in_force(transaction: &Transaction<'_>, claim: &Claim) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached("SELECT 1 FROM job WHERE sequence = ?1 AND attempts = ?2 AND worker = ?3")?
        .exists(params![claim.sequence, claim.attempt, &*claim.worker.0])
}

/// A number of rows, for SQLite, where -1 is all.
fn count(rows: Option<usize>) -> i64 {
    rows.map_or(-1, |rows| i64::try_from(rows).unwrap_or(i64::MAX))
}

fn drop_oldest(transaction: &Transaction<'_>, limit: i64) -> rusqlite::Result<()> {
    let kept: i64 =
        transaction.prepare_cached("SELECT count(*) FROM history")?.query_row([], |row| row.get(0))?;
    if kept > limit {
        transaction
            .prepare_cached("DELETE FROM history WHERE id IN (SELECT id FROM history ORDER BY id LIMIT ?1)")?
            .execute([kept - limit])?;
    }
    Ok(())
}

/// A finished job with all it had.
fn whole_entry(row: &Row<'_>) -> rusqlite::Result<(JobStatus, Result<HistoryEntry, Error>)> {
    let status = encoding::finished_status(row.get(5)?);
    let (prompt, extra_data) = (text(row, 12)?, text(row, 13)?);
    let entry = list_entry(row)?.and_then(|mut entry| {
        let reading = Reading { id: &entry.job.prompt_id };
        (entry.job.prompt, entry.job.extra_data) =
            (Arc::new(reading.prompt(prompt)?), reading.map(extra_data)?);
        Ok(entry)
    });
    Ok((status, entry))
}

/// A finished job with what lists show.
fn list_entry(row: &Row<'_>) -> rusqlite::Result<Result<HistoryEntry, Error>> {
    let id: String = row.get(0)?;
    let client_id: Option<String> = row.get(2)?;
    let extra_data = list_extra_data(client_id.as_deref(), row.get(9)?, row.get(10)?);
    let (number, was_requeued, worker) = (encoding::number(row.get(1)?), row.get(4)?, row.get(11)?);
    let succeeded = encoding::finished_status(row.get(5)?) == JobStatus::Completed;
    let (outputs, shown, meta, messages) = (text(row, 3)?, text(row, 6)?, text(row, 7)?, text(row, 8)?);
    let decode = || {
        let reading = Reading { id: &id };
        let outputs = reading.ids(outputs)?;
        let (shown, identities, messages) =
            (reading.nodes(shown)?, reading.identities(meta)?, reading.messages(messages)?);
        let prompt_id = id.clone();
        let job = Job { number, prompt_id, extra_data, outputs, client_id, was_requeued, ..Job::default() };
        Ok(HistoryEntry { job, outputs: shown, identities, succeeded, messages, worker, dispatch: None })
    };
    Ok(decode())
}

/// The part of `extra_data` that lists show.
fn list_extra_data(client_id: Option<&str>, created: i64, workflow_id: Option<String>) -> Map {
    let mut extra_data = Map::new();
    if let Some(client) = client_id {
        extra_data.insert("client_id".to_owned(), client.into());
    }
    extra_data.insert("create_time".to_owned(), created.into());
    if let Some(id) = workflow_id {
        let workflow = Literal::Map(map([("id", id.into())]));
        extra_data.insert("extra_pnginfo".to_owned(), Literal::Map(map([("workflow", workflow)])));
    }
    extra_data
}
