//! One request to a server on this machine or network, for commands that talk to one. Plain HTTP: a server behind
//! https is asked through its own address.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const LARGEST: u64 = 1 << 20;

/// What a server answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The lines before the body.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(':'));
        headers.find(|(key, _)| key.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Posts JSON to a path below a server's address.
pub(crate) fn post(server: &str, path: &str, token: Option<&str>, json: &str) -> Result<Answer> {
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    let headers = format!("{token}Content-Type: application/json\r\nContent-Length: {}\r\n", json.len());
    ask(server, &format!("POST {path}"), PATIENCE, &headers, json)
}

/// Asks for what is at a path below a server's address.
pub(crate) fn get(server: &str, path: &str, patience: Duration) -> Result<Answer> {
    ask(server, &format!("GET {path}"), patience, "", "")
}

/// The same, with a token, for people who wait.
pub(crate) fn get_as(server: &str, path: &str, token: Option<&str>) -> Result<Answer> {
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    ask(server, &format!("GET {path}"), PATIENCE, &token, "")
}

/// Sends a request (`GET /path`) with headers and a body.
fn ask(server: &str, request: &str, patience: Duration, headers: &str, body: &str) -> Result<Answer> {
    let Some(rest) = server.strip_prefix("http://") else {
        bail!("{server} is no address that this command can ask: write http://HOST:PORT");
    };
    let (host, base) = rest.split_once('/').unwrap_or((rest, ""));
    let base = base.trim_end_matches('/');
    let slash = if base.is_empty() { "" } else { "/" };
    let place = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let address = place.to_socket_addrs()?.next().with_context(|| format!("{host} has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let (method, path) = request.split_once(' ').unwrap_or(("GET", request));
    let text = format!(
        "{method} {slash}{base}{path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes())?;
    let mut text = Vec::new();
    stream.take(LARGEST).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let status = status.context("the answer is no HTTP")?;
    Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
}
