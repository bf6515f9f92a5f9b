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
    pub(crate) body: String,
}

/// Posts JSON to a path below a server's address.
pub(crate) fn post(server: &str, path: &str, token: Option<&str>, json: &str) -> Result<Answer> {
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
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    write!(
        stream,
        "POST {slash}{base}{path} HTTP/1.1\r\nHost: {host}\r\n{token}Content-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{json}",
        json.len(),
    )?;
    let mut text = Vec::new();
    stream.take(LARGEST).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let status = status.context("the answer is no HTTP")?;
    Ok(Answer { status, body: body.to_owned() })
}
