//! How fast bytes move between the host and a device, measured with a few short copies.

use std::time::{Duration, Instant};

use device::{Buffer, Device, Result, Span, StreamKind};
use serde::Serialize;

/// Bytes per second of copies.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bandwidth {
    /// From pinned host memory.
    pub(crate) pinned_to_device: f64,
    /// From ordinary host memory.
    pub(crate) pageable_to_device: f64,
    /// To pinned host memory.
    pub(crate) device_to_pinned: f64,
}

/// The first size tried; larger ones follow while a copy is short.
const FIRST_BYTES: usize = 4 << 20;
/// The largest size tried.
const LARGEST_BYTES: usize = 256 << 20;
/// About what FLUX hands from block to block at 1024 pixels.
const ACTIVATION_BYTES: usize = 28 << 20;
/// How often they go there and back in one measurement of two accelerators.
const ROUND_TRIPS: usize = 8;
/// Measurements of two accelerators; the shortest counts.
const ROUNDS: usize = 3;
/// A copy this long is measured well enough.
const LONG_ENOUGH: Duration = Duration::from_millis(5);

/// Measures a device against the host.
pub(crate) fn measure(device: &Device, host: &Device) -> Result<Bandwidth> {
    let largest = LARGEST_BYTES.min((device.ledger().report().available() / 4) as usize);
    let mut bytes = FIRST_BYTES.min(largest);
    loop {
        let there = device.allocate(bytes)?.whole();
        let pinned = filled(&device.allocate_pinned(host, bytes)?, host)?;
        let taken = copy_time(device, &there, &pinned)?;
        if taken < LONG_ENOUGH && bytes * 4 <= largest {
            bytes *= 4;
            continue;
        }
        let pageable = filled(&host.allocate(bytes)?, host)?;
        let rate = |taken: Duration| bytes as f64 / taken.as_secs_f64();
        return Ok(Bandwidth {
            pinned_to_device: rate(copy_time(device, &there, &pinned)?),
            pageable_to_device: rate(copy_time(device, &there, &pageable)?),
            device_to_pinned: rate(copy_time(device, &pinned, &there)?),
        });
    }
}

/// Bytes per second between two accelerators, as activations move: to the other, which works on them, and back. What
/// it takes the other to begin is part of it.
pub(crate) fn between(a: &Device, b: &Device) -> Result<f64> {
    let (here, there) = (a.allocate(ACTIVATION_BYTES)?.whole(), b.allocate(ACTIVATION_BYTES)?.whole());
    let (own_a, own_b) = (a.allocate(ACTIVATION_BYTES)?.whole(), b.allocate(ACTIVATION_BYTES)?.whole());
    let (stream_a, stream_b) = (a.compute_stream()?, b.compute_stream()?);
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            stream_b.wait(&stream_a.record()?)?;
            stream_b.copy(&there, &here)?;
            stream_b.copy(&own_b, &there)?;
            stream_a.wait(&stream_b.record()?)?;
            stream_a.copy(&here, &there)?;
            stream_a.copy(&own_a, &here)?;
        }
        stream_a.synchronize()?;
        best = best.min(start.elapsed());
    }
    Ok((2 * ROUND_TRIPS * ACTIVATION_BYTES) as f64 / best.as_secs_f64())
}

/// Pages that were never written are not real yet.
fn filled(buffer: &Buffer, host: &Device) -> Result<Span> {
    let span = buffer.whole();
    host.compute_stream()?.write(&span, &vec![1; span.len])?;
    Ok(span)
}

/// The shortest of three copies.
fn copy_time(device: &Device, to: &Span, from: &Span) -> Result<Duration> {
    let stream = device.open_stream(StreamKind::Copy)?;
    let mut best = Duration::MAX;
    for _ in 0..3 {
        stream.synchronize()?;
        let start = Instant::now();
        stream.copy(to, from)?;
        stream.synchronize()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}
