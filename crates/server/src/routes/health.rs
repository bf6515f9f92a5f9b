//! `/healthz`, `/readyz` and `/metrics`: for those who run servers and look after them.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use meta::DeviceId;
use serde_json::{Value, json};

use super::ask;
use crate::app::App;
use crate::stats::Totals;
use crate::wire::rejection::Answer;
use crate::wire::reply;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/gantry/workers", get(workers))
}

/// Whether jobs that are sent now will run: a front needs its queue and a worker.
async fn ready(State(app): State<Arc<App>>) -> Answer {
    let here = Arc::clone(&app);
    ask(&app, move |_| match elsewhere(&here) {
        None => "ready\n".into_response(),
        Some(Ok(workers)) if !workers.is_empty() => {
            format!("ready: {} workers\n", workers.len()).into_response()
        }
        Some(Ok(_)) => unready("no worker of this pool is there; start one with gantry worker\n"),
        Some(Err(why)) => unready(&format!("{why}\n")),
    })
    .await
}

fn unready(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, why.to_owned()).into_response()
}

/// The workers on other machines; none where jobs run here.
fn elsewhere(app: &App) -> Option<Result<Vec<Value>, String>> {
    let read = app.config.workers.as_ref()?;
    Some(read().map(|workers| workers.as_array().cloned().unwrap_or_default()))
}

/// The workers on other machines, as they say themselves.
async fn workers(State(app): State<Arc<App>>) -> Answer {
    let here = Arc::clone(&app);
    ask(&app, move |_| match elsewhere(&here).unwrap_or(Ok(Vec::new())) {
        Ok(workers) => reply::json(&json!({ "workers": workers })),
        Err(why) => reply::error(StatusCode::SERVICE_UNAVAILABLE, &why),
    })
    .await
}

/// A figure of every worker, by its name and its kind.
fn by_worker<'a>(
    text: &mut String,
    (name, kind): (&str, &str),
    help: &str,
    each: impl Iterator<Item = (&'a str, f64)>,
) {
    // Writing to text cannot fail.
    let _ = writeln!(text, "# HELP gantry_worker_{name} {help}\n# TYPE gantry_worker_{name} {kind}");
    for (worker, value) in each {
        // What the format gives a meaning is written as itself.
        let worker = worker.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = writeln!(text, "gantry_worker_{name}{{worker=\"{worker}\"}} {value}");
    }
}

/// What the workers of this process do and did.
fn own_workers(text: &mut String, app: &App, workers: &[DeviceId]) {
    let stats = app.hub.stats();
    let running = stats.running(Instant::now(), &Totals::default());
    let names: Vec<String> = workers.iter().map(ToString::to_string).collect();
    let runs = |name: &str| running.iter().filter(|job| job.worker.as_deref() == Some(name)).count() as f64;
    let each = || names.iter().map(String::as_str);
    by_worker(
        text,
        ("jobs_running", "gauge"),
        "Jobs that a worker runs.",
        each().map(|name| (name, runs(name))),
    );
    let jobs = each().map(|name| (name, stats.ran_by(name).jobs as f64));
    by_worker(text, ("jobs_total", "counter"), "Jobs of a worker that ended.", jobs);
    let seconds = each().map(|name| (name, stats.ran_by(name).seconds));
    by_worker(text, ("job_seconds_total", "counter"), "Seconds that they took.", seconds);
}

/// What can be counted, in Prometheus' format.
async fn metrics(State(app): State<Arc<App>>) -> Answer {
    let here = Arc::clone(&app);
    ask(&app, move |engine| {
        let queue = engine.queue();
        let mut text = String::new();
        let mut gauge = |name: &str, help: &str, value: f64| {
            // Writing to text cannot fail.
            let _ = writeln!(
                text,
                "# HELP gantry_{name} {help}\n# TYPE gantry_{name} gauge\ngantry_{name} {value}"
            );
        };
        gauge("jobs_running", "Jobs that run.", queue.running.len() as f64);
        gauge("jobs_waiting", "Jobs that wait.", queue.pending.len() as f64);
        gauge("clients", "Clients that are connected.", here.hub.roster().len() as f64);
        if let Some(workers) = elsewhere(&here) {
            let workers = workers.unwrap_or_default();
            let is_busy = |worker: &&Value| worker["running"].as_array().is_some_and(|jobs| !jobs.is_empty());
            gauge("workers", "Workers that live.", workers.len() as f64);
            gauge("workers_busy", "Workers that run a job.", workers.iter().filter(is_busy).count() as f64);
            let running = |worker: &Value| worker["running"].as_array().map_or(0.0, |jobs| jobs.len() as f64);
            let each = workers.iter().filter_map(|worker| Some((worker["name"].as_str()?, running(worker))));
            by_worker(&mut text, ("jobs_running", "gauge"), "Jobs that a worker runs.", each);
        } else {
            let report = engine.worker().report();
            gauge("models_loaded", "Models that are loaded.", report.models.len() as f64);
            own_workers(&mut text, &here, &report.workers);
        }
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
    })
    .await
}
