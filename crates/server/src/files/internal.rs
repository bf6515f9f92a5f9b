//! Routes that only the front end uses: the log, the folders and what is in them.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as Segment, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch};
use runtime::folders::Place;
use serde::Deserialize;
use serde_json::json as value;

use super::Shared;
use super::reply::{Answer, Refusal, blocking, json};

/// The size of the terminal that the log is shown in: ComfyUI's where there is none.
const TERMINAL: (u32, u32) = (80, 24);

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/internal/logs", get(log))
        .route("/internal/logs/raw", get(raw_log))
        .route("/internal/logs/subscribe", patch(follow_log))
        .route("/internal/folder_paths", get(folder_paths))
        .route("/internal/files/{place}", get(recent_files))
}

async fn log(State(files): State<Shared>) -> Response {
    let entries = files.config.logs.entries();
    let text: String = entries.iter().map(|entry| format!("{} - {}", entry.time, entry.message)).collect();
    json(&text)
}

async fn raw_log(State(files): State<Shared>) -> Response {
    let (cols, rows) = TERMINAL;
    json(&value!({ "entries": files.config.logs.entries(), "size": { "cols": cols, "rows": rows } }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Following {
    client_id: String,
    enabled: bool,
}

async fn follow_log(State(files): State<Shared>, body: Bytes) -> Answer {
    let following: Following = serde_json::from_slice(&body).map_err(|_| {
        Refusal::Malformed("the body must be {\"clientId\": text, \"enabled\": true or false}")
    })?;
    files.config.logs.follow(&following.client_id, following.enabled);
    Ok(StatusCode::OK.into_response())
}

async fn folder_paths(State(files): State<Shared>) -> Response {
    let folders = &files.config.folders;
    let paths: BTreeMap<&str, _> = folders.keys().map(|key| (key, folders.places(key))).collect();
    json(&paths)
}

/// The names of the visible files of a folder, newest first.
async fn recent_files(State(files): State<Shared>, Segment(place): Segment<String>) -> Answer {
    let Some(place) = Place::named(&place) else {
        let error = value!({ "error": "the folder must be input, output or temp" });
        return Ok((StatusCode::BAD_REQUEST, json(&error)).into_response());
    };
    let folder = files.config.folders.directory(place).to_owned();
    let names = blocking(move || {
        let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
        let mut found: Vec<_> = entries
            .filter_map(Result::ok)
            .filter_map(|entry| {
                let metadata = entry.path().metadata().ok().filter(std::fs::Metadata::is_file)?;
                let name = entry.file_name().into_string().ok()?;
                Some((metadata.modified().unwrap_or(UNIX_EPOCH), name))
            })
            .filter(|(_, name)| !name.starts_with('.'))
            .collect();
        found.sort_by(|(a_time, a), (b_time, b)| b_time.cmp(a_time).then_with(|| a.cmp(b)));
        Ok(found.into_iter().map(|(_, name)| name).collect::<Vec<_>>())
    })
    .await?;
    Ok(json(&names))
}
