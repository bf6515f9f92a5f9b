//! Host memory: small blocks from the allocator, large ones mapped from the operating system, so that
//! giving them back really gives them back. Freed large blocks are kept for reuse until trimmed: fresh
//! pages cost more than most operations.

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
    by_size: BTreeMap<usize, Vec<Region>>,
    bytes: usize,
}

impl HostPool {
    /// A block of at least `bytes`, contents undefined; none if the operating system refuses.
    pub(crate) fn allocate(pool: &Arc<HostPool>, bytes: usize) -> Option<HostBlock> {
        let size = rounded(bytes)?;
        let region = match pool.take(size) {
            Some(region) => region,
            None => Region::new(size)?,
        };
        Some(HostBlock { region: Some(region), len: bytes, pool: Arc::clone(pool) })
    }

    /// Bytes kept for reuse.
    pub(crate) fn cached(&self) -> usize {
        self.lock().bytes
    }

    /// Gives all kept memory back to the operating system.
    pub(crate) fn trim(&self) {
        let freed = std::mem::take(&mut *self.lock());
        drop(freed);
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: malloc_trim only returns unused pages of the allocator to the system.
        unsafe {
            libc::malloc_trim(0);
        }
    }

    fn take(&self, size: usize) -> Option<Region> {
        let mut cache = self.lock();
        let region = cache.by_size.get_mut(&size)?.pop()?;
        cache.bytes -= size;
        Some(region)
    }

    fn give(&self, region: Region) {
        let mut cache = self.lock();
        if region.size >= MAPPED_FROM && cache.bytes + region.size <= CACHE_LIMIT {
            cache.bytes += region.size;
            cache.by_size.entry(region.size).or_default().push(region);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sizes are rounded up to an eighth of their power of two, so that freed blocks fit the next request
/// of about the same size and at most an eighth is wasted.
fn rounded(bytes: usize) -> Option<usize> {
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

impl Memory for HostBlock {
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
