//! Jobs and records as text, for stores on other machines: the same JSON as the columns of the database.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::encoding::{self, Reading};
use crate::error::Error;
use crate::job::Job;
use crate::record::Record;

#[derive(Serialize, Deserialize)]
struct JobText {
    number: Option<f64>,
    prompt_id: String,
    prompt: String,
    extra_data: String,
    outputs: String,
    client_id: Option<String>,
    was_requeued: bool,
}

#[derive(Serialize, Deserialize)]
struct RecordText {
    status: i64,
    outputs: String,
    identities: String,
    messages: String,
    worker: Option<String>,
}

/// A job as text, less its secrets.
#[must_use]
pub fn job_text(job: &Job) -> String {
    encoding::written(&JobText {
        number: job.number.is_finite().then_some(job.number),
        prompt_id: job.prompt_id.clone(),
        prompt: encoding::prompt_text(&job.prompt),
        extra_data: encoding::map_text(&job.extra_data),
        outputs: encoding::ids_text(&job.outputs),
        client_id: job.client_id.clone(),
        was_requeued: job.was_requeued,
    })
}

/// The job that a text has.
///
/// # Errors
/// It is not one that [`job_text`] wrote.
pub fn read_job(text: &str) -> Result<Job, Error> {
    let job: JobText = Reading { id: "?" }.parse(text)?;
    let reading = Reading { id: &job.prompt_id };
    Ok(Job {
        number: encoding::number(job.number),
        prompt: Arc::new(reading.prompt(&job.prompt)?),
        extra_data: reading.map(&job.extra_data)?,
        outputs: reading.ids(&job.outputs)?,
        secrets: graph::Map::new(),
        client_id: job.client_id,
        was_requeued: job.was_requeued,
        prompt_id: job.prompt_id,
    })
}

/// The record of a job as text.
#[must_use]
pub fn record_text(prompt_id: &str, record: &Record) -> String {
    encoding::written(&RecordText {
        status: encoding::status_code(record.status),
        outputs: encoding::nodes_text(&record.outputs),
        identities: encoding::identities_text(&record.identities),
        messages: encoding::messages_text(prompt_id, &record.messages),
        worker: record.worker.clone(),
    })
}

/// The record that a text has.
///
/// # Errors
/// It is not one that [`record_text`] wrote.
pub fn read_record(prompt_id: &str, text: &str) -> Result<Record, Error> {
    let reading = Reading { id: prompt_id };
    let record: RecordText = reading.parse(text)?;
    Ok(Record {
        status: encoding::finished_status(record.status),
        outputs: reading.nodes(&record.outputs)?,
        identities: reading.identities(&record.identities)?,
        messages: reading.messages(&record.messages)?,
        worker: record.worker,
    })
}
