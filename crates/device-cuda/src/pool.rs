//! The caching allocator of one device.
//!
//! Memory comes from `cuMemAlloc` and is kept when freed, because allocating and freeing wait for the
//! card. The driver's own stream-ordered pools are not used: they belong to a card, so
//! its logical devices could not be told apart, and their memory needs extra grants for peer copies.
//! Large blocks are the driver's own; small ones are cut from slabs. A freed block carries a mark on each
//! stream that used it; whoever uses it next on another stream waits for those marks on that stream,
//! never on the host. On the same stream nothing has to wait, so a mark asks the driver for an event only
//! when another stream wants the block.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use device::{Error, OutOfMemory, Result};

use crate::context::{Context, EventHandle, lock};
use crate::driver::OUT_OF_MEMORY;
use crate::memory::DeviceMemory;
use crate::slab::{self, Piece, Slabs};
use crate::stream::Queue;

/// A point on a stream that must have passed before other streams use a block.
#[derive(Clone)]
pub(crate) struct Mark(Arc<Point>);

struct Point {
    queue: Arc<Queue>,
    /// Points of one stream in order.
    number: u64,
    /// Recorded when another stream wants to wait for it, or before.
    event: OnceLock<Arc<EventHandle>>,
}

impl Mark {
    /// This point of the stream's; its event is recorded when someone asks for it.
    pub(crate) fn new(queue: Arc<Queue>, number: u64) -> Mark {
        Mark(Arc::new(Point { queue, number, event: OnceLock::new() }))
    }

    /// Whether it is on this stream.
    pub(crate) fn is_on(&self, queue: &Queue) -> bool {
        std::ptr::eq(&*self.0.queue, queue)
    }

    /// An event at the point or after it.
    pub(crate) fn event(&self) -> Result<&EventHandle> {
        if let Some(event) = self.0.event.get() {
            return Ok(event);
        }
        let event = self.0.queue.end_of_work()?;
        Ok(self.0.event.get_or_init(|| event))
    }
}

impl slab::Mark for Mark {
    fn covers(&self, other: &Mark) -> bool {
        Arc::ptr_eq(&self.0.queue, &other.0.queue) && self.0.number >= other.0.number
    }
}

/// Device memory that no one uses right now, or that a [`DeviceMemory`] owns.
pub(crate) struct Block {
    piece: Piece<Mark>,
    origin: Origin,
}

/// Where a block is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The driver allocated it as it is.
    Whole,
    /// It is cut from a slab.
    Slab,
}

impl Block {
    /// Its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.piece.address
    }

    /// What must have happened before it may be used.
    pub(crate) fn marks(&self) -> &[Mark] {
        &self.piece.marks
    }

    /// Replaces what must happen before it may be used again.
    pub(crate) fn set_marks(&mut self, marks: Vec<Mark>) {
        self.piece.marks = marks;
    }
}

/// All pools on one card: one that is short asks the others to let their caches go.
pub(crate) type Siblings = Arc<Mutex<Vec<Weak<Pool>>>>;

/// The memory of one device.
pub(crate) struct Pool {
    context: Arc<Context>,
    siblings: Siblings,
    cache: Mutex<Cache>,
    used: AtomicU64,
    /// The most of that since it was asked for last.
    peak: AtomicU64,
}

/// Blocks that are kept for reuse.
#[derive(Default)]
struct Cache {
    slabs: Slabs<Mark>,
    whole: WholeBlocks<Mark>,
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    origin: Origin,
    size: usize,
}

impl Request {
    /// None if it is too large to count.
    fn of(bytes: usize) -> Option<Request> {
        if bytes < WHOLE_FROM {
            return Some(Request { origin: Origin::Slab, size: bytes.max(1).next_multiple_of(SMALLEST) });
        }
        bytes.checked_next_multiple_of(PAGE).map(|size| Request { origin: Origin::Whole, size })
    }
}

/// Bytes that a block for so many takes of the pool. No request is ever given more than this.
pub(crate) fn taken(bytes: usize) -> u64 {
    // What is too large to count is more than any device has.
    Request::of(bytes).map_or(u64::MAX, |request| request.size as u64)
}

impl Pool {
    pub(crate) fn new(context: Arc<Context>, siblings: &Siblings) -> Arc<Pool> {
        let pool = Arc::new(Pool {
            context,
            siblings: Arc::clone(siblings),
            cache: Mutex::default(),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        });
        lock(siblings).push(Arc::downgrade(&pool));
        pool
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Bytes kept for reuse.
    pub(crate) fn cached(&self) -> u64 {
        let cache = lock(&self.cache);
        (cache.slabs.free_bytes() + cache.whole.bytes) as u64
    }

    /// Bytes in blocks that are in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were in use at a time since this was asked last.
    pub(crate) fn take_peak(&self) -> u64 {
        self.peak.swap(self.used(), Ordering::Relaxed)
    }

    /// Device memory, contents undefined. When the card is short, all caches on it are given back once.
    pub(crate) fn allocate(pool: &Arc<Pool>, bytes: usize) -> Result<DeviceMemory> {
        let request = Request::of(bytes).ok_or_else(|| pool.short(bytes, 0))?;
        // The lock is let go before the driver is asked: trimming takes it again.
        let cached = lock(&pool.cache).take(request);
        let piece = match (cached, request.origin) {
            (Some(piece), _) => piece,
            (None, Origin::Slab) => pool.piece_of_new_slab(bytes, request.size)?,
            (None, Origin::Whole) => pool.whole_block(bytes, request.size)?,
        };
        let size = piece.size as u64;
        let used = pool.used.fetch_add(size, Ordering::Relaxed) + size;
        pool.peak.fetch_max(used, Ordering::Relaxed);
        Ok(DeviceMemory::new(Block { piece, origin: request.origin }, bytes, Arc::clone(pool)))
    }

    /// The driver's own block.
    fn whole_block(&self, bytes: usize, size: usize) -> Result<Piece<Mark>> {
        let address = self.ask(bytes, size)?;
        Ok(Piece { address, size, slab: address, marks: Vec::new() })
    }

    /// A piece of a new slab; a smaller slab if the card has no room for a full one.
    fn piece_of_new_slab(&self, bytes: usize, size: usize) -> Result<Piece<Mark>> {
        let (address, slab_bytes) = match self.ask(bytes, SLAB_BYTES) {
            Ok(address) => (address, SLAB_BYTES),
            Err(Error::OutOfMemory(_)) => {
                let least = size.next_multiple_of(PAGE);
                (self.ask(bytes, least)?, least)
            }
            Err(other) => return Err(other),
        };
        let mut cache = lock(&self.cache);
        cache.slabs.add(address, slab_bytes);
        // The lock is held from adding to taking, so no other thread has used the slab up.
        cache.slabs.take(size).ok_or_else(|| self.short(bytes, 0))
    }

    /// Asks the driver for memory, for a request of so many bytes.
    fn ask(&self, bytes: usize, size: usize) -> Result<u64> {
        self.context.enter()?;
        let driver = self.context.driver();
        let mut allocated = driver.allocate(size);
        if matches!(&allocated, Err(fault) if fault.code == OUT_OF_MEMORY) {
            let siblings: Vec<_> = lock(&self.siblings).iter().filter_map(Weak::upgrade).collect();
            for pool in siblings {
                pool.trim()?;
            }
            self.context.enter()?;
            allocated = driver.allocate(size);
        }
        match allocated {
            Ok(address) => Ok(address),
            Err(fault) if fault.code == OUT_OF_MEMORY => {
                let free = driver.memory_info().map_or(0, |(free, _)| free);
                Err(self.short(bytes, free as u64))
            }
            Err(fault) => Err(self.context.error(&format!("allocating {size} bytes"), &fault)),
        }
    }

    fn short(&self, bytes: usize, available: u64) -> Error {
        Error::OutOfMemory(OutOfMemory {
            device: self.context.id(),
            wanted: bytes as u64,
            available,
            budget: self.context.properties().memory_bytes,
            used: self.used(),
            reserved: 0,
            op: None,
        })
    }

    /// Keeps a block for reuse.
    pub(crate) fn give(&self, block: Block) {
        self.used.fetch_sub(block.piece.size as u64, Ordering::Relaxed);
        let mut cache = lock(&self.cache);
        match block.origin {
            Origin::Whole => cache.whole.give(block.piece),
            Origin::Slab => cache.slabs.give(block.piece),
        }
    }

    /// Takes a block out of use for good, where it is not known what still works on it. The driver waits
    /// for the card before it frees; a piece of a slab stays unused.
    pub(crate) fn discard(&self, block: &Block) {
        self.used.fetch_sub(block.piece.size as u64, Ordering::Relaxed);
        if block.origin == Origin::Whole {
            self.context.leave("freeing device memory", |driver| driver.free(block.piece.address));
        }
    }

    /// Gives all kept memory back to the driver, after the work that used it. Slabs of which a part is in
    /// use stay.
    pub(crate) fn trim(&self) -> Result<()> {
        let unused = {
            let mut cache = lock(&self.cache);
            let mut unused = cache.slabs.take_unused();
            unused.extend(std::mem::take(&mut cache.whole).into_pieces());
            unused
        };
        if unused.is_empty() {
            return Ok(());
        }
        self.context.enter()?;
        let driver = self.context.driver();
        let mut outcome = self.context.check("finishing queued work", driver.synchronize_context());
        for piece in unused {
            // Streams of other devices may have copied from or to the block.
            for mark in &piece.marks {
                outcome = outcome.and(mark.event().and_then(EventHandle::wait));
            }
            self.context.enter()?;
            let freed = self.context.check("freeing device memory", driver.free(piece.address));
            outcome = outcome.and(freed);
        }
        outcome
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Err(error) = self.trim() {
            self.context.keep(error);
        }
    }
}

impl Cache {
    fn take(&mut self, request: Request) -> Option<Piece<Mark>> {
        match request.origin {
            Origin::Whole => self.whole.take(request.size),
            Origin::Slab => self.slabs.take(request.size),
        }
    }
}

/// Blocks of the driver by size.
struct WholeBlocks<M> {
    by_size: BTreeMap<usize, Vec<Piece<M>>>,
    bytes: usize,
}

impl<M> Default for WholeBlocks<M> {
    fn default() -> WholeBlocks<M> {
        WholeBlocks { by_size: BTreeMap::new(), bytes: 0 }
    }
}

impl<M> WholeBlocks<M> {
    /// A block of exactly this size.
    fn take(&mut self, size: usize) -> Option<Piece<M>> {
        let blocks = self.by_size.get_mut(&size)?;
        let block = blocks.pop()?;
        if blocks.is_empty() {
            self.by_size.remove(&size);
        }
        self.bytes -= block.size;
        Some(block)
    }

    fn give(&mut self, block: Piece<M>) {
        self.bytes += block.size;
        self.by_size.entry(block.size).or_default().push(block);
    }

    fn into_pieces(self) -> impl Iterator<Item = Piece<M>> {
        self.by_size.into_values().flatten()
    }
}

/// Blocks of this size and above are the driver's own.
const WHOLE_FROM: usize = 8 << 20;
/// Slabs from which smaller blocks are cut.
const SLAB_BYTES: usize = 32 << 20;
/// The pages in which the card hands memory out.
const PAGE: usize = 2 << 20;
/// Sizes and addresses of small blocks are multiples of this.
const SMALLEST: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_and_waste_little() {
        for bytes in [0, 1, 511, 513, 70_000, WHOLE_FROM - 1, WHOLE_FROM, (50 << 20) + 1, 3 << 30] {
            let request = Request::of(bytes).unwrap();
            assert!(request.size >= bytes.max(1) && request.size.is_multiple_of(SMALLEST), "{bytes}");
            let waste = if request.origin == Origin::Whole { PAGE } else { SMALLEST };
            assert!(request.size - bytes <= waste, "{bytes} -> {request:?}");
        }
        assert_eq!(Request::of(usize::MAX - 5), None);
    }

    #[test]
    fn a_whole_block_is_reused_for_its_own_size_only() {
        let mut whole = WholeBlocks::<(u8, u64)>::default();
        for (address, size) in [(1, 16 << 20), (2, 18 << 20), (3, 16 << 20)] {
            whole.give(Piece { address, size, slab: address, marks: Vec::new() });
        }
        assert_eq!(whole.bytes, 50 << 20);
        assert_eq!(whole.take(16 << 20).map(|b| b.address), Some(3));
        assert_eq!(whole.take(16 << 20).map(|b| b.address), Some(1));
        assert!(whole.take(16 << 20).is_none(), "18 MB in place of 16 would be more than the ledger has");
        assert_eq!(whole.bytes, 18 << 20);
        assert_eq!(whole.into_pieces().count(), 1);
    }
}
