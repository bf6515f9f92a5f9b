//! Memory of a device, and host memory that its copies run from and to at full speed.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use device::{Error, Memory, Result};
use memmap2::{MmapMut, MmapOptions};

use crate::context::{Context, lock};
use crate::pool::{Block, Pool};
use crate::stream::Queue;

/// A block of device memory. When dropped it goes back to its pool, marked with a point on every
/// stream that touched it, so that it is not used again before that point.
pub(crate) struct DeviceMemory {
    block: Option<Block>,
    address: u64,
    len: usize,
    pool: Arc<Pool>,
    /// The first stream that touched it, which mostly is the only one.
    first: OnceLock<Arc<Queue>>,
    /// All the others.
    others: Mutex<Vec<Arc<Queue>>>,
}

impl DeviceMemory {
    pub(crate) fn new(block: Block, len: usize, pool: Arc<Pool>) -> DeviceMemory {
        let address = block.address();
        let (first, others) = (OnceLock::new(), Mutex::default());
        DeviceMemory { block: Some(block), address, len, pool, first, others }
    }

    /// The device address of its first byte, a multiple of 256.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The context it belongs to.
    pub(crate) fn context(&self) -> &Arc<Context> {
        self.pool.context()
    }

    /// Must be called before a stream's work uses the memory: the stream then waits for what other
    /// streams still do with the block from before, and is remembered for when this block is dropped.
    pub(crate) fn touch(&self, queue: &Arc<Queue>) -> Result<()> {
        let is_first = |first: &Arc<Queue>| Arc::ptr_eq(first, queue);
        if self.first.get().is_some_and(is_first) {
            return Ok(());
        }
        // Streams are remembered only once they wait, and one after the other.
        let mut others = lock(&self.others);
        if self.first.get().is_some_and(is_first) || others.iter().any(|known| Arc::ptr_eq(known, queue)) {
            return Ok(());
        }
        for mark in self.block.iter().flat_map(Block::marks) {
            queue.wait_mark(mark)?;
        }
        if let Err(queue) = self.first.set(Arc::clone(queue)) {
            others.push(queue);
        }
        Ok(())
    }
}

// SAFETY: the host cannot address it, so it gives no pointer.
unsafe impl Memory for DeviceMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Some(mut block) = self.block.take() else { return };
        let others = std::mem::take(&mut *lock(&self.others));
        if let Some(first) = self.first.take() {
            // Each of these streams has waited for the old marks, so the new ones stand for them too.
            let marks: Vec<_> = std::iter::once(&first).chain(&others).map(Queue::mark).collect();
            // A block that streams share is likely to be wanted by either of them: its events are recorded now, so that
            // nobody waits for more of the other stream than used it.
            let recorded = match others.is_empty() {
                true => Ok(()),
                false => marks.iter().try_for_each(|mark| mark.event().map(drop)),
            };
            if let Err(error) = recorded {
                self.context().keep(error);
                return self.pool.discard(&block);
            }
            block.set_marks(marks);
        }
        self.pool.give(block);
    }
}

/// Page-locked host memory, usable by every context.
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    start: NonNull<u8>,
    len: usize,
    /// Where it is ours and not the driver's.
    mapped: Option<MmapMut>,
}

/// From this size on memory is mapped and filled by us and only then pinned. The driver's own allocation fills
/// pages with one thread, which takes 0.7 s for a gigabyte; this way it takes less than a tenth of that.
const MAPPED_BYTES: usize = 64 << 20;
/// What one thread fills at a time.
const FILLED_BYTES: usize = 16 << 20;
/// Threads that fill pages.
const FILLING_THREADS: usize = 12;

// SAFETY: plain memory; who may touch it when is ordered by the buffer's guards.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(crate) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<PinnedMemory> {
        if bytes >= MAPPED_BYTES {
            return PinnedMemory::map(context, bytes);
        }
        context.enter()?;
        let action = format!("pinning {bytes} bytes of host memory");
        let start = context.check(&action, context.driver().allocate_pinned(bytes.max(1)))?;
        Ok(PinnedMemory { context: Arc::clone(context), start, len: bytes, mapped: None })
    }

    fn map(context: &Arc<Context>, bytes: usize) -> Result<PinnedMemory> {
        let action = format!("pinning {bytes} bytes of host memory");
        let failed = |reason: String| Error::Device { device: context.id(), action: action.clone(), reason };
        let mut mapped =
            MmapOptions::new().len(bytes).map_anon().map_err(|error| failed(error.to_string()))?;
        // Large pages are pinned sooner; a system that has none for us goes on with small ones.
        #[cfg(target_os = "linux")]
        let _ = mapped.advise(memmap2::Advice::HugePage);
        fill(&mut mapped);
        let start = NonNull::new(mapped.as_mut_ptr()).ok_or_else(|| failed("no address".into()))?;
        context.enter()?;
        // SAFETY: the mapping lives as long as this value, which unpins it before it goes.
        context.check(&action, unsafe { context.driver().pin(start, bytes) })?;
        Ok(PinnedMemory { context: Arc::clone(context), start, len: bytes, mapped: Some(mapped) })
    }
}

/// Writes zeros, with several threads, so that every page is there.
fn fill(memory: &mut [u8]) {
    let parts = Mutex::new(memory.chunks_mut(FILLED_BYTES));
    let threads = thread::available_parallelism().map_or(1, usize::from).min(FILLING_THREADS);
    let next = || lock(&parts).next();
    let work = || {
        while let Some(part) = next() {
            part.fill(0);
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| {
            scope.spawn(work);
        });
        work();
    });
}

// SAFETY: the memory is this value's alone until it is dropped, is `len` bytes long, and is pinned where it lies.
unsafe impl Memory for PinnedMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        Some(self.start)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        self.context.leave("freeing pinned host memory", |driver| match self.mapped {
            Some(_) => driver.unpin(self.start),
            None => driver.free_pinned(self.start),
        });
    }
}
