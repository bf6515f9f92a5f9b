//! The front end's settings: one JSON object in the user's folder, changed key by key.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as Segment, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Map, Value};

use super::names::{decoded_again, place_to_write};
use super::reply::{Answer, Refusal, blocking, json};
use super::storing::Received;
use super::{Files, Shared};

const FILE_NAME: &str = "comfy.settings.json";

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/users", get(users))
        .route("/settings", get(all).post(merge))
        .route("/settings/{id}", get(one).post(set))
}

/// There is one user. A key `users` would make the front end ask who it is.
async fn users(State(files): State<Shared>) -> Response {
    let migrated = tokio::fs::try_exists(files.user_folder()).await.unwrap_or(false);
    json(&serde_json::json!({ "storage": "server", "migrated": migrated }))
}

async fn all(State(files): State<Shared>) -> Answer {
    let settings = blocking(move || Ok(read(&files.settings_file()).settings)).await?;
    Ok(json(&settings))
}

async fn one(State(files): State<Shared>, Segment(id): Segment<String>) -> Answer {
    let id = decoded_again(&id)?;
    let settings = blocking(move || Ok(read(&files.settings_file()).settings)).await?;
    Ok(json(settings.get(&id).unwrap_or(&Value::Null)))
}

async fn merge(State(files): State<Shared>, body: Bytes) -> Answer {
    let changes: Map<String, Value> =
        serde_json::from_slice(&body).map_err(|_| Refusal::Malformed("the body must be a JSON object"))?;
    change(files, changes).await
}

async fn set(State(files): State<Shared>, Segment(id): Segment<String>, body: Bytes) -> Answer {
    let id = decoded_again(&id)?;
    let value: Value =
        serde_json::from_slice(&body).map_err(|_| Refusal::Malformed("the body must be a JSON value"))?;
    change(files, Map::from_iter([(id, value)])).await
}

/// Adds the changes to what is stored. One change at a time: each is read, made and written before the next is
/// read, so none is lost.
async fn change(files: Arc<Files>, changes: Map<String, Value>) -> Answer<Response> {
    let turn = Arc::clone(&files.user_writes).lock_owned().await;
    blocking(move || {
        let path = place_to_write(&files.user_folder(), Path::new(FILE_NAME))?;
        let mut stored = read(&path);
        if stored.is_broken {
            set_aside(&path)?;
        }
        stored.settings.extend(changes);
        let text = serde_json::to_vec_pretty(&stored.settings).map_err(io::Error::from)?;
        let folder = path.parent().ok_or(Refusal::Missing)?;
        Received::of(&text, folder)?.replace(&path)?;
        drop(turn);
        Ok(())
    })
    .await?;
    Ok(StatusCode::OK.into_response())
}

struct Stored {
    settings: Map<String, Value>,
    is_broken: bool,
}

fn read(path: &Path) -> Stored {
    let empty = |is_broken| Stored { settings: Map::new(), is_broken };
    let Ok(text) = std::fs::read(path) else { return empty(false) };
    match serde_json::from_slice(&text) {
        Ok(settings) => Stored { settings, is_broken: false },
        Err(error) => {
            tracing::error!("{}: the settings cannot be read, defaults are used: {error}", path.display());
            empty(true)
        }
    }
}

/// What cannot be read might be repaired by hand, so it is not written over.
fn set_aside(path: &Path) -> io::Result<()> {
    let aside = path.with_extension("json.broken");
    tracing::warn!("the broken settings are kept as {}", aside.display());
    std::fs::rename(path, aside)
}

impl Files {
    fn settings_file(&self) -> PathBuf {
        self.user_folder().join(FILE_NAME)
    }
}
