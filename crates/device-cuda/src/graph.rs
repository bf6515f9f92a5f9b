//! CUDA graphs: what is launched on a stream while it is captured, to be launched again as a whole.
//!
//! A graph has the addresses of everything that its kernels touch, so all of that memory stays, charged to the ledger,
//! as long as the graph: operands by their buffers, and what operations take for a moment in a store of its own, out of
//! which later operations of the same capture take it again. They run one after the other, so they may share it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUgraphExec;
use device::{Buffer, Charge, GraphBackend, Result};

use crate::context::lock;
use crate::memory::DeviceMemory;
use crate::stream::Queue;

/// The memory of a capture, and then of its graph.
#[derive(Default)]
pub(crate) struct Capture {
    /// Operands, by the place of their memory.
    buffers: Mutex<HashMap<usize, Buffer>>,
    /// Temporary blocks that no operation has right now, by what was asked for.
    spare: Mutex<Vec<(usize, TemporaryBlock)>>,
}

/// A block and what the ledger was charged for it. The block is dropped first.
pub(crate) type TemporaryBlock = (DeviceMemory, Charge);

impl Capture {
    /// Keeps a buffer that a captured kernel uses.
    pub(crate) fn keep(&self, buffer: &Buffer) {
        let place = Arc::as_ptr(buffer.memory()).cast::<u8>().addr();
        lock(&self.buffers).entry(place).or_insert_with(|| buffer.clone());
    }

    /// A temporary block that an earlier operation asked so many bytes for.
    pub(crate) fn take(&self, bytes: usize) -> Option<TemporaryBlock> {
        let mut spare = lock(&self.spare);
        let index = spare.iter().position(|(size, _)| *size == bytes)?;
        Some(spare.swap_remove(index).1)
    }

    /// Takes a temporary block back, for the next operation that asks for as many bytes.
    pub(crate) fn give(&self, bytes: usize, block: TemporaryBlock) {
        lock(&self.spare).push((bytes, block));
    }
}

/// A graph that can be launched.
pub(crate) struct CudaGraph {
    queue: Arc<Queue>,
    exec: CUgraphExec,
    // Dropped after the graph, which uses it.
    _capture: Arc<Capture>,
}

// SAFETY: an executable graph is a handle that the driver lets any thread use; launches are in the order of one stream.
unsafe impl Send for CudaGraph {}
// SAFETY: as above.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    pub(crate) fn new(queue: Arc<Queue>, exec: CUgraphExec, capture: Arc<Capture>) -> CudaGraph {
        CudaGraph { queue, exec, _capture: capture }
    }
}

impl GraphBackend for CudaGraph {
    fn launch(&self) -> Result<()> {
        let context = self.queue.context();
        context.enter()?;
        context.check("launching a graph", context.driver().launch_graph(self.exec, self.queue.raw()))
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // A graph must not go while it runs.
        if let Err(error) = self.queue.synchronize() {
            self.queue.context().keep(error);
        }
        self.queue.context().leave("closing a graph", |driver| driver.destroy_graph_exec(self.exec));
    }
}
