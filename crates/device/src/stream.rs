//! Streams and events as everyone else sees them.

use std::fmt;
use std::sync::Arc;

use meta::DeviceId;

use crate::backend::{Backend, EventBackend, StreamBackend};
use crate::graph::{Graph, Recording};
use crate::{Buffer, Cancel, Error, Ledger, OpCall, Result, Span};

/// An in-order queue of work on one device. Handles share the queue.
#[derive(Clone)]
pub struct Stream {
    device: DeviceId,
    backend: Arc<dyn Backend>,
    /// What is charged for values between the parts of an operation that the device has not.
    ledger: Ledger,
    queue: Arc<dyn StreamBackend>,
    cancel: Cancel,
}

/// Bytes that the host carries at a time between devices that cannot reach each other.
const CARRIED_BYTES: usize = 16 << 20;

impl Stream {
    pub(crate) fn new(ledger: Ledger, backend: Arc<dyn Backend>, queue: Arc<dyn StreamBackend>) -> Stream {
        Stream { device: ledger.device(), backend, ledger, queue, cancel: Cancel::NEVER }
    }

    /// The same queue for a job that can be cancelled: then its calls fail with [`Error::Cancelled`], those that wait or
    /// compute at that moment included. Other handles of the queue are as they were.
    #[must_use]
    pub fn with_cancel(&self, cancel: &Cancel) -> Stream {
        Stream { cancel: cancel.clone(), ..self.clone() }
    }

    /// What cancels the calls of this handle.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// The device it runs on.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Checks an operation, then queues it.
    pub fn launch(&self, call: &OpCall) -> Result<()> {
        self.cancel.check()?;
        call.validate()?;
        call.each_operand(|operand| match operand.buffer().device() {
            holder if holder == self.device => Ok(()),
            holder => Err(Error::Operand {
                op: call.name(),
                operand: "buffer",
                expected: format!("on {}", self.device),
                got: format!("on {holder}"),
            }),
        })?;
        match self.backend.supports(call) {
            Ok(()) => self.queue.launch(call, &self.cancel),
            Err(reason) => self.launch_lowered(call, reason),
        }
    }

    /// Queues an operation that the device has not as the operations that it is made of.
    fn launch_lowered(&self, call: &OpCall, reason: String) -> Result<()> {
        let mut allocate = |bytes: usize| {
            let charge = self.ledger.charge(self.backend.allocation_bytes(bytes));
            let charge = charge.map_err(|short| short.during(call.name()))?;
            Ok(Buffer::new(self.device, self.backend.allocate(bytes)?, Some(charge)))
        };
        match call.lower(&mut allocate)? {
            Some(parts) => parts.iter().try_for_each(|part| self.launch(part)),
            None => Err(Error::Unsupported { device: self.device, op: call.name(), reason }),
        }
    }

    /// Queues a copy of another device's bytes, after the work that is queued there. Whichever of the two can address the
    /// other's memory copies; where neither can, the host waits and carries the bytes.
    pub fn bring(&self, to: &Span, from: &Span, source: &Stream) -> Result<()> {
        if self.backend.addresses(&**from.buffer.memory()) {
            self.wait(&source.record()?)?;
            return self.copy(to, from);
        }
        if source.backend.addresses(&**to.buffer.memory()) {
            source.wait(&self.record()?)?;
            source.copy(to, from)?;
            return self.wait(&source.record()?);
        }
        same_length(to.len, from.len)?;
        let mut carried = vec![0; CARRIED_BYTES.min(from.len)];
        for start in (0..from.len).step_by(CARRIED_BYTES) {
            let bytes = &mut carried[..CARRIED_BYTES.min(from.len - start)];
            source.read(&from.part(start, bytes.len()), bytes)?;
            self.write(&to.part(start, bytes.len()), bytes)?;
        }
        Ok(())
    }

    /// Queues a copy of bytes; both spans must have the same length.
    pub fn copy(&self, to: &Span, from: &Span) -> Result<()> {
        self.cancel.check()?;
        same_length(to.len, from.len)?;
        if to.len == 0 {
            return Ok(());
        }
        self.queue.copy(to, from, &self.cancel)
    }

    /// Waits for all queued work, then reads device memory; the span must be as long as `to`.
    pub fn read(&self, from: &Span, to: &mut [u8]) -> Result<()> {
        self.cancel.check()?;
        same_length(from.len, to.len())?;
        if to.is_empty() { Ok(()) } else { self.queue.read(from, to, &self.cancel) }
    }

    /// Writes host memory into the device's after all queued work; the span must be as long as `from`.
    pub fn write(&self, to: &Span, from: &[u8]) -> Result<()> {
        self.cancel.check()?;
        same_length(to.len, from.len())?;
        if from.is_empty() { Ok(()) } else { self.queue.write(to, from, &self.cancel) }
    }

    /// Marks this point of the queue.
    pub fn record(&self) -> Result<Event> {
        self.queue.record()
    }

    /// Marks this point of the queue with an event that will know when it was reached.
    pub fn record_timed(&self) -> Result<Event> {
        self.queue.record_timed()
    }

    /// Makes later work of this queue wait for an event of any device.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.cancel.check()?;
        self.queue.wait(event, &self.cancel)
    }

    /// Records the operations that `work` launches on this stream instead of running them; none, and `work` is not run,
    /// if the device cannot. Nothing else may use the stream meanwhile, and `work` must not copy, read, write or wait.
    /// Kernels are made when they are first launched, so the same work should have run once before.
    pub fn capture<E: From<Error>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Option<Graph>, E> {
        self.cancel.check()?;
        let Some(recording) = Recording::begin(&*self.queue)? else { return Ok(None) };
        work()?;
        Ok(recording.end()?.map(|graph| Graph::new(graph, &self.cancel)))
    }

    /// Blocks until all queued work is done; returns the first error of any of it.
    pub fn synchronize(&self) -> Result<()> {
        self.cancel.check()?;
        self.queue.synchronize(&self.cancel)
    }
}

fn same_length(to: usize, from: usize) -> Result<()> {
    if to == from {
        return Ok(());
    }
    Err(Error::Operand {
        op: "copy bytes",
        operand: "destination",
        expected: format!("{from} bytes"),
        got: format!("{to} bytes"),
    })
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.device)
    }
}

/// A point in a stream.
#[derive(Clone)]
pub struct Event(Arc<dyn EventBackend>);

impl Event {
    /// Wraps a backend's event.
    pub fn new(event: Arc<dyn EventBackend>) -> Event {
        Event(event)
    }

    /// Whether the work before it is done.
    pub fn is_done(&self) -> Result<bool> {
        self.0.is_done()
    }

    /// Blocks until the work before it is done; an error of that work is returned.
    pub fn wait(&self) -> Result<()> {
        self.0.wait(&Cancel::NEVER)
    }

    /// The same, unless it is cancelled before.
    pub fn wait_unless(&self, cancel: &Cancel) -> Result<()> {
        cancel.check()?;
        self.0.wait(cancel)
    }

    /// Seconds from another event to this one by the device's clock. None unless both are timed, done, and of
    /// the same clock.
    pub fn seconds_since(&self, earlier: &Event) -> Result<Option<f64>> {
        self.0.seconds_since(earlier)
    }

    /// The backend's own event.
    pub fn backend(&self) -> &dyn EventBackend {
        &*self.0
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}
