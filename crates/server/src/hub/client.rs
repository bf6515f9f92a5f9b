//! One connected client: what it still has to receive.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::extract::ws::Message;
use tokio::sync::Notify;

/// What may wait for one client. One that reads never comes near it; one that does not is closed at it.
const WAITING_BYTES: usize = 64 << 20;
/// What a frame costs besides its bytes.
const FRAME_OVERHEAD: usize = 64;
/// What is taken at once to be written together.
const BATCH_FRAMES: usize = 256;
const BATCH_BYTES: usize = 256 << 10;

/// A socket's side of the hub.
#[derive(Debug)]
pub(crate) struct Client {
    id: String,
    takes_metadata: AtomicBool,
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Message>,
    bytes: usize,
    overflowed: bool,
}

impl Client {
    pub(crate) fn new(id: String) -> Client {
        Client {
            id,
            takes_metadata: AtomicBool::new(false),
            waiting: Mutex::default(),
            changed: Notify::new(),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Whether its previews come with the node they are of.
    pub(crate) fn takes_metadata(&self) -> bool {
        self.takes_metadata.load(Ordering::Relaxed)
    }

    pub(crate) fn set_takes_metadata(&self, takes: bool) {
        self.takes_metadata.store(takes, Ordering::Relaxed);
    }

    /// Adds a frame after those that wait. A client that let too much pile up gets nothing any more.
    pub(crate) fn push(&self, frame: Message) {
        let mut waiting = self.lock();
        if waiting.overflowed {
            return;
        }
        let bytes = cost(&frame);
        // A single frame always fits, or a large picture could never be sent.
        if waiting.bytes > 0 && waiting.bytes + bytes > WAITING_BYTES {
            tracing::warn!("client {} does not read what it is sent; closing it", self.id);
            *waiting = Waiting { overflowed: true, ..Waiting::default() };
        } else {
            waiting.bytes += bytes;
            waiting.frames.push_back(frame);
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// The next frames, at least one; `None` when the client is to be closed.
    pub(crate) async fn take(&self) -> Option<Vec<Message>> {
        loop {
            {
                let mut waiting = self.lock();
                if waiting.overflowed {
                    return None;
                }
                let batch = waiting.batch();
                if !batch.is_empty() {
                    return Some(batch);
                }
            }
            // A notice that came since the lock was let go is remembered.
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn batch(&mut self) -> Vec<Message> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_FRAMES
            && bytes < BATCH_BYTES
            && let Some(frame) = self.frames.pop_front()
        {
            bytes += cost(&frame);
            batch.push(frame);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        batch
    }
}

fn cost(frame: &Message) -> usize {
    let bytes = match frame {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) | Message::Ping(bytes) | Message::Pong(bytes) => bytes.len(),
        Message::Close(_) => 0,
    };
    bytes + FRAME_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn frames_come_in_order_and_in_batches() {
        let client = Client::new("a".to_owned());
        for number in 0..1000 {
            client.push(Message::text(number.to_string()));
        }
        let mut seen = Vec::new();
        while seen.len() < 1000 {
            let batch = block_on(client.take()).unwrap();
            assert!(batch.len() <= BATCH_FRAMES);
            seen.extend(batch);
        }
        let expected: Vec<Message> = (0..1000).map(|number| Message::text(number.to_string())).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_client_that_does_not_read_is_given_up_and_holds_nothing() {
        let client = Client::new("a".to_owned());
        let megabyte = Message::binary(vec![0; 1 << 20]);
        for _ in 0..63 {
            client.push(megabyte.clone());
        }
        assert!(!client.lock().overflowed);
        for _ in 0..10 {
            client.push(megabyte.clone());
        }
        assert!(client.lock().overflowed);
        assert!(client.lock().frames.is_empty());
        assert_eq!(block_on(client.take()), None);
    }

    #[test]
    fn one_frame_may_be_larger_than_the_limit() {
        let client = Client::new("a".to_owned());
        client.push(Message::binary(vec![0; WAITING_BYTES + 1]));
        assert_eq!(block_on(client.take()).unwrap().len(), 1);
    }
}
