//! A server on this machine that behaves like the hub and its store of large files.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use testkit::Sha256Sink;

/// What goes wrong on purpose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Connections break in the middle of a range.
    pub(crate) breaks: bool,
    /// Some requests are too many.
    pub(crate) too_many: bool,
    /// Signed addresses end after a few requests.
    pub(crate) signatures_end: bool,
}

/// The server. It ends with the process.
pub(crate) struct LocalHub {
    port: u16,
    state: Arc<State>,
}

struct State {
    port: u16,
    faults: Faults,
    requests: AtomicU64,
    broken: AtomicU64,
    sent: AtomicU64,
    changed: AtomicBool,
    token_went_elsewhere: AtomicBool,
}

/// The bytes of a file, by its name.
pub(crate) fn bytes_of(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let length = 150_000 + (seed % 90_000) as usize;
    (0..length as u64)
        .map(|i| (seed.wrapping_add(i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}

fn sum_of(bytes: &[u8]) -> String {
    let mut sink = Sha256Sink::default();
    sink.write_all(bytes).unwrap();
    sink.finish()
}

impl LocalHub {
    pub(crate) fn start(faults: Faults) -> LocalHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            port,
            faults,
            requests: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            token_went_elsewhere: AtomicBool::new(false),
        });
        let serving = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&serving);
                std::thread::spawn(move || {
                    // A client that hangs up is none of the server's business.
                    let _ = state.answer(&stream);
                });
            }
        });
        LocalHub { port, state }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn broken(&self) -> u64 {
        self.state.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn token_went_elsewhere(&self) -> bool {
        self.state.token_went_elsewhere.load(Ordering::Relaxed)
    }

    /// From now on files are other ones.
    pub(crate) fn change_files(&self) {
        self.state.changed.store(true, Ordering::Relaxed);
    }
}

impl State {
    /// Answers one request and closes.
    fn answer(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let mut headers = HashMap::new();
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let reply = |stream: &mut &TcpStream, head: &str| {
            write!(stream, "HTTP/1.1 {head}\r\nconnection: close\r\n\r\n")
        };
        if let Some(rest) = path.strip_prefix("/store/") {
            if headers.contains_key("authorization") {
                self.token_went_elsewhere.store(true, Ordering::Relaxed);
            }
            let (name, signature) = rest.split_once("?signed=").unwrap_or((rest, "0"));
            let age = number.saturating_sub(signature.parse().unwrap_or(0));
            if self.faults.signatures_end && age > 7 {
                return reply(&mut stream, "403 Forbidden\r\ncontent-length: 0");
            }
            if self.faults.too_many && number % 11 == 5 {
                return reply(&mut stream, "429 Too Many Requests\r\nretry-after: 0\r\ncontent-length: 0");
            }
            return self.send(stream, name, headers.get("range"), number);
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let has_token = headers.get("authorization").is_some_and(|token| token == "Bearer right");
        match name {
            "none.bin" => reply(&mut stream, "404 Not Found\r\ncontent-length: 0"),
            "gated.bin" => reply(&mut stream, "403 Forbidden\r\ncontent-length: 0"),
            "private.bin" if !has_token => reply(&mut stream, "401 Unauthorized\r\ncontent-length: 0"),
            name => {
                let sum = if name.starts_with("wrong") { "0".repeat(64) } else { sum_of(&self.bytes(name)) };
                let port = self.port;
                let head = format!(
                    "302 Found\r\nlocation: http://localhost:{port}/store/{name}?signed={number}\r\n\
                     x-linked-etag: \"{sum}\"\r\ncontent-length: 0"
                );
                reply(&mut stream, &head)
            }
        }
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        if self.changed.load(Ordering::Relaxed) { bytes_of(&format!("{name}#2")) } else { bytes_of(name) }
    }

    /// Sends a file or a range of it, perhaps only the beginning.
    fn send(
        &self,
        mut stream: &TcpStream,
        name: &str,
        range: Option<&String>,
        number: u64,
    ) -> std::io::Result<()> {
        let bytes = self.bytes(name);
        let (tag, total) = (sum_of(&bytes), bytes.len());
        let bounds = range.filter(|_| !name.starts_with("plain")).and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?))
        });
        let (first, end) = bounds.map_or((0, total), |(first, last)| (first, (last + 1).min(total)));
        let status = match bounds {
            Some(_) => format!("206 Partial Content\r\ncontent-range: bytes {first}-{}/{total}", end - 1),
            None => "200 OK".to_owned(),
        };
        let length = end - first;
        write!(
            stream,
            "HTTP/1.1 {status}\r\netag: \"{tag}\"\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        )?;
        let breaks = self.faults.breaks && length > 1 && number.is_multiple_of(3);
        let sends = if breaks { length * (number as usize % 7) / 8 } else { length };
        if breaks {
            self.broken.fetch_add(1, Ordering::Relaxed);
        }
        self.sent.fetch_add(sends as u64, Ordering::Relaxed);
        stream.write_all(&bytes[first..first + sends])
    }
}
