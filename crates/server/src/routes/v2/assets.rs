//! `/api/v2/assets`: bytes that clients bring for their jobs, and what jobs made.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Multipart, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use graph::Literal;

use super::super::assets::{Form, find};
use super::{Answer, Here};
use crate::app::App;
use crate::files::assets::{Wanted, is_hash};
use crate::files::reply::{Refusal, blocking};
use crate::files::view;
use crate::wire::v2::{self, Fault};
use crate::wire::{body, reply};

pub(super) async fn upload(State(app): State<Arc<App>>, Here(origin): Here, parts: Multipart) -> Answer {
    let form = Form::read(&app, parts).await?;
    let (sent_as, received) =
        form.file.ok_or_else(|| Fault::unprocessable("invalid_request", "the form has no file in `file`"))?;
    let name = form.texts.get("file_path").filter(|name| !name.is_empty()).unwrap_or(&sent_as).clone();
    let hash = form.texts.get("expected_hash").filter(|hash| !hash.is_empty()).cloned();
    let wanted = Wanted { name, tags: form.tags, hash, ..Wanted::default() };
    let (asset, is_new) = blocking(move || Ok(app.assets.add(received, &wanted))).await??;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply::json_with(status, &v2::asset(&asset, Some(is_new), &origin)))
}

pub(super) async fn from_hash(State(app): State<Arc<App>>, Here(origin): Here, body: Bytes) -> Answer {
    let map = body::object(&body)?;
    let text = |key: &str| map.get(key).and_then(Literal::as_text).map(str::to_owned);
    let hash = text("hash").unwrap_or_default().to_ascii_lowercase();
    if !is_hash(&hash) {
        return Err(Fault::new(StatusCode::BAD_REQUEST, "invalid_request", "\"hash\" must be blake3:HEX"));
    }
    let wanted = Wanted {
        name: text("file_path").unwrap_or_default(),
        tags: body::ids(&map, "tags")?.unwrap_or_default(),
        ..Wanted::default()
    };
    let (asset, is_new) = blocking(move || Ok(app.assets.add_known(&hash, &wanted))).await??;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply::json_with(status, &v2::asset(&asset, Some(false), &origin)))
}

pub(super) async fn by_hash(State(app): State<Arc<App>>, Path(hash): Path<String>) -> Answer<StatusCode> {
    let found = blocking(move || Ok(app.assets.with_hash(&hash.to_ascii_lowercase()))).await?;
    Ok(if found.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND })
}

pub(super) async fn one(State(app): State<Arc<App>>, Here(origin): Here, Path(id): Path<String>) -> Answer {
    let asset = found(&app, &id).await?;
    let asset = blocking(move || Ok(app.assets.hashed(asset))).await?;
    Ok(reply::json(&v2::asset(&asset, None, &origin)))
}

pub(super) async fn content(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Answer<Response> {
    let asset = found(&app, &id).await?;
    Ok(view::send(&app.assets.file(&asset), &headers).await?)
}

pub(super) async fn remove(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    let asset = found(&app, &id).await?;
    blocking(move || app.assets.remove(&asset)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn found(app: &Arc<App>, id: &str) -> Answer<crate::files::assets::Asset> {
    match find(app, id).await {
        Err(Refusal::Missing) => Err(Fault::not_found("asset", id)),
        found => Ok(found?),
    }
}
