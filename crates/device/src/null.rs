//! The null device: allocates and computes nothing, so that order and accounting test without bytes.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meta::{DType, DeviceId};

use crate::backend::{Backend, Description, Memory, MemoryInfo, StreamBackend, StreamKind};
use crate::{Cancel, HostExecutor, HostStream, OpCall, Result, Span};

/// A device that only counts.
pub struct NullBackend {
    id: DeviceId,
    total: u64,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    launches: AtomicU64,
    copied: AtomicU64,
}

impl NullBackend {
    /// A null device that says it has `total` bytes.
    pub fn new(ordinal: u16, total: u64) -> NullBackend {
        NullBackend { id: DeviceId::null(ordinal), total, counts: Arc::default() }
    }

    /// Operations launched so far.
    pub fn launches(&self) -> u64 {
        self.counts.launches.load(Ordering::Relaxed)
    }

    /// Bytes copied so far.
    pub fn copied_bytes(&self) -> u64 {
        self.counts.copied.load(Ordering::Relaxed)
    }
}

impl Backend for NullBackend {
    fn describe(&self) -> Description {
        Description {
            id: self.id,
            name: "null device".into(),
            detail: "allocates and computes nothing".into(),
            activations: &[DType::F32, DType::BF16, DType::F16],
            simulated: true,
        }
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { total: self.total, free: self.total, cached: 0 })
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(NullMemory(bytes)))
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(NullMemory(bytes)))
    }

    fn open_stream(&self, kind: StreamKind) -> Result<Arc<dyn StreamBackend>> {
        let executor: Arc<Counts> = Arc::clone(&self.counts);
        Ok(Arc::new(HostStream::new(executor, kind)))
    }

    fn supports(&self, _call: &OpCall) -> Result<(), String> {
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        Ok(())
    }

    fn reaches(&self, _other: DeviceId) -> bool {
        true
    }
}

impl HostExecutor for Counts {
    fn run(&self, _call: &OpCall, _cancel: &Cancel) -> Result<()> {
        self.launches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn copy(&self, to: &Span, _from: &Span, _cancel: &Cancel) -> Result<()> {
        self.copied.fetch_add(to.len as u64, Ordering::Relaxed);
        Ok(())
    }

    fn read(&self, _from: &Span, to: &mut [u8], _cancel: &Cancel) -> Result<()> {
        self.copied.fetch_add(to.len() as u64, Ordering::Relaxed);
        to.fill(0);
        Ok(())
    }

    fn write(&self, _to: &Span, from: &[u8], _cancel: &Cancel) -> Result<()> {
        self.copied.fetch_add(from.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

struct NullMemory(usize);

impl Memory for NullMemory {
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
