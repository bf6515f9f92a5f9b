//! `/prompt`: how many jobs there are, and one more.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use engine::{Engine, Refused, Submission};
use graph::{Literal, Map, Prompt};
use serde_json::json;

use super::ask;
use crate::app::App;
use crate::replacements;
use crate::wire::rejection::Answer;
use crate::wire::{body, number, problem, reply};

pub(super) async fn remaining(State(app): State<Arc<App>>) -> Answer {
    let remaining = ask(&app, Engine::remaining).await?;
    Ok(reply::json(&json!({ "exec_info": { "queue_remaining": remaining } })))
}

pub(super) async fn submit(State(app): State<Arc<App>>, body: Bytes) -> Answer {
    ask(&app, move |engine| {
        let start = Instant::now();
        let mut response = answer(engine, body);
        // How long it took here, apart from the way here and back: reading, validation and storing.
        let took = format!("prompt;dur={:.3}", start.elapsed().as_secs_f64() * 1e3);
        if let Ok(took) = HeaderValue::from_str(&took) {
            response.headers_mut().insert(HeaderName::from_static("server-timing"), took);
        }
        response
    })
    .await
}

fn answer(engine: &Engine, body: Bytes) -> Response {
    let submission = match read(&body) {
        Ok(submission) => submission,
        Err(refusal) => return *refusal,
    };
    drop(body);
    let mut submission = submission;
    if let Some(prompt) = &mut submission.prompt {
        replacements::apply(prompt, engine.catalogue());
    }
    match engine.submit(submission) {
        Ok(accepted) => reply::json(&json!({
            "prompt_id": accepted.prompt_id,
            "number": number(accepted.number),
            "node_errors": problem::node_errors(&accepted.node_errors),
        })),
        Err(Refused::Invalid(rejected)) => {
            tracing::info!("a prompt cannot run: {}: {}", rejected.error.message, rejected.error.details);
            reply::json_with(StatusCode::BAD_REQUEST, &problem::rejected(&rejected))
        }
        Err(Refused::Storage(error)) => reply::failed(&error),
    }
}

/// Reads what a client sends. What has the wrong type is refused here, so that nothing is guessed.
fn read(body: &[u8]) -> Result<Submission, Box<Response>> {
    let refuse = |kind: &str, message: &str| {
        Box::new(reply::json_with(StatusCode::BAD_REQUEST, &problem::unreadable(kind, message)))
    };
    let mut map = body::object(body).map_err(|error| refuse("invalid_json", &error.to_string()))?;
    let number = match map.get("number") {
        None => None,
        Some(given) => {
            let number =
                place(given).ok_or_else(|| refuse("invalid_number", "\"number\" must be a number"))?;
            Some(number)
        }
    };
    let targets = body::ids(&map, "partial_execution_targets")
        .map_err(|error| refuse("invalid_targets", &error.to_string()))?;
    let prompt = map.shift_remove("prompt");
    let extra_data = match map.shift_remove("extra_data") {
        None | Some(Literal::Null) => Map::new(),
        Some(Literal::Map(extra)) => extra,
        Some(_) => return Err(refuse("invalid_extra_data", "\"extra_data\" must be an object")),
    };
    Ok(Submission {
        prompt: prompt.as_ref().and_then(Prompt::from_literal),
        prompt_id: text(&map, "prompt_id"),
        number,
        front: map.get("front").is_some_and(Literal::is_truthy),
        extra_data,
        client_id: text(&map, "client_id"),
        targets,
    })
}

/// Python's `float(value)`, but finite.
fn place(given: &Literal) -> Option<f64> {
    let number = match given {
        Literal::Text(text) => text.trim().parse().ok(),
        Literal::Bool(flag) => Some(f64::from(u8::from(*flag))),
        other => other.as_float(),
    };
    number.filter(|number: &f64| number.is_finite())
}

/// Text, or what stands in its place as text: the engine says what is wrong with it.
fn text(map: &Map, key: &str) -> Option<String> {
    match map.get(key)? {
        Literal::Null => None,
        Literal::Text(text) => Some(text.clone()),
        other => Some(serde_json::to_string(other).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(body: &str) -> Submission {
        read(body.as_bytes()).unwrap()
    }

    #[test]
    fn everything_that_clients_send_is_read() {
        let read = submission(
            r#"{"prompt": {"1": {"class_type": "A", "inputs": {"x": ["2", 0]}, "_meta": {"title": "t"}}},
                "client_id": "c", "prompt_id": "p", "number": "-2.5", "front": true,
                "extra_data": {"extra_pnginfo": {}}, "partial_execution_targets": ["1", 2]}"#,
        );
        let prompt = read.prompt.unwrap();
        assert_eq!(prompt.nodes["1"].class_type.as_deref(), Some("A"));
        assert!(prompt.nodes["1"].rest.contains_key("_meta"));
        assert_eq!(read.client_id.as_deref(), Some("c"));
        assert_eq!(read.prompt_id.as_deref(), Some("p"));
        assert_eq!(read.number, Some(-2.5));
        assert!(read.front && read.extra_data.contains_key("extra_pnginfo"));
        assert_eq!(read.targets.unwrap(), ["1", "2"]);
    }

    #[test]
    fn what_is_absent_stays_absent() {
        let read = submission(r#"{"prompt_id": null, "front": 0}"#);
        assert!(read.prompt.is_none() && read.prompt_id.is_none() && read.number.is_none());
        assert!(!read.front && read.targets.is_none() && read.client_id.is_none());
        assert!(submission(r#"{"prompt": [1]}"#).prompt.is_none());
    }

    #[test]
    fn wrong_types_are_refused() {
        for body in ["", "[]", r#"{"number": null}"#, r#"{"number": "nan"}"#, r#"{"extra_data": 3}"#] {
            assert!(read(body.as_bytes()).is_err(), "{body}");
        }
    }
}
