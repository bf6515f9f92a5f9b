//! Host memory: small blocks from the allocator, large ones mapped from the operating system, so that
//! giving them back really gives them back. Freed large blocks are kept for reuse until trimmed: fresh
//! pages cost more than most operations. What is kept never makes the whole larger than what was once in use
//! at the same time, so reuse costs no memory: the peak is that of the blocks in use.

use std::alloc::{Layout, alloc, dealloc};
use std::any::Any;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::Memory;

/// Every block starts at a multiple of this, a cache line and a vector of the widest kind.
const ALIGN: usize = 64;
/// From this size on, blocks are mapped.
const MAPPED_FROM: usize = 1 << 20;
/// The most bytes that are kept for reuse.
const CACHE_LIMIT: usize = 1 << 30;

/// Memory blocks and the cache of freed ones.
#[derive(Default)]
pub(crate) struct HostPool {
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// Kept blocks, the one given back last at the end.
    by_size: BTreeMap<usize, Vec<Kept>>,
    /// Bytes kept.
    bytes: usize,
    /// Bytes of large blocks in use, and the most that there ever were.
    in_use: usize,
    most_in_use: usize,
    /// Counts what is given back.
    clock: u64,
}

/// A block kept for reuse, and when it was given back.
struct Kept {
    since: u64,
    region: Region,
}

impl HostPool {
    /// A block of at least `bytes`, contents undefined; none if the operating system refuses.
    pub(crate) fn allocate(pool: &Arc<HostPool>, bytes: usize) -> Option<HostBlock> {
        let size = rounded(bytes)?;
        let region = match pool.take(size) {
            Ok(region) => region,
            Err(evicted) => Region::instead_of(evicted, size).or_else(|| {
                pool.forget(size);
                None
            })?,
        };
        Some(HostBlock { region: Some(region), len: bytes, pool: Arc::clone(pool) })
    }

    /// Bytes kept for reuse.
    pub(crate) fn cached(&self) -> usize {
        self.lock().bytes
    }

    /// Gives all kept memory back to the operating system.
    pub(crate) fn trim(&self) {
        let freed = {
            let mut cache = self.lock();
            cache.bytes = 0;
            cache.most_in_use = cache.in_use;
            std::mem::take(&mut cache.by_size)
        };
        drop(freed);
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: malloc_trim only returns unused pages of the allocator to the system.
        unsafe {
            libc::malloc_trim(0);
        }
    }

    /// Counts a block and takes a kept one for it. If there is none, gives those that have to go first.
    fn take(&self, size: usize) -> Result<Region, Vec<Region>> {
        if size < MAPPED_FROM {
            return Err(Vec::new());
        }
        let mut cache = self.lock();
        cache.in_use += size;
        if let Some(kept) = cache.by_size.get_mut(&size).and_then(Vec::pop) {
            cache.bytes -= size;
            return Ok(kept.region);
        }
        cache.most_in_use = cache.most_in_use.max(cache.in_use);
        let mut evicted = Vec::new();
        while cache.bytes > 0 && cache.in_use + cache.bytes > cache.most_in_use {
            evicted.extend(cache.evict_oldest());
        }
        Err(evicted)
    }

    fn give(&self, region: Region) {
        if region.size < MAPPED_FROM {
            return;
        }
        let mut cache = self.lock();
        cache.in_use -= region.size;
        if cache.bytes + region.size <= CACHE_LIMIT {
            cache.bytes += region.size;
            cache.clock += 1;
            let kept = Kept { since: cache.clock, region };
            cache.by_size.entry(kept.region.size).or_default().push(kept);
        }
    }

    /// Undoes the count of a block that the operating system refused.
    fn forget(&self, size: usize) {
        if size >= MAPPED_FROM {
            self.lock().in_use -= size;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// Takes out the block that has been kept longest.
    fn evict_oldest(&mut self) -> Option<Region> {
        let since = |blocks: &[Kept]| blocks.first().map_or(u64::MAX, |kept| kept.since);
        let (&size, blocks) = self.by_size.iter_mut().min_by_key(|(_, blocks)| since(blocks))?;
        let oldest = (!blocks.is_empty()).then(|| blocks.remove(0).region);
        if blocks.is_empty() {
            self.by_size.remove(&size);
        }
        match &oldest {
            Some(region) => self.bytes -= region.size,
            // Only empty lists were left, so nothing is kept.
            None => self.bytes = 0,
        }
        oldest
    }
}

/// Sizes are rounded up to an eighth of their power of two, so that freed blocks fit the next request
/// of about the same size and at most an eighth is wasted.
pub(crate) fn rounded(bytes: usize) -> Option<usize> {
    if bytes < MAPPED_FROM {
        return bytes.max(1).checked_next_multiple_of(ALIGN);
    }
    bytes.checked_next_multiple_of((1usize << bytes.ilog2()) / 8)
}

/// A block in use. It goes back to its pool when dropped.
pub(crate) struct HostBlock {
    region: Option<Region>,
    len: usize,
    pool: Arc<HostPool>,
}

// SAFETY: the region is this block's alone from its making until it is dropped, is at least `len` bytes long, and does not
// move.
unsafe impl Memory for HostBlock {
    fn len(&self) -> usize {
        self.len
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        self.region.as_ref().map(|region| region.start)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.pool.give(region);
        }
    }
}

/// Owned memory: mapped if large, from the allocator if small.
struct Region {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a region is plain memory; who may touch it when is ordered by the buffer's guards.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(size: usize) -> Option<Region> {
        let start = if size >= MAPPED_FROM { map(size)? } else { small(size)? };
        Some(Region { start, size })
    }

    /// A region in the place of others. The largest of them lends its pages, so that fewer are fresh.
    fn instead_of(mut evicted: Vec<Region>, size: usize) -> Option<Region> {
        evicted.sort_by_key(|region| region.size);
        let largest = evicted.pop();
        drop(evicted);
        largest.and_then(|region| region.resized(size)).or_else(|| Region::new(size))
    }

    /// The same region with another size; none where the system cannot.
    #[cfg(target_os = "linux")]
    fn resized(self, size: usize) -> Option<Region> {
        // The region goes on under another size: it must not be unmapped under the old one.
        let old = std::mem::ManuallyDrop::new(self);
        if size <= old.size {
            if size < old.size {
                // SAFETY: the tail of a mapping that this function owns; sizes are multiples of a page.
                unmap(unsafe { old.start.add(size) }, old.size - size);
            }
            return Some(Region { start: old.start, size });
        }
        // SAFETY: the range is one mapping that nobody else uses; it may move.
        let start = unsafe { libc::mremap(old.start.as_ptr().cast(), old.size, size, libc::MREMAP_MAYMOVE) };
        if start == libc::MAP_FAILED {
            unmap(old.start, old.size);
            return None;
        }
        NonNull::new(start.cast()).map(|start| Region { start, size })
    }

    #[cfg(not(target_os = "linux"))]
    fn resized(self, _size: usize) -> Option<Region> {
        None
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.size >= MAPPED_FROM {
            unmap(self.start, self.size);
        } else if let Ok(layout) = Layout::from_size_align(self.size, ALIGN) {
            // SAFETY: the region came from `alloc` with this very layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

fn small(size: usize) -> Option<NonNull<u8>> {
    let layout = Layout::from_size_align(size, ALIGN).ok()?;
    // SAFETY: sizes are never 0.
    NonNull::new(unsafe { alloc(layout) })
}

#[cfg(unix)]
fn map(size: usize) -> Option<NonNull<u8>> {
    // SAFETY: an anonymous private mapping touches no memory that anyone has.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: the range is the mapping just made; the advice is only a hint.
    unsafe {
        libc::madvise(start, size, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start.cast())
}

#[cfg(unix)]
fn unmap(start: NonNull<u8>, size: usize) {
    // SAFETY: the range is one mapping made by `map`, and its only owner is being dropped.
    unsafe { libc::munmap(start.as_ptr().cast(), size) };
}

#[cfg(not(unix))]
fn map(size: usize) -> Option<NonNull<u8>> {
    small(size)
}

#[cfg(not(unix))]
fn unmap(start: NonNull<u8>, size: usize) {
    if let Ok(layout) = Layout::from_size_align(size, ALIGN) {
        // SAFETY: the region came from `alloc` with this very layout.
        unsafe { dealloc(start.as_ptr(), layout) };
    }
}

/// Asks the allocator to serve all threads from few arenas. Each keeps what it once had for reuse, so that a program of
/// many threads that all had something large for a moment holds it many times over.
///
/// It holds for the whole process; the program calls it once, when it starts.
pub fn use_few_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt sets a number; it is called before other threads are started.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        // Latents come and go with every step: taken from the system anew each time, their pages would be cleared anew,
        // too. What is larger goes back at once; the rest when memory is given back.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_are_kept_for_reuse_and_trimmed() {
        let pool = Arc::new(HostPool::default());
        let block = HostPool::allocate(&pool, (3 << 20) + 5).unwrap();
        let start = block.host_pointer();
        drop(block);
        assert!(pool.cached() >= 3 << 20);
        let again = HostPool::allocate(&pool, (3 << 20) + 9).unwrap();
        assert_eq!(again.host_pointer(), start);
        assert_eq!(pool.cached(), 0);
        drop(again);
        pool.trim();
        assert_eq!(pool.cached(), 0);
    }

    #[test]
    fn what_is_kept_adds_nothing_to_the_peak() {
        let pool = Arc::new(HostPool::default());
        let mib = |count: usize| HostPool::allocate(&pool, count << 20).unwrap();
        let (first, second) = (mib(8), mib(4));
        drop(first);
        drop(second);
        assert_eq!(pool.cached(), 12 << 20);
        // Ten of another size fit beside neither: no more than twelve were ever in use.
        let other = mib(10);
        assert_eq!(pool.cached(), 0);
        drop(other);
        let (again, small) = (mib(10), mib(2));
        assert_eq!(pool.cached(), 0);
        drop((again, small));
        let small = mib(1);
        assert_eq!(pool.cached(), 2 << 20);
        drop(small);
        pool.trim();
        let Cache { bytes, in_use, most_in_use, .. } = *pool.lock();
        assert_eq!((bytes, in_use, most_in_use), (0, 0, 0));
    }

    #[test]
    fn a_block_in_the_place_of_others_is_whole() {
        let pool = Arc::new(HostPool::default());
        for sizes in [[16, 24], [24, 16], [16, 16]] {
            for mib in sizes {
                let block = HostPool::allocate(&pool, (mib << 20) - 1).unwrap();
                let start = block.host_pointer().unwrap();
                // SAFETY: the block is this test's alone and as long as it was asked for.
                let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), block.len()) };
                bytes.fill(mib as u8);
                assert!(bytes.iter().all(|byte| *byte == mib as u8));
            }
        }
        assert_eq!((pool.cached(), pool.lock().in_use), (16 << 20, 0));
    }

    #[test]
    fn a_refused_block_is_not_counted() {
        let pool = Arc::new(HostPool::default());
        assert!(HostPool::allocate(&pool, usize::MAX / 2).is_none());
        assert_eq!(pool.lock().in_use, 0);
    }

    #[test]
    fn blocks_are_aligned_and_an_impossible_size_is_refused() {
        let pool = Arc::new(HostPool::default());
        for bytes in [0, 1, 63, 65, 4096, 1 << 20, 5_000_001] {
            let block = HostPool::allocate(&pool, bytes).unwrap();
            assert_eq!(block.host_pointer().unwrap().as_ptr() as usize % ALIGN, 0);
            assert_eq!(block.len(), bytes);
        }
        assert!(HostPool::allocate(&pool, usize::MAX / 2).is_none());
    }
}
