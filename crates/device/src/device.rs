//! A device: a backend behind its ledger.

use std::fmt;
use std::sync::{Arc, OnceLock};

use meta::DeviceId;

use crate::backend::{Backend, Description, MemoryInfo, StreamKind};
use crate::timed::{OperationTimes, TimedBackend};
use crate::{
    Buffer, Charge, Error, Ledger, OpCall, OutOfMemory, Reservation, Result, SharedBytes, SimSpec, Stream,
};

/// One device: all its memory goes through its ledger, all its work through its streams.
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

struct Shared {
    description: Description,
    backend: Arc<dyn Backend>,
    ledger: Ledger,
    compute: OnceLock<Stream>,
}

impl Device {
    /// A device that may use at most `budget` bytes.
    pub fn new(backend: Arc<dyn Backend>, budget: u64) -> Device {
        let description = backend.describe();
        let ledger = Ledger::new(description.id, budget);
        Device { shared: Arc::new(Shared { description, backend, ledger, compute: OnceLock::new() }) }
    }

    /// The same device with a ledger and streams of its own, and what each of its operations takes from now on.
    pub fn timed(&self) -> (Device, OperationTimes) {
        let times = OperationTimes::default();
        let backend = TimedBackend { inner: Arc::clone(&self.shared.backend), times: times.clone() };
        (Device::new(Arc::new(backend), self.ledger().report().budget), times)
    }

    /// Its id.
    pub fn id(&self) -> DeviceId {
        self.shared.description.id
    }

    /// What it is.
    pub fn description(&self) -> &Description {
        &self.shared.description
    }

    /// Its ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// Memory as the device itself counts it now.
    pub fn memory(&self) -> Result<MemoryInfo> {
        self.shared.backend.memory()
    }

    /// Allocates memory, contents undefined. The ledger has the bytes first. If the device is short
    /// although the ledger is not, caches are given back and it is tried once more.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        let charge = self.ledger().charge(self.allocation_bytes(bytes))?;
        self.allocate_charged(charge, bytes)
    }

    /// Allocates from bytes that were promised before.
    pub fn allocate_from(&self, reservation: &mut Reservation, bytes: usize) -> Result<Buffer> {
        let charge = reservation.charge(self.allocation_bytes(bytes))?;
        self.allocate_charged(charge, bytes)
    }

    /// Bytes that an allocation of so many really takes, as the ledger is charged for it.
    pub fn allocation_bytes(&self, bytes: usize) -> u64 {
        self.shared.backend.allocation_bytes(bytes)
    }

    /// Allocates host memory, counted by the ledger of `host`, that this device copies from and to at
    /// full speed.
    pub fn allocate_pinned(&self, host: &Device, bytes: usize) -> Result<Buffer> {
        let charge = host.ledger().charge(bytes as u64)?;
        let memory = self.shared.backend.allocate_pinned(bytes)?;
        Ok(Buffer::new(host.id(), memory, Some(charge)))
    }

    /// The same out of bytes of the host that were promised before.
    pub fn allocate_pinned_from(&self, host: &mut Reservation, bytes: usize) -> Result<Buffer> {
        let charge = host.charge(bytes as u64)?;
        let memory = self.shared.backend.allocate_pinned(bytes)?;
        Ok(Buffer::new(DeviceId::CPU, memory, Some(charge)))
    }

    /// Whether copies reach the link's full speed only from and to pinned memory.
    pub fn copies_fast_from_pinned_only(&self) -> bool {
        self.description().capabilities.copies_fast_from_pinned_only
    }

    /// Whether host memory that is only read can be pinned where it lies.
    pub fn pins_in_place(&self) -> bool {
        self.description().capabilities.pins_in_place
    }

    /// Pins memory that is only read where it lies, each region at the latest when it is first copied from. None if that
    /// is not possible here.
    pub fn pin_in_place(&self, regions: Vec<SharedBytes>) -> Result<Option<Vec<Buffer>>> {
        let pinned = self.shared.backend.pin_in_place(regions)?;
        let buffer = |memory| Buffer::new(DeviceId::CPU, memory, None);
        Ok(pinned.map(|pinned| pinned.into_iter().map(buffer).collect()))
    }

    /// Copies bytes onto the device and waits until they are there.
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.allocate(bytes.len())?;
        self.compute_stream()?.write(&buffer.whole(), bytes)?;
        Ok(buffer)
    }

    /// The stream on which this device's operations run in order.
    pub fn compute_stream(&self) -> Result<Stream> {
        if let Some(stream) = self.shared.compute.get() {
            return Ok(stream.clone());
        }
        let stream = self.open_stream(StreamKind::Compute)?;
        Ok(self.shared.compute.get_or_init(|| stream).clone())
    }

    /// Opens another stream.
    pub fn open_stream(&self, kind: StreamKind) -> Result<Stream> {
        let queue = self.shared.backend.open_stream(kind, self.ledger())?;
        Ok(Stream::new(self.ledger().clone(), Arc::clone(&self.shared.backend), queue))
    }

    /// Whether a call can run here; the reason if not.
    pub fn supports(&self, call: &OpCall) -> Result<(), String> {
        self.shared.backend.supports(call)
    }

    /// The most bytes that a call holds at a time beside its operands, if there is room for its fastest way.
    pub fn scratch_bytes(&self, call: &OpCall) -> u64 {
        self.shared.backend.scratch_bytes(call)
    }

    /// The same of the way that needs least, which is taken where there is no room for the fastest.
    pub fn least_scratch_bytes(&self, call: &OpCall) -> u64 {
        self.shared.backend.least_scratch_bytes(call)
    }

    /// Bytes that an operation may take for a moment beside its operands, unpacked weights not counted.
    pub fn workspace_bytes(&self) -> u64 {
        self.shared.backend.workspace_bytes()
    }

    /// What a simulated device was said to be able to do; none for real ones.
    pub fn said(&self) -> Option<SimSpec> {
        self.shared.backend.said()
    }

    /// Whether copies from that device need no detour through the host.
    pub fn reaches(&self, other: DeviceId) -> bool {
        self.shared.backend.reaches(other)
    }

    /// Gives cached memory back to the driver or operating system.
    pub fn trim(&self) -> Result<()> {
        self.shared.backend.trim()
    }

    fn allocate_charged(&self, charge: Charge, bytes: usize) -> Result<Buffer> {
        let backend = &*self.shared.backend;
        let memory = match backend.allocate(bytes) {
            Err(Error::OutOfMemory(_)) => {
                backend.trim()?;
                backend.allocate(bytes).map_err(|error| self.with_numbers(error, &charge))?
            }
            other => other?,
        };
        Ok(Buffer::new(self.id(), memory, Some(charge)))
    }

    /// A backend knows what it was asked for and what is free; the ledger knows the rest.
    fn with_numbers(&self, error: Error, charge: &Charge) -> Error {
        match error {
            Error::OutOfMemory(short) => {
                let report = self.ledger().report();
                Error::OutOfMemory(OutOfMemory {
                    budget: report.budget,
                    used: report.used.saturating_sub(charge.bytes()),
                    reserved: report.reserved,
                    ..short
                })
            }
            other => other,
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.id())
    }
}
