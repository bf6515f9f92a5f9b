//! A device whose operations are timed one by one, for finding out where the time of a step goes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meta::DeviceId;

use crate::backend::{Backend, Description, Memory, MemoryInfo, SharedBytes, StreamBackend, StreamKind};
use crate::{Cancel, Event, Ledger, OpCall, Result, SimSpec, Span};

/// What the operations of a device took. Handles share what they know.
#[derive(Clone, Default)]
pub struct OperationTimes(Arc<Mutex<Vec<Timed>>>);

/// The time of all operations of one kind and size.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTime {
    /// Its name, with the shapes of what it reads and writes.
    pub operation: String,
    /// How many there were.
    pub count: usize,
    /// How long they took together.
    pub seconds: f64,
}

/// An operation between two marks of its stream.
struct Timed {
    operation: String,
    begin: Event,
    end: Event,
}

impl OperationTimes {
    /// What was queued since the last call, by kind and size, the longest first. Waits for it.
    pub fn take(&self) -> Result<Vec<OperationTime>> {
        let timed = std::mem::take(&mut *self.lock());
        let mut times: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        for Timed { operation, begin, end } in timed {
            end.wait()?;
            let seconds = end.seconds_since(&begin)?.unwrap_or(0.0);
            let time = times.entry(operation).or_default();
            *time = (time.0 + 1, time.1 + seconds);
        }
        let mut times: Vec<OperationTime> = times
            .into_iter()
            .map(|(operation, (count, seconds))| OperationTime { operation, count, seconds })
            .collect();
        times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(times)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Timed>> {
        // Entries are pushed whole, so what another thread left is good.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Another backend, with marks around every operation.
pub(crate) struct TimedBackend {
    pub(crate) inner: Arc<dyn Backend>,
    pub(crate) times: OperationTimes,
}

impl Backend for TimedBackend {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn memory(&self) -> Result<MemoryInfo> {
        self.inner.memory()
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.inner.allocate(bytes)
    }

    fn allocation_bytes(&self, bytes: usize) -> u64 {
        self.inner.allocation_bytes(bytes)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.inner.allocate_pinned(bytes)
    }

    fn pin_in_place(&self, regions: Vec<SharedBytes>) -> Result<Option<Vec<Arc<dyn Memory>>>> {
        self.inner.pin_in_place(regions)
    }

    fn open_stream(&self, kind: StreamKind, ledger: &Ledger) -> Result<Arc<dyn StreamBackend>> {
        let inner = self.inner.open_stream(kind, ledger)?;
        Ok(Arc::new(TimedStream { inner, times: self.times.clone() }))
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        self.inner.supports(call)
    }

    fn trim(&self) -> Result<()> {
        self.inner.trim()
    }

    fn scratch_bytes(&self, call: &OpCall) -> u64 {
        self.inner.scratch_bytes(call)
    }

    fn least_scratch_bytes(&self, call: &OpCall) -> u64 {
        self.inner.least_scratch_bytes(call)
    }

    fn workspace_bytes(&self) -> u64 {
        self.inner.workspace_bytes()
    }

    fn said(&self) -> Option<SimSpec> {
        self.inner.said()
    }

    fn reaches(&self, other: DeviceId) -> bool {
        self.inner.reaches(other)
    }

    fn addresses(&self, memory: &dyn Memory) -> bool {
        self.inner.addresses(memory)
    }
}

struct TimedStream {
    inner: Arc<dyn StreamBackend>,
    times: OperationTimes,
}

impl StreamBackend for TimedStream {
    fn launch(&self, call: &OpCall, cancel: &Cancel) -> Result<()> {
        let begin = self.inner.record_timed()?;
        self.inner.launch(call, cancel)?;
        let end = self.inner.record_timed()?;
        self.times.lock().push(Timed { operation: described(call), begin, end });
        Ok(())
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
        self.inner.copy(to, from, cancel)
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
        self.inner.read(from, to, cancel)
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
        self.inner.write(to, from, cancel)
    }

    fn record(&self) -> Result<Event> {
        self.inner.record()
    }

    fn record_timed(&self) -> Result<Event> {
        self.inner.record_timed()
    }

    fn wait(&self, event: &Event, cancel: &Cancel) -> Result<()> {
        self.inner.wait(event, cancel)
    }

    fn synchronize(&self, cancel: &Cancel) -> Result<()> {
        self.inner.synchronize(cancel)
    }
}

/// The name of an operation with what it reads and writes: `linear bf16 [1, 512, 4096], … -> bf16 [1, 512, 4096]`.
fn described(call: &OpCall) -> String {
    let mut text = call.name().to_owned();
    let mut operands = Vec::new();
    // What looks at an operand here cannot fail.
    let _ = call.each_operand(|operand| {
        operands.push(format!("{} {}", operand.encoding(), operand.shape()));
        Ok(())
    });
    let output = operands.pop().unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = write!(text, " {} -> {output}", operands.join(", "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Copy;
    use crate::{Device, NullBackend, Operand};
    use meta::{DType, Encoding, Shape};

    #[test]
    fn operations_are_counted_by_what_they_read_and_write() {
        let null = Device::new(Arc::new(NullBackend::new(0, 1 << 20)), 1 << 20);
        let (timed, times) = null.timed();
        let operand = || {
            let shape = Shape::new(&[2, 3]).unwrap();
            Operand::new(timed.allocate(24).unwrap(), Encoding::Plain(DType::F32), shape, 0).unwrap()
        };
        let stream = timed.compute_stream().unwrap();
        for _ in 0..2 {
            stream.launch(&Copy { x: operand(), out: operand() }.into()).unwrap();
        }
        let taken = times.take().unwrap();
        assert_eq!(taken.len(), 1);
        assert_eq!((taken[0].operation.as_str(), taken[0].count), ("copy f32 [2, 3] -> f32 [2, 3]", 2));
        assert!(times.take().unwrap().is_empty(), "what was taken is not told again");
    }
}
