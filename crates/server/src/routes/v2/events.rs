//! `/api/v2/jobs/{id}/events`: how a job goes on, as server-sent events. Each is made from the job as it stands, so that
//! one that was missed is made good by the next.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use engine::Engine;
use graph::Picture;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Sender};

use super::jobs::ahead;
use super::{Answer, Here, ask};
use crate::app::App;
use crate::listen::stopped;
use crate::wire::v2::{self, JobView, Origin};

/// At most so often are steps and pictures told.
const PACE: Duration = Duration::from_millis(250);
/// How often the job is looked at though nothing was told of it: another process may run it.
const LOOK: Duration = Duration::from_secs(2);
/// How often a silent stream is shown to be alive.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Pixels along the longer side of a preview, and its quality.
const PREVIEW: (usize, u8) = (512, 85);

pub(super) async fn follow(
    State(app): State<Arc<App>>,
    Here(origin): Here,
    Path(id): Path<String>,
) -> Answer {
    let asked = Arc::clone(&app);
    let known = id.clone();
    ask(&app, move |engine| asked.found(engine, &known)).await??;
    let (events, waiting) = mpsc::channel(64);
    tokio::spawn(tell(app, id, origin, events));
    let stream = futures_util::stream::unfold(waiting, |mut waiting| async move {
        let event: Event = waiting.recv().await?;
        Some((Ok::<_, Infallible>(event), waiting))
    });
    Ok(told(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()))
}

/// Proxies must not hold the events back.
fn told(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}

/// Tells what changed until the job is over or nobody listens.
async fn tell(app: Arc<App>, id: String, origin: Origin, events: Sender<Event>) {
    let mut moved = app.live.follow();
    let mut stop = app.stop.clone();
    let mut said = Said::default();
    loop {
        let (asked, id, origin) = (Arc::clone(&app), id.clone(), origin.clone());
        let looked = ask(&app, move |engine| {
            let news = said.news(engine, &asked, &id, &origin);
            (said, news)
        });
        let Ok((next, news)) = looked.await else { return };
        said = next;
        for (name, data) in news {
            if events.send(Event::default().event(name).data(data.to_string())).await.is_err() {
                return;
            }
        }
        if said.is_over {
            return;
        }
        tokio::select! {
            () = pause(&mut moved) => {}
            () = events.closed() => return,
            () = stopped(&mut stop) => return,
        }
    }
}

/// Until something happened, but not too soon.
async fn pause(moved: &mut tokio::sync::watch::Receiver<u64>) {
    tokio::time::sleep(PACE).await;
    // Either something happened, or it is time to look anyway.
    let _ = tokio::time::timeout(LOOK, moved.changed()).await;
}

/// What a client was told already.
#[derive(Default)]
struct Said {
    status: Option<(&'static str, Option<usize>)>,
    progress: Value,
    outputs: HashSet<String>,
    preview: u64,
    is_over: bool,
}

impl Said {
    /// The events that bring the client up to date.
    fn news(&mut self, engine: &Engine, app: &App, id: &str, origin: &Origin) -> Vec<(&'static str, Value)> {
        let Ok(record) = app.found(engine, id) else {
            self.is_over = true;
            return vec![("status", json!({ "status": "canceled", "queue_position": null }))];
        };
        let live = app.live.of(id);
        let view = JobView { record: &record, live: live.as_ref(), ahead: ahead(engine, &record) };
        let mut news = Vec::new();
        self.is_over = v2::is_over(record.status);
        let status = (v2::status(record.status), view.ahead);
        let is_other = self.status.replace(status) != Some(status);
        if is_other && !self.is_over {
            news.push(("status", json!({ "status": status.0, "queue_position": status.1 })));
        }
        let progress = view.progress();
        if !progress.is_null() && progress != self.progress {
            news.push(("progress", progress.clone()));
            self.progress = progress;
        }
        if let Some((number, node, picture)) = live.as_ref().and_then(|live| live.preview.as_ref())
            && *number != self.preview
        {
            self.preview = *number;
            news.extend(preview(node, picture));
        }
        for output in view.outputs(&app.assets, origin) {
            if self.outputs.insert(output["id"].as_str().unwrap_or_default().to_owned()) {
                news.push(("output", output));
            }
        }
        // The last word: whoever reads it stops reading.
        if is_other && self.is_over {
            news.push(("status", json!({ "status": status.0, "queue_position": null })));
        }
        news
    }
}

fn preview(node: &str, picture: &Picture) -> Option<(&'static str, Value)> {
    let bytes = nodes::picture::preview_jpeg(picture, PREVIEW.0, PREVIEW.1).ok()?;
    let data = BASE64_STANDARD.encode(bytes);
    Some(("preview", json!({ "node_id": node, "content_type": "image/jpeg", "data_base64": data })))
}
