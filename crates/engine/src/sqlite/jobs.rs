//! Jobs that wait or are claimed, in the database.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, Row, params};

use super::SqliteStore;
use super::encoding::{self, Reading, text};
use super::unfinished::{Queued, Unfinished};
use crate::error::Error;
use crate::job::Job;
use crate::now_ms;
use crate::record::{Loss, Record};
use crate::store::{Abandoned, Claim};

/// How often a job may be lost with its worker before it is recorded as failed.
const LOST_RUNS_LIMIT: i64 = 2;

impl SqliteStore {
    /// Adds a job that waits; its place among all jobs. `counter` is the queue's after it.
    pub(super) fn insert(&self, job: &Job, counter: u64) -> Result<i64, Error> {
        let (prompt, extra) = (encoding::prompt_text(&job.prompt), encoding::map_text(&job.extra_data));
        let outputs = encoding::ids_text(&job.outputs);
        let counter = i64::try_from(counter).unwrap_or(i64::MAX);
        self.write(prompt.len() + extra.len(), |transaction| {
            transaction
                .prepare_cached(
                    "INSERT INTO job (prompt_id, number, counter, client_id, outputs) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![job.prompt_id, job.number, counter, job.client_id, outputs])?;
            let sequence = transaction.last_insert_rowid();
            transaction
                .prepare_cached("INSERT INTO body (sequence, prompt, extra_data) VALUES (?1, ?2, ?3)")?
                .execute(params![sequence, prompt, extra])?;
            Ok(sequence)
        })
    }

    /// Takes waiting jobs out; they leave nothing.
    pub(super) fn erase(&self, jobs: &[Queued]) -> Result<(), Error> {
        if jobs.is_empty() {
            return Ok(());
        }
        self.write(0, |transaction| {
            let mut rows = transaction.prepare_cached("DELETE FROM job WHERE sequence = ?1")?;
            let mut bodies = transaction.prepare_cached("DELETE FROM body WHERE sequence = ?1")?;
            for Queued { sequence, .. } in jobs {
                rows.execute([sequence])?;
                bodies.execute([sequence])?;
            }
            Ok(())
        })
    }

    /// Notes whose a job is, and until when.
    pub(super) fn note_claim(&self, claim: &Claim, lease: Duration) -> Result<(), Error> {
        let until = lease_end(lease);
        self.change_job(
            "UPDATE job SET worker = ?2, attempts = ?3, lease_until = ?4 WHERE sequence = ?1",
            params![claim.sequence, &*claim.worker.0, claim.attempt, until],
        )
    }

    /// Notes that a claim goes on.
    pub(super) fn note_heartbeat(&self, claim: &Claim, lease: Duration) -> Result<(), Error> {
        let until = lease_end(lease);
        self.change_job(
            "UPDATE job SET lease_until = ?3 WHERE sequence = ?1 AND attempts = ?2",
            params![claim.sequence, claim.attempt, until],
        )
    }

    /// Notes that a job waits again, because its worker ended in an orderly way.
    pub(super) fn note_release(&self, claim: &Claim) -> Result<(), Error> {
        self.change_job(
            "UPDATE job SET worker = NULL, lease_until = NULL, was_requeued = 1 WHERE sequence = ?1 AND attempts = ?2",
            params![claim.sequence, claim.attempt],
        )
    }

    fn change_job(&self, change: &str, values: impl rusqlite::Params) -> Result<(), Error> {
        self.write(0, |transaction| transaction.prepare_cached(change)?.execute(values).map(drop))
    }

    /// What was waiting or claimed when the process ended. What was claimed waits again, once: the file is locked, so
    /// its worker has ended. The second time it is recorded as failed.
    pub(super) fn restore(&self) -> Result<Unfinished, Error> {
        let saved = self.read(saved_jobs)?;
        let counter = saved.iter().map(|saved| saved.counter).max().unwrap_or(0);
        let mut waiting = Vec::new();
        for SavedJob { sequence, is_claimed, attempts, lost_runs, job, .. } in saved {
            let job = match job {
                Ok(job) => Arc::new(job),
                Err(error) => {
                    // It is left where it is: another version may be able to read it.
                    tracing::warn!("{error}; it stays in the database and does not run");
                    continue;
                }
            };
            let queued = Queued { sequence, job, attempts, lost_runs };
            if !is_claimed {
                waiting.push(queued);
            } else if let Recovered::Waits(queued) = self.recover(queued, Loss::ProcessEnded)? {
                waiting.push(queued);
            }
        }
        Ok(Unfinished::new(u64::try_from(counter).unwrap_or(0), waiting))
    }

    /// Notes that a job's run was lost. It waits again, unless that was once too often: then it is recorded as failed.
    pub(super) fn recover(&self, mut queued: Queued, loss: Loss) -> Result<Recovered, Error> {
        queued.lost_runs += 1;
        let (id, what) = (&queued.job.prompt_id, loss.what());
        if queued.lost_runs >= LOST_RUNS_LIMIT {
            tracing::warn!("job {id} was running when {what}, for the second time: it failed");
            let record = Record::abandoned(now_ms(), loss);
            self.keep_record(queued.sequence, None, &queued.job, &record)?;
            return Ok(Recovered::Failed(Abandoned { job: queued.job, record }));
        }
        tracing::warn!("job {id} was running when {what}: it runs again");
        self.change_job(
            "UPDATE job SET worker = NULL, lease_until = NULL, was_requeued = 1, lost_runs = ?2 WHERE sequence = ?1",
            params![queued.sequence, queued.lost_runs],
        )?;
        Ok(Recovered::Waits(queued.requeued()))
    }
}

/// What became of a job whose run was lost.
pub(super) enum Recovered {
    /// It waits again.
    Waits(Queued),
    /// It was lost once too often.
    Failed(Abandoned),
}

/// When a lease that begins now runs out, in milliseconds since 1970.
fn lease_end(lease: Duration) -> i64 {
    let until = u128::from(now_ms()) + lease.as_millis();
    i64::try_from(until).unwrap_or(i64::MAX)
}

/// A row of the jobs.
struct SavedJob {
    sequence: i64,
    counter: i64,
    is_claimed: bool,
    attempts: i64,
    lost_runs: i64,
    job: Result<Job, Error>,
}

fn saved_jobs(connection: &Connection) -> rusqlite::Result<Vec<SavedJob>> {
    let query =
        "SELECT sequence, counter, worker IS NOT NULL, attempts, lost_runs, prompt_id, number, client_id,
                        was_requeued, outputs, prompt, extra_data
                 FROM job JOIN body USING (sequence) ORDER BY sequence";
    let read = |row: &Row<'_>| {
        Ok(SavedJob {
            sequence: row.get(0)?,
            counter: row.get(1)?,
            is_claimed: row.get(2)?,
            attempts: row.get(3)?,
            lost_runs: row.get(4)?,
            job: saved_job(row)?,
        })
    };
    connection.prepare(query)?.query_map([], read)?.collect()
}

fn saved_job(row: &Row<'_>) -> rusqlite::Result<Result<Job, Error>> {
    let mut job = Job {
        prompt_id: row.get(5)?,
        number: encoding::number(row.get(6)?),
        client_id: row.get(7)?,
        was_requeued: row.get(8)?,
        ..Job::default()
    };
    let (outputs, prompt, extra_data) = (text(row, 9)?, text(row, 10)?, text(row, 11)?);
    let mut decode = || {
        let reading = Reading { id: &job.prompt_id };
        job.outputs = reading.ids(outputs)?;
        job.prompt = Arc::new(reading.prompt(prompt)?);
        job.extra_data = reading.map(extra_data)?;
        Ok(())
    };
    Ok(decode().map(|()| job))
}
