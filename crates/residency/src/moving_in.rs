//! Blocks on their way to the devices where they stay. A session is opened as soon as they have their places: a thread copies
//! them in the order of use, and whoever leases one waits for that one alone. So a model computes while the rest of it
//! arrives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use device::{Buffer, Cancel, Device, Error, Event, Result, Span, Stream, StreamKind};

use crate::manifest::Manifest;
use crate::profile::CopyMarks;
use crate::reading::Arriving;

/// A block that stays where it computes, until it is there.
#[derive(Default)]
pub(crate) struct Newcomer {
    arriving: Arc<Arriving>,
    is_here: AtomicBool,
}

impl Newcomer {
    /// Waits until it is there; whether that took a look at its copy.
    pub(crate) fn wait(&self, cancel: &Cancel) -> Result<bool> {
        if self.is_here.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.arriving.wait(cancel)?.end.wait_unless(cancel)?;
        self.is_here.store(true, Ordering::Release);
        Ok(true)
    }
}

/// What is to be copied for a block.
struct Move {
    stream: Stream,
    /// Where to and where from.
    pieces: Vec<(Span, Buffer)>,
    arriving: Arc<Arriving>,
}

/// The moves of a model's copies, before they begin.
#[derive(Default)]
pub(crate) struct Moves {
    all: Vec<Move>,
    streams: Vec<Stream>,
    /// Ends them; no job does, since others may wait for the same copies.
    ended: Cancel,
}

impl Moves {
    /// One more block, which is to be copied after those before it.
    pub(crate) fn add(&mut self, device: &Device, pieces: Vec<(Span, Buffer)>) -> Result<Newcomer> {
        let stream = match self.streams.iter().find(|stream| stream.device() == device.id()) {
            Some(stream) => stream.clone(),
            None => {
                let stream = device.open_stream(StreamKind::Copy)?.with_cancel(&self.ended);
                self.streams.push(stream.clone());
                stream
            }
        };
        let newcomer = Newcomer::default();
        self.all.push(Move { stream, pieces, arriving: Arc::clone(&newcomer.arriving) });
        Ok(newcomer)
    }

    /// Begins to copy what has been on its way since then.
    pub(crate) fn begin(self, manifest: &Manifest, since: Instant) -> Result<MovingIn> {
        let took = Arc::new(Mutex::new(None));
        let has_failed = Arc::new(AtomicBool::new(false));
        if self.all.is_empty() {
            *took.lock().unwrap_or_else(PoisonError::into_inner) = Some(since.elapsed());
            return Ok(MovingIn { ended: self.ended, took, has_failed, thread: None });
        }
        let ended = self.ended.clone();
        let (own_took, own_failed) = (Arc::clone(&took), Arc::clone(&has_failed));
        let files = Manifest::files_of(manifest.weights());
        let work = move || {
            // Whoever waits for a block is told why its copy failed, and a session verifies its files.
            if self.copy().is_ok() && files.iter().all(|bytes| bytes.verify().is_ok()) {
                *own_took.lock().unwrap_or_else(PoisonError::into_inner) = Some(since.elapsed());
            } else {
                own_failed.store(true, Ordering::Release);
            }
        };
        let thread = Builder::new().name("moving-in".to_owned()).spawn(work);
        let thread = thread.map_err(|error| failed(format!("no thread could be started: {error}")))?;
        Ok(MovingIn { ended, took, has_failed, thread: Some(thread) })
    }

    /// Copies all blocks, and tells whoever waits for one that its copy is queued, or why it is not.
    fn copy(self) -> Result<()> {
        let mut result = Ok(());
        let mut before = None::<Event>;
        for block in self.all {
            let queued = result.clone().and_then(|()| block.queue());
            // One block is queued behind the one that travels, so that little is left where this is ended.
            let next = queued.as_ref().ok().map(|marks| marks.end.clone());
            result = queued.as_ref().map(drop).map_err(Clone::clone);
            block.arriving.finish(queued);
            if let Some(travels) = std::mem::replace(&mut before, next) {
                result = result.and_then(|()| travels.wait_unless(&self.ended));
            }
        }
        // Nothing may write into the copies once they are given back.
        for stream in self.streams {
            let done = stream.with_cancel(&Cancel::NEVER).synchronize();
            result = result.and(done);
        }
        result
    }
}

impl Drop for Move {
    /// Nobody waits for a copy that will never be queued.
    fn drop(&mut self) {
        self.arriving.finish(Err(failed("it was given up".to_owned())));
    }
}

impl Move {
    fn queue(&self) -> Result<CopyMarks> {
        self.stream.cancel().check()?;
        let begin = self.stream.record_timed()?;
        for (to, from) in &self.pieces {
            self.stream.copy(to, &from.whole())?;
        }
        let bytes = self.pieces.iter().map(|(to, _)| to.len as u64).sum();
        Ok(CopyMarks { begin, end: self.stream.record_timed()?, bytes })
    }
}

/// Copies under way. Dropping it ends them.
pub(crate) struct MovingIn {
    ended: Cancel,
    /// How long it took until everything was there, until somebody takes note.
    took: Arc<Mutex<Option<Duration>>>,
    has_failed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MovingIn {
    /// Whether something is still on its way.
    pub(crate) fn goes_on(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Whether a copy failed, or a file changed before all of it was read: then these copies are worth nothing.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// How long it took, told once, when everything is there.
    pub(crate) fn take_time(&self) -> Option<Duration> {
        self.took.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for MovingIn {
    fn drop(&mut self) {
        self.ended.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by its thread; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

fn failed(reason: String) -> Error {
    Error::Device { device: meta::DeviceId::CPU, action: "bringing blocks to where they stay".into(), reason }
}
