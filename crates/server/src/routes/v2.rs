//! `/api/v2`: Comfy's API of today, which its SDKs speak: jobs, their events and assets.

mod assets;
mod events;
mod jobs;

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::{get, head, post};
use engine::Engine;
use serde_json::json;

use crate::app::App;
use crate::speaks;
use crate::wire::reply;
use crate::wire::v2::{Fault, Origin};

/// An answer of these routes.
type Answer<T = Response> = Result<T, Fault>;

/// All of them.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v2/health", get(health))
        .route("/api/v2/jobs", get(jobs::list).post(jobs::submit))
        .route("/api/v2/jobs/{id}", get(jobs::one))
        .route("/api/v2/jobs/{id}/cancel", post(jobs::cancel))
        .route("/api/v2/jobs/{id}/workflow", get(jobs::workflow))
        .route("/api/v2/jobs/{id}/events", get(events::follow))
        .route("/api/v2/assets", post(assets::upload))
        .route("/api/v2/assets/from-hash", post(assets::from_hash))
        .route("/api/v2/assets/by-hash/{hash}", head(assets::by_hash))
        .route("/api/v2/assets/{id}", get(assets::one).delete(assets::remove))
        .route("/api/v2/assets/{id}/content", get(assets::content))
}

/// Whether the server works, and what it is.
async fn health(State(app): State<Arc<App>>) -> Answer {
    let remaining = ask(&app, Engine::remaining).await?;
    Ok(reply::json(&json!({
        "status": "ok",
        "api_version": speaks::API_VERSION,
        "comfyui_version": speaks::COMFYUI_VERSION,
        "server": format!("gantry {}", app.config.process.version),
        "queue_remaining": remaining,
    })))
}

async fn ask<T: Send + 'static>(
    app: &Arc<App>,
    question: impl FnOnce(&Engine) -> T + Send + 'static,
) -> Answer<T> {
    Ok(super::ask(app, question).await?)
}

/// How a request reached this server.
struct Here(Origin);

impl FromRequestParts<Arc<App>> for Here {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Here, Infallible> {
        Ok(Here(Origin::of(parts, app.config.tls.is_some())))
    }
}

/// Keys that clients send so that a request which is sent twice is done once. The latest ones are remembered.
#[derive(Default)]
pub(crate) struct UsedKeys(Mutex<(HashSet<String>, VecDeque<String>)>);

/// So many keys are remembered.
const REMEMBERED_KEYS: usize = 10_000;

impl UsedKeys {
    /// Takes a key; whether it is new.
    fn claim(&self, key: &str) -> bool {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, order) = &mut *used;
        if !known.insert(key.to_owned()) {
            return false;
        }
        order.push_back(key.to_owned());
        if order.len() > REMEMBERED_KEYS
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
        true
    }

    /// Gives a key back: what it stood for was not done.
    fn release(&self, key: &str) {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        used.0.remove(key);
        used.1.retain(|other| other != key);
    }
}
