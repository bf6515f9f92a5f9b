//! Answers.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// 200 with a value.
pub(crate) fn json(value: &impl Serialize) -> Response {
    json_with(StatusCode::OK, value)
}

/// A value with a status.
pub(crate) fn json_with(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => json_bytes(status, bytes),
        Err(error) => {
            tracing::error!("an answer cannot be written: {error}");
            with(StatusCode::INTERNAL_SERVER_ERROR, Body::empty())
        }
    }
}

/// JSON that is written already.
pub(crate) fn json_bytes(status: StatusCode, bytes: impl Into<Body>) -> Response {
    let mut response = with(status, bytes);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// `{"error": text}`.
pub(crate) fn error(status: StatusCode, text: &str) -> Response {
    json_with(status, &json!({ "error": text }))
}

/// 500, with the reason in the log and in the answer.
pub(crate) fn failed(reason: &impl std::fmt::Display) -> Response {
    tracing::error!("{reason}");
    error(StatusCode::INTERNAL_SERVER_ERROR, &reason.to_string())
}

/// 200 with nothing: what actions answer.
pub(crate) fn done() -> Response {
    with(StatusCode::OK, Body::empty())
}

fn with(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
}
