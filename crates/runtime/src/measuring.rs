//! Measures a device for a moment: its link, and how fast it does what models are made of. Every measurement starts small
//! and grows until a call takes long enough to tell, so that slow devices do not keep anybody waiting.

use std::time::{Duration, Instant};

use device::{Buffer, Device, Span, StreamKind};
use meta::{DType, DeviceId, Encoding};
use placement::{DeviceProfile, SpeedPoint, WorkKind};
use tensor::{ConvolutionShape, Lane, Mask, Tensor, Weight};

use crate::Result;

/// A call this long is measured well enough, and a larger one need not be tried.
const LONG_ENOUGH: Duration = Duration::from_millis(15);
/// Calls of one size; the shortest counts.
const ROUNDS: usize = 3;
/// Sides of the square matrices that are multiplied; multiples of 16, as products of 8 bits want them.
const MATRIX_SIDES: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
/// Numbers of tokens that attend to each other, in heads of [`HEAD`] values.
const TOKENS: [usize; 4] = [128, 512, 2048, 4096];
const HEADS: usize = 8;
const HEAD: usize = 64;
/// Sides of the pictures that are convolved, with [`CHANNELS`] channels and kernels of 3 by 3.
const PICTURE_SIDES: [usize; 5] = [16, 32, 64, 128, 256];
const CHANNELS: usize = 64;
/// Values of a pass over memory.
const PASS_VALUES: [usize; 4] = [1 << 16, 1 << 20, 1 << 23, 1 << 25];
/// Values of coded weights that are decoded.
const CODED_VALUES: [usize; 3] = [1 << 16, 1 << 20, 1 << 23];
/// The same on a device that is taken at its word: its first steps tell the rest.
const FEW_CODED_VALUES: [usize; 2] = [1 << 16, 1 << 20];
/// More products in a row than these do not wait in any queue.
const MOST_PRODUCTS: usize = 256;
/// Small operations in a row, to tell what one costs by itself.
const SMALL_OPERATIONS: usize = 64;
/// The first copy tried; larger ones follow while a copy is short.
const FIRST_COPY_BYTES: usize = 1 << 20;
/// The largest copy tried.
const LARGEST_COPY_BYTES: usize = 256 << 20;
/// About what blocks hand to each other for a large picture.
const HANDED_BYTES: usize = 28 << 20;
/// How often they go there and back in one measurement of two accelerators.
const ROUND_TRIPS: usize = 8;

/// Bytes per second of copies.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// From pinned host memory.
    pub pinned_to_device: f64,
    /// From ordinary host memory.
    pub pageable_to_device: f64,
    /// To pinned host memory.
    pub device_to_pinned: f64,
}

/// Who a device is: with another card or driver, what was measured is of no use.
pub(crate) fn identity(device: &Device) -> String {
    let about = device.description();
    format!("{}; {}", about.name, about.detail)
}

/// Everything that is to be known of a device. A simulated one is taken at its word, as far as it gives it; the first run
/// corrects what the host cannot keep up with.
pub(crate) fn profile(device: &Device, host: &Device) -> Result<DeviceProfile> {
    let mut profile = DeviceProfile::new(identity(device));
    let lane = Lane::preferred(device)?;
    let room = device.ledger().report().available() / 4;
    if let Some(said) = device.said() {
        profile.link_bytes_per_s = Some(said.link_bytes_per_s);
        if let Some(flops_per_s) = said.flops_per_s {
            let dtype = lane.dtype();
            profile.speeds.push(SpeedPoint { kind: WorkKind::Product, dtype, flops: 1e9, flops_per_s });
            // Decoding is no arithmetic, so it takes as long as the host needs.
            profile.decode_bytes_per_s = decoding(&lane, room, &FEW_CODED_VALUES)?;
            return Ok(profile);
        }
    }
    if device.id() != DeviceId::CPU && profile.link_bytes_per_s.is_none() {
        profile.link_bytes_per_s = Some(bandwidth(device, host)?.pinned_to_device);
    }
    let mut add = |kind: WorkKind, dtype: DType, points: Vec<(f64, f64)>| {
        let point =
            |(flops, seconds): (f64, f64)| SpeedPoint { kind, dtype, flops, flops_per_s: flops / seconds };
        profile.speeds.extend(points.into_iter().map(point));
    };
    add(WorkKind::Product, lane.dtype(), products(&lane, room)?);
    if device.description().capabilities.fp8_products.contains(&lane.dtype()) {
        add(WorkKind::Product, DType::F8E4M3, fp8_products(&lane, room)?);
    }
    add(WorkKind::Attention, lane.dtype(), attentions(&lane, room)?);
    add(WorkKind::Convolution, lane.dtype(), convolutions(&lane, room)?);
    profile.memory_bytes_per_s = passes(&lane, room)?;
    profile.decode_bytes_per_s = decoding(&lane, room, &CODED_VALUES)?;
    profile.launch_s = Some(small_operation(&lane)?);
    if let Some(link) = profile.link_bytes_per_s.filter(|_| device.said().is_none()) {
        profile.busy_link_bytes_per_s = bandwidth_beside_products((device, host), &lane, link)?;
    }
    Ok(profile)
}

/// Bytes per second from pinned host memory while the device multiplies matrices, where it has its own clock and so many
/// products in a row that a copy is never alone. `link` is what it gives alone.
fn bandwidth_beside_products(
    (device, host): (&Device, &Device),
    lane: &Lane,
    link: f64,
) -> Result<Option<f64>> {
    let room = |device: &Device| device.ledger().report().available() as usize / 4;
    let wanted = (link * LONG_ENOUGH.as_secs_f64() / 3.0) as usize;
    let bytes = wanted.clamp(FIRST_COPY_BYTES, LARGEST_COPY_BYTES).min(room(device)).min(room(host));
    let fits = |side: &&usize| 3 * **side * **side * lane.dtype().bytes() <= room(device);
    let Some(side) = MATRIX_SIDES.iter().rev().find(fits).copied().filter(|_| bytes > 0) else {
        return Ok(None);
    };
    let (x, weight) = (values(lane, [side, side])?, weight(lane, [side, side])?);
    let product = || Ok(x.linear(&weight, None)?);
    let product_s = shortest(lane, product)?;
    // As long as the copy would take at a third of its speed.
    let count = (3.0 * bytes as f64 / link / product_s.max(1e-9)).ceil() as usize;
    if count > MOST_PRODUCTS {
        return Ok(None);
    }
    let there = device.allocate(bytes)?.whole();
    let pinned = filled(&device.allocate_pinned(host, bytes)?, host)?;
    let (computing, copying) = (lane.stream(), device.open_stream(StreamKind::Copy)?);
    let mut best = None::<f64>;
    for _ in 0..ROUNDS {
        computing.synchronize()?;
        // The products are on their way before the copy begins, and after it ends.
        let half = |count: usize| (0..count).try_for_each(|_| product().map(drop));
        half(count.div_ceil(2))?;
        let begin = copying.record_timed()?;
        copying.copy(&there, &pinned)?;
        let end = copying.record_timed()?;
        half(count.div_ceil(2))?;
        let computed = computing.record_timed()?;
        copying.synchronize()?;
        computing.synchronize()?;
        let (Some(seconds), Some(longer)) = (end.seconds_since(&begin)?, computed.seconds_since(&end)?)
        else {
            return Ok(None);
        };
        if longer >= 0.0 && seconds > 0.0 {
            let speed = bytes as f64 / seconds;
            best = Some(best.map_or(speed, |best| best.max(speed)));
        }
    }
    Ok(best)
}

/// Operations and seconds of products of growing size.
fn products(lane: &Lane, room: u64) -> Result<Vec<(f64, f64)>> {
    let bytes = |side: &usize| (3 * side * side * lane.dtype().bytes()) as u64;
    grow(MATRIX_SIDES.into_iter().take_while(|side| bytes(side) <= room), |side| {
        let (x, weight) = (values(lane, [side, side])?, weight(lane, [side, side])?);
        let seconds = shortest(lane, || Ok(x.linear(&weight, None)?))?;
        Ok((2.0 * (side as f64).powi(3), seconds))
    })
}

/// The same of products of 8 bits, of codes that are there.
fn fp8_products(lane: &Lane, room: u64) -> Result<Vec<(f64, f64)>> {
    let bytes = |side: &usize| (4 * side * side * lane.dtype().bytes()) as u64;
    grow(MATRIX_SIDES.into_iter().take_while(|side| bytes(side) <= room), |side| {
        let codes = values(lane, [side, side])?.quantise()?;
        let weight = Weight::new(values(lane, [side, side])?.cast(DType::F8E4M3)?.operand().clone());
        let seconds = shortest(lane, || Ok(codes.linear_then(&weight, None, None)?))?;
        Ok((2.0 * (side as f64).powi(3), seconds))
    })
}

fn attentions(lane: &Lane, room: u64) -> Result<Vec<(f64, f64)>> {
    let bytes = |tokens: &usize| (4 * tokens * HEADS * HEAD * lane.dtype().bytes()) as u64;
    grow(TOKENS.into_iter().take_while(|tokens| bytes(tokens) <= room), |tokens| {
        let x = values(lane, [1, tokens, HEADS, HEAD])?;
        let seconds = shortest(lane, || Ok(x.attention(&x, &x, &Mask::None, 0.125)?))?;
        Ok((4.0 * (tokens * tokens * HEADS * HEAD) as f64, seconds))
    })
}

fn convolutions(lane: &Lane, room: u64) -> Result<Vec<(f64, f64)>> {
    let bytes = |side: &usize| (2 * CHANNELS * side * side * lane.dtype().bytes() * 10) as u64;
    grow(PICTURE_SIDES.into_iter().take_while(|side| bytes(side) <= room), |side| {
        let (x, weight) =
            (values(lane, [1, CHANNELS, side, side])?, weight(lane, [CHANNELS, CHANNELS, 3, 3])?);
        let shape = ConvolutionShape::uniform(2, 1, 1);
        let seconds = shortest(lane, || Ok(x.convolution(&weight, None, &shape)?))?;
        Ok((2.0 * (CHANNELS * CHANNELS * 9 * side * side) as f64, seconds))
    })
}

/// Bytes per second of passes over memory; none where there is no room for one.
fn passes(lane: &Lane, room: u64) -> Result<Option<f64>> {
    let bytes = |count: &usize| (3 * count * lane.dtype().bytes()) as u64;
    let points = grow(PASS_VALUES.into_iter().take_while(|count| bytes(count) <= room), |count| {
        let x = lane.empty([count])?;
        let seconds = shortest(lane, || Ok(x.add(&x)?))?;
        // Two are read, though they are the same, and one is written.
        Ok((bytes(&count) as f64, seconds))
    })?;
    Ok(points.last().map(|(bytes, seconds)| bytes / seconds))
}

/// Bytes per second of decoding losslessly coded weights, counted decoded; none where there is no room for it.
fn decoding(lane: &Lane, room: u64, counts: &[usize]) -> Result<Option<f64>> {
    let bytes = |count: &usize| (4 * count) as u64;
    let points = grow(counts.iter().copied().take_while(|count| bytes(count) <= room), |count| {
        // Whole values of a type that is coded cannot be refused.
        let coded = codec::encode(DType::BF16, &like_weights(count))
            .map_err(|error| crate::Error::Told(error.to_string()))?;
        let coded = Weight::upload(lane.device(), DType::U8.into(), [coded.len()], &coded)?;
        let seconds = shortest(lane, || Ok(lane.decode(coded.operand(), DType::BF16, [count])?))?;
        Ok(((2 * count) as f64, seconds))
    })?;
    Ok(points.last().map(|(bytes, seconds)| bytes / seconds))
}

/// Values of bf16 whose exponents are as frequent as those of weights: each half as frequent as the next higher one.
fn like_weights(count: usize) -> Vec<u8> {
    let mut state = 0u64;
    let value = |_: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = state >> 32;
        let exponent = 120 - u64::from((bits as u32 | 1 << 20).trailing_zeros());
        (((bits >> 31) << 15 | exponent << 7 | (bits >> 22 & 0x7f)) as u16).to_le_bytes()
    };
    (0..count).flat_map(value).collect()
}

/// Seconds of an operation that has next to nothing to do, where many follow each other.
fn small_operation(lane: &Lane) -> Result<f64> {
    let x = lane.empty([16])?;
    let all = || (0..SMALL_OPERATIONS).try_for_each(|_| x.add(&x).map(drop));
    let all = || Ok(all()?);
    Ok(shortest(lane, all)? / SMALL_OPERATIONS as f64)
}

/// Measures larger and larger sizes until one is long enough.
fn grow(
    sizes: impl Iterator<Item = usize>,
    measure: impl Fn(usize) -> Result<(f64, f64)>,
) -> Result<Vec<(f64, f64)>> {
    let mut points = Vec::new();
    for size in sizes {
        let (amount, seconds) = measure(size)?;
        points.push((amount, seconds.max(1e-9)));
        if seconds >= LONG_ENOUGH.as_secs_f64() {
            break;
        }
    }
    Ok(points)
}

/// The shortest of a few calls, by the device's own clock where it has one. The first one prepares what is kept.
fn shortest<T>(lane: &Lane, call: impl Fn() -> Result<T>) -> Result<f64> {
    let stream = lane.stream();
    drop(call()?);
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        stream.synchronize()?;
        let start = Instant::now();
        let begin = stream.record_timed()?;
        drop(call()?);
        let end = stream.record_timed()?;
        stream.synchronize()?;
        let outside = start.elapsed().as_secs_f64();
        best = best.min(end.seconds_since(&begin)?.unwrap_or(outside));
        if outside > LONG_ENOUGH.as_secs_f64() * 4.0 {
            break;
        }
    }
    Ok(best)
}

/// Values that are no zeros: cards do those with less power, and so faster.
fn values<const N: usize>(lane: &Lane, shape: [usize; N]) -> Result<Tensor> {
    Ok(lane.tensor(shape, &noise(shape.iter().product()))?)
}

fn weight<const N: usize>(lane: &Lane, shape: [usize; N]) -> Result<Weight> {
    let values = values(lane, shape)?;
    debug_assert_eq!(Encoding::Plain(lane.dtype()), Encoding::Plain(values.dtype()));
    Ok(Weight::new(values.operand().clone()))
}

/// Numbers between -1 and 1 without a pattern that matters here.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// Measures copies between a device and the host.
///
/// # Errors
/// The device fails, or has no room for the smallest copy.
pub fn bandwidth(device: &Device, host: &Device) -> device::Result<Bandwidth> {
    let room = |device: &Device| (device.ledger().report().available() / 4) as usize;
    let largest = LARGEST_COPY_BYTES.min(room(device)).min(room(host));
    let mut bytes = FIRST_COPY_BYTES.min(largest).max(1);
    loop {
        let there = device.allocate(bytes)?.whole();
        let pinned = filled(&device.allocate_pinned(host, bytes)?, host)?;
        let taken = copy_time(device, &there, &pinned)?;
        if taken < LONG_ENOUGH / 3 && bytes * 4 <= largest {
            bytes *= 4;
            continue;
        }
        let pageable = filled(&host.allocate(bytes)?, host)?;
        let rate = |taken: Duration| bytes as f64 / taken.as_secs_f64().max(1e-9);
        return Ok(Bandwidth {
            pinned_to_device: rate(taken.min(copy_time(device, &there, &pinned)?)),
            pageable_to_device: rate(copy_time(device, &there, &pageable)?),
            device_to_pinned: rate(copy_time(device, &pinned, &there)?),
        });
    }
}

/// Bytes per second between two accelerators, as activations move: to the other, which works on them, and back. What
/// it takes the other to begin is part of it.
///
/// # Errors
/// A device fails, or has no room.
pub fn bandwidth_between(a: &Device, b: &Device) -> device::Result<f64> {
    let room = |device: &Device| (device.ledger().report().available() / 8) as usize;
    let mut bytes = HANDED_BYTES.min(room(a)).min(room(b)).max(1);
    loop {
        let best = round_trips(a, b, bytes)?;
        // A slow link is measured with less, so that nobody waits.
        if best > LONG_ENOUGH * 20 && bytes > FIRST_COPY_BYTES {
            bytes = FIRST_COPY_BYTES;
            continue;
        }
        return Ok((2 * ROUND_TRIPS * bytes) as f64 / best.as_secs_f64().max(1e-9));
    }
}

fn round_trips(a: &Device, b: &Device, bytes: usize) -> device::Result<Duration> {
    let (here, there) = (a.allocate(bytes)?.whole(), b.allocate(bytes)?.whole());
    let (own_a, own_b) = (a.allocate(bytes)?.whole(), b.allocate(bytes)?.whole());
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
        if best > LONG_ENOUGH * 20 {
            break;
        }
    }
    Ok(best)
}

/// Pages that were never written are not real yet.
fn filled(buffer: &Buffer, host: &Device) -> device::Result<Span> {
    let span = buffer.whole();
    host.compute_stream()?.write(&span, &vec![1; span.len])?;
    Ok(span)
}

/// The shortest of a few copies.
fn copy_time(device: &Device, to: &Span, from: &Span) -> device::Result<Duration> {
    let stream = device.open_stream(StreamKind::Copy)?;
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        stream.synchronize()?;
        let start = Instant::now();
        stream.copy(to, from)?;
        stream.synchronize()?;
        best = best.min(start.elapsed());
        if best > LONG_ENOUGH * 4 {
            break;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::{Backend, SimBackend, SimSpec};
    use device_cpu::CpuBackend;

    use super::*;

    /// A metered link gives no more than it was given, whatever is computed meanwhile.
    #[test]
    fn a_link_is_measured_while_its_device_multiplies() {
        let host = Arc::new(CpuBackend::new());
        let cpu = Device::new(Arc::clone(&host) as Arc<dyn Backend>, 1 << 30);
        let executor = host.executor();
        let spec = SimSpec {
            memory: 1 << 30,
            link_bytes_per_s: 1e9,
            flops_per_s: Some(100e9),
            activation: None,
            fp8_products: false,
        };
        let sim = SimBackend::new(0, spec, host as Arc<dyn Backend>, executor);
        let sim = Device::new(Arc::new(sim), spec.memory);
        let lane = Lane::preferred(&sim).unwrap();
        let busy = bandwidth_beside_products((&sim, &cpu), &lane, 1e9).unwrap().unwrap();
        assert!((0.3e9..1.1e9).contains(&busy), "{busy}");
    }
}
