//! `/object_info`: the node classes. Half a megabyte that rarely changes, so it has a tag by which clients keep it.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::ask;
use crate::app::App;
use crate::wire::rejection::Answer;
use crate::wire::{object_info, reply};

pub(super) async fn all(State(app): State<Arc<App>>, headers: HeaderMap) -> Answer {
    let known = headers.get(IF_NONE_MATCH).cloned();
    ask(&app, move |engine| {
        let text = object_info::all(engine.catalogue()).to_string();
        tagged(text, known.as_ref())
    })
    .await
}

pub(super) async fn one(State(app): State<Arc<App>>, Path(class): Path<String>) -> Answer {
    ask(&app, move |engine| reply::json(&object_info::one(engine.catalogue(), &class))).await
}

fn tagged(text: String, known: Option<&HeaderValue>) -> Response {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    let tag = HeaderValue::from_str(&format!("\"{:016x}\"", hasher.finish()));
    let Ok(tag) = tag else { return reply::json_bytes(StatusCode::OK, text) };
    let mut response = match known == Some(&tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => reply::json_bytes(StatusCode::OK, text),
    };
    response.headers_mut().insert(ETAG, tag);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
