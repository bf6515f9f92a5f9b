//! Buffers: memory with its device, its charge in the ledger, and guards that order host access.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

use meta::DeviceId;

use crate::{Charge, Error, Memory, Result, SharedBytes};

/// A shared handle to a block of memory on one device. The bytes are credited to the ledger when the
/// last handle goes.
#[derive(Clone)]
pub struct Buffer {
    shared: Arc<Shared>,
}

struct Shared {
    // Dropped before the charge: the ledger is credited only once the memory is back.
    memory: Arc<dyn Memory>,
    device: DeviceId,
    access: Access,
    _charge: Option<Charge>,
}

impl Buffer {
    /// Memory of `device`, with its charge.
    pub fn new(device: DeviceId, memory: Arc<dyn Memory>, charge: Option<Charge>) -> Buffer {
        Buffer { shared: Arc::new(Shared { memory, device, access: Access::default(), _charge: charge }) }
    }

    /// A read-only host buffer over bytes that live elsewhere, such as a mapped file. Nothing is copied.
    pub fn over(bytes: SharedBytes) -> Buffer {
        Buffer::new(DeviceId::CPU, Arc::new(ReadOnly::new(bytes)), None)
    }

    /// The device it belongs to.
    pub fn device(&self) -> DeviceId {
        self.shared.device
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.shared.memory.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory behind it.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.shared.memory
    }

    /// Whether both handles are of one block of memory.
    pub fn same_memory(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.shared.memory, &other.shared.memory)
    }

    /// All of it as a span.
    pub fn whole(&self) -> Span {
        Span { buffer: self.clone(), offset: 0, len: self.len() }
    }

    /// Part of it, or an error if it is not inside.
    pub fn span(&self, range: Range<usize>) -> Result<Span> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::Operand {
                op: "span",
                operand: "range",
                expected: format!("inside 0..{}", self.len()),
                got: format!("{range:?}"),
            });
        }
        Ok(Span { buffer: self.clone(), offset: range.start, len: range.end - range.start })
    }

    /// Right to read the bytes on the host while the guard lives; fails while another call writes them.
    pub fn read_access(&self) -> Result<ReadGuard<'_>> {
        if self.shared.access.share() {
            Ok(ReadGuard(self))
        } else {
            Err(self.access_error("reading", "being written by another call"))
        }
    }

    /// Right to write the bytes on the host while the guard lives; fails while another call uses them.
    pub fn write_access(&self) -> Result<WriteGuard<'_>> {
        if !self.shared.memory.is_writable() {
            return Err(self.access_error("writing", "read-only"));
        }
        if self.shared.access.exclude() {
            Ok(WriteGuard(self))
        } else {
            Err(self.access_error("writing", "in use by another call"))
        }
    }

    fn access_error(&self, action: &'static str, state: &'static str) -> Error {
        Error::Access { device: self.device(), action, bytes: self.len(), state }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}, {} bytes)", self.device(), self.len())
    }
}

/// Part of a buffer, in bytes.
#[derive(Clone, Debug)]
pub struct Span {
    /// The buffer.
    pub buffer: Buffer,
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

impl Span {
    /// So many of its bytes from `start` on, which must lie inside.
    pub(crate) fn part(&self, start: usize, len: usize) -> Span {
        Span { buffer: self.buffer.clone(), offset: self.offset + start, len }
    }
}

/// Who uses a buffer on the host: -1 one writer, otherwise the number of readers.
#[derive(Default)]
struct Access(AtomicIsize);

impl Access {
    fn share(&self) -> bool {
        let step = |n: isize| (n >= 0).then_some(n + 1);
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, step).is_ok()
    }

    fn exclude(&self) -> bool {
        self.0.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// The right to read a buffer on the host.
#[must_use]
pub struct ReadGuard<'a>(&'a Buffer);

/// The right to write a buffer on the host.
#[must_use]
pub struct WriteGuard<'a>(&'a Buffer);

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.0.shared.access.0.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.0.shared.access.0.store(0, Ordering::Release);
    }
}

/// Bytes that live elsewhere and may only be read.
pub(crate) struct ReadOnly {
    /// What keeps them alive.
    _bytes: SharedBytes,
    start: NonNull<u8>,
    len: usize,
}

impl ReadOnly {
    pub(crate) fn new(bytes: SharedBytes) -> ReadOnly {
        // Asked once: what gives other bytes the next time does not matter.
        let slice: &[u8] = (*bytes).as_ref();
        let (start, len) = (NonNull::from(slice).cast(), slice.len());
        ReadOnly { _bytes: bytes, start, len }
    }
}

// SAFETY: the bytes are only read, and those behind `SharedBytes` may be read from any thread.
unsafe impl Send for ReadOnly {}
// SAFETY: as for `Send`.
unsafe impl Sync for ReadOnly {}

// SAFETY: the slice was borrowed from a value that is shared and that this one holds, so nobody can change or drop it
// meanwhile: pointer and length stay good for reads, and it says that it may not be written.
unsafe impl Memory for ReadOnly {
    fn len(&self) -> usize {
        self.len
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        Some(self.start)
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bytes_are_read_only() {
        let buffer = Buffer::over(Arc::new(vec![1u8, 2, 3]));
        assert_eq!(buffer.len(), 3);
        assert!(buffer.read_access().is_ok());
        assert!(matches!(buffer.write_access(), Err(Error::Access { state: "read-only", .. })));
        assert!(buffer.span(1..4).is_err());
        assert_eq!(buffer.span(1..3).unwrap().len, 2);
    }

    #[test]
    fn readers_share_and_a_writer_excludes() {
        let access = Access::default();
        assert!(access.share() && access.share());
        assert!(!access.exclude());
        access.0.store(0, Ordering::Relaxed);
        assert!(access.exclude());
        assert!(!access.share() && !access.exclude());
    }
}
