//! Listens to a front's WebSocket and keeps, by job, what it was told, in order.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

/// The frames of RFC 6455 that are looked at.
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Where the front is now, if it is anywhere.
pub(crate) type Address = Arc<Mutex<Option<SocketAddr>>>;

/// What was told of each job: the message's name, and the node it is about.
pub(crate) type Told = HashMap<String, Vec<(String, Option<String>)>>;

/// Listens until it is stopped, and again wherever the front comes back.
pub(crate) struct Listener {
    told: Arc<Mutex<Told>>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Listener {
    pub(crate) fn start(address: &Address, client: &str) -> Listener {
        let (told, is_over) = (Arc::<Mutex<Told>>::default(), Arc::<AtomicBool>::default());
        let (address, client) = (Arc::clone(address), client.to_owned());
        let (kept, ending) = (Arc::clone(&told), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !ending.load(Ordering::Relaxed) {
                let there = *address.lock().unwrap();
                // The front may be away: then it is tried again.
                let _ = there.map(|there| listen(there, &client, &kept, &ending));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Listener { told, is_over, thread }
    }

    pub(crate) fn stop(self) -> Told {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

fn listen(address: SocketAddr, client: &str, told: &Mutex<Told>, is_over: &AtomicBool) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        stream,
        "GET /ws?clientId={client} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    // Short waits, so that it ends soon when it is to.
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    while !is_over.load(Ordering::Relaxed) {
        let Some((kind, payload)) = frame(&mut stream, is_over)? else { return Ok(()) };
        match kind {
            TEXT => note(told, &payload),
            // A client's frames are masked; zeros leave them as they are.
            PING => stream.write_all(
                &[&[0x80 | PONG, 0x80 | payload.len() as u8, 0, 0, 0, 0], &payload[..]].concat(),
            )?,
            CLOSE => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

/// The next frame; none if it is to end first.
fn frame(stream: &mut TcpStream, is_over: &AtomicBool) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut head = [0; 2];
    if !fill(stream, &mut head, is_over)? {
        return Ok(None);
    }
    let length = match head[1] & 0x7f {
        126 => {
            let mut bytes = [0; 2];
            fill(stream, &mut bytes, is_over)?;
            usize::from(u16::from_be_bytes(bytes))
        }
        127 => {
            let mut bytes = [0; 8];
            fill(stream, &mut bytes, is_over)?;
            usize::try_from(u64::from_be_bytes(bytes)).unwrap()
        }
        short => usize::from(short),
    };
    let mut payload = vec![0; length];
    let is_whole = fill(stream, &mut payload, is_over)?;
    Ok(is_whole.then_some((head[0] & 0x0f, payload)))
}

/// Fills a buffer, however long that takes; whether it was filled before it is to end.
fn fill(stream: &mut TcpStream, mut buffer: &mut [u8], is_over: &AtomicBool) -> io::Result<bool> {
    while !buffer.is_empty() {
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => buffer = &mut buffer[read..],
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if is_over.load(Ordering::Relaxed) {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn note(told: &Mutex<Told>, payload: &[u8]) {
    let message: Value = serde_json::from_slice(payload).unwrap();
    let data = &message["data"];
    let (Some(name), Some(id)) = (message["type"].as_str(), data["prompt_id"].as_str()) else { return };
    let node = data["node"].as_str().map(str::to_owned);
    told.lock().unwrap().entry(id.to_owned()).or_default().push((name.to_owned(), node));
}
