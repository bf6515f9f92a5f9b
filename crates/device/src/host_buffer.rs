//! Host memory that the host itself fills, such as with bytes that it reads from a disk.

use std::ops::Range;
use std::ptr::NonNull;

use crate::{Buffer, Error, Result, Span};

/// A buffer that the host can address, all of whose bytes have been written once.
#[derive(Debug)]
pub struct HostBuffer {
    buffer: Buffer,
}

impl HostBuffer {
    /// Writes zeros into a buffer, so that what is in it is known.
    ///
    /// # Errors
    /// The host cannot write it, or it is in use.
    pub fn new(buffer: Buffer) -> Result<HostBuffer> {
        let start = host_pointer(&buffer)?;
        {
            let _alone = buffer.write_access()?;
            // SAFETY: the memory is as long as it says, may be written, and the guard keeps all others away.
            unsafe { start.as_ptr().write_bytes(0, buffer.len()) };
        }
        Ok(HostBuffer { buffer })
    }

    /// Where its first byte is that lies at a multiple of a number.
    pub fn aligned_start(&self, align: usize) -> usize {
        let start = host_pointer(&self.buffer).map_or(0, |start| start.as_ptr().addr());
        start.next_multiple_of(align.max(1)) - start
    }

    /// Lets `fill` write part of it, while nobody else uses any of it.
    ///
    /// # Errors
    /// The range is not inside, or the buffer is in use.
    pub fn fill<T>(&self, range: Range<usize>, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let span = self.buffer.span(range)?;
        let start = host_pointer(&self.buffer)?;
        let _alone = self.buffer.write_access()?;
        // SAFETY: the span lies inside memory that the buffer keeps alive and all of which was written when this value was
        // made; the guard keeps all others away while the slice lives, which `fill` cannot keep.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr().add(span.offset), span.len) };
        Ok(fill(bytes))
    }

    /// Part of it, to be copied from.
    ///
    /// # Errors
    /// The range is not inside.
    pub fn span(&self, range: Range<usize>) -> Result<Span> {
        self.buffer.span(range)
    }
}

fn host_pointer(buffer: &Buffer) -> Result<NonNull<u8>> {
    let pointer = buffer.memory().host_pointer().filter(|_| buffer.memory().is_writable());
    pointer.ok_or_else(|| Error::Device {
        device: buffer.device(),
        action: "filling memory on the host".into(),
        reason: "the host cannot write there".into(),
    })
}
