//! Who is connected, and what they are told.
//!
//! ```text
//! engine ── event ──┐
//!                   ├── one channel ── one thread, in order ── one queue per client ── its socket
//! routes ── send ───┘
//! ```
//!
//! The thread makes each frame once, however many clients get it. Handlers reach the hub as
//! `axum::Extension<Arc<Hub>>`.

mod client;
mod dispatch;
mod frame;
mod progress;
mod roster;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use engine::{Event, EventSink, JobEvent, Milestone, WorkerHandle};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::stats::{Stats, Totals};

pub(crate) use client::Client;
pub(crate) use frame::{number, text as text_frame};
pub(crate) use roster::Roster;

use dispatch::Dispatcher;

/// Previews that wait to be encoded may have so many bytes; later ones are skipped, results never.
const WAITING_PREVIEW_BYTES: usize = 32 << 20;

/// The connected clients.
pub struct Hub {
    commands: Sender<Command>,
    roster: Arc<Roster>,
    stats: Arc<Stats>,
    waiting_preview_bytes: Arc<AtomicUsize>,
    worker: Arc<dyn WorkerHandle>,
}

/// Who is to receive a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// One client, by its id; nobody if it is not connected.
    Client(String),
    /// All clients.
    Everyone,
}

/// What the hub's thread is told.
pub(crate) enum Command {
    /// By the engine, when, and what models did until then if the event is a job's start or end.
    Event(Instant, Event, Option<Totals>),
    /// By a route: the frame's type and its data as JSON.
    Send(Audience, String, String),
}

impl Hub {
    /// Starts the thread. Previews have at most `preview_side` pixels along their longer side.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(crate) fn start(worker: Arc<dyn WorkerHandle>, preview_side: usize) -> Result<Arc<Hub>> {
        let (commands, waiting) = mpsc::channel();
        let hub = Arc::new(Hub {
            commands,
            roster: Arc::new(Roster::default()),
            stats: Arc::new(Stats::default()),
            waiting_preview_bytes: Arc::default(),
            worker,
        });
        let dispatcher = Dispatcher::new(
            Arc::clone(&hub.roster),
            Arc::clone(&hub.stats),
            Arc::clone(&hub.waiting_preview_bytes),
            preview_side,
        );
        let thread = std::thread::Builder::new().name("hub".to_owned());
        thread.spawn(move || dispatcher.run(&waiting)).map_err(Error::Threads)?;
        Ok(hub)
    }

    /// Sends `{"type": kind, "data": data}`, after everything that was sent before. Returns at once.
    pub fn send(&self, to: Audience, kind: &str, data: &Value) {
        self.command(Command::Send(to, kind.to_owned(), data.to_string()));
    }

    /// Who is connected.
    pub(crate) fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// What jobs took.
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    fn command(&self, command: Command) {
        // The thread ends only with the hub.
        let _ = self.commands.send(command);
    }

    /// Drops a preview that would wait behind too many others.
    fn admit_picture(&self, event: &mut Event) {
        let Event::Job { event: JobEvent::Progress(progress), .. } = event else { return };
        let Some(picture) = &progress.picture else { return };
        let bytes = picture.rgb.len();
        let waiting = self.waiting_preview_bytes.fetch_add(bytes, Ordering::Relaxed);
        if !picture.is_result && waiting + bytes > WAITING_PREVIEW_BYTES {
            self.waiting_preview_bytes.fetch_sub(bytes, Ordering::Relaxed);
            progress.picture = None;
        }
    }
}

impl EventSink for Hub {
    fn event(&self, mut event: Event) {
        self.admit_picture(&mut event);
        let is_boundary = match &event {
            Event::Job { event: JobEvent::Message(message), .. } => message.milestone == Milestone::Started,
            Event::Job { event: JobEvent::Ended { .. }, .. } => true,
            _ => false,
        };
        let totals = is_boundary.then(|| Totals::of(self.worker.activity()));
        self.command(Command::Event(Instant::now(), event, totals));
    }
}
