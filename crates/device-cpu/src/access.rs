//! The right to use the operands of one call: guards on every buffer, then typed views.

use std::mem::MaybeUninit;
use std::ops::Range;

use device::{Buffer, Cancel, Error, OpCall, Operand, ReadGuard, Result, Span, WriteGuard};
use meta::DType;
use rayon::prelude::*;

/// Element types that kernels view memory as.
///
/// # Safety
/// Every bit pattern must be a valid value of the type, which must have no padding.
pub(crate) unsafe trait Element: Copy + Send + Sync + 'static {
    /// The element type it stands for.
    const DTYPE: DType;
}

// SAFETY: any 32 bits are an f32.
unsafe impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
// SAFETY: any 32 bits are an i32.
unsafe impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
// SAFETY: any 64 bits are an i64.
unsafe impl Element for i64 {
    const DTYPE: DType = DType::I64;
}

/// Guards on all buffers of a call. While it lives, no other call writes what this one reads, and none
/// uses what this one writes.
pub(crate) struct Access<'a> {
    _shared: Vec<ReadGuard<'a>>,
    _exclusive: WriteGuard<'a>,
}

impl<'a> Access<'a> {
    /// Takes the guards of a call.
    pub(crate) fn to(call: &'a OpCall) -> Result<Access<'a>> {
        let out = call.output().buffer();
        let exclusive = out.write_access()?;
        let mut shared: Vec<(&Buffer, ReadGuard<'a>)> = Vec::new();
        for input in call.inputs() {
            let buffer = input.buffer();
            if !buffer.same_memory(out) && !shared.iter().any(|(held, _)| held.same_memory(buffer)) {
                shared.push((buffer, buffer.read_access()?));
            }
        }
        Ok(Access { _shared: shared.into_iter().map(|(_, guard)| guard).collect(), _exclusive: exclusive })
    }

    /// The bytes of an input, from its first value to past its last.
    pub(crate) fn bytes<'s>(&'s self, operand: &'s Operand) -> Result<&'s [u8]> {
        let start = host_pointer(operand)?;
        // SAFETY: the operand lies inside its buffer's memory, which lives as long as the operand; the
        // guards in `self` keep others from writing it, and kernels write only outputs, which overlap
        // no input but in elementwise calls, which use `pointer` instead.
        Ok(unsafe { std::slice::from_raw_parts(start, operand.extent()) })
    }

    /// The values of an input, from its first to its last; strides apply.
    pub(crate) fn values<'s, T: Element>(&'s self, operand: &'s Operand) -> Result<&'s [T]> {
        let start = typed_pointer::<T>(operand)?;
        // SAFETY: as in `bytes`; the type and alignment have been checked.
        Ok(unsafe { std::slice::from_raw_parts(start, operand.extent() / size_of::<T>()) })
    }

    /// The values of the output, from its first to its last; strides apply. Call it once.
    #[allow(clippy::mut_from_ref, reason = "the guard in self is the exclusive right")]
    pub(crate) fn output<'s, T: Element>(&'s self, operand: &'s Operand) -> Result<&'s mut [T]> {
        let start = typed_pointer::<T>(operand)?;
        // SAFETY: the exclusive guard in `self` keeps all others away, the output overlaps no input that
        // is viewed as a slice, and each kernel asks for its output once.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, operand.extent() / size_of::<T>()) })
    }

    /// Where an operand's first value is; for kernels whose output may lie exactly over an input.
    pub(crate) fn pointer<T: Element>(&self, operand: &Operand) -> Result<*mut T> {
        typed_pointer(operand)
    }
}

/// Copies bytes between host-addressable spans of the same length, which may overlap.
pub(crate) fn copy_bytes(to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
    let _exclusive = to.buffer.write_access()?;
    let _shared = if from.buffer.same_memory(&to.buffer) { None } else { Some(from.buffer.read_access()?) };
    let (target, source) = (span_pointer(to, from.len)?, span_pointer(from, from.len)?);
    if from.buffer.same_memory(&to.buffer) {
        // SAFETY: both spans lie inside memory that their buffer keeps alive and the guard protects; `copy`
        // allows them to overlap.
        unsafe { std::ptr::copy(source, target, from.len) };
        return Ok(());
    }
    in_parts(from.len, cancel, |part| {
        // SAFETY: both spans lie inside memory that their buffers keep alive and the guards protect, and which
        // two buffers do not share.
        unsafe { std::ptr::copy(source.add(part.start), target.add(part.start), part.len()) };
    })
}

/// Reads the bytes of a host-addressable span.
pub(crate) fn read_bytes(from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
    let _shared = from.buffer.read_access()?;
    let source = span_pointer(from, to.len())?;
    in_parts(to.len(), cancel, |part| {
        let to = &mut to[part.clone()];
        // SAFETY: the span lies inside memory that its buffer keeps alive and the guard protects, and a
        // mutable slice overlaps nothing else.
        unsafe { std::ptr::copy_nonoverlapping(source.add(part.start), to.as_mut_ptr(), to.len()) };
    })
}

/// Does something with one part after the other of so many bytes, until it is cancelled.
fn in_parts(bytes: usize, cancel: &Cancel, mut work: impl FnMut(Range<usize>)) -> Result<()> {
    for start in (0..bytes).step_by(PART_BYTES) {
        cancel.check()?;
        work(start..bytes.min(start + PART_BYTES));
    }
    Ok(())
}

/// Writes the bytes of a host-addressable span.
pub(crate) fn write_bytes(to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
    let _exclusive = to.buffer.write_access()?;
    let target = span_pointer(to, from.len())?;
    let overlaps = (target as usize) < from.as_ptr() as usize + from.len()
        && (from.as_ptr() as usize) < target as usize + from.len();
    if from.len() < PARALLEL_COPY_BYTES || overlaps {
        // SAFETY: the span lies inside memory that its buffer keeps alive and the guard keeps others from;
        // `copy` allows `from` to be part of it.
        unsafe { std::ptr::copy(from.as_ptr(), target, from.len()) };
        return Ok(());
    }
    // SAFETY: as above, and the span does not overlap the slice.
    let target = unsafe { std::slice::from_raw_parts_mut(target.cast::<MaybeUninit<u8>>(), from.len()) };
    let parts = target.par_chunks_mut(COPY_PART_BYTES).zip(from.par_chunks(COPY_PART_BYTES));
    parts.for_each(|(target, source)| {
        if !cancel.is_cancelled() {
            target.write_copy_of_slice(source);
        }
    });
    cancel.check()
}

/// Bytes between two looks at whether a copy is cancelled.
const PART_BYTES: usize = 64 << 20;

/// From this size on several threads copy: one alone uses a fraction of the memory's bandwidth.
const PARALLEL_COPY_BYTES: usize = 16 << 20;
/// What one thread copies at a time.
const COPY_PART_BYTES: usize = 4 << 20;

/// The address of a span of `len` bytes inside its buffer.
fn span_pointer(span: &Span, len: usize) -> Result<*mut u8> {
    let inside = span.offset.checked_add(span.len).is_some_and(|end| end <= span.buffer.len());
    if !inside || span.len != len {
        return Err(Error::Operand {
            op: "copy bytes",
            operand: "span",
            expected: format!("{len} bytes inside its buffer"),
            got: format!("{span:?}"),
        });
    }
    let base = span.buffer.memory().host_pointer().ok_or_else(|| Error::Device {
        device: span.buffer.device(),
        action: "copying bytes".into(),
        reason: "the memory is not addressable by the host".into(),
    })?;
    // SAFETY: the offset lies inside the buffer, as just checked.
    Ok(unsafe { base.as_ptr().add(span.offset) })
}

/// The address of an operand's first byte.
fn host_pointer(operand: &Operand) -> Result<*mut u8> {
    let buffer = operand.buffer();
    let base = buffer.memory().host_pointer().ok_or_else(|| Error::Device {
        device: buffer.device(),
        action: "computing on the host".into(),
        reason: "the memory is not addressable by the host".into(),
    })?;
    // SAFETY: an operand's offset lies inside its buffer.
    Ok(unsafe { base.as_ptr().add(operand.offset()) })
}

/// The same for values of a type, which must be the operand's and aligned.
fn typed_pointer<T: Element>(operand: &Operand) -> Result<*mut T> {
    let fail = |reason: &str| Error::Device {
        device: operand.buffer().device(),
        action: format!("viewing {operand:?} as {}", T::DTYPE),
        reason: reason.into(),
    };
    if operand.dtype() != Some(T::DTYPE) {
        return Err(fail("it has another type; cast it first"));
    }
    let start = host_pointer(operand)?.cast::<T>();
    if start.is_aligned() { Ok(start) } else { Err(fail("it is not aligned in its file; copy it first")) }
}
