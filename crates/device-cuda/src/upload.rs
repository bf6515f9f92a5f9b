//! Copies from ordinary host memory to the card: threads move them through pinned chunks, because the driver's own way
//! through its staging area uses one thread, waits for the stream, and reaches a fraction of the link.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use device::{Cancel, Memory, Result};

use crate::context::{Context, EventHandle, lock};
use crate::memory::PinnedMemory;
use crate::stream::Queue;

/// One chunk: large enough for the link, small enough that all of them stay in few megabytes.
const CHUNK_BYTES: usize = 4 << 20;
/// Threads that copy; more than these saturate no link that there is.
const MOST_THREADS: usize = 12;
/// Chunks of each thread: one is filled while the other travels.
const CHUNKS_PER_THREAD: usize = 2;

/// The pinned chunks of one device, kept between copies.
#[derive(Default)]
pub(crate) struct Uploader {
    spare: Mutex<Vec<Chunk>>,
}

struct Chunk {
    memory: PinnedMemory,
    /// The copy that last read it.
    travelling: Option<EventHandle>,
}

/// Where bytes come from. The pointer is valid while the copy is made, which the caller vouches for.
#[derive(Clone, Copy)]
struct Source(*const u8);

// SAFETY: the memory is only read, and stays alive until all threads have ended.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

impl Source {
    /// The address of the byte at an offset inside the memory.
    fn at(self, offset: usize) -> *const u8 {
        self.0.wrapping_add(offset)
    }
}

impl Uploader {
    /// Queues the copy. All bytes have left the source when this returns, unless it was cancelled; then some are left out.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes, and `to` device memory of that size that work queued on the
    /// stream may write.
    pub(crate) unsafe fn copy(
        &self,
        queue: &Arc<Queue>,
        to: u64,
        (from, len): (*const u8, usize),
        cancel: &Cancel,
    ) -> Result<()> {
        let (source, next) = (Source(from), AtomicUsize::new(0));
        let count = len.div_ceil(CHUNK_BYTES);
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(count);
        let send_all = |chunks: &mut Vec<Chunk>| -> Result<()> {
            for turn in 0.. {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                if chunks.len() < CHUNKS_PER_THREAD {
                    chunks.push(self.take(queue.context())?);
                }
                let chunk = &mut chunks[turn % CHUNKS_PER_THREAD];
                let start = index * CHUNK_BYTES;
                let bytes = CHUNK_BYTES.min(len - start);
                chunk.wait(cancel)?;
                chunk.send(queue, to + start as u64, source.at(start), bytes)?;
            }
            Ok(())
        };
        let work = || -> Result<()> {
            let mut chunks = Vec::new();
            let sent = send_all(&mut chunks);
            // Chunks that still travel are kept, too: who takes them waits for that.
            lock(&self.spare).append(&mut chunks);
            sent
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own = work();
            others.into_iter().fold(own, |result, other| match other.join() {
                Ok(theirs) => result.and(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// Gives the chunks back.
    pub(crate) fn trim(&self) {
        lock(&self.spare).clear();
    }

    fn take(&self, context: &Arc<Context>) -> Result<Chunk> {
        if let Some(chunk) = lock(&self.spare).pop() {
            return Ok(chunk);
        }
        Ok(Chunk { memory: PinnedMemory::allocate(context, CHUNK_BYTES)?, travelling: None })
    }
}

impl Chunk {
    /// Waits until its last copy is done.
    fn wait(&mut self, cancel: &Cancel) -> Result<()> {
        if let Some(event) = &self.travelling {
            event.wait_unless(cancel)?;
            self.travelling = None;
        }
        cancel.check()
    }

    /// Fills the chunk, which nobody reads any more, and queues its copy.
    fn send(&mut self, queue: &Arc<Queue>, to: u64, from: *const u8, bytes: usize) -> Result<()> {
        let Some(start) = self.memory.host_pointer() else { return Ok(()) };
        let context = queue.context();
        context.enter()?;
        // SAFETY: the source is readable, which the caller of `copy` vouches for; the chunk is this thread's, has
        // room for the bytes, and no copy reads it any more. It is not filled again before the event.
        let queued = unsafe {
            std::ptr::copy_nonoverlapping(from, start.as_ptr(), bytes);
            context.driver().copy_up(to, start.as_ptr(), bytes, queue.raw())
        };
        context.check(&format!("copying {bytes} bytes from the host"), queued)?;
        self.travelling = Some(queue.record()?);
        Ok(())
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // The card may still read it. What goes wrong here is told by the next call on the stream.
        if let Some(event) = self.travelling.take() {
            let _ = event.wait();
        }
    }
}
