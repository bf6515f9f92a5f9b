//! Streams of devices that the host itself works for: operations run at once in the caller's thread,
//! copies of a copy stream run in order in a thread of their own.

use std::any::Any;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::backend::{EventBackend, StreamBackend, StreamKind};
use crate::{Cancel, Event, OpCall, Result, Span};

/// Does the work of a host stream, synchronously: to its end, or until it is cancelled.
pub trait HostExecutor: Send + Sync + 'static {
    /// Runs an operation.
    fn run(&self, call: &OpCall, cancel: &Cancel) -> Result<()>;

    /// Copies bytes; both spans have the same length.
    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()>;

    /// Reads bytes of a span of the same length.
    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()>;

    /// Writes bytes of a span of the same length.
    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()>;
}

/// How often who waits for an event looks whether it is cancelled.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A stream whose work the host does.
pub struct HostStream {
    executor: Arc<dyn HostExecutor>,
    worker: Option<Worker>,
}

struct Worker {
    commands: Option<Sender<Command>>,
    failure: Arc<Mutex<Option<crate::Error>>>,
    thread: Option<JoinHandle<()>>,
    /// Set when the stream goes: nobody waits for the rest of its work, and who holds its events is told so.
    gone: Cancel,
}

enum Command {
    Launch(Box<OpCall>),
    Copy(Span, Span),
    Wait(Event),
    Record(Arc<HostEvent>),
}

impl HostStream {
    /// A copy stream starts a thread; any other works in the caller's.
    pub fn new(executor: Arc<dyn HostExecutor>, kind: StreamKind) -> HostStream {
        let worker = (kind == StreamKind::Copy).then(|| Worker::start(Arc::clone(&executor)));
        HostStream { executor, worker }
    }
}

impl StreamBackend for HostStream {
    fn launch(&self, call: &OpCall, cancel: &Cancel) -> Result<()> {
        match &self.worker {
            None => self.executor.run(call, cancel),
            Some(worker) => worker.send(Command::Launch(Box::new(call.clone()))),
        }
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
        match &self.worker {
            None => self.executor.copy(to, from, cancel),
            Some(worker) => worker.send(Command::Copy(to.clone(), from.clone())),
        }
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
        self.synchronize(cancel)?;
        self.executor.read(from, to, cancel)
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
        self.synchronize(cancel)?;
        self.executor.write(to, from, cancel)
    }

    fn record(&self) -> Result<Event> {
        let event = Arc::new(HostEvent::default());
        match &self.worker {
            None => event.finish(Ok(())),
            Some(worker) => worker.send(Command::Record(Arc::clone(&event)))?,
        }
        Ok(Event::new(event))
    }

    fn record_timed(&self) -> Result<Event> {
        // Every event of the host notes its time.
        self.record()
    }

    fn wait(&self, event: &Event, cancel: &Cancel) -> Result<()> {
        match &self.worker {
            None => event.wait_unless(cancel),
            Some(worker) => worker.send(Command::Wait(event.clone())),
        }
    }

    fn synchronize(&self, cancel: &Cancel) -> Result<()> {
        let waited = self.record()?.wait_unless(cancel);
        match &self.worker {
            None => waited,
            // The failure is reported once; after that the stream works again.
            Some(worker) => lock(&worker.failure).take().map_or(waited, Err),
        }
    }
}

impl Worker {
    fn start(executor: Arc<dyn HostExecutor>) -> Worker {
        let (commands, queue) = channel::<Command>();
        let failure = Arc::new(Mutex::new(None));
        let gone = Cancel::default();
        let (seen, cancel) = (Arc::clone(&failure), gone.clone());
        let thread = std::thread::spawn(move || {
            for command in queue {
                perform(&*executor, &seen, command, &cancel);
            }
        });
        Worker { commands: Some(commands), failure, thread: Some(thread), gone }
    }

    fn send(&self, command: Command) -> Result<()> {
        let commands = self.commands.as_ref().expect("the sender is taken only by drop");
        // The thread ends only when the sender is gone: a send cannot fail unless an executor panicked,
        // and then the event's waiters must not hang.
        if let Err(unsent) = commands.send(command)
            && let Command::Record(event) = unsent.0
        {
            event.finish(Ok(()));
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.gone.cancel();
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the executor has been printed by its thread; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

/// Does one command. After a failure the stream skips work until the failure has been reported, so
/// that nothing computes on bytes that never came; events are always finished.
fn perform(
    executor: &dyn HostExecutor,
    failure: &Mutex<Option<crate::Error>>,
    command: Command,
    cancel: &Cancel,
) {
    let failed = lock(failure).clone();
    let result = match (command, failed) {
        (Command::Record(event), failed) => {
            event.finish(failed.map_or(Ok(()), Err));
            return;
        }
        (_, Some(_)) => return,
        (Command::Launch(call), None) => executor.run(&call, cancel),
        (Command::Copy(to, from), None) => cancel.check().and_then(|()| executor.copy(&to, &from, cancel)),
        (Command::Wait(event), None) => event.wait_unless(cancel),
    };
    if let Err(error) = result {
        *lock(failure) = Some(error);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A point in a host stream.
#[derive(Default)]
struct HostEvent {
    outcome: Mutex<Option<(Instant, Result<()>)>>,
    finished: Condvar,
}

impl HostEvent {
    fn finish(&self, outcome: Result<()>) {
        *lock(&self.outcome) = Some((Instant::now(), outcome));
        self.finished.notify_all();
    }
}

impl EventBackend for HostEvent {
    fn is_done(&self) -> Result<bool> {
        lock(&self.outcome).clone().map_or(Ok(false), |(_, outcome)| outcome.map(|()| true))
    }

    fn wait(&self, cancel: &Cancel) -> Result<()> {
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some((_, done)) = &*outcome {
                return done.clone();
            }
            outcome = if cancel.is_possible() {
                cancel.check()?;
                let woken = self.finished.wait_timeout(outcome, LOOK_INTERVAL);
                woken.unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.finished.wait(outcome).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    fn seconds_since(&self, earlier: &Event) -> Result<Option<f64>> {
        let time = |event: &HostEvent| lock(&event.outcome).as_ref().map(|(time, _)| *time);
        let earlier = earlier.backend().as_any().downcast_ref::<HostEvent>().and_then(time);
        Ok(earlier.zip(time(self)).map(|(earlier, later)| match later.checked_duration_since(earlier) {
            Some(since) => since.as_secs_f64(),
            None => -earlier.duration_since(later).as_secs_f64(),
        }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
