//! What the front end stores for its user: workflows, templates, styles.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as Segment, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::{Value, json as value};

use super::content_type::{self, Showing};
use super::names::{decoded_again, place_to_change, place_to_write, relative, wire_path};
use super::reply::{Answer, Refusal, blocking, json};
use super::storing::{Kept, receive};
use super::walk::{Found, Walk, created_seconds, modified_seconds};
use super::{Shared, serving};
use crate::wire::query::Asked;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/userdata", get(list))
        .route("/v2/userdata", get(list_tree))
        .route("/userdata/{file}", get(fetch).post(store).delete(remove))
        .route("/userdata/{file}/move/{dest}", post(rename))
}

/// What is known about a stored file.
#[derive(Serialize)]
struct Info {
    path: String,
    size: u64,
    modified: f64,
    created: f64,
}

impl Info {
    fn of(found: &Found) -> Info {
        Info {
            path: wire_path(&found.path),
            size: found.metadata.len(),
            modified: modified_seconds(&found.metadata),
            created: created_seconds(&found.metadata),
        }
    }
}

async fn list(State(files): State<Shared>, Query(asked): Query<Asked>) -> Answer {
    let folder = asked.get("dir").filter(|dir| !dir.is_empty());
    let folder = folder.ok_or(Refusal::Malformed("say which folder with `dir`"))?;
    let root = files.user_folder().join(named(folder)?);
    let (recurse, full_info, split) = (asked.is("recurse"), asked.is("full_info"), asked.is("split"));
    let entries = blocking(move || {
        if !root.exists() {
            return Err(Refusal::Missing);
        }
        if !root.is_dir() {
            return Ok(Vec::new());
        }
        let found = Walk { recurse, hidden: false }.below(&root)?;
        Ok(found.into_iter().filter(|found| found.metadata.is_file()).collect())
    })
    .await?;
    let entries = entries.iter().map(|found| match (full_info, split) {
        (true, _) => value!(Info::of(found)),
        (false, true) => split_path(&wire_path(&found.path)),
        (false, false) => Value::String(wire_path(&found.path)),
    });
    Ok(json(&entries.collect::<Vec<_>>()))
}

/// The path, then its parts.
fn split_path(path: &str) -> Value {
    Value::Array(std::iter::once(path).chain(path.split('/')).map(Value::from).collect())
}

async fn list_tree(State(files): State<Shared>, Query(asked): Query<Asked>) -> Answer {
    let below = relative(&decoded_again(asked.get("path").unwrap_or_default())?)
        .map_err(|_| Refusal::Malformed("the path must be inside the user's folder"))?;
    let root = files.user_folder();
    let entries = blocking(move || {
        let folder = root.join(&below);
        if !folder.exists() {
            let is_new_user = below.as_os_str().is_empty();
            return if is_new_user { Ok(Vec::new()) } else { Err(Refusal::Missing) };
        }
        if !folder.is_dir() {
            return Err(Refusal::Malformed("the path is not a folder"));
        }
        let mut entries = Walk { recurse: true, hidden: true }.below(&folder)?;
        entries.sort_by_key(|found| (!found.metadata.is_dir(), file_name(&found.path).to_lowercase()));
        let entries = entries.iter().map(|found| {
            let mut entry = value!({
                "name": file_name(&found.path),
                "path": wire_path(&below.join(&found.path)),
                "type": if found.metadata.is_dir() { "directory" } else { "file" },
            });
            if found.metadata.is_file() {
                entry["size"] = found.metadata.len().into();
                entry["modified"] = modified_seconds(&found.metadata).into();
            }
            entry
        });
        Ok(entries.collect::<Vec<_>>())
    })
    .await?;
    Ok(json(&entries))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

async fn fetch(State(files): State<Shared>, Segment(file): Segment<String>, headers: HeaderMap) -> Answer {
    let path = files.user_folder().join(named(&file)?);
    // A style sheet is loaded from here by the page; whatever else a browser could run is not.
    let is_style = path.extension().is_some_and(|ending| ending == "css");
    let kind = match content_type::showing(&path, false) {
        Showing::AsDownload if !is_style => HeaderValue::from_static(content_type::BYTES),
        _ => content_type::by_name(&path),
    };
    let mut response = serving::serve(&path, kind, &headers).await?;
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

async fn store(
    State(files): State<Shared>,
    Segment(file): Segment<String>,
    Query(asked): Query<Asked>,
    body: Body,
) -> Answer {
    let stored = named(&file)?;
    let root = files.user_folder();
    let keep_existing = asked.get("overwrite") == Some("false");
    let path = {
        let (root, stored) = (root.clone(), stored.clone());
        blocking(move || place_to_write(&root, &stored)).await?
    };
    if keep_existing && path.exists() {
        return Err(Refusal::Exists);
    }
    let folder = path.parent().ok_or(Refusal::Missing)?.to_owned();
    let received = receive(body, folder, files.config.max_upload_bytes).await?;
    let turn = Arc::clone(&files.user_writes).lock_owned().await;
    blocking(move || {
        if !keep_existing {
            received.replace(&path)?;
        } else if let Kept::Taken(_) = received.keep(&path)? {
            return Err(Refusal::Exists);
        }
        drop(turn);
        Ok(json(&stored_reply(&root, stored, asked.is("full_info"))?))
    })
    .await
}

async fn remove(State(files): State<Shared>, Segment(file): Segment<String>) -> Answer {
    let stored = named(&file)?;
    let turn = Arc::clone(&files.user_writes).lock_owned().await;
    blocking(move || {
        let path = place_to_change(&files.user_folder(), &stored)?;
        if path.is_dir() {
            return Err(Refusal::Malformed("a folder has that name; only files are removed"));
        }
        std::fs::remove_file(path)?;
        drop(turn);
        Ok(StatusCode::NO_CONTENT.into_response())
    })
    .await
}

async fn rename(
    State(files): State<Shared>,
    Segment((file, dest)): Segment<(String, String)>,
    Query(asked): Query<Asked>,
) -> Answer {
    let (from, to) = (named(&file)?, named(&dest)?);
    let keep_existing = asked.get("overwrite") == Some("false");
    // Every change of the user's files takes its turn, so nothing appears between the look and the renaming.
    let turn = Arc::clone(&files.user_writes).lock_owned().await;
    blocking(move || {
        let root = files.user_folder();
        let source = place_to_change(&root, &from)?;
        let target = place_to_write(&root, &to)?;
        if keep_existing && target.symlink_metadata().is_ok() {
            return Err(Refusal::Exists);
        }
        std::fs::rename(source, target)?;
        drop(turn);
        Ok(json(&stored_reply(&root, to, asked.is("full_info"))?))
    })
    .await
}

/// The path below the user's folder that a segment stands for; the folder itself is no file.
fn named(segment: &str) -> Answer<PathBuf> {
    Ok(relative(&decoded_again(segment)?)?)
}

/// What a client is told about a file that was stored.
fn stored_reply(root: &Path, path: PathBuf, full_info: bool) -> Answer<Value> {
    if !full_info {
        return Ok(Value::String(wire_path(&path)));
    }
    let metadata = root.join(&path).metadata()?;
    Ok(value!(Info::of(&Found { path, metadata })))
}
