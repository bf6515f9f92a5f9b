//! Memory of a device, and host memory that its copies run from and to at full speed.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use device::{Memory, Result};

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
    touched: Mutex<Vec<Arc<Queue>>>,
}

impl DeviceMemory {
    pub(crate) fn new(block: Block, len: usize, pool: Arc<Pool>) -> DeviceMemory {
        DeviceMemory { address: block.address(), block: Some(block), len, pool, touched: Mutex::default() }
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
        let mut touched = lock(&self.touched);
        if touched.iter().any(|known| Arc::ptr_eq(known, queue)) {
            return Ok(());
        }
        for mark in self.block.iter().flat_map(Block::marks) {
            queue.wait_mark(mark)?;
        }
        touched.push(Arc::clone(queue));
        Ok(())
    }
}

impl Memory for DeviceMemory {
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
        let touched = std::mem::take(&mut *lock(&self.touched));
        if !touched.is_empty() {
            // Each of these streams has waited for the old marks, so the new ones stand for them too.
            let marks: Result<Vec<_>> = touched.iter().map(Queue::mark).collect();
            match marks {
                Ok(marks) => block.set_marks(marks),
                Err(error) => {
                    self.context().keep(error);
                    return self.pool.discard(&block);
                }
            }
        }
        self.pool.give(block);
    }
}

/// Page-locked host memory, usable by every context.
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; who may touch it when is ordered by the buffer's guards.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(crate) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<PinnedMemory> {
        context.enter()?;
        let action = format!("pinning {bytes} bytes of host memory");
        let start = context.check(&action, context.driver().allocate_pinned(bytes.max(1)))?;
        Ok(PinnedMemory { context: Arc::clone(context), start, len: bytes })
    }
}

impl Memory for PinnedMemory {
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
        self.context.leave("freeing pinned host memory", |driver| driver.free_pinned(self.start));
    }
}
