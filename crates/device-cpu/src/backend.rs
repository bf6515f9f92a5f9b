//! The CPU as a backend.

use std::sync::{Arc, OnceLock};

use device::{
    Backend, Cancel, Capabilities, Description, Error, HostExecutor, HostStream, Ledger, Memory, MemoryInfo,
    OpCall, Result, Span, StreamBackend, StreamKind,
};
use meta::{DType, DeviceId};

use crate::memory::{self, HostPool};
use crate::spare::{SpareExecutor, SpareThreads};
use crate::stop::work_for;
use crate::{Groups, access, ops};

/// The host's processors and memory.
pub struct CpuBackend {
    pool: Arc<HostPool>,
    name: String,
    total: u64,
    groups: Groups,
    /// Started when somebody first wants work done that nobody waits for.
    spare: OnceLock<Arc<SpareThreads>>,
}

impl CpuBackend {
    /// Looks at the machine, and at the limits of the container that this process may be in.
    pub fn new() -> CpuBackend {
        CpuBackend::within(Groups::of_this_process())
    }

    /// The same for a process of these groups.
    pub fn within(groups: Groups) -> CpuBackend {
        let what = sysinfo::RefreshKind::nothing()
            .with_cpu(sysinfo::CpuRefreshKind::nothing())
            .with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram());
        // A system that tells nothing leaves the CPU usable: without a name, with a budget of 0 to raise.
        let system = sysinfo::System::new_with_specifics(what).ok();
        let brand = system.as_ref().and_then(|s| s.cpus().first()).map_or("", sysinfo::Cpu::brand).trim();
        let name = if brand.is_empty() { "CPU".into() } else { brand.to_owned() };
        let physical = system.as_ref().map_or(0, sysinfo::System::total_memory);
        let total = groups.memory().map_or(physical, |group| group.limit.min(physical));
        CpuBackend { pool: Arc::default(), name, total, groups, spare: OnceLock::new() }
    }

    /// All memory in bytes that this process may use: the host's, or its container's if that is less.
    pub fn total_memory(&self) -> u64 {
        self.total
    }

    /// The groups of this process, which limit it.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// What does the CPU's work; simulated devices borrow it.
    pub fn executor(&self) -> Arc<dyn HostExecutor> {
        Arc::new(CpuExecutor)
    }
}

impl Default for CpuBackend {
    fn default() -> CpuBackend {
        CpuBackend::new()
    }
}

impl Backend for CpuBackend {
    fn describe(&self) -> Description {
        Description {
            id: DeviceId::CPU,
            name: self.name.clone(),
            detail: format!("{} threads, {}", rayon::current_num_threads(), ops::instruction_set()),
            activations: &[DType::F32],
            simulated: false,
            capabilities: Capabilities::default(),
        }
    }

    fn memory(&self) -> Result<MemoryInfo> {
        let what =
            sysinfo::RefreshKind::nothing().with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram());
        let system = sysinfo::System::new_with_specifics(what).map_err(|error| Error::Device {
            device: DeviceId::CPU,
            action: "asking for free memory".into(),
            reason: error.to_string(),
        })?;
        let available = system.available_memory();
        Ok(MemoryInfo {
            total: self.total,
            free: self.groups.memory().map_or(available, |group| group.free.min(available)),
            cached: self.pool.cached() as u64,
        })
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        match HostPool::allocate(&self.pool, bytes) {
            Some(block) => Ok(Arc::new(block)),
            None => Err(Error::OutOfMemory(device::OutOfMemory {
                device: DeviceId::CPU,
                wanted: bytes as u64,
                available: self.memory()?.free,
                budget: self.total,
                used: 0,
                reserved: 0,
                op: None,
            })),
        }
    }

    fn allocation_bytes(&self, bytes: usize) -> u64 {
        // What is too large to count is more than any host has.
        memory::rounded(bytes).map_or(u64::MAX, |size| size as u64)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.allocate(bytes)
    }

    fn open_stream(&self, kind: StreamKind, _ledger: &Ledger) -> Result<Arc<dyn StreamBackend>> {
        let executor: Arc<dyn HostExecutor> = match kind {
            StreamKind::Compute | StreamKind::Copy => self.executor(),
            StreamKind::Background => {
                let threads = self.spare.get_or_init(SpareThreads::start);
                Arc::new(SpareExecutor { threads: Arc::clone(threads) })
            }
        };
        Ok(Arc::new(HostStream::new(executor, kind)))
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        ops::supports(call)
    }

    fn trim(&self) -> Result<()> {
        self.pool.trim();
        Ok(())
    }

    fn reaches(&self, other: DeviceId) -> bool {
        other == DeviceId::CPU
    }
}

/// Runs kernels in the caller's thread and rayon's pool.
pub(crate) struct CpuExecutor;

impl HostExecutor for CpuExecutor {
    fn run(&self, call: &OpCall, cancel: &Cancel) -> Result<()> {
        work_for(cancel, || ops::run(call))?;
        // Tasks were left out only if this finds the job cancelled, too.
        cancel.check()
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
        access::copy_bytes(to, from, cancel)
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
        access::read_bytes(from, to, cancel)
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
        access::write_bytes(to, from, cancel)
    }
}
