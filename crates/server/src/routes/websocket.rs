//! `/ws`: the events of jobs, as they happen.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::system;
use crate::app::App;
use crate::hub::{Client, text_frame};
use crate::listen::stopped;
use crate::wire::reply;

/// Sockets at once.
const MAX_CLIENTS: usize = 4096;
/// What a client may send at once: it sends little more than what it can do.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// How often a silent socket is shown to be alive, to whatever stands between.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long a client may take to read what was written.
const WRITE_TIME: Duration = Duration::from_secs(60);

pub(super) async fn connect(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    if app.hub.roster().len() >= MAX_CLIENTS {
        return reply::error(StatusCode::SERVICE_UNAVAILABLE, "there are too many clients");
    }
    let id = query.get("clientId").cloned();
    upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .read_buffer_size(4 << 10)
        .write_buffer_size(32 << 10)
        .on_upgrade(move |socket| converse(app, id, socket))
}

/// Sends and receives until either side is done.
async fn converse(app: Arc<App>, id: Option<String>, socket: WebSocket) {
    let client = app.hub.roster().connect(id);
    let (mut sink, stream) = socket.split();
    let mut stop = app.stop.clone();
    let close = tokio::select! {
        close = send(&client, &mut sink) => close,
        () = receive(&app, &client, stream) => None,
        () = stopped(&mut stop) => Some((close_code::AWAY, "the server stops")),
    };
    app.hub.roster().disconnect(&client);
    if let Some((code, reason)) = close {
        let frame = Message::Close(Some(CloseFrame { code, reason: reason.into() }));
        // A client that is gone needs no goodbye.
        let _ = tokio::time::timeout(Duration::from_secs(1), sink.send(frame)).await;
    }
}

/// Writes what the hub has for a client, many frames at a time. Why it is to be closed, if its socket is good.
async fn send(client: &Client, sink: &mut SplitSink<WebSocket, Message>) -> Option<(u16, &'static str)> {
    let too_slow = Some((close_code::POLICY, "the client does not read"));
    loop {
        let frames = match tokio::time::timeout(PING_EVERY, client.take()).await {
            Ok(Some(frames)) => frames,
            Ok(None) => return too_slow,
            Err(_) => vec![Message::Ping(axum::body::Bytes::new())],
        };
        for frame in frames {
            let written = tokio::time::timeout(WRITE_TIME, sink.feed(frame)).await;
            match written {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return too_slow,
            }
        }
        match tokio::time::timeout(WRITE_TIME, sink.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return None,
            Err(_) => return too_slow,
        }
    }
}

/// What clients say of themselves.
#[derive(Deserialize)]
struct Greeting {
    r#type: String,
    #[serde(default)]
    data: Map<String, Value>,
}

/// Reads until the socket is closed. Only a client's first message counts, if it says what the client can do.
async fn receive(app: &App, client: &Client, mut stream: SplitStream<WebSocket>) {
    let mut is_first = true;
    while let Some(Ok(message)) = stream.next().await {
        let Message::Text(text) = message else { continue };
        if !std::mem::take(&mut is_first) {
            continue;
        }
        if let Ok(greeting) = serde_json::from_str::<Greeting>(&text)
            && greeting.r#type == "feature_flags"
        {
            let takes_metadata = greeting.data.get("supports_preview_metadata") == Some(&Value::Bool(true));
            client.set_takes_metadata(takes_metadata);
            client.push(text_frame("feature_flags", &system::flags(&app.config)));
        }
    }
}
