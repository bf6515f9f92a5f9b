//! `/gantry/…`: devices, loaded models, memory over time, plans and measurements.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use engine::Engine;
use graph::Literal;
use residency::{ModelId, Residency, Retention};
use serde::Serialize;
use serde_json::json;

use super::{ask, openapi};
use crate::app::App;
use crate::hub::Hub;
use crate::plan::PlanQuestion;
use crate::shapes::{DeviceShape, FolderShape, ModelShape, PlanShape, SnapshotShape};
use crate::stats::{JOBS, JobStats, RunningJob, Totals};
use crate::wire::query::Asked;
use crate::wire::{body, reply};

/// The kinds of model folders whose files can be planned.
const PLANNED: [&str; 6] =
    ["diffusion_models", "unet_gguf", "checkpoints", "text_encoders", "clip_gguf", "vae"];

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
        .add(MethodFilter::GET, "/gantry/now", now)
        .add(MethodFilter::GET, "/gantry/devices", devices)
        .add(MethodFilter::GET, "/gantry/models", models)
        .add(MethodFilter::PATCH, "/gantry/models/{id}", change_model)
        .add(MethodFilter::DELETE, "/gantry/models/{id}", unload_model)
        .add(MethodFilter::GET, "/gantry/files", model_files)
        .add(MethodFilter::GET, "/gantry/snapshots", snapshots)
        .add(MethodFilter::POST, "/gantry/plan", plan)
        .add(MethodFilter::GET, "/gantry/stats", stats)
        .add(MethodFilter::GET, "/gantry/openapi.json", openapi::show)
}

/// Everything that changes, in one answer: asking for it once a second is to cost next to nothing.
async fn now(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Result<Response, Response> {
    let (after, jobs) = (asked.whole("after")?, asked.whole("jobs")?);
    let hub = Arc::clone(&app.hub);
    ask(&app, move |engine| {
        let devices = match device_shapes(engine) {
            Ok(devices) => devices,
            Err(error) => return reply::failed(&error),
        };
        reply::json(&NowShape {
            devices,
            models: model_shapes(engine),
            stats: StatsShape::of(engine, &hub, jobs),
            snapshots: snapshot_shapes(engine, after),
        })
    })
    .await
}

/// Everything that changes.
#[derive(Serialize)]
struct NowShape {
    devices: Vec<DeviceShape>,
    models: Vec<ModelShape>,
    stats: StatsShape,
    snapshots: Vec<SnapshotShape>,
}

async fn devices(State(app): State<Arc<App>>) -> Result<Response, Response> {
    ask(&app, |engine| match device_shapes(engine) {
        Ok(devices) => reply::json(&json!({ "devices": devices })),
        Err(error) => reply::failed(&error),
    })
    .await
}

fn device_shapes(engine: &Engine) -> device::Result<Vec<DeviceShape>> {
    engine.studio().devices.iter().map(DeviceShape::of).collect()
}

async fn models(State(app): State<Arc<App>>) -> Result<Response, Response> {
    ask(&app, |engine| reply::json(&json!({ "models": model_shapes(engine) }))).await
}

fn model_shapes(engine: &Engine) -> Vec<ModelShape> {
    engine.studio().residency.models().iter().map(ModelShape::of).collect()
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

/// The model files that can be planned, and where such files belong.
async fn model_files(State(app): State<Arc<App>>) -> Result<Response, Response> {
    ask(&app, |engine| {
        let folders = &engine.studio().folders;
        let shown: Vec<FolderShape> = PLANNED.iter().map(|key| FolderShape::of(folders, key)).collect();
        reply::json(&json!({ "folders": shown }))
    })
    .await
}

async fn snapshots(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Result<Response, Response> {
    let after = asked.whole("after")?;
    ask(&app, move |engine| reply::json(&json!({ "snapshots": snapshot_shapes(engine, after) }))).await
}

/// The snapshots with higher numbers.
fn snapshot_shapes(engine: &Engine, after: Option<u64>) -> Vec<SnapshotShape> {
    let latest = engine.studio().residency.snapshots().latest();
    let wanted = latest.iter().filter(|snapshot| after.is_none_or(|after| snapshot.number > after));
    wanted.map(SnapshotShape::of).collect()
}

async fn plan(
    State(app): State<Arc<App>>,
    Query(asked): Query<Asked>,
    body: Bytes,
) -> Result<Response, Response> {
    // Pages that ask while someone types want 200 for an answer that is no plan.
    let fault_status = match asked.whole("faults")? {
        Some(200) => StatusCode::OK,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    let question: PlanQuestion = serde_json::from_slice(&body).map_err(|error| {
        reply::error(StatusCode::BAD_REQUEST, &format!("the question cannot be read: {error}"))
    })?;
    ask(&app, move |engine| {
        let studio = engine.studio();
        let Some(file) = question.find(&studio.folders) else {
            let text = format!("no model folder has a file {:?}", question.file);
            return reply::error(StatusCode::NOT_FOUND, &text);
        };
        match question.answer(studio, &file) {
            Ok(plan) => reply::json(&PlanShape::of(&plan)),
            Err(fault) => reply::json_with(fault_status, &fault.shape(&studio.devices)),
        }
    })
    .await
}

async fn stats(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Result<Response, Response> {
    let jobs = asked.whole("jobs")?;
    let hub = Arc::clone(&app.hub);
    ask(&app, move |engine| reply::json(&StatsShape::of(engine, &hub, jobs))).await
}

/// What jobs do and did.
#[derive(Serialize)]
struct StatsShape {
    running: Option<RunningJob>,
    waiting: usize,
    jobs: Vec<JobStats>,
    clients: usize,
    kept_models_missing: u64,
}

impl StatsShape {
    fn of(engine: &Engine, hub: &Hub, jobs: Option<u64>) -> StatsShape {
        let jobs = jobs.map_or(JOBS, |jobs| usize::try_from(jobs).unwrap_or(usize::MAX));
        let studio = engine.studio();
        let running = hub.stats().running(Instant::now(), &Totals::of(studio));
        StatsShape {
            waiting: engine.remaining().saturating_sub(usize::from(running.is_some())),
            running,
            jobs: hub.stats().latest(jobs),
            clients: hub.roster().len(),
            kept_models_missing: studio.residency.missing_kept(),
        }
    }
}
