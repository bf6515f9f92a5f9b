//! Jobs that wait or run, in the database.

use std::sync::Arc;

use rusqlite::{Connection, Row, params};

use super::encoding::{self, Reading, text};
use super::{Restored, Store};
use crate::error::Error;
use crate::job::Job;
use crate::now_ms;
use crate::queue::Queued;
use crate::record::Record;

/// How often a job may be lost with its process before it is recorded as failed.
const LOST_RUNS_LIMIT: i64 = 2;

impl Store {
    /// Adds a job that waits; its place among all jobs. `counter` is the queue's after it.
    pub(crate) fn add(&self, job: &Job, counter: u64) -> Result<i64, Error> {
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
    pub(crate) fn remove(&self, sequences: &[i64]) -> Result<(), Error> {
        if sequences.is_empty() {
            return Ok(());
        }
        self.write(0, |transaction| {
            let mut jobs = transaction.prepare_cached("DELETE FROM job WHERE sequence = ?1")?;
            let mut bodies = transaction.prepare_cached("DELETE FROM body WHERE sequence = ?1")?;
            for sequence in sequences {
                jobs.execute([sequence])?;
                bodies.execute([sequence])?;
            }
            Ok(())
        })
    }

    /// Marks a job as running.
    pub(crate) fn begin(&self, sequence: i64) -> Result<(), Error> {
        self.write(0, |transaction| {
            transaction
                .prepare_cached("UPDATE job SET is_running = 1 WHERE sequence = ?1")?
                .execute([sequence])?;
            Ok(())
        })
    }

    /// Marks a running job as waiting again, because the engine ends.
    pub(crate) fn put_back(&self, sequence: i64) -> Result<(), Error> {
        self.write(0, |transaction| {
            transaction
                .prepare_cached("UPDATE job SET is_running = 0, was_requeued = 1 WHERE sequence = ?1")?
                .execute([sequence])?;
            Ok(())
        })
    }

    /// What was waiting or running when the process ended. What was running waits again, once; the second
    /// time it is recorded as failed.
    pub(super) fn restore(&self) -> Result<Restored, Error> {
        let saved = self.read(saved_jobs)?;
        let counter = saved.iter().map(|saved| saved.counter).max().unwrap_or(0);
        let mut pending = Vec::new();
        for SavedJob { sequence, is_running, lost_runs, job, .. } in saved {
            let mut job = match job {
                Ok(job) => job,
                Err(error) => {
                    // It is left where it is: another version may be able to read it.
                    tracing::warn!("{error}; it stays in the database and does not run");
                    continue;
                }
            };
            if is_running {
                if self.recover(sequence, lost_runs + 1, &job)? {
                    continue;
                }
                job.was_requeued = true;
            }
            pending.push(Queued { sequence, job: Arc::new(job) });
        }
        Ok(Restored { counter: u64::try_from(counter).unwrap_or(0), pending })
    }

    /// Notes that a job's run was lost; whether that was once too often, so that it is recorded as failed.
    fn recover(&self, sequence: i64, lost_runs: i64, job: &Job) -> Result<bool, Error> {
        if lost_runs >= LOST_RUNS_LIMIT {
            tracing::warn!(
                "job {} was running when the process ended, for the second time: it failed",
                job.prompt_id
            );
            self.finish(sequence, job, &Record::abandoned(now_ms()))?;
            return Ok(true);
        }
        tracing::warn!("job {} was running when the process ended: it runs again", job.prompt_id);
        self.write(0, |transaction| {
            let change =
                "UPDATE job SET is_running = 0, was_requeued = 1, lost_runs = ?2 WHERE sequence = ?1";
            transaction.prepare_cached(change)?.execute([sequence, lost_runs])?;
            Ok(false)
        })
    }
}

/// A row of the jobs.
struct SavedJob {
    sequence: i64,
    counter: i64,
    is_running: bool,
    lost_runs: i64,
    job: Result<Job, Error>,
}

fn saved_jobs(connection: &Connection) -> rusqlite::Result<Vec<SavedJob>> {
    let query = "SELECT sequence, counter, is_running, lost_runs, prompt_id, number, client_id, was_requeued,
                        outputs, prompt, extra_data
                 FROM job JOIN body USING (sequence) ORDER BY sequence";
    let read = |row: &Row<'_>| {
        Ok(SavedJob {
            sequence: row.get(0)?,
            counter: row.get(1)?,
            is_running: row.get(2)?,
            lost_runs: row.get(3)?,
            job: saved_job(row)?,
        })
    };
    connection.prepare(query)?.query_map([], read)?.collect()
}

fn saved_job(row: &Row<'_>) -> rusqlite::Result<Result<Job, Error>> {
    let mut job = Job {
        prompt_id: row.get(4)?,
        number: encoding::number(row.get(5)?),
        client_id: row.get(6)?,
        was_requeued: row.get(7)?,
        ..Job::default()
    };
    let (outputs, prompt, extra_data) = (text(row, 8)?, text(row, 9)?, text(row, 10)?);
    let mut decode = || {
        let reading = Reading { id: &job.prompt_id };
        job.outputs = reading.ids(outputs)?;
        job.prompt = Arc::new(reading.prompt(prompt)?);
        job.extra_data = reading.map(extra_data)?;
        Ok(())
    };
    Ok(decode().map(|()| job))
}
