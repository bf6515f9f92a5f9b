//! The clients by id. A lock is held only to add a frame to queues, so that what a new client is told first and
//! what everybody is told next are in one order.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::ws::Message;

use super::client::Client;
use super::{Audience, frame};

/// The connected clients, and what a new one is told.
#[derive(Default)]
pub(crate) struct Roster(Mutex<Listed>);

/// Who sent a job, and the node of it that is shown.
type Shown = (String, String);

#[derive(Default)]
struct Listed {
    clients: HashMap<String, Arc<Client>>,
    remaining: usize,
    /// By running job, in the order in which they began: who sent it, and the node of it that is shown.
    running: Vec<(String, Shown)>,
}

impl Roster {
    /// Registers a socket. One of the same id that is there already stays open and hears nothing any more.
    pub(crate) fn connect(&self, id: Option<String>) -> Arc<Client> {
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(new_id);
        let client = Arc::new(Client::new(id.clone()));
        let mut listed = self.lock();
        client.push(frame::status(listed.remaining, Some(&id)));
        for (_, (_, node)) in listed.running.iter().filter(|(_, (owner, _))| *owner == id) {
            client.push(frame::executing_again(node));
        }
        listed.clients.insert(id, Arc::clone(&client));
        client
    }

    /// Forgets a socket, but not one that took its id over.
    pub(crate) fn disconnect(&self, client: &Arc<Client>) {
        let mut listed = self.lock();
        if listed.clients.get(client.id()).is_some_and(|listed| Arc::ptr_eq(listed, client)) {
            listed.clients.remove(client.id());
        }
    }

    /// Whether a client of this id is there.
    pub(crate) fn is_connected(&self, id: &str) -> bool {
        self.lock().clients.contains_key(id)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().clients.len()
    }

    /// Sends a frame.
    pub(super) fn deliver(&self, to: &Audience, frame: Message) {
        let listed = self.lock();
        match to {
            Audience::Client(id) => {
                if let Some(client) = listed.clients.get(id) {
                    client.push(frame);
                }
            }
            Audience::Everyone => {
                for client in listed.clients.values() {
                    client.push(frame.clone());
                }
            }
        }
    }

    /// Those that a frame would reach.
    pub(super) fn reached(&self, to: &Audience) -> Vec<Arc<Client>> {
        let listed = self.lock();
        match to {
            Audience::Client(id) => listed.clients.get(id).cloned().into_iter().collect(),
            Audience::Everyone => listed.clients.values().cloned().collect(),
        }
    }

    /// Whether a frame would reach anybody.
    pub(super) fn is_reached(&self, to: &Audience) -> bool {
        let listed = self.lock();
        match to {
            Audience::Client(id) => listed.clients.contains_key(id),
            Audience::Everyone => !listed.clients.is_empty(),
        }
    }

    /// Tells everybody how many jobs there are.
    pub(super) fn tell_remaining(&self, remaining: usize) {
        let mut listed = self.lock();
        listed.remaining = remaining;
        let frame = frame::status(remaining, None);
        for client in listed.clients.values() {
            client.push(frame.clone());
        }
    }

    /// How many jobs there are before anything was told.
    pub(crate) fn set_remaining(&self, remaining: usize) {
        self.lock().remaining = remaining;
    }

    /// What a client that comes back is told of a job; nothing once it has ended.
    pub(super) fn set_running(&self, job: &str, shown: Option<Shown>) {
        let running = &mut self.lock().running;
        let found = running.iter().position(|(id, _)| id == job);
        match (found, shown) {
            (Some(found), Some(shown)) => running[found].1 = shown,
            (Some(found), None) => drop(running.remove(found)),
            (None, Some(shown)) => running.push((job.to_owned(), shown)),
            (None, None) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 32 hexadecimal digits that nobody has. Each state of a hasher has fresh random keys.
fn new_id() -> String {
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(client: &Client) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let frames = runtime.block_on(client.take()).unwrap();
        frames.into_iter().map(|frame| frame.into_text().unwrap().to_string()).collect()
    }

    #[test]
    fn a_second_socket_takes_over_and_the_first_leaving_changes_nothing() {
        let roster = Roster::default();
        let first = roster.connect(Some("a".to_owned()));
        let second = roster.connect(Some("a".to_owned()));
        roster.disconnect(&first);
        roster.deliver(&Audience::Client("a".to_owned()), Message::text("x"));
        assert_eq!(received(&first).len(), 1, "only its own status");
        assert_eq!(received(&second).last().unwrap(), "x");
        roster.disconnect(&second);
        assert_eq!(roster.len(), 0);
    }

    #[test]
    fn a_client_that_comes_back_learns_what_runs() {
        let roster = Roster::default();
        roster.set_remaining(3);
        roster.set_running("p", Some(("a".to_owned(), "6".to_owned())));
        roster.set_running("p", Some(("a".to_owned(), "7".to_owned())));
        roster.set_running("q", Some(("c".to_owned(), "8".to_owned())));
        roster.set_running("r", Some(("a".to_owned(), "9".to_owned())));
        let frames = received(&roster.connect(Some("a".to_owned())));
        assert_eq!(
            frames,
            [
                r#"{"type":"status","data":{"status":{"exec_info":{"queue_remaining":3}},"sid":"a"}}"#,
                r#"{"type":"executing","data":{"node":"7"}}"#,
                r#"{"type":"executing","data":{"node":"9"}}"#
            ],
            "one of each job that it sent"
        );
        roster.set_running("p", None);
        roster.set_running("r", None);
        assert_eq!(received(&roster.connect(Some("a".to_owned()))).len(), 1, "they ended");
        assert_eq!(received(&roster.connect(Some("b".to_owned()))).len(), 1);
    }

    #[test]
    fn invented_ids_differ() {
        let (one, other) = (new_id(), new_id());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
