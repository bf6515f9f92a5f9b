//! The routes but for those of files.

mod history;
mod jobs;
mod object_info;
mod openapi;
mod own;
mod prompt;
mod queue;
mod system;
mod websocket;

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use engine::Engine;

use crate::app::App;
use crate::wire::reply;

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
        .with_state(Arc::clone(app))
}

/// Asks the engine on a thread that may wait: it reads files and its database.
async fn ask<T: Send + 'static>(
    app: &Arc<App>,
    question: impl FnOnce(&Engine) -> T + Send + 'static,
) -> Result<T, Response> {
    let engine = Arc::clone(&app.engine);
    let asked = tokio::task::spawn_blocking(move || question(&engine));
    asked.await.map_err(|error| reply::failed(&format!("a request failed: {error}")))
}
