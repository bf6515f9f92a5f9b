//! `/gantry/…`: devices, loaded models, memory over time, plans and measurements.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::handler::Handler;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use engine::{DeviceReport, Engine, PlanRefusal, WorkerFault, WorkerReport};
use graph::Literal;
use meta::DeviceId;
use residency::{ModelId, Retention};
use serde::Serialize;
use serde_json::json;

use super::{ask, openapi};
use crate::app::App;
use crate::hub::{Audience, Hub};
use crate::live::FailedJob;
use crate::plan::{PlanFault, PlanQuestion};
use crate::shapes::{DeviceShape, FolderShape, ModelShape, PlanShape, SnapshotShape};
use crate::stats::{JOBS, JobStats, RunningJob, Totals};
use crate::wire::query::Asked;
use crate::wire::rejection::{Answer, Rejection};
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
        .add(MethodFilter::GET, "/gantry/preview", preview)
        .add(MethodFilter::POST, "/gantry/loaders", set_loaders)
        .add(MethodFilter::GET, "/gantry/openapi.json", openapi::show)
}

/// Everything that changes, in one answer: asking for it once a second is to cost next to nothing.
async fn now(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Answer {
    let (after, jobs) = (asked.whole("after")?, asked.whole("jobs")?);
    let here = Arc::clone(&app);
    ask(&app, move |engine| {
        let report = engine.worker().report();
        let devices = match device_shapes(&here, &report) {
            Ok(devices) => devices,
            Err(error) => return reply::failed(&error),
        };
        reply::json(&NowShape {
            devices,
            models: model_shapes(&report),
            stats: StatsShape::of(engine, &report, &here.hub, jobs),
            snapshots: snapshot_shapes(engine, after),
            queue: queue_shapes(engine),
            errors: here.live.failures(),
            preview: here.live.preview(None).map(|(number, ..)| number),
            previews: here.live.preview_numbers(),
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
    /// What waits, the next one first; at most so many as people look at.
    queue: Vec<WaitingJob>,
    /// The latest jobs that failed, the last one first.
    errors: Vec<FailedJob>,
    /// The number of the latest picture of what is being made; `/gantry/preview` has it.
    preview: Option<u64>,
    /// The same by job, of all that run and have one.
    previews: BTreeMap<String, u64>,
}

/// Jobs that wait and are shown.
const SHOWN_WAITING: usize = 20;

/// A job that waits.
#[derive(Serialize)]
struct WaitingJob {
    prompt_id: String,
    nodes: usize,
    /// Milliseconds since 1970.
    since_ms: f64,
}

fn queue_shapes(engine: &Engine) -> Vec<WaitingJob> {
    let waiting = engine.queue().pending;
    let shown = waiting.iter().take(SHOWN_WAITING).map(|job| WaitingJob {
        prompt_id: job.prompt_id.clone(),
        nodes: job.prompt.nodes.len(),
        since_ms: job.extra_data.get("create_time").and_then(Literal::as_float).unwrap_or(0.0),
    });
    shown.collect()
}

async fn devices(State(app): State<Arc<App>>) -> Answer {
    let here = Arc::clone(&app);
    ask(&app, move |engine| match device_shapes(&here, &engine.worker().report()) {
        Ok(devices) => reply::json(&json!({ "devices": devices })),
        Err(error) => reply::failed(&error),
    })
    .await
}

fn device_shapes(app: &App, report: &WorkerReport) -> Result<Vec<DeviceShape>, String> {
    let shape = |device: &DeviceReport| {
        let reading = app.config.sensors.as_ref().and_then(|read| read(device.id)).unwrap_or_default();
        Ok(DeviceShape {
            busy_percent: reading.busy_percent,
            celsius: reading.celsius,
            ..DeviceShape::of(device)?
        })
    };
    report.devices.iter().map(shape).collect()
}

/// The latest picture of what is being made, in the job that is named or in any.
async fn preview(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Answer {
    let picture = app.live.preview(asked.get("prompt_id")).map(|(_, _, picture)| picture);
    ask(&app, move |_| {
        let bytes = picture.map(|picture| nodes::picture::preview_jpeg(&picture, PREVIEW.0, PREVIEW.1));
        match bytes {
            None => StatusCode::NO_CONTENT.into_response(),
            Some(Ok(bytes)) => {
                ([(CONTENT_TYPE, "image/jpeg"), (CACHE_CONTROL, "no-store")], bytes).into_response()
            }
            Some(Err(error)) => reply::failed(&error),
        }
    })
    .await
}

/// Pixels along the longer side of a preview, and its quality.
const PREVIEW: (usize, u8) = (512, 85);

/// Tells every open front end to give an allocation to its loaders of a file.
async fn set_loaders(State(app): State<Arc<App>>, body: Bytes) -> Answer {
    let map = body::object(&body)?;
    let text = |key: &str| map.get(key).and_then(Literal::as_text);
    let file = text("file").filter(|file| !file.is_empty());
    let file = file.ok_or_else(|| Rejection::Invalid("\"file\" must name a model file".to_owned()))?;
    let told =
        json!({ "file": file, "alloc": text("alloc").unwrap_or_default(), "compute": text("compute") });
    app.hub.send(Audience::Everyone, "gantry_plan", &told);
    Ok(reply::json(&json!({ "clients": app.hub.roster().len() })))
}

async fn models(State(app): State<Arc<App>>) -> Answer {
    ask(&app, |engine| reply::json(&json!({ "models": model_shapes(&engine.worker().report()) }))).await
}

fn model_shapes(report: &WorkerReport) -> Vec<ModelShape> {
    report.models.iter().map(ModelShape::of).collect()
}

async fn change_model(State(app): State<Arc<App>>, Path(id): Path<String>, body: Bytes) -> Answer {
    let id = model_id(&id).ok_or_else(|| Rejection::NoModel(id.clone()))?;
    let map = body::object(&body)?;
    let wanted = map.get("retention").and_then(Literal::as_text);
    let known = [Retention::Keep, Retention::Eject, Retention::Default];
    let retention = known.into_iter().find(|retention| Some(retention.name()) == wanted);
    let retention = retention.ok_or_else(|| {
        Rejection::Invalid("\"retention\" must be \"keep\", \"eject\" or \"default\"".to_owned())
    })?;
    ask(&app, move |engine| match engine.worker().set_retention(id, retention) {
        Ok(model) => reply::json(&ModelShape::of(&model)),
        Err(fault) => refused(&fault),
    })
    .await
}

async fn unload_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    let id = model_id(&id).ok_or_else(|| Rejection::NoModel(id.clone()))?;
    ask(&app, move |engine| match engine.worker().unload(id) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(fault) => refused(&fault),
    })
    .await
}

fn refused(fault: &WorkerFault) -> Response {
    match fault {
        WorkerFault::NoModel { .. } => reply::error(StatusCode::NOT_FOUND, &fault.to_string()),
        WorkerFault::Device(_) => reply::failed(fault),
    }
}

fn model_id(text: &str) -> Option<ModelId> {
    text.parse().ok().map(ModelId)
}

/// The model files that can be planned, and where such files belong.
async fn model_files(State(app): State<Arc<App>>) -> Answer {
    ask(&app, |engine| {
        let shown: Vec<FolderShape> =
            engine.worker().model_files(&PLANNED).iter().map(FolderShape::of).collect();
        reply::json(&json!({ "folders": shown }))
    })
    .await
}

async fn snapshots(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Answer {
    let after = asked.whole("after")?;
    ask(&app, move |engine| reply::json(&json!({ "snapshots": snapshot_shapes(engine, after) }))).await
}

/// The snapshots with higher numbers.
fn snapshot_shapes(engine: &Engine, after: Option<u64>) -> Vec<SnapshotShape> {
    engine.worker().snapshots(after).iter().map(SnapshotShape::of).collect()
}

async fn plan(State(app): State<Arc<App>>, Query(asked): Query<Asked>, body: Bytes) -> Answer {
    // Pages that ask while someone types want 200 for an answer that is no plan.
    let fault_status = match asked.whole("faults")? {
        Some(200) => StatusCode::OK,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    let question: PlanQuestion = serde_json::from_slice(&body)
        .map_err(|error| Rejection::Invalid(format!("the question cannot be read: {error}")))?;
    ask(&app, move |engine| {
        let worker = engine.worker();
        match worker.plan(&question.into()) {
            Ok(plan) => reply::json(&PlanShape::of(&plan)),
            Err(refusal @ PlanRefusal::NoFile(_)) => {
                reply::error(StatusCode::NOT_FOUND, &refusal.to_string())
            }
            Err(refusal) => {
                let shape = PlanFault::from(refusal).shape(&worker.report().devices);
                reply::json_with(fault_status, &shape)
            }
        }
    })
    .await
}

async fn stats(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Answer {
    let jobs = asked.whole("jobs")?;
    let hub = Arc::clone(&app.hub);
    ask(&app, move |engine| reply::json(&StatsShape::of(engine, &engine.worker().report(), &hub, jobs))).await
}

/// What jobs do and did.
#[derive(Serialize)]
struct StatsShape {
    /// The job that runs, of several the one that began first.
    running: Option<RunningJob>,
    /// Who runs jobs, and what each runs.
    workers: Vec<WorkerShape>,
    waiting: usize,
    jobs: Vec<JobStats>,
    clients: usize,
    kept_models_missing: u64,
}

/// A worker.
#[derive(Serialize)]
struct WorkerShape {
    /// Where it computes.
    device: String,
    running: Option<RunningJob>,
}

impl StatsShape {
    fn of(engine: &Engine, report: &WorkerReport, hub: &Hub, jobs: Option<u64>) -> StatsShape {
        let jobs = jobs.map_or(JOBS, |jobs| usize::try_from(jobs).unwrap_or(usize::MAX));
        let running = hub.stats().running(Instant::now(), &Totals::of(engine.worker().activity()));
        let worker = |device: &DeviceId| {
            let device = device.to_string();
            let own = running.iter().find(|job| job.worker.as_ref() == Some(&device));
            WorkerShape { running: own.cloned(), device }
        };
        StatsShape {
            waiting: engine.remaining().saturating_sub(running.len()),
            workers: report.workers.iter().map(worker).collect(),
            running: running.first().cloned(),
            jobs: hub.stats().latest(jobs),
            clients: hub.roster().len(),
            kept_models_missing: report.kept_models_missing,
        }
    }
}
