//! Streams and events.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUstream;
use device::{Buffer, Cancel, Error, Event, EventBackend, Ledger, OpCall, Result, Span, StreamBackend};

use crate::context::{Context, EventHandle, EventKind, lock};
use crate::kernel::Launch;
use crate::memory::DeviceMemory;
use crate::pool::Mark;
use crate::runtime::Runtime;
use crate::{copy, ops};

/// The driver's side of a stream.
pub(crate) struct Queue {
    context: Arc<Context>,
    raw: CUstream,
    /// Number of marks so far.
    marks: Mutex<u64>,
}

// SAFETY: a stream is a handle that the driver lets any thread use.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    pub(crate) fn open(context: &Arc<Context>) -> Result<Arc<Queue>> {
        context.enter()?;
        let raw = context.check("opening a stream", context.driver().create_stream())?;
        Ok(Arc::new(Queue { context: Arc::clone(context), raw, marks: Mutex::default() }))
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// An event at the end of what is queued now.
    pub(crate) fn record(&self) -> Result<EventHandle> {
        self.context.enter()?;
        self.context.record(self.raw, EventKind::Plain)
    }

    /// The same with an event that will know when it was reached.
    pub(crate) fn record_timed(&self) -> Result<EventHandle> {
        self.context.enter()?;
        self.context.record(self.raw, EventKind::Timed)
    }

    /// The same as a mark on a block of memory.
    pub(crate) fn mark(queue: &Arc<Queue>) -> Result<Mark> {
        // The lock keeps the numbers in the order of the stream.
        let mut marks = lock(&queue.marks);
        let event = queue.record()?;
        *marks += 1;
        Ok(Mark::new(Arc::clone(queue), *marks, event))
    }

    /// Makes later work wait for an event.
    pub(crate) fn wait_event(&self, event: &EventHandle) -> Result<()> {
        self.context.enter()?;
        self.context.check("waiting for an event", self.context.driver().stream_wait(self.raw, event.raw()))
    }

    /// Makes later work wait for a mark, unless it is on this very stream.
    pub(crate) fn wait_mark(&self, mark: &Mark) -> Result<()> {
        if mark.is_on(self) { Ok(()) } else { self.wait_event(mark.event()) }
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.context.enter()?;
        self.context.check("queued work", self.context.driver().synchronize_stream(self.raw))
    }

    /// The same, unless it is cancelled before.
    pub(crate) fn synchronize_unless(&self, cancel: &Cancel) -> Result<()> {
        if cancel.is_possible() { self.record()?.wait_unless(cancel) } else { self.synchronize() }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.context.leave("closing a stream", |driver| driver.destroy_stream(self.raw));
    }
}

/// A stream as the rest of the program sees it.
pub(crate) struct CudaStream {
    runtime: Arc<Runtime>,
    queue: Arc<Queue>,
    ledger: Ledger,
    /// Host buffers that queued copies still read or write.
    in_flight: Mutex<VecDeque<(EventHandle, Buffer)>>,
}

impl CudaStream {
    /// A stream whose operations charge the ledger for what they take beside their operands.
    pub(crate) fn open(runtime: &Arc<Runtime>, ledger: &Ledger) -> Result<CudaStream> {
        let queue = Queue::open(&runtime.context)?;
        let ledger = ledger.clone();
        Ok(CudaStream { runtime: Arc::clone(runtime), queue, ledger, in_flight: Mutex::default() })
    }

    /// Lets go of host buffers whose copies are done.
    fn reap(&self) -> Result<()> {
        let mut in_flight = lock(&self.in_flight);
        while let Some((event, _)) = in_flight.front() {
            if !event.is_done()? {
                break;
            }
            in_flight.pop_front();
        }
        Ok(())
    }
}

impl StreamBackend for CudaStream {
    fn launch(&self, call: &OpCall, cancel: &Cancel) -> Result<()> {
        for operand in call.operands() {
            let memory = operand.buffer().memory().as_any().downcast_ref::<DeviceMemory>();
            let memory = memory.ok_or_else(|| Error::Device {
                device: self.runtime.context.id(),
                action: call.name().to_owned(),
                reason: format!("{operand:?} is not in this device's memory"),
            })?;
            memory.touch(&self.queue)?;
        }
        let launch = Launch {
            runtime: &self.runtime,
            queue: &self.queue,
            ledger: &self.ledger,
            op: call.name(),
            cancel,
        };
        ops::run(call, &launch)
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
        self.reap()?;
        let host = copy::copy(&self.runtime, &self.queue, (to, from), cancel)?;
        if let Some(buffer) = host {
            let event = self.queue.record()?;
            lock(&self.in_flight).push_back((event, buffer));
        }
        Ok(())
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
        copy::read(&self.queue, from, to, cancel)
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
        copy::write(&self.runtime, &self.queue, (to, from), cancel)
    }

    fn record(&self) -> Result<Event> {
        self.reap()?;
        Ok(Event::new(Arc::new(CudaEvent(self.queue.record()?))))
    }

    fn record_timed(&self) -> Result<Event> {
        self.reap()?;
        Ok(Event::new(Arc::new(CudaEvent(self.queue.record_timed()?))))
    }

    fn wait(&self, event: &Event, cancel: &Cancel) -> Result<()> {
        match event.backend().as_any().downcast_ref::<CudaEvent>() {
            Some(CudaEvent(own)) => self.queue.wait_event(own),
            None => event.wait_unless(cancel),
        }
    }

    fn synchronize(&self, cancel: &Cancel) -> Result<()> {
        let done = self.queue.synchronize_unless(cancel);
        // Copies that nobody waits for any more still use their host buffers.
        if done != Err(Error::Cancelled) {
            lock(&self.in_flight).clear();
        }
        done
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // Host buffers of copies that still run must outlive them.
        if !lock(&self.in_flight).is_empty()
            && let Err(error) = self.queue.synchronize()
        {
            self.runtime.context.keep(error);
        }
    }
}

/// A point in a stream.
struct CudaEvent(EventHandle);

impl EventBackend for CudaEvent {
    fn is_done(&self) -> Result<bool> {
        self.0.is_done()
    }

    fn wait(&self, cancel: &Cancel) -> Result<()> {
        self.0.wait_unless(cancel)
    }

    fn seconds_since(&self, earlier: &Event) -> Result<Option<f64>> {
        match earlier.backend().as_any().downcast_ref::<CudaEvent>() {
            Some(CudaEvent(earlier)) => self.0.seconds_since(earlier),
            None => Ok(None),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
