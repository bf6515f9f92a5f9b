//! A client that asks one question per connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// No answer takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a server answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// Asks a server; an error if it cannot be reached or closes the connection without an answer.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    kind: &str,
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes();
    request.extend_from_slice(body);
    stream.write_all(&request)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let broken = || std::io::Error::new(std::io::ErrorKind::InvalidData, "this is no answer");
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(broken)?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    assert!(!head.contains("transfer-encoding"), "this client reads no chunks: {head}");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let body = bytes.split_off(end + 4);
    // A server that is killed while it answers leaves a part.
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    if method != "HEAD" && length.is_some_and(|length| body.len() < length) {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Answer { status, body })
}
