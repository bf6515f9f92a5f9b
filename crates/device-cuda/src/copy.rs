//! Copies of bytes between host and device memory, in the order of a stream.

use std::sync::Arc;

use device::{Buffer, Cancel, Error, Result, Span};

use crate::memory::{DeviceMemory, PinnedMemory};
use crate::pinning::PinnedRegion;
use crate::runtime::Runtime;
use crate::stream::Queue;

/// Queues a copy. A host buffer that the copy uses after this returns comes back, to be kept alive.
///
/// From and to pinned memory the copy runs beside everything else. With other host memory it returns when
/// the bytes have left the source or reached the destination, or when it is cancelled.
pub(crate) fn copy(
    runtime: &Arc<Runtime>,
    queue: &Arc<Queue>,
    (to, from): (&Span, &Span),
    cancel: &Cancel,
) -> Result<Option<Buffer>> {
    check_inside("destination", to)?;
    check_inside("source", from)?;
    match (device_memory(to), device_memory(from)) {
        (Some(target), Some(source)) => between(runtime, queue, (target, to), (source, from)).map(|()| None),
        (Some(target), None) => up(runtime, queue, (target, to), from, cancel),
        (None, Some(source)) => down(queue, to, (source, from), cancel),
        (None, None) => host(queue, to, from, cancel).map(|()| None),
    }
}

/// Waits for queued work, then reads device memory.
pub(crate) fn read(queue: &Arc<Queue>, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
    check_inside("source", from)?;
    let len = from.len.min(to.len());
    if let Some(source) = device_memory(from) {
        source.touch(queue)?;
        if cancel.is_possible() {
            // What takes long is the work before the copy. Once that is queued it must be waited for, as it writes into
            // the caller's memory.
            queue.synchronize_unless(cancel)?;
        }
        let context = queue.context();
        context.enter()?;
        // SAFETY: the slice is writable for the bytes that are copied, and outlives the wait below.
        let queued = unsafe {
            let address = source.address() + from.offset as u64;
            context.driver().copy_down(to.as_mut_ptr(), address, len, queue.raw())
        };
        context.check(&format!("copying {len} bytes to the host"), queued)?;
        return queue.synchronize();
    }
    let source = host_address(queue, from)?;
    queue.synchronize_unless(cancel)?;
    let _shared = from.buffer.read_access()?;
    // SAFETY: the span is inside its buffer, which the guard keeps others from writing; a slice that may
    // be written overlaps no buffer.
    unsafe { std::ptr::copy_nonoverlapping(source, to.as_mut_ptr(), len) };
    Ok(())
}

/// Up to this size the driver takes the bytes of ordinary memory along with the command itself.
const INLINE_BYTES: usize = 64 << 10;
/// Large copies are queued in pieces of this size, so that short ones of other streams need not wait for all of them:
/// the card has one engine for each direction. Pieces of a quarter of this cost 2 % of an H200's link.
const PIECE_BYTES: usize = 32 << 20;

/// Writes host memory after queued work. All bytes have left the source when this returns; they may still be on their
/// way, as everything queued may be.
pub(crate) fn write(
    runtime: &Runtime,
    queue: &Arc<Queue>,
    (to, from): (&Span, &[u8]),
    cancel: &Cancel,
) -> Result<()> {
    check_inside("destination", to)?;
    let len = to.len.min(from.len());
    if let Some(target) = device_memory(to) {
        target.touch(queue)?;
        return send(runtime, queue, target.address() + to.offset as u64, &from[..len], cancel);
    }
    let target = host_address(queue, to)?;
    queue.synchronize_unless(cancel)?;
    let _exclusive = to.buffer.write_access()?;
    // SAFETY: the span is inside its buffer, which the guard keeps others from using; `copy` allows the
    // slice to be a view of it.
    unsafe { std::ptr::copy(from.as_ptr(), target, len) };
    Ok(())
}

/// A span must lie inside its buffer.
fn check_inside(name: &'static str, span: &Span) -> Result<()> {
    let end = span.offset.checked_add(span.len);
    if end.is_some_and(|end| end <= span.buffer.len()) {
        return Ok(());
    }
    Err(Error::Operand {
        op: "copy bytes",
        operand: name,
        expected: format!("inside a buffer of {} bytes", span.buffer.len()),
        got: format!("{} bytes from {}", span.len, span.offset),
    })
}

fn device_memory(span: &Span) -> Option<&DeviceMemory> {
    span.buffer.memory().as_any().downcast_ref()
}

fn is_pinned(span: &Span) -> bool {
    let memory = span.buffer.memory().as_any();
    memory.is::<PinnedMemory>() || memory.downcast_ref().is_some_and(PinnedRegion::is_pinned)
}

/// The host address of a span's first byte.
fn host_address(queue: &Queue, span: &Span) -> Result<*mut u8> {
    let base = span.buffer.memory().host_pointer().ok_or_else(|| Error::Device {
        device: queue.context().id(),
        action: "copying bytes".into(),
        reason: format!("memory of {} is addressable neither by the host nor by CUDA", span.buffer.device()),
    })?;
    // SAFETY: the span lies inside its buffer.
    Ok(unsafe { base.as_ptr().add(span.offset) })
}

/// Queues a copy of ordinary host memory; the bytes have left it when this returns. The driver is never shown that
/// memory itself: it refuses a copy that begins on pages that are pinned, as neighbours may be, and ends on others.
fn send(runtime: &Runtime, queue: &Arc<Queue>, address: u64, bytes: &[u8], cancel: &Cancel) -> Result<()> {
    if bytes.len() > INLINE_BYTES {
        // SAFETY: the slice is readable until this returns, and the caller's stream touches the target.
        return unsafe { runtime.uploader.copy(queue, address, (bytes.as_ptr(), bytes.len()), cancel) };
    }
    let own = bytes.to_vec();
    let context = queue.context();
    context.enter()?;
    // SAFETY: the bytes are readable during the call; of memory that is not pinned it has read all when it returns.
    let queued = unsafe { context.driver().copy_up(address, own.as_ptr(), own.len(), queue.raw()) };
    context.check(&format!("copying {} bytes from the host", own.len()), queued)
}

fn up(
    runtime: &Runtime,
    queue: &Arc<Queue>,
    to: (&DeviceMemory, &Span),
    from: &Span,
    cancel: &Cancel,
) -> Result<Option<Buffer>> {
    let (target, span) = to;
    target.touch(queue)?;
    let source = host_address(queue, from)?;
    // Pinned memory is read by the card after this returns: events order that, not guards of this call.
    if !is_pinned(from) {
        let _shared = from.buffer.read_access()?;
        // SAFETY: the span lies inside memory that may be read, and its guard is held until this returns.
        let bytes = unsafe { std::slice::from_raw_parts(source, span.len) };
        send(runtime, queue, target.address() + span.offset as u64, bytes, cancel)?;
        return Ok(None);
    }
    let context = queue.context();
    context.enter()?;
    for start in (0..span.len).step_by(PIECE_BYTES) {
        let (address, bytes) =
            (target.address() + (span.offset + start) as u64, PIECE_BYTES.min(span.len - start));
        // SAFETY: the source span is inside a buffer that the caller keeps alive until the copy is done, and
        // the target span inside memory that is not reused before this stream has passed.
        let queued = unsafe { context.driver().copy_up(address, source.add(start), bytes, queue.raw()) };
        context.check(&format!("copying {bytes} bytes from the host"), queued)?;
    }
    Ok(Some(from.buffer.clone()))
}

fn down(
    queue: &Arc<Queue>,
    to: &Span,
    from: (&DeviceMemory, &Span),
    cancel: &Cancel,
) -> Result<Option<Buffer>> {
    let (source, span) = from;
    source.touch(queue)?;
    let target = host_address(queue, to)?;
    let is_pinned = is_pinned(to);
    if !is_pinned && cancel.is_possible() {
        // The driver itself waits for the work before a copy to ordinary memory.
        queue.synchronize_unless(cancel)?;
    }
    let _exclusive = if is_pinned { None } else { Some(to.buffer.write_access()?) };
    let context = queue.context();
    context.enter()?;
    // SAFETY: as in `up`, the other way round; pinned memory and buffers with a guard allow writing.
    let queued = unsafe {
        context.driver().copy_down(target, source.address() + span.offset as u64, span.len, queue.raw())
    };
    context.check(&format!("copying {} bytes to the host", span.len), queued)?;
    Ok(Some(to.buffer.clone()))
}

/// Between cards without peer access the driver itself goes through pinned host memory.
fn between(
    runtime: &Runtime,
    queue: &Arc<Queue>,
    to: (&DeviceMemory, &Span),
    from: (&DeviceMemory, &Span),
) -> Result<()> {
    to.0.touch(queue)?;
    from.0.touch(queue)?;
    let (target, source) = (to.0.address() + to.1.offset as u64, from.0.address() + from.1.offset as u64);
    let (target_context, source_context) = (to.0.context(), from.0.context());
    let context = queue.context();
    for other in [target_context, source_context] {
        runtime.enable_peer(other)?;
    }
    context.enter()?;
    let (driver, len) = (context.driver(), to.1.len);
    let as_peers =
        || driver.copy_peer((target, target_context.raw()), (source, source_context.raw()), len, queue.raw());
    let queued = if target_context.card() == source_context.card() {
        // Logical devices of one card share its addresses, and a plain copy does not queue behind those from the
        // host. A driver that refuses it gets the other kind.
        driver.copy_across(target, source, len, queue.raw()).or_else(|_| as_peers())
    } else {
        as_peers()
    };
    let action = format!("copying {len} bytes from {} to {}", source_context.id(), target_context.id());
    context.check(&action, queued)
}

/// Host to host: the stream's earlier work may write the source or read the destination, so it is
/// finished first.
fn host(queue: &Arc<Queue>, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
    let (target, source) = (host_address(queue, to)?, host_address(queue, from)?);
    queue.synchronize_unless(cancel)?;
    let _exclusive = to.buffer.write_access()?;
    let _shared = if from.buffer.same_memory(&to.buffer) { None } else { Some(from.buffer.read_access()?) };
    // SAFETY: both spans lie inside memory that their buffers keep alive and the guards protect; `copy`
    // allows the spans to overlap.
    unsafe { std::ptr::copy(source, target, to.len) };
    Ok(())
}
