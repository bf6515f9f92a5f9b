//! `/queue`, `/interrupt` and `/free`: what waits and runs, and what is to end or leave.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use engine::Job;
use graph::Literal;
use residency::FreeRequest;
use serde_json::json;

use super::ask;
use crate::app::App;
use crate::wire::rejection::Answer;
use crate::wire::{body, job, reply};

pub(super) async fn show(State(app): State<Arc<App>>) -> Answer {
    ask(&app, |engine| {
        let queue = engine.queue();
        let items = |jobs: &[Arc<Job>]| jobs.iter().map(|job| job::item(job)).collect::<Vec<_>>();
        reply::json(
            &json!({ "queue_running": items(&queue.running), "queue_pending": items(&queue.pending) }),
        )
    })
    .await
}

pub(super) async fn change(State(app): State<Arc<App>>, body: Bytes) -> Answer {
    let map = body::object(&body)?;
    let ids = body::ids(&map, "delete")?;
    let is_clear = map.get("clear").is_some_and(Literal::is_truthy);
    ask(&app, move |engine| {
        if is_clear {
            engine.clear_pending();
        }
        if let Some(ids) = ids {
            engine.delete_pending(&ids);
        }
        reply::done()
    })
    .await
}

pub(super) async fn interrupt(State(app): State<Arc<App>>, body: Bytes) -> Answer {
    let map = body::object_or_nothing(&body)?;
    let id = map.get("prompt_id").filter(|id| id.is_truthy());
    let id = id.map(body::as_id).transpose()?;
    ask(&app, move |engine| {
        engine.interrupt(id.as_deref());
        reply::done()
    })
    .await
}

pub(super) async fn free(State(app): State<Arc<App>>, body: Bytes) -> Answer {
    let map = body::object(&body)?;
    let is_set = |key: &str| map.get(key).is_some_and(Literal::is_truthy);
    let request = FreeRequest {
        unload_models: is_set("unload_models"),
        free_memory: is_set("free_memory"),
        force: is_set("force"),
    };
    if request != FreeRequest::default() {
        ask(&app, move |engine| engine.free(request)).await?;
    }
    Ok(reply::done())
}
