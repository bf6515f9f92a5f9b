//! Copies of bytes between host and device memory, in the order of a stream.

use std::sync::Arc;

use device::{Buffer, Error, Result, Span};

use crate::memory::{DeviceMemory, PinnedMemory};
use crate::runtime::Runtime;
use crate::stream::Queue;
use crate::upload::Uploader;

/// Queues a copy. A host buffer that the copy uses after this returns comes back, to be kept alive.
///
/// From and to pinned memory the copy runs beside everything else. With other host memory it returns when
/// the bytes have left the source or reached the destination.
pub(crate) fn copy(
    runtime: &Arc<Runtime>,
    queue: &Arc<Queue>,
    to: &Span,
    from: &Span,
) -> Result<Option<Buffer>> {
    check_inside("destination", to)?;
    check_inside("source", from)?;
    match (device_memory(to), device_memory(from)) {
        (Some(target), Some(source)) => between(runtime, queue, (target, to), (source, from)).map(|()| None),
        (Some(target), None) => up(runtime, queue, (target, to), from),
        (None, Some(source)) => down(queue, to, (source, from)),
        (None, None) => host(queue, to, from).map(|()| None),
    }
}

/// Waits for queued work, then reads device memory.
pub(crate) fn read(queue: &Arc<Queue>, from: &Span, to: &mut [u8]) -> Result<()> {
    check_inside("source", from)?;
    let len = from.len.min(to.len());
    if let Some(source) = device_memory(from) {
        source.touch(queue)?;
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
    queue.synchronize()?;
    let _shared = from.buffer.read_access()?;
    // SAFETY: the span is inside its buffer, which the guard keeps others from writing; a slice that may
    // be written overlaps no buffer.
    unsafe { std::ptr::copy_nonoverlapping(source, to.as_mut_ptr(), len) };
    Ok(())
}

/// Writes host memory after queued work, and waits until it has arrived.
pub(crate) fn write(queue: &Arc<Queue>, to: &Span, from: &[u8]) -> Result<()> {
    check_inside("destination", to)?;
    let len = to.len.min(from.len());
    if let Some(target) = device_memory(to) {
        target.touch(queue)?;
        let context = queue.context();
        context.enter()?;
        // SAFETY: the slice is readable for the bytes that are copied, and outlives the wait below.
        let queued = unsafe {
            context.driver().copy_up(target.address() + to.offset as u64, from.as_ptr(), len, queue.raw())
        };
        context.check(&format!("copying {len} bytes from the host"), queued)?;
        return queue.synchronize();
    }
    let target = host_address(queue, to)?;
    queue.synchronize()?;
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
    span.buffer.memory().as_any().is::<PinnedMemory>()
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

fn up(
    runtime: &Runtime,
    queue: &Arc<Queue>,
    to: (&DeviceMemory, &Span),
    from: &Span,
) -> Result<Option<Buffer>> {
    let (target, span) = to;
    target.touch(queue)?;
    let source = host_address(queue, from)?;
    // Pinned memory is read by the card after this returns: events order that, not guards of this call.
    let _shared = if is_pinned(from) { None } else { Some(from.buffer.read_access()?) };
    if !is_pinned(from) && Uploader::takes(span.len) {
        // SAFETY: both spans lie inside their memory, the source's guard is held until this returns, and the
        // target is touched by this stream.
        unsafe { runtime.uploader.copy(queue, target.address() + span.offset as u64, source, span.len) }?;
        return Ok(None);
    }
    let context = queue.context();
    context.enter()?;
    // SAFETY: the source span is inside a buffer that the caller keeps alive until the copy is done, and
    // the target span inside memory that is not reused before this stream has passed.
    let queued = unsafe {
        context.driver().copy_up(target.address() + span.offset as u64, source, span.len, queue.raw())
    };
    context.check(&format!("copying {} bytes from the host", span.len), queued)?;
    Ok(Some(from.buffer.clone()))
}

fn down(queue: &Arc<Queue>, to: &Span, from: (&DeviceMemory, &Span)) -> Result<Option<Buffer>> {
    let (source, span) = from;
    source.touch(queue)?;
    let target = host_address(queue, to)?;
    let _exclusive = if is_pinned(to) { None } else { Some(to.buffer.write_access()?) };
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
    let queued = if Arc::ptr_eq(target_context, source_context) {
        driver.copy_across(target, source, len, queue.raw())
    } else {
        driver.copy_peer((target, target_context.raw()), (source, source_context.raw()), len, queue.raw())
    };
    let action = format!("copying {len} bytes from {} to {}", source_context.id(), target_context.id());
    context.check(&action, queued)
}

/// Host to host: the stream's earlier work may write the source or read the destination, so it is
/// finished first.
fn host(queue: &Arc<Queue>, to: &Span, from: &Span) -> Result<()> {
    let (target, source) = (host_address(queue, to)?, host_address(queue, from)?);
    queue.synchronize()?;
    let _exclusive = to.buffer.write_access()?;
    let _shared = if from.buffer.same_memory(&to.buffer) { None } else { Some(from.buffer.read_access()?) };
    // SAFETY: both spans lie inside memory that their buffers keep alive and the guards protect; `copy`
    // allows the spans to overlap.
    unsafe { std::ptr::copy(source, target, to.len) };
    Ok(())
}
