//! A client: HTTP by hand, WebSocket by tungstenite.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Sends a request with exactly these headers, besides the length of the body.
pub(crate) async fn request(server: &Server, start: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let address = server.addresses()[0];
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut text = format!("{start} HTTP/1.0\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    read(&mut stream).await
}

/// Sends bytes as they are and reads the answer to its end; the request must say that it is the last.
pub(crate) async fn raw(server: &Server, text: &str) -> Answer {
    let mut stream = TcpStream::connect(server.addresses()[0]).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    read(&mut stream).await
}

/// Reads an answer to its end.
pub(crate) async fn read(stream: &mut (impl AsyncReadExt + Unpin)) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: bytes[end + 4..].to_vec() }
}

pub(crate) async fn get(server: &Server, path: &str) -> Answer {
    request(server, &format!("GET {path}"), &[("host", "localhost")], b"").await
}

pub(crate) async fn post(server: &Server, path: &str, body: &Value) -> Answer {
    request(server, &format!("POST {path}"), &[("host", "localhost")], body.to_string().as_bytes()).await
}

/// A prompt of one node that shows a number.
pub(crate) fn show(value: u64, options: Value) -> Value {
    let mut inputs = options;
    inputs["value"] = json!(value);
    json!({ "9": { "class_type": "Show", "inputs": inputs } })
}

/// Posts a prompt; its id.
pub(crate) async fn submit(server: &Server, client: Option<&str>, prompt: Value) -> String {
    let mut body = json!({ "prompt": prompt });
    if let Some(client) = client {
        body["client_id"] = json!(client);
    }
    let answer = post(server, "/prompt", &body).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.json()["prompt_id"].as_str().unwrap().to_owned()
}

/// Gives every worker but one a job that takes long, and waits until all run; how many jobs that were. What is queued
/// next waits.
pub(crate) async fn occupy_others(server: &Server) -> usize {
    let others = usize::from(crate::WORKERS) - 1;
    for number in 0..others {
        let long = show(1000 + number as u64, json!({ "steps": 1000, "step_ms": 20 }));
        submit(server, None, long).await;
    }
    loop {
        let queue = get(server, "/queue").await.json();
        if queue["queue_running"].as_array().unwrap().len() == others + 1 {
            return others;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A socket.
pub(crate) struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

/// What a socket receives.
#[derive(Debug)]
pub(crate) enum Received {
    Event(String, Value),
    Binary(Vec<u8>),
}

impl Received {
    pub(crate) fn kind(&self) -> String {
        match self {
            Received::Event(kind, _) => kind.clone(),
            Received::Binary(bytes) => format!("#{}", bytes[3]),
        }
    }

    pub(crate) fn data(&self) -> &Value {
        match self {
            Received::Event(_, data) => data,
            Received::Binary(_) => &Value::Null,
        }
    }

    /// Whether it is the last of a job.
    pub(crate) fn is_end_of(&self, prompt_id: &str) -> bool {
        self.kind() == "executing" && self.data()["node"].is_null() && self.data()["prompt_id"] == prompt_id
    }
}

impl Socket {
    pub(crate) async fn open(server: &Server, path: &str) -> Socket {
        let url = format!("ws://{}{path}", server.addresses()[0]);
        Socket(tokio_tungstenite::connect_async(url).await.unwrap().0)
    }

    pub(crate) async fn say(&mut self, value: &Value) {
        self.0.send(Message::text(value.to_string())).await.unwrap();
    }

    /// The next event; `None` when the socket is closed.
    pub(crate) async fn next(&mut self) -> Option<Received> {
        loop {
            let next = tokio::time::timeout(Duration::from_secs(60), self.0.next()).await;
            match next.expect("an event comes in time")? {
                Ok(Message::Text(text)) => {
                    assert!(text.starts_with("{\"type\":\""), "{text}");
                    let value: Value = serde_json::from_str(&text).unwrap();
                    return Some(Received::Event(
                        value["type"].as_str().unwrap().to_owned(),
                        value["data"].clone(),
                    ));
                }
                Ok(Message::Binary(bytes)) => return Some(Received::Binary(bytes.to_vec())),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Everything up to the end of a job.
    pub(crate) async fn until_end(&mut self, prompt_id: &str) -> Vec<Received> {
        let mut all = Vec::new();
        loop {
            all.push(self.next().await.unwrap());
            if all.last().unwrap().is_end_of(prompt_id) {
                return all;
            }
        }
    }

    /// Whether nothing comes for a moment.
    pub(crate) async fn is_silent(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(150), self.0.next()).await.is_err()
    }
}

pub(crate) fn kinds(events: &[Received]) -> Vec<String> {
    events.iter().map(Received::kind).collect()
}
