//! `/gantry/…`: devices, loaded models, memory over time, plans and measurements.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use graph::Literal;
use residency::{ModelId, Residency, Retention};
use serde_json::json;

use super::{ask, openapi};
use crate::app::App;
use crate::plan::PlanQuestion;
use crate::shapes::{DeviceShape, ModelShape};
use crate::wire::{body, reply};

/// A router that knows what is in it, so that the document of our routes can be compared with it.
#[derive(Default)]
pub(super) struct Routes {
    router: Router<Arc<App>>,
    pub(super) listed: Vec<(Method, &'static str)>,
}

impl Routes {
    fn add<H, T>(mut self, method: MethodFilter, path: &'static str, handler: H) -> Routes
    where
        H: Handler<T, Arc<App>>,
        T: 'static,
    {
        self.router = self.router.route(path, on(method, handler));
        let names = [
            (MethodFilter::GET, Method::GET),
            (MethodFilter::POST, Method::POST),
            (MethodFilter::PATCH, Method::PATCH),
            (MethodFilter::DELETE, Method::DELETE),
        ];
        let name = names.into_iter().find(|(filter, _)| *filter == method);
        self.listed.extend(name.map(|(_, name)| (name, path)));
        self
    }

    pub(super) fn into_router(self) -> Router<Arc<App>> {
        self.router
    }
}

/// All of them.
pub(super) fn routes() -> Routes {
    Routes::default()
        .add(MethodFilter::GET, "/gantry/devices", devices)
        .add(MethodFilter::GET, "/gantry/models", models)
        .add(MethodFilter::PATCH, "/gantry/models/{id}", change_model)
        .add(MethodFilter::DELETE, "/gantry/models/{id}", unload_model)
        .add(MethodFilter::GET, "/gantry/snapshots", snapshots)
        .add(MethodFilter::POST, "/gantry/plan", plan)
        .add(MethodFilter::GET, "/gantry/stats", stats)
        .add(MethodFilter::GET, "/gantry/openapi.json", openapi::show)
}

async fn devices(State(app): State<Arc<App>>) -> Result<Response, Response> {
    ask(&app, |engine| {
        let shown: Result<Vec<_>, _> = engine.studio().devices.iter().map(DeviceShape::of).collect();
        match shown {
            Ok(devices) => reply::json(&json!({ "devices": devices })),
            Err(error) => reply::failed(&error),
        }
    })
    .await
}

async fn models(State(app): State<Arc<App>>) -> Result<Response, Response> {
    ask(&app, |engine| {
        let models = engine.studio().residency.models();
        reply::json(&json!({ "models": models.iter().map(ModelShape::of).collect::<Vec<_>>() }))
    })
    .await
}

async fn change_model(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Response, Response> {
    let id = model_id(&id).ok_or_else(|| no_model(&id))?;
    let map = body::object(&body).map_err(IntoResponse::into_response)?;
    let wanted = map.get("retention").and_then(Literal::as_text);
    let known = [Retention::Keep, Retention::Eject, Retention::Default];
    let retention = known.into_iter().find(|retention| Some(retention.name()) == wanted);
    let retention = retention.ok_or_else(|| {
        reply::error(StatusCode::BAD_REQUEST, "\"retention\" must be \"keep\", \"eject\" or \"default\"")
    })?;
    ask(&app, move |engine| {
        let residency = &engine.studio().residency;
        match residency.set_retention(id, retention) {
            Ok(()) => show_model(residency, id),
            Err(error) => reply::error(StatusCode::NOT_FOUND, &error.to_string()),
        }
    })
    .await
}

async fn unload_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Response> {
    let id = model_id(&id).ok_or_else(|| no_model(&id))?;
    ask(&app, move |engine| {
        let studio = engine.studio();
        if let Err(error) = studio.residency.unload(id) {
            return reply::error(StatusCode::NOT_FOUND, &error.to_string());
        }
        // What the model had is of use to others only when it is really given back.
        match studio.devices.trim() {
            Ok(()) => StatusCode::NO_CONTENT.into_response(),
            Err(error) => reply::failed(&error),
        }
    })
    .await
}

fn show_model(residency: &Residency, id: ModelId) -> Response {
    match residency.models().iter().find(|model| model.id == id) {
        Some(model) => reply::json(&ModelShape::of(model)),
        None => no_model(&id.to_string()),
    }
}

fn model_id(text: &str) -> Option<ModelId> {
    text.parse().ok().map(ModelId)
}

fn no_model(id: &str) -> Response {
    reply::error(StatusCode::NOT_FOUND, &format!("model {id} is not loaded"))
}

async fn snapshots(State(app): State<Arc<App>>) -> Result<Response, Response> {
    ask(&app, |engine| {
        let latest = engine.studio().residency.snapshots().latest();
        let lines: Vec<String> = latest.iter().map(residency::Snapshot::to_json_line).collect();
        reply::json_bytes(StatusCode::OK, format!("{{\"snapshots\":[{}]}}", lines.join(",")))
    })
    .await
}

async fn plan(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, Response> {
    let question: PlanQuestion = serde_json::from_slice(&body).map_err(|error| {
        reply::error(StatusCode::BAD_REQUEST, &format!("the question cannot be read: {error}"))
    })?;
    let planner = app.config.planner.clone();
    let planner =
        planner.ok_or_else(|| reply::error(StatusCode::NOT_IMPLEMENTED, "this server makes no plans"))?;
    ask(&app, move |engine| {
        let Some(file) = question.find(&engine.studio().folders) else {
            let text = format!("no model folder has a file {:?}", question.file);
            return reply::error(StatusCode::NOT_FOUND, &text);
        };
        match planner.plan(&file, &question) {
            Ok(plan) => reply::json(&plan),
            Err(text) => reply::error(StatusCode::UNPROCESSABLE_ENTITY, &text),
        }
    })
    .await
}

async fn stats(State(app): State<Arc<App>>) -> Result<Response, Response> {
    let (jobs, clients) = (app.hub.stats().latest(), app.hub.roster().len());
    ask(&app, move |engine| {
        let missing = engine.studio().residency.missing_kept();
        reply::json(&json!({ "jobs": jobs, "clients": clients, "kept_models_missing": missing }))
    })
    .await
}
