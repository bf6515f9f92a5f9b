//! The null device: allocates and computes nothing, so that order and accounting test without bytes. Made like another
//! device, it is that device's dry run: its ledger is charged what the other's would be, and its clock moves by what
//! each operation is said to take, so that running a model on it tells the memory and the time that the model needs.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meta::{DType, DeviceId, DeviceKind};

use crate::backend::{
    Backend, Capabilities, Description, EventBackend, GraphBackend, Memory, MemoryInfo, SharedBytes,
    StreamBackend, StreamKind,
};
use crate::buffer::ReadOnly;
use crate::{Buffer, Cancel, Charge, Device, Event, Ledger, OpCall, Result, Span};

/// Tells how many seconds a call would take.
pub type OpSeconds = Arc<dyn Fn(&OpCall) -> f64 + Send + Sync>;

/// A device that only counts.
pub struct NullBackend {
    id: DeviceId,
    total: u64,
    like: Option<Likeness>,
    counts: Arc<Counts>,
}

/// What a null device imitates.
#[derive(Clone)]
struct Likeness {
    device: Device,
    seconds: OpSeconds,
}

#[derive(Default)]
struct Counts {
    launches: AtomicU64,
    copied: AtomicU64,
}

impl NullBackend {
    /// A null device that says it has `total` bytes. Its operations take no time and nothing beside their operands.
    pub fn new(ordinal: u16, total: u64) -> NullBackend {
        NullBackend { id: DeviceId::null(ordinal), total, like: None, counts: Arc::default() }
    }

    /// The dry run of another device: element types, sizes of allocations and what operations take for a moment are
    /// that device's, and each operation moves the clock of its stream by `seconds`. Copies take no time, and host
    /// memory that it is given is neither pinned nor held.
    pub fn like(device: &Device, ordinal: u16, seconds: OpSeconds) -> NullBackend {
        let total = device.ledger().report().budget;
        let like = Likeness { device: device.clone(), seconds };
        NullBackend { like: Some(like), ..NullBackend::new(ordinal, total) }
    }

    /// Operations launched so far.
    pub fn launches(&self) -> u64 {
        self.counts.launches.load(Ordering::Relaxed)
    }

    /// Bytes copied so far.
    pub fn copied_bytes(&self) -> u64 {
        self.counts.copied.load(Ordering::Relaxed)
    }

    fn likeness(&self) -> Option<&Device> {
        self.like.as_ref().map(|like| &like.device)
    }
}

impl Backend for NullBackend {
    fn describe(&self) -> Description {
        let like = self.likeness().map(Device::description);
        Description {
            id: self.id,
            name: like.map_or("null device".into(), |like| format!("dry run of {}", like.name)),
            detail: "allocates and computes nothing".into(),
            activations: like.map_or(&[DType::F32, DType::BF16, DType::F16], |like| like.activations),
            simulated: true,
            capabilities: Capabilities {
                // Nothing is copied, so nothing has to be pinned to be fast.
                copies_fast_from_pinned_only: false,
                ..like.map_or_else(Capabilities::default, |like| like.capabilities)
            },
        }
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { total: self.total, free: self.total, cached: 0 })
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(NullMemory(bytes)))
    }

    fn allocation_bytes(&self, bytes: usize) -> u64 {
        self.likeness().map_or(bytes as u64, |device| device.allocation_bytes(bytes))
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(NullMemory(bytes)))
    }

    fn pin_in_place(&self, regions: Vec<SharedBytes>) -> Result<Option<Vec<Arc<dyn Memory>>>> {
        let region = |bytes| Arc::new(ReadOnly::new(bytes)) as Arc<dyn Memory>;
        Ok(self
            .likeness()
            .is_some_and(Device::pins_in_place)
            .then(|| regions.into_iter().map(region).collect()))
    }

    fn open_stream(&self, _kind: StreamKind, ledger: &Ledger) -> Result<Arc<dyn StreamBackend>> {
        Ok(Arc::new(NullStream {
            like: self.like.clone(),
            ledger: ledger.clone(),
            counts: Arc::clone(&self.counts),
            clock: Arc::default(),
            recorded: Mutex::default(),
        }))
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        self.likeness().map_or(Ok(()), |device| device.supports(call))
    }

    fn trim(&self) -> Result<()> {
        Ok(())
    }

    fn scratch_bytes(&self, call: &OpCall) -> u64 {
        self.likeness().map_or(0, |device| device.scratch_bytes(call))
    }

    fn least_scratch_bytes(&self, call: &OpCall) -> u64 {
        self.likeness().map_or(0, |device| device.least_scratch_bytes(call))
    }

    fn workspace_bytes(&self) -> u64 {
        self.likeness().map_or(0, Device::workspace_bytes)
    }

    fn reaches(&self, other: DeviceId) -> bool {
        // Another null device has no bytes that would have to go round by the host.
        other.kind == DeviceKind::Null || self.likeness().is_none_or(|device| device.reaches(other))
    }

    fn addresses(&self, _memory: &dyn Memory) -> bool {
        // It copies nothing, from anywhere.
        true
    }
}

/// A queue whose work is done as soon as it is queued, at a time of its own.
struct NullStream {
    like: Option<Likeness>,
    ledger: Ledger,
    counts: Arc<Counts>,
    /// Seconds that the work so far would have taken.
    clock: Arc<Mutex<f64>>,
    /// What is recorded instead of being queued, while it is.
    recorded: Mutex<Option<Recorded>>,
}

/// Recorded operations: how many, what they would take, and the memory that they use.
#[derive(Default)]
struct Recorded {
    launches: u64,
    seconds: f64,
    buffers: Vec<Buffer>,
    /// The most that one of them takes beside its operands; they run one after the other.
    scratch: Option<Charge>,
}

/// The same as a graph.
struct NullGraph {
    recorded: Recorded,
    counts: Arc<Counts>,
    clock: Arc<Mutex<f64>>,
}

impl GraphBackend for NullGraph {
    fn launch(&self) -> Result<()> {
        self.counts.launches.fetch_add(self.recorded.launches, Ordering::Relaxed);
        *lock(&self.clock) += self.recorded.seconds;
        Ok(())
    }
}

impl NullStream {
    /// A number that is valid after every statement, so a panic elsewhere cannot have left it half changed.
    fn clock(&self) -> MutexGuard<'_, f64> {
        lock(&self.clock)
    }

    /// Whether the call was recorded.
    fn record_launch(&self, call: &OpCall) -> Result<bool> {
        let mut recorded = lock(&self.recorded);
        let Some(recorded) = recorded.as_mut() else { return Ok(false) };
        if let Some(Likeness { device, seconds }) = &self.like {
            let charge = self.charge_scratch(device, call)?;
            if charge.as_ref().map(Charge::bytes) > recorded.scratch.as_ref().map(Charge::bytes) {
                recorded.scratch = charge;
            }
            recorded.seconds += seconds(call);
        }
        recorded.launches += 1;
        call.each_operand(|operand| {
            recorded.buffers.push(operand.buffer().clone());
            Ok(())
        })?;
        Ok(true)
    }

    /// What the call would take beside its operands, for the fastest way that there is room for.
    fn charge_scratch(&self, device: &Device, call: &OpCall) -> Result<Option<Charge>> {
        let bytes = device.scratch_bytes(call);
        if bytes == 0 {
            return Ok(None);
        }
        let charge =
            self.ledger.charge(bytes).or_else(|_| self.ledger.charge(device.least_scratch_bytes(call)));
        Ok(Some(charge.map_err(|short| short.during(call.name()))?))
    }

    fn count_copied(&self, bytes: usize) {
        self.counts.copied.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl StreamBackend for NullStream {
    fn launch(&self, call: &OpCall, _cancel: &Cancel) -> Result<()> {
        if self.record_launch(call)? {
            return Ok(());
        }
        self.counts.launches.fetch_add(1, Ordering::Relaxed);
        if let Some(Likeness { device, seconds }) = &self.like {
            let _held = self.charge_scratch(device, call)?;
            *self.clock() += seconds(call);
        }
        Ok(())
    }

    fn copy(&self, to: &Span, _from: &Span, _cancel: &Cancel) -> Result<()> {
        self.count_copied(to.len);
        Ok(())
    }

    fn read(&self, _from: &Span, to: &mut [u8], _cancel: &Cancel) -> Result<()> {
        self.count_copied(to.len());
        to.fill(0);
        Ok(())
    }

    fn write(&self, _to: &Span, from: &[u8], _cancel: &Cancel) -> Result<()> {
        self.count_copied(from.len());
        Ok(())
    }

    fn record(&self) -> Result<Event> {
        self.record_timed()
    }

    fn record_timed(&self) -> Result<Event> {
        Ok(Event::new(Arc::new(NullEvent { seconds: *self.clock() })))
    }

    fn wait(&self, event: &Event, cancel: &Cancel) -> Result<()> {
        match event.backend().as_any().downcast_ref::<NullEvent>() {
            // All clocks of null devices started together.
            Some(NullEvent { seconds }) => {
                let mut clock = self.clock();
                *clock = clock.max(*seconds);
                Ok(())
            }
            None => event.wait_unless(cancel),
        }
    }

    fn synchronize(&self, _cancel: &Cancel) -> Result<()> {
        Ok(())
    }

    fn begin_capture(&self) -> Result<bool> {
        *lock(&self.recorded) = Some(Recorded::default());
        Ok(true)
    }

    fn end_capture(&self) -> Result<Option<Arc<dyn GraphBackend>>> {
        let recorded = lock(&self.recorded).take();
        let graph = |recorded| {
            let (counts, clock) = (Arc::clone(&self.counts), Arc::clone(&self.clock));
            Arc::new(NullGraph { recorded, counts, clock }) as Arc<dyn GraphBackend>
        };
        Ok(recorded.map(graph))
    }
}

/// A lock over values that are whole after every statement, so that a panic elsewhere does no harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A point in a null stream, and the time there.
struct NullEvent {
    seconds: f64,
}

impl EventBackend for NullEvent {
    fn is_done(&self) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _cancel: &Cancel) -> Result<()> {
        Ok(())
    }

    fn seconds_since(&self, earlier: &Event) -> Result<Option<f64>> {
        let earlier = earlier.backend().as_any().downcast_ref::<NullEvent>();
        Ok(earlier.map(|earlier| self.seconds - earlier.seconds))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct NullMemory(usize);

// SAFETY: it gives no pointer.
unsafe impl Memory for NullMemory {
    fn len(&self) -> usize {
        self.0
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Unary, UnaryKind};
    use crate::{Error, Operand};
    use meta::Encoding;

    /// A device that rounds allocations up to hundreds, and whose operations take as many bytes for a moment as
    /// they have values, or half of that.
    struct Rounding(NullBackend);

    impl Backend for Rounding {
        fn describe(&self) -> Description {
            Description { activations: &[DType::F16, DType::F32], ..self.0.describe() }
        }

        fn memory(&self) -> Result<MemoryInfo> {
            self.0.memory()
        }

        fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
            self.0.allocate(bytes)
        }

        fn allocation_bytes(&self, bytes: usize) -> u64 {
            bytes.next_multiple_of(100) as u64
        }

        fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
            self.0.allocate_pinned(bytes)
        }

        fn open_stream(&self, kind: StreamKind, ledger: &Ledger) -> Result<Arc<dyn StreamBackend>> {
            self.0.open_stream(kind, ledger)
        }

        fn supports(&self, call: &OpCall) -> Result<(), String> {
            if call.output().dtype() == Some(DType::BF16) { Err("no bf16 here".into()) } else { Ok(()) }
        }

        fn trim(&self) -> Result<()> {
            Ok(())
        }

        fn scratch_bytes(&self, call: &OpCall) -> u64 {
            call.output().count() as u64
        }

        fn least_scratch_bytes(&self, call: &OpCall) -> u64 {
            call.output().count() as u64 / 2
        }

        fn workspace_bytes(&self) -> u64 {
            77
        }

        fn reaches(&self, other: DeviceId) -> bool {
            other == DeviceId::cuda(1)
        }
    }

    /// A dry run of such a device in which every value takes a second.
    fn dry_run(budget: u64) -> Device {
        let real = Device::new(Arc::new(Rounding(NullBackend::new(9, 5000))), 5000);
        let seconds: OpSeconds = Arc::new(|call: &OpCall| call.flops() as f64);
        Device::new(Arc::new(NullBackend::like(&real, 1, seconds)), budget)
    }

    fn operand(device: &Device, dtype: DType, count: usize) -> Operand {
        let buffer = device.allocate(count * dtype.bytes()).unwrap();
        Operand::new(buffer, Encoding::Plain(dtype), [count], 0).unwrap()
    }

    fn negate(x: &Operand) -> OpCall {
        Unary { kind: UnaryKind::Neg, x: x.clone(), out: x.clone() }.into()
    }

    #[test]
    fn a_dry_run_is_charged_as_the_device_would_be() {
        let device = dry_run(1000);
        assert_eq!(device.description().activations, &[DType::F16, DType::F32]);
        assert_eq!((device.id(), device.workspace_bytes()), (DeviceId::null(1), 77));
        assert!(device.reaches(DeviceId::cuda(1)) && !device.reaches(DeviceId::CPU));
        assert_eq!(device.memory().unwrap().total, 5000);
        let x = operand(&device, DType::F32, 60);
        assert_eq!((device.ledger().report().used, device.ledger().peak()), (300, 300));
        let stream = device.compute_stream().unwrap();
        stream.launch(&negate(&x)).unwrap();
        assert_eq!((device.ledger().report().used, device.ledger().take_peak()), (300, 360));
        assert_eq!(device.ledger().peak(), 300, "a new peak begins where it is");
        let refused = stream.launch(&negate(&operand(&device, DType::BF16, 1)));
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        let mut bytes = [1; 8];
        stream.read(&x.span(), &mut vec![1; 240]).unwrap();
        stream.read(&x.buffer().span(8..16).unwrap(), &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
    }

    #[test]
    fn where_the_fastest_way_does_not_fit_the_least_one_is_charged() {
        let device = dry_run(350);
        let x = operand(&device, DType::F32, 60);
        let stream = device.compute_stream().unwrap();
        stream.launch(&negate(&x)).unwrap();
        assert_eq!(device.ledger().peak(), 330, "30 bytes in place of 60");
        let _rest = device.ledger().charge(21).unwrap();
        let error = stream.launch(&negate(&x)).unwrap_err();
        assert!(matches!(&error, Error::OutOfMemory(short) if short.op == Some("unary")), "{error:?}");
        let text = error.to_string();
        assert!(
            text.starts_with("null:1 is out of memory for what the operation 'unary' needs beside"),
            "{text}"
        );
        assert_eq!(device.ledger().report().used, 321, "nothing is held after a failure");
    }

    #[test]
    fn clocks_of_streams_move_by_work_and_by_waiting() {
        let device = dry_run(5000);
        let (first, second) =
            (device.compute_stream().unwrap(), device.open_stream(StreamKind::Copy).unwrap());
        let (short, long) = (operand(&device, DType::F32, 10), operand(&device, DType::F32, 100));
        let start = first.record_timed().unwrap();
        first.launch(&negate(&long)).unwrap();
        let done = first.record_timed().unwrap();
        second.copy(&short.span(), &short.span()).unwrap();
        second.launch(&negate(&short)).unwrap();
        let since_start = |event: &Event| event.seconds_since(&start).unwrap();
        assert_eq!(since_start(&done), Some(100.0));
        assert_eq!(since_start(&second.record_timed().unwrap()), Some(10.0));
        second.wait(&done).unwrap();
        second.launch(&negate(&short)).unwrap();
        assert_eq!(since_start(&second.record_timed().unwrap()), Some(110.0));
        assert!(done.is_done().unwrap());
    }

    #[test]
    fn a_graph_repeats_its_work_and_keeps_its_memory() {
        let null = Arc::new(NullBackend::new(0, 1000));
        let device = Device::new(Arc::clone(&null) as Arc<dyn Backend>, 1000);
        let stream = device.compute_stream().unwrap();
        let recorded = || -> Result<()> {
            let x = operand(&device, DType::F32, 10);
            stream.launch(&negate(&x))?;
            stream.launch(&negate(&x))
        };
        let graph = stream.capture(recorded).unwrap().unwrap();
        assert_eq!(null.launches(), 0, "nothing has run yet");
        assert_eq!(device.ledger().report().used, 40, "what it works on is still there");
        graph.launch().unwrap();
        graph.launch().unwrap();
        assert_eq!(null.launches(), 4);
        stream.launch(&negate(&operand(&device, DType::F32, 1))).unwrap();
        assert_eq!(null.launches(), 5, "the stream works again");
        drop(graph);
        assert_eq!(device.ledger().report().used, 0);
    }

    #[test]
    fn a_recording_that_fails_is_ended() {
        let device = Device::new(Arc::new(NullBackend::new(0, 1000)), 1000);
        let stream = device.compute_stream().unwrap();
        let x = operand(&device, DType::F32, 10);
        let failed = stream.capture(|| {
            stream.launch(&negate(&x))?;
            Err(Error::Cancelled)
        });
        assert!(matches!(failed, Err(Error::Cancelled)));
        drop(x);
        assert_eq!(device.ledger().report().used, 0, "nothing is kept of it");
        let cancel = Cancel::default();
        let graph = stream.with_cancel(&cancel).capture(|| Ok::<(), Error>(())).unwrap().unwrap();
        cancel.cancel();
        assert_eq!(graph.launch(), Err(Error::Cancelled));
    }

    #[test]
    fn a_dry_graph_has_its_largest_scratch_and_its_time() {
        let device = dry_run(2000);
        let stream = device.compute_stream().unwrap();
        let (x, y) = (operand(&device, DType::F32, 10), operand(&device, DType::F32, 30));
        let used = device.ledger().report().used;
        let work = || -> Result<()> { [&x, &y, &x].into_iter().try_for_each(|x| stream.launch(&negate(x))) };
        let graph = stream.capture(work).unwrap().unwrap();
        assert_eq!(device.ledger().report().used - used, 30);
        let start = stream.record().unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.record().unwrap().seconds_since(&start).unwrap(), Some(50.0));
    }
}
