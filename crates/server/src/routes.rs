//! The routes but for those of files.

mod assets;
mod health;
mod history;
mod jobs;
mod object_info;
mod openapi;
mod own;
mod prompt;
mod queue;
mod system;
mod v2;
mod websocket;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use engine::Engine;

use crate::app::App;
use crate::replacements;
use crate::wire::rejection::{Answer, Rejection};
use crate::wire::reply;

pub(crate) use jobs::Withdrawn;
pub(crate) use v2::UsedKeys;

/// Those that exist bare and under `/api`.
pub(crate) fn aliased(app: &Arc<App>) -> Router {
    Router::new()
        .route("/ws", get(websocket::connect))
        .route("/prompt", get(prompt::remaining).post(prompt::submit))
        .route("/queue", get(queue::show).post(queue::change))
        .route("/interrupt", post(queue::interrupt))
        .route("/free", post(queue::free))
        .route("/history", get(history::list).post(history::change))
        .route("/history/{id}", get(history::one))
        .route("/system_stats", get(system::stats))
        .route("/features", get(system::features))
        .route("/node_replacements", get(node_replacements))
        .route("/object_info", get(object_info::all))
        .route("/object_info/{class}", get(object_info::one))
        .merge(own::routes().into_router())
        .with_state(Arc::clone(app))
}

/// Those that exist under `/api` alone.
pub(crate) fn only_under_api(app: &Arc<App>) -> Router {
    Router::new()
        .route("/api/jobs", get(jobs::list))
        .route("/api/jobs/cancel", post(jobs::cancel_all))
        .route("/api/jobs/{id}", get(jobs::one))
        .route("/api/jobs/{id}/cancel", post(jobs::cancel))
        .merge(assets::routes())
        .merge(v2::routes())
        .merge(health::routes())
        .with_state(Arc::clone(app))
}

/// Classes that were renamed, and how to put the new ones in their place.
async fn node_replacements(State(app): State<Arc<App>>) -> Answer {
    ask(&app, |engine| reply::json(&replacements::shown(engine.catalogue()))).await
}

/// Asks the engine on a thread that may wait: it reads files and its database.
async fn ask<T: Send + 'static>(
    app: &Arc<App>,
    question: impl FnOnce(&Engine) -> T + Send + 'static,
) -> Result<T, Rejection> {
    let engine = Arc::clone(&app.engine);
    let asked = tokio::task::spawn_blocking(move || question(&engine));
    Ok(asked.await?)
}
