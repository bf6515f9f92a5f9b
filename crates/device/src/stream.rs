//! Streams and events as everyone else sees them.

use std::fmt;
use std::sync::Arc;

use meta::DeviceId;

use crate::backend::{Backend, EventBackend, StreamBackend};
use crate::{Cancel, Error, OpCall, Result, Span};

/// An in-order queue of work on one device. Handles share the queue.
#[derive(Clone)]
pub struct Stream {
    device: DeviceId,
    backend: Arc<dyn Backend>,
    queue: Arc<dyn StreamBackend>,
    cancel: Cancel,
}

impl Stream {
    pub(crate) fn new(device: DeviceId, backend: Arc<dyn Backend>, queue: Arc<dyn StreamBackend>) -> Stream {
        Stream { device, backend, queue, cancel: Cancel::NEVER }
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
        for operand in call.operands() {
            let holder = operand.buffer().device();
            if holder != self.device {
                return Err(Error::Operand {
                    op: call.name(),
                    operand: "buffer",
                    expected: format!("on {}", self.device),
                    got: format!("on {holder}"),
                });
            }
        }
        self.backend.supports(call).map_err(|reason| Error::Unsupported {
            device: self.device,
            op: call.name(),
            reason,
        })?;
        self.queue.launch(call, &self.cancel)
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
