//! Reads coded blocks of a file ahead of their use and compares them with their checksums, so that a start waits for no more
//! of the disk than its first step does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use checkpoint::{Advice, EntryBytes};
use device::Cancel;

use crate::sidecar::{Damaged, PART_BYTES};

/// Threads that read: one waits for the disk while another sums.
const THREADS: usize = 4;
/// Parts that the system is told of before they are read.
const AHEAD: usize = 8;
/// What the system reads ahead at most when it is told.
const TOLD_BYTES: usize = 512 << 10;

/// Checks blocks from front to back. It ends with this.
pub(crate) struct Checker {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The check of one block.
pub(crate) struct BlockCheck {
    checker: Arc<Checker>,
    block: usize,
}

struct Shared {
    /// Name, bytes and checksum.
    blocks: Vec<(String, EntryBytes, u64)>,
    /// Every part of every block, in order: the block, and the part's number in it.
    parts: Vec<(usize, usize)>,
    next: AtomicUsize,
    progress: Mutex<Vec<Progress>>,
    changed: Condvar,
    damaged: Damaged,
    gone: Cancel,
}

struct Progress {
    sums: Vec<u8>,
    left: usize,
    is_good: Option<bool>,
}

/// Bytes of a part's checksum.
const SUM_BYTES: usize = 8;

impl Checker {
    /// Starts to check blocks, each with its name and checksum.
    pub(crate) fn start(blocks: Vec<(String, EntryBytes, u64)>, damaged: Damaged) -> Checker {
        let counts: Vec<usize> =
            blocks.iter().map(|(_, bytes, _)| bytes.len().div_ceil(PART_BYTES)).collect();
        let parts = counts.iter().enumerate();
        let parts = parts.flat_map(|(block, count)| (0..*count).map(move |part| (block, part))).collect();
        let progress =
            |count: &usize| Progress { sums: vec![0; count * SUM_BYTES], left: *count, is_good: None };
        let shared = Arc::new(Shared {
            progress: Mutex::new(counts.iter().map(progress).collect()),
            blocks,
            parts,
            next: AtomicUsize::new(0),
            changed: Condvar::new(),
            damaged,
            gone: Cancel::default(),
        });
        (0..AHEAD).for_each(|part| shared.tell(part));
        let start = |index: usize| {
            let own = Arc::clone(&shared);
            Builder::new().name(format!("checker-{index}")).spawn(move || own.work()).ok()
        };
        let threads: Vec<JoinHandle<()>> = (0..THREADS).filter_map(start).collect();
        if threads.is_empty() {
            shared.work();
        }
        Checker { shared, threads }
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.shared.gone.cancel();
        self.shared.changed.notify_all();
        // A panic of theirs has left blocks unchecked, which nobody uses any more.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl BlockCheck {
    pub(crate) fn new(checker: &Arc<Checker>, block: usize) -> BlockCheck {
        BlockCheck { checker: Arc::clone(checker), block }
    }

    /// Waits until the block is read; whether it is as it was written.
    pub(crate) fn is_good(&self) -> bool {
        let shared = &self.checker.shared;
        let mut progress = shared.lock();
        loop {
            if let Some(is_good) = progress[self.block].is_good {
                return is_good;
            }
            if shared.gone.is_cancelled() {
                return false;
            }
            progress = shared.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn part(&self, index: usize) -> Option<(usize, usize, EntryBytes)> {
        let (block, part) = *self.parts.get(index)?;
        let bytes = &self.blocks[block].1;
        let start = part * PART_BYTES;
        Some((block, part, bytes.slice(start..bytes.len().min(start + PART_BYTES))))
    }

    /// Tells the system that a part is about to be read.
    fn tell(&self, index: usize) {
        let Some((_, _, bytes)) = self.part(index) else { return };
        for start in (0..bytes.len()).step_by(TOLD_BYTES) {
            // Advice that is not taken costs nothing.
            let _ = bytes.slice(start..bytes.len().min(start + TOLD_BYTES)).advise(Advice::WillNeed);
        }
    }

    fn work(&self) {
        while !self.gone.is_cancelled() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((block, part, bytes)) = self.part(index) else { return };
            self.tell(index + AHEAD);
            let sum = codec::checksum(&bytes);
            let mut progress = self.lock();
            let own = &mut progress[block];
            own.sums[part * SUM_BYTES..][..SUM_BYTES].copy_from_slice(&sum.to_le_bytes());
            own.left -= 1;
            if own.left > 0 {
                continue;
            }
            let (name, bytes, expected) = &self.blocks[block];
            // A page that could not be read gives other bytes than it had.
            let is_good = codec::checksum(&own.sums) == *expected && bytes.check_intact().is_ok();
            own.is_good = Some(is_good);
            let is_first = !is_good && progress.iter().filter(|one| one.is_good == Some(false)).count() == 1;
            drop(progress);
            self.changed.notify_all();
            if is_first {
                self.damaged.throw_away(&format!("the bytes of block {name} have not their checksum"));
            }
        }
    }
}
