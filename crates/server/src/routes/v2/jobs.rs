//! `/api/v2/jobs`: sent, asked after, listed, cancelled.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use engine::{Engine, JobFilter, JobRecord, JobStatus, Refused, Submission};
use graph::{Literal, Map, Prompt, Rejected};
use serde_json::{Value, json};

use super::{Answer, Here, ask};
use crate::app::App;
use crate::files::assets::Assets;
use crate::replacements;
use crate::wire::query::Asked;
use crate::wire::v2::{self, Fault, JobView, Origin};
use crate::wire::{body, problem, reply};

/// Jobs of a page, if the client does not say.
const PAGE: usize = 50;
/// Jobs of a page at most.
const MAX_PAGE: usize = 100;
/// Labels of a job at most.
const MAX_LABELS: usize = 16;

pub(super) async fn submit(
    State(app): State<Arc<App>>,
    Here(origin): Here,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned);
    let asked = Arc::clone(&app);
    ask(&app, move |engine| {
        if let Some(key) = &key
            && !asked.used_keys.claim(key)
        {
            let message = "this Idempotency-Key was used; ask for the job that it made, or send another key";
            return Err(Fault::unprocessable("idempotency_key_reuse", message));
        }
        let made = make(engine, &asked.assets, &body).and_then(|id| found(engine, &id));
        match made {
            Ok(record) => {
                let shape = shape(engine, &asked, &record, &origin);
                Ok(reply::json_with(StatusCode::CREATED, &shape))
            }
            Err(fault) => {
                key.iter().for_each(|key| asked.used_keys.release(key));
                Err(fault)
            }
        }
    })
    .await?
}

/// Queues what a body asks for; the job's id.
fn make(engine: &Engine, assets: &Assets, body: &[u8]) -> Answer<String> {
    let mut map = body::object(body)?;
    if let Some(key) = ["inputs", "webhook_url"].into_iter().find(|key| map.contains_key(*key)) {
        return Err(Fault::unprocessable("invalid_request", format!("{key:?} is not taken")));
    }
    let Some(mut workflow @ Literal::Map(_)) = map.shift_remove("workflow") else {
        return Err(Fault::unprocessable("invalid_workflow", "\"workflow\" must be an object of nodes"));
    };
    if ["nodes", "links"].iter().all(|key| workflow.get(key).is_some_and(|part| part.as_list().is_some())) {
        let message = "this is a file of the editor; export it for the API, or run it with `gantry run`";
        return Err(Fault::unprocessable("workflow_format_ui", message));
    }
    resolve(&mut workflow, assets)?;
    let mut extra_data = match map.shift_remove("extra_data") {
        None | Some(Literal::Null) => Map::new(),
        Some(Literal::Map(extra)) => extra,
        Some(_) => return Err(Fault::unprocessable("invalid_request", "\"extra_data\" must be an object")),
    };
    if let Some(labels) = labels(map.get("metadata"))? {
        extra_data.insert("metadata".to_owned(), Literal::Map(labels));
    }
    let mut prompt = Prompt::from_literal(&workflow);
    if let Some(prompt) = &mut prompt {
        replacements::apply(prompt, engine.catalogue());
    }
    match engine.submit(Submission { prompt, extra_data, ..Submission::default() }) {
        Ok(accepted) => Ok(accepted.prompt_id),
        Err(Refused::Invalid(rejected)) => Err(invalid(&rejected)),
        Err(Refused::Storage(error)) => Err(error.into()),
    }
}

/// Names in the place of references to assets, at every depth.
fn resolve(value: &mut Literal, assets: &Assets) -> Answer<()> {
    if value.get("__type").and_then(Literal::as_text) == Some("core/ASSET") {
        let id = value.get("info").and_then(|info| info.get("id")).and_then(Literal::as_text);
        let id =
            id.ok_or_else(|| Fault::unprocessable("missing_asset", "a reference to an asset has no id"))?;
        let asset = assets.find(id);
        let asset =
            asset.ok_or_else(|| Fault::unprocessable("missing_asset", format!("there is no asset {id}")))?;
        *value = Literal::Text(asset.annotated());
        return Ok(());
    }
    match value {
        Literal::Map(map) => map.values_mut().try_for_each(|value| resolve(value, assets)),
        Literal::List(list) => list.iter_mut().try_for_each(|value| resolve(value, assets)),
        _ => Ok(()),
    }
}

fn labels(given: Option<&Literal>) -> Answer<Option<Map>> {
    let labels = match given {
        None | Some(Literal::Null) => return Ok(None),
        Some(Literal::Map(labels)) => labels,
        Some(_) => return Err(Fault::unprocessable("metadata_invalid", "\"metadata\" must be an object")),
    };
    if labels.len() > MAX_LABELS {
        let message = format!("{} labels are given, at most {MAX_LABELS} are taken", labels.len());
        return Err(Fault::unprocessable("metadata_invalid", message));
    }
    if let Some((key, _)) = labels.iter().find(|(_, value)| value.as_text().is_none()) {
        return Err(Fault::unprocessable("metadata_invalid", format!("the label {key:?} must be text")));
    }
    Ok(Some(labels.clone()))
}

fn invalid(rejected: &Rejected) -> Fault {
    let mut fault = Fault::unprocessable("invalid_workflow", rejected.error.message.clone());
    if !rejected.error.details.is_empty() {
        fault.message = format!("{}: {}", fault.message, rejected.error.details);
    }
    fault.details = json!({ "node_errors": problem::node_errors(&rejected.node_errors) });
    fault
}

pub(super) async fn one(State(app): State<Arc<App>>, Here(origin): Here, Path(id): Path<String>) -> Answer {
    let asked = Arc::clone(&app);
    ask(&app, move |engine| {
        let record = asked.found(engine, &id)?;
        Ok(reply::json(&shape(engine, &asked, &record, &origin)))
    })
    .await?
}

pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Here(origin): Here,
    Path(id): Path<String>,
) -> Answer {
    let asked = Arc::clone(&app);
    ask(&app, move |engine| {
        let mut record = asked.found(engine, &id)?;
        if engine.cancel(&id) {
            let is_waiting = record.status == JobStatus::Pending;
            record.status = JobStatus::Cancelled;
            if is_waiting && engine.job(&id)?.is_none() {
                // A job that never ran leaves no record, but whoever sent it goes on asking.
                asked.withdrawn.keep(record.clone());
            }
        }
        let mut shape = shape(engine, &asked, &record, &origin);
        if record.status == JobStatus::Cancelled && engine.job(&id)?.is_some_and(|now| now.entry.is_none()) {
            shape["status"] = json!("canceling");
        }
        Ok(reply::json(&shape))
    })
    .await?
}

pub(super) async fn workflow(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    let asked = Arc::clone(&app);
    ask(&app, move |engine| {
        let record = asked.found(engine, &id)?;
        Ok(reply::json(&json!({ "workflow": record.job.prompt.to_literal(), "format": "api" })))
    })
    .await?
}

/// Newest first. The cursor counts from the oldest job, so that jobs which come meanwhile do not move it.
pub(super) async fn list(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Answer {
    let limit = match asked.get("limit").map(str::parse::<usize>) {
        None => PAGE,
        Some(Ok(limit)) if limit >= 1 => limit.min(MAX_PAGE),
        Some(_) => {
            let message = "limit must be a whole number of at least 1";
            return Err(Fault::new(StatusCode::BAD_REQUEST, "invalid_request", message));
        }
    };
    let older = asked.get("cursor").map(str::parse::<usize>).transpose();
    let older = older.map_err(|_| {
        Fault::new(StatusCode::BAD_REQUEST, "invalid_cursor", "this cursor does not come from here")
    })?;
    let wanted: Vec<(String, String)> = asked.0.iter().filter_map(label_filter).collect();
    ask(&app, move |engine| {
        let total = engine.jobs(&JobFilter { limit: Some(1), ..JobFilter::default() })?.total;
        let offset = older.map_or(0, |older| total.saturating_sub(older));
        let page = engine.jobs(&JobFilter { limit: Some(limit), offset, ..JobFilter::default() })?;
        let mut shown = Vec::new();
        for listed in &page.jobs {
            // A list holds less of a job than its labels.
            let Some(record) = engine.job(&listed.job.prompt_id)? else { continue };
            let labels = v2::labels(&record.job);
            if wanted.iter().all(|(key, value)| labels.get(key).and_then(Literal::as_text) == Some(value)) {
                shown.push(v2::listed(&record));
            }
        }
        let older = page.total.saturating_sub(offset + page.jobs.len());
        let mut answer = json!({ "jobs": shown });
        if older > 0 && !page.jobs.is_empty() {
            answer["next_cursor"] = json!(older.to_string());
        }
        Ok(reply::json(&answer))
    })
    .await?
}

/// `metadata[key]=value`.
fn label_filter((name, value): &(String, String)) -> Option<(String, String)> {
    let key = name.strip_prefix("metadata[")?.strip_suffix(']')?;
    Some((key.to_owned(), value.clone()))
}

fn found(engine: &Engine, id: &str) -> Answer<JobRecord> {
    engine.job(id)?.ok_or_else(|| Fault::not_found("job", id))
}

impl App {
    /// A job, also one that was withdrawn before it ran.
    pub(super) fn found(&self, engine: &Engine, id: &str) -> Answer<JobRecord> {
        match engine.job(id)? {
            Some(record) => Ok(record),
            None => self.withdrawn.get(id).ok_or_else(|| Fault::not_found("job", id)),
        }
    }
}

/// A job with all that is known of it now.
fn shape(engine: &Engine, app: &App, record: &JobRecord, origin: &Origin) -> Value {
    let id = &record.job.prompt_id;
    let live = app.live.of(id);
    JobView { record, live: live.as_ref(), ahead: ahead(engine, record) }.shape(&app.assets, origin)
}

/// How many jobs run before one that waits.
pub(super) fn ahead(engine: &Engine, record: &JobRecord) -> Option<usize> {
    if record.status != JobStatus::Pending {
        return None;
    }
    let queue = engine.queue();
    let place = queue.pending.iter().position(|job| job.prompt_id == record.job.prompt_id)?;
    Some(place + queue.running.len())
}
