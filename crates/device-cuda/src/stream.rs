//! Streams and events.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUgraphExec, CUstream};
use device::{
    Buffer, Cancel, Error, Event, EventBackend, GraphBackend, Ledger, OpCall, Result, Span, StreamBackend,
};

use crate::context::{Context, EventHandle, EventKind, lock};
use crate::graph::{Capture, CudaGraph};
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
    marks: AtomicU64,
    /// While the stream is captured: the end of what was queued before.
    before_capture: Mutex<Option<Arc<EventHandle>>>,
    is_capturing: AtomicBool,
}

// SAFETY: a stream is a handle that the driver lets any thread use.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    pub(crate) fn open(context: &Arc<Context>) -> Result<Arc<Queue>> {
        context.enter()?;
        let raw = context.check("opening a stream", context.driver().create_stream())?;
        Ok(Arc::new(Queue {
            context: Arc::clone(context),
            raw,
            marks: AtomicU64::new(0),
            before_capture: Mutex::default(),
            is_capturing: AtomicBool::new(false),
        }))
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

    /// The end of what is queued now as a mark on a block of memory. It costs the driver nothing: most blocks are used
    /// again on the same stream, where nothing has to wait.
    pub(crate) fn mark(queue: &Arc<Queue>) -> Mark {
        // Work that uses the block was queued before, so any later point of the stream is as good as this one: marks
        // of a larger number stand for all before them, whenever their events are recorded.
        let number = queue.marks.fetch_add(1, Ordering::AcqRel);
        Mark::new(Arc::clone(queue), number)
    }

    /// An event at the end of what runs or waits to run: what is captured does not.
    pub(crate) fn end_of_work(&self) -> Result<Arc<EventHandle>> {
        // The lock keeps a capture from beginning in between.
        let before_capture = lock(&self.before_capture);
        match &*before_capture {
            Some(event) => Ok(Arc::clone(event)),
            None => Ok(Arc::new(self.record()?)),
        }
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.is_capturing.load(Ordering::Acquire)
    }

    /// Begins to capture what is queued.
    fn begin_capture(&self) -> Result<()> {
        let mut before_capture = lock(&self.before_capture);
        let event = Arc::new(self.record()?);
        self.context.check("beginning a graph", self.context.driver().begin_capture(self.raw))?;
        *before_capture = Some(event);
        self.is_capturing.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the capture; what was captured, ready to be launched.
    fn end_capture(&self) -> Result<CUgraphExec> {
        let mut before_capture = lock(&self.before_capture);
        self.context.enter()?;
        let driver = self.context.driver();
        let graph = driver.end_capture(self.raw);
        *before_capture = None;
        self.is_capturing.store(false, Ordering::Release);
        let graph = self.context.check("ending a graph", graph)?;
        let exec = self.context.check("making a graph ready", driver.instantiate(graph));
        self.context.check("closing a graph's plan", driver.destroy_graph(graph))?;
        exec
    }

    /// Makes later work wait for an event.
    pub(crate) fn wait_event(&self, event: &EventHandle) -> Result<()> {
        self.context.enter()?;
        self.context.check("waiting for an event", self.context.driver().stream_wait(self.raw, event.raw()))
    }

    /// Makes later work wait for a mark, unless it is on this very stream.
    pub(crate) fn wait_mark(&self, mark: &Mark) -> Result<()> {
        if mark.is_on(self) {
            return Ok(());
        }
        // A graph cannot wait for what is outside of it; the host can, before the graph is launched.
        if self.is_capturing() {
            mark.event()?.wait()?;
            // The event may be of another context, which then is the current one.
            return self.context.enter();
        }
        self.wait_event(mark.event()?)
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
    /// What is kept for the graph that is captured.
    capture: Mutex<Option<Arc<Capture>>>,
}

impl CudaStream {
    /// A stream whose operations charge the ledger for what they take beside their operands.
    pub(crate) fn open(runtime: &Arc<Runtime>, ledger: &Ledger) -> Result<CudaStream> {
        let queue = Queue::open(&runtime.context)?;
        let ledger = ledger.clone();
        let (in_flight, capture) = (Mutex::default(), Mutex::default());
        Ok(CudaStream { runtime: Arc::clone(runtime), queue, ledger, in_flight, capture })
    }

    /// An error while the stream is captured: only operations can be.
    fn refuse_in_capture(&self, action: &str) -> Result<()> {
        if !self.queue.is_capturing() {
            return Ok(());
        }
        Err(Error::Device {
            device: self.runtime.context.id(),
            action: action.to_owned(),
            reason: "only operations can be recorded in a graph; do this before or after".into(),
        })
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
        let capture = if self.queue.is_capturing() { lock(&self.capture).clone() } else { None };
        call.each_operand(|operand| {
            if let Some(capture) = &capture {
                capture.keep(operand.buffer());
            }
            let memory = operand.buffer().memory().as_any().downcast_ref::<DeviceMemory>();
            let memory = memory.ok_or_else(|| Error::Device {
                device: self.runtime.context.id(),
                action: call.name().to_owned(),
                reason: format!("{operand:?} is not in this device's memory"),
            })?;
            memory.touch(&self.queue)
        })?;
        let launch = Launch {
            runtime: &self.runtime,
            queue: &self.queue,
            ledger: &self.ledger,
            op: call.name(),
            cancel,
            capture: capture.as_ref(),
        };
        ops::run(call, &launch)
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
        self.refuse_in_capture("copying")?;
        self.reap()?;
        let host = copy::copy(&self.runtime, &self.queue, (to, from), cancel)?;
        if let Some(buffer) = host {
            let event = self.queue.record()?;
            lock(&self.in_flight).push_back((event, buffer));
        }
        Ok(())
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
        self.refuse_in_capture("reading memory")?;
        copy::read(&self.queue, from, to, cancel)
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
        self.refuse_in_capture("writing memory")?;
        copy::write(&self.runtime, &self.queue, (to, from), cancel)
    }

    fn record(&self) -> Result<Event> {
        self.refuse_in_capture("marking a point of a stream")?;
        self.reap()?;
        Ok(Event::new(Arc::new(CudaEvent(self.queue.record()?))))
    }

    fn record_timed(&self) -> Result<Event> {
        self.refuse_in_capture("marking a point of a stream")?;
        self.reap()?;
        Ok(Event::new(Arc::new(CudaEvent(self.queue.record_timed()?))))
    }

    fn wait(&self, event: &Event, cancel: &Cancel) -> Result<()> {
        self.refuse_in_capture("waiting for an event")?;
        match event.backend().as_any().downcast_ref::<CudaEvent>() {
            Some(CudaEvent(own)) => self.queue.wait_event(own),
            None => event.wait_unless(cancel),
        }
    }

    fn synchronize(&self, cancel: &Cancel) -> Result<()> {
        self.refuse_in_capture("waiting for a stream")?;
        let done = self.queue.synchronize_unless(cancel);
        // Copies that nobody waits for any more still use their host buffers.
        if done != Err(Error::Cancelled) {
            lock(&self.in_flight).clear();
        }
        done
    }

    fn begin_capture(&self) -> Result<bool> {
        self.refuse_in_capture("beginning another graph")?;
        *lock(&self.capture) = Some(Arc::default());
        let begun = self.queue.begin_capture();
        if begun.is_err() {
            *lock(&self.capture) = None;
        }
        begun.map(|()| true)
    }

    fn end_capture(&self) -> Result<Option<Arc<dyn GraphBackend>>> {
        let Some(capture) = lock(&self.capture).take() else { return Ok(None) };
        let exec = self.queue.end_capture()?;
        Ok(Some(Arc::new(CudaGraph::new(Arc::clone(&self.queue), exec, capture))))
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
