//! The seam that a kind of device implements: memory, streams, and one launch over all operations.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use meta::{DType, DeviceId};

use crate::{Cancel, Event, Ledger, OpCall, Result, SimSpec, Span};

/// One device, as its implementation sees it. [`Device`](crate::Device) adds the ledger in front.
pub trait Backend: Send + Sync {
    /// What the device is.
    fn describe(&self) -> Description;

    /// Memory as the device itself counts it now.
    fn memory(&self) -> Result<MemoryInfo>;

    /// Allocates memory on the device. The contents are undefined.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>>;

    /// Bytes that an allocation of so many really takes. Whoever allocates is charged this.
    fn allocation_bytes(&self, bytes: usize) -> u64 {
        bytes as u64
    }

    /// Allocates host memory that this device copies from and to at full speed.
    fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>>;

    /// Pins memory that is only read where it lies, each region at the latest when it is first copied from. None if that
    /// is not possible here.
    fn pin_in_place(&self, _regions: Vec<SharedBytes>) -> Result<Option<Vec<Arc<dyn Memory>>>> {
        Ok(None)
    }

    /// Opens an in-order queue of work. What its operations take for a moment beside their operands is charged to the
    /// ledger while they hold it.
    fn open_stream(&self, kind: StreamKind, ledger: &Ledger) -> Result<Arc<dyn StreamBackend>>;

    /// Whether a valid call can run here; the reason if not.
    fn supports(&self, call: &OpCall) -> Result<(), String>;

    /// Gives cached memory back to the driver or operating system.
    fn trim(&self) -> Result<()>;

    /// The most bytes that a call holds at a time beside its operands, if there is room for its fastest way:
    /// unpacked weights, packed copies of activations, workspaces of libraries. What launching it then takes comes
    /// from the same numbers.
    fn scratch_bytes(&self, _call: &OpCall) -> u64 {
        0
    }

    /// The same of the way that needs least, which is taken where there is no room for the fastest.
    fn least_scratch_bytes(&self, call: &OpCall) -> u64 {
        self.scratch_bytes(call)
    }

    /// Bytes that an operation may take for a moment beside its operands, unpacked weights not counted.
    fn workspace_bytes(&self) -> u64 {
        0
    }

    /// What a simulated device was said to be able to do; none for real ones.
    fn said(&self) -> Option<SimSpec> {
        None
    }

    /// Whether copies from that device need no detour through the host.
    fn reaches(&self, other: DeviceId) -> bool;

    /// Whether this device's streams can copy from and to that memory, by whatever way: the host's, and their own.
    fn addresses(&self, memory: &dyn Memory) -> bool {
        memory.host_pointer().is_some()
    }
}

/// Bytes that live elsewhere, such as in a mapped file.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// An in-order queue of work on one device. What takes long, or waits, fails with
/// [`Error::Cancelled`](crate::Error::Cancelled) soon after it is cancelled. What it was about to write is undefined then;
/// work that is queued goes on, and nothing that it uses is given to others before it is done.
pub trait StreamBackend: Send + Sync {
    /// Queues an operation. The call has been validated.
    fn launch(&self, call: &OpCall, cancel: &Cancel) -> Result<()>;

    /// Queues a copy of bytes; both spans have the same length.
    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()>;

    /// Waits for all queued work, then reads device memory into the host's.
    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()>;

    /// Writes host memory into the device's after all queued work; the bytes may go once it returns.
    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()>;

    /// Marks this point of the queue.
    fn record(&self) -> Result<Event>;

    /// Marks this point of the queue with an event that will know when it was reached.
    fn record_timed(&self) -> Result<Event>;

    /// Makes later work of this queue wait for an event of any device.
    fn wait(&self, event: &Event, cancel: &Cancel) -> Result<()>;

    /// Blocks until all queued work is done; returns the first error of any of it.
    fn synchronize(&self, cancel: &Cancel) -> Result<()>;

    /// Begins to record operations instead of queuing them; false if this kind of device cannot. Until the recording is
    /// ended only operations may be launched, by one thread, and all memory that they use is kept for the graph.
    fn begin_capture(&self) -> Result<bool> {
        Ok(false)
    }

    /// Ends the recording; none if there was none.
    fn end_capture(&self) -> Result<Option<Arc<dyn GraphBackend>>> {
        Ok(None)
    }
}

/// Recorded operations of one stream, with all the memory that they use and what the ledger was charged for it.
pub trait GraphBackend: Send + Sync {
    /// Queues them on that stream.
    fn launch(&self) -> Result<()>;
}

/// A point in a stream.
pub trait EventBackend: Send + Sync {
    /// Whether the work before it is done.
    fn is_done(&self) -> Result<bool>;

    /// Blocks until the work before it is done, or until it is cancelled; an error of that work is returned.
    fn wait(&self, cancel: &Cancel) -> Result<()>;

    /// Seconds from another event to this one by the device's clock. None unless both are timed, done, and of
    /// the same clock.
    fn seconds_since(&self, earlier: &Event) -> Result<Option<f64>>;

    /// For backends to recognise their own.
    fn as_any(&self) -> &dyn Any;
}

/// A block of memory.
///
/// # Safety
/// Kernels and copies of other crates read and write through what this gives, without asking again. For as long as the
/// value lives, [`Memory::len`] and [`Memory::host_pointer`] must give the same each time; where there is a pointer, it must
/// be valid for reads of so many bytes from any thread, and for writes if [`Memory::is_writable`]. Whoever implements it
/// gives the bytes to nobody else meanwhile: the guards of [`Buffer`](crate::Buffer) order the accesses.
pub unsafe trait Memory: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> usize;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the host can address it, if it can.
    fn host_pointer(&self) -> Option<NonNull<u8>>;

    /// Whether it may be written.
    fn is_writable(&self) -> bool {
        true
    }

    /// For backends to recognise their own.
    fn as_any(&self) -> &dyn Any;
}

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Operations; copies only where they must be in order with them.
    Compute,
    /// Copies that run beside computing.
    Copy,
    /// Operations that nobody waits for: a device that has spare threads does them there, behind everything else.
    Background,
}

/// What a device is.
#[derive(Clone, Debug)]
pub struct Description {
    /// The id under which it is known.
    pub id: DeviceId,
    /// Its model name, such as the processor's or the card's.
    pub name: String,
    /// More about it: instruction sets, compute capability, driver.
    pub detail: String,
    /// Element types that activations may have here, the preferred one first.
    pub activations: &'static [DType],
    /// Whether this is a simulation, which must always be said.
    pub simulated: bool,
    /// What it can, and what it needs to be fast.
    pub capabilities: Capabilities,
}

/// What kinds of devices differ in, so that nobody asks for the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Copies reach the link's full speed only from and to pinned memory.
    pub copies_fast_from_pinned_only: bool,
    /// Host memory that is only read can be pinned where it lies.
    pub pins_in_place: bool,
    /// Types of activations for which products of 8 bits ([`QuantisedLinear`](crate::op::QuantisedLinear)) are faster here
    /// than others.
    pub fp8_products: &'static [DType],
}

/// Memory as a device counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All memory of the device.
    pub total: u64,
    /// What is free for anyone.
    pub free: u64,
    /// What Gantry's allocator holds for reuse.
    pub cached: u64,
}

impl fmt::Debug for dyn Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.len())
    }
}
