//! Comfy's API v2 as its SDKs read it: jobs, their outputs, assets and faults.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use engine::{HistoryEntry, JobFailure, JobRecord, JobStatus};
use graph::{Literal, Map};
use meta::Moment;
use runtime::folders::Place;
use serde_json::{Value, json};

use super::reply;
use crate::files::assets::{Asset, AssetFault, Assets};
use crate::files::reply::Refusal;
use crate::live::LiveJob;

/// Nothing here runs out by itself, but the contract wants a date.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// A fault with its code: `{"error": {code, message, details}}`.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) details: Value,
}

impl Fault {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Fault {
        Fault { status, code, message: message.into(), details: json!({}) }
    }

    pub(crate) fn unprocessable(code: &'static str, message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
    }

    pub(crate) fn not_found(what: &str, id: &str) -> Fault {
        Fault::new(StatusCode::NOT_FOUND, "not_found", format!("there is no {what} {id}"))
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::error!("{}", self.message);
        }
        let error = json!({ "code": self.code, "message": self.message, "details": self.details });
        reply::json_with(self.status, &json!({ "error": error }))
    }
}

impl From<super::rejection::Rejection> for Fault {
    fn from(rejection: super::rejection::Rejection) -> Fault {
        Fault::new(rejection.status(), "invalid_request", rejection.to_string())
    }
}

impl From<super::body::BadBody> for Fault {
    fn from(bad: super::body::BadBody) -> Fault {
        Fault::new(StatusCode::BAD_REQUEST, "invalid_request", bad.to_string())
    }
}

impl From<engine::Error> for Fault {
    fn from(error: engine::Error) -> Fault {
        Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        let code = if matches!(refusal, Refusal::Missing) { "not_found" } else { "invalid_request" };
        Fault::new(refusal.status(), code, refusal.text())
    }
}

impl From<AssetFault> for Fault {
    fn from(fault: AssetFault) -> Fault {
        match fault {
            AssetFault::OtherHash { found } => {
                let message = format!("the bytes are {found}, not what was announced");
                Fault::new(StatusCode::CONFLICT, "hash_mismatch", message)
            }
            AssetFault::UnknownHash => {
                let message = "no file with this hash is known; send its bytes";
                Fault::new(StatusCode::NOT_FOUND, "blob_not_found", message)
            }
            AssetFault::File(refusal) => refusal.into(),
        }
    }
}

/// What a request reached this server as: answers hold whole addresses.
#[derive(Clone, Debug)]
pub(crate) struct Origin(pub(crate) String);

impl Origin {
    /// From the Host header, which the guard has looked at.
    pub(crate) fn of(parts: &Parts, is_encrypted: bool) -> Origin {
        let host = parts.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or("localhost");
        Origin(format!("{}://{host}", if is_encrypted { "https" } else { "http" }))
    }

    fn content(&self, id: &str) -> String {
        format!("{}/api/v2/assets/{id}/content", self.0)
    }
}

/// A moment as the contract writes it.
pub(crate) fn time(at: SystemTime) -> String {
    format!("{}Z", Moment::utc(at).to_text(3))
}

fn time_ms(at_ms: u64) -> String {
    time(UNIX_EPOCH + Duration::from_millis(at_ms))
}

/// The word for a state.
pub(crate) fn status(status: JobStatus) -> &'static str {
    match status {
        JobStatus::Pending => "queued",
        JobStatus::InProgress => "running",
        JobStatus::Completed => "succeeded",
        JobStatus::Failed => "failed",
        JobStatus::Cancelled => "canceled",
    }
}

/// Whether nothing follows a state.
pub(crate) fn is_over(status: JobStatus) -> bool {
    !matches!(status, JobStatus::Pending | JobStatus::InProgress)
}

/// A job and what is known of it besides its record.
pub(crate) struct JobView<'a> {
    pub(crate) record: &'a JobRecord,
    pub(crate) live: Option<&'a LiveJob>,
    /// How many run before it, if it waits.
    pub(crate) ahead: Option<usize>,
}

impl JobView<'_> {
    /// The job.
    pub(crate) fn shape(&self, assets: &Assets, origin: &Origin) -> Value {
        let job = &self.record.job;
        let entry = self.record.entry.as_deref();
        let created = created_ms(job);
        let began = entry.and_then(HistoryEntry::began_ms);
        let ended = entry.and_then(HistoryEntry::end).map(|end| end.at_ms);
        let path = format!("/api/v2/jobs/{}", job.prompt_id);
        json!({
            "id": job.prompt_id,
            "status": status(self.record.status),
            "created_at": time_ms(created),
            "started_at": began.map(time_ms),
            "completed_at": ended.map(time_ms),
            "expires_at": NEVER,
            "queue_position": self.ahead,
            "progress": self.progress(),
            "outputs": self.outputs(assets, origin),
            "error": entry.and_then(HistoryEntry::failure).map(failure),
            "metrics": {
                "queue_ms": began.map(|began| began.saturating_sub(created)),
                "execution_ms": began.zip(ended).map(|(began, ended)| ended.saturating_sub(began)),
            },
            "metadata": labels(job),
            "urls": { "self": path, "events": format!("{path}/events"), "cancel": format!("{path}/cancel") },
        })
    }

    /// How far it is; nothing while it waits.
    pub(crate) fn progress(&self) -> Value {
        let total = self.record.job.prompt.nodes.len();
        if self.record.status == JobStatus::Completed {
            return json!({ "value": 1.0, "nodes_done": total, "nodes_total": total });
        }
        let Some(live) = self.live else { return Value::Null };
        let done = live.done.len().min(total);
        let part =
            live.step.map_or(0.0, |(value, max)| if max > 0.0 { (value / max).clamp(0.0, 1.0) } else { 0.0 });
        let value = ((done as f64 + part) / total.max(1) as f64).clamp(0.0, 1.0);
        let class = live.current.as_ref().map(|(_, class)| class.as_str());
        let steps = live.step.filter(|(_, max)| *max > 1.0);
        json!({
            "value": value,
            "nodes_done": done,
            "nodes_total": total,
            "current_node": live.current.as_ref().map(|(node, _)| node.as_ref()),
            "current_node_class": class,
            "step": steps.map(|(value, _)| value as u64),
            "steps": steps.map(|(_, max)| max as u64),
            "message": class.map(|class| match steps {
                Some((value, max)) => format!("{class} {value}/{max}"),
                None => class.to_owned(),
            }),
        })
    }

    /// What it has made so far.
    pub(crate) fn outputs(&self, assets: &Assets, origin: &Origin) -> Vec<Value> {
        let id = &self.record.job.prompt_id;
        let of_node = |node: &str, shown: &Map| -> Vec<Value> {
            let items = super::job::items(shown);
            items.filter_map(|(media, item)| output((node, media, id), item, assets, origin)).collect()
        };
        match (&self.record.entry, self.live) {
            (Some(entry), _) => entry.outputs.iter().flat_map(|(node, shown)| of_node(node, shown)).collect(),
            (None, Some(live)) => live.shown.iter().flat_map(|(node, shown)| of_node(node, shown)).collect(),
            (None, None) => Vec::new(),
        }
    }
}

/// The line of a list.
pub(crate) fn listed(record: &JobRecord) -> Value {
    let created = created_ms(&record.job);
    let end = record.entry.as_deref().and_then(HistoryEntry::end).map_or(created, |end| end.at_ms);
    json!({
        "id": record.job.prompt_id,
        "status": status(record.status),
        "create_time": time_ms(created),
        "update_time": time_ms(end),
        "metadata": labels(&record.job),
    })
}

/// The labels that a job was sent with.
pub(crate) fn labels(job: &engine::Job) -> Map {
    job.extra_data.get("metadata").and_then(Literal::as_map).cloned().unwrap_or_default()
}

fn created_ms(job: &engine::Job) -> u64 {
    let created = job.extra_data.get("create_time").and_then(Literal::as_int);
    created.and_then(|created| u64::try_from(created).ok()).unwrap_or(0)
}

fn failure(why: &JobFailure) -> Value {
    json!({
        "code": if why.kind == "OOMError" { "out_of_memory" } else { "node_execution_error" },
        "message": why.message,
        "node_id": &*why.node,
        "class_type": why.class,
        "traceback": why.trace.concat(),
    })
}

/// One thing that a node of a job shows, if it is a file that is there.
fn output(
    (node, media, job): (&str, &str, &str),
    item: &Map,
    assets: &Assets,
    origin: &Origin,
) -> Option<Value> {
    let text = |key: &str| item.get(key).and_then(Literal::as_text).unwrap_or_default();
    let place = Place::named(text("type"))?;
    let path = match text("subfolder") {
        "" => text("filename").to_owned(),
        subfolder => format!("{subfolder}/{}", text("filename")),
    };
    let asset = assets.at(place, &path)?;
    Some(json!({
        "node_id": node,
        "name": asset.name,
        "type": kind(media, &asset),
        "content_type": asset.content_type,
        "size_bytes": asset.bytes,
        "id": asset.id,
        "hash": asset.hash,
        "url": origin.content(&asset.id),
        "url_expires_at": NEVER,
        "job_id": job,
    }))
}

fn kind(media: &str, asset: &Asset) -> &'static str {
    if media == "latents" || asset.path.ends_with(".latent") {
        return "latent";
    }
    let kinds = ["image", "video", "audio", "text"];
    let of_type = kinds.into_iter().find(|kind| asset.content_type.starts_with(&format!("{kind}/")));
    of_type.unwrap_or("file")
}

/// An asset.
pub(crate) fn asset(asset: &Asset, created_new: Option<bool>, origin: &Origin) -> Value {
    let mut shown = json!({
        "id": asset.id,
        "hash": asset.hash,
        "size_bytes": asset.bytes,
        "content_type": asset.content_type,
        "file_path": asset.path,
        "created_at": time(asset.modified),
        "url": origin.content(&asset.id),
        "url_expires_at": NEVER,
        "expires_at": null,
    });
    if let Some(created_new) = created_new {
        shown["created_new"] = json!(created_new);
    }
    shown
}
