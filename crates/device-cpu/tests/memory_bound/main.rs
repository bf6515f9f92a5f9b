//! Every operation but products, convolutions and attention, against plain loops in f64: odd sizes,
//! strided, repeated and in-place operands, and any number of threads.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod elementwise;
mod layout;
mod norm;
mod reduction;
mod resample;
mod rope;

use std::sync::Arc;

use device::{Device, OpCall, Operand, Result};
use device_cpu::CpuBackend;
use meta::{DType, Encoding, Shape};

/// A CPU with a gibibyte to spend.
fn cpu() -> Device {
    Device::new(Arc::new(CpuBackend::new()), 1 << 30)
}

/// A contiguous tensor of these values.
fn tensor(device: &Device, values: &[f32], shape: impl Into<Shape>) -> Operand {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    stored(device, &bytes, Encoding::F32, shape)
}

/// A contiguous tensor of these bytes.
fn stored(device: &Device, bytes: &[u8], encoding: impl Into<Encoding>, shape: impl Into<Shape>) -> Operand {
    Operand::new(device.upload(bytes).unwrap(), encoding.into(), shape, 0).unwrap()
}

/// A contiguous f32 tensor of random values from -3 to 3.
fn random(device: &Device, seed: u64, shape: impl Into<Shape>) -> Operand {
    let shape = shape.into();
    let mut random = testkit::Random::new(seed);
    let values: Vec<f32> = (0..shape.count()).map(|_| random.uniform(-3.0, 3.0)).collect();
    tensor(device, &values, shape)
}

/// An f32 tensor for results, full of NaN so that a value left out shows.
fn blank(device: &Device, shape: impl Into<Shape>) -> Operand {
    let shape = shape.into();
    tensor(device, &vec![f32::NAN; shape.count()], shape)
}

fn launch(device: &Device, call: impl Into<OpCall>) -> Result<()> {
    device.compute_stream()?.launch(&call.into())
}

/// The bytes of each element of a plain view, in logical order.
fn elements(device: &Device, view: &Operand) -> Vec<Vec<u8>> {
    let size = view.dtype().unwrap().bytes();
    let mut bytes = vec![0; view.extent()];
    device.compute_stream().unwrap().read(&view.span(), &mut bytes).unwrap();
    let at = |index: usize| {
        let (mut rest, mut start) = (index, 0);
        for (dim, stride) in view.dims().iter().zip(view.strides()).rev() {
            start += rest % dim * stride;
            rest /= dim;
        }
        bytes[start * size..(start + 1) * size].to_vec()
    };
    (0..view.count()).map(at).collect()
}

/// The values of an f32 view in logical order.
fn values(device: &Device, view: &Operand) -> Vec<f32> {
    assert_eq!(view.dtype(), Some(DType::F32));
    elements(device, view).iter().map(|b| f32::from_le_bytes(b.as_slice().try_into().unwrap())).collect()
}

/// The values of a view, repeated to a shape.
fn repeated(device: &Device, view: &Operand, shape: &Shape) -> Vec<f64> {
    values(device, &view.broadcast(*shape).unwrap()).into_iter().map(f64::from).collect()
}

/// Each value must be within `tolerance` of what is wanted, relative to it or to 1, whichever is larger.
#[track_caller]
fn assert_near(name: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}: number of values");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = (got.is_nan() && want.is_nan()) || f64::from(*got) == *want;
        let error = (f64::from(*got) - want).abs() / want.abs().max(1.0);
        assert!(
            same || error <= tolerance,
            "{name}: value {i} is {got}, expected {want} (error {error:.1e})"
        );
    }
}

/// The bits of a result must not depend on the number of threads.
#[track_caller]
fn assert_threads_do_not_matter(name: &str, compute: impl Fn() -> Vec<f32> + Sync) {
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let values = pool.install(&compute);
        values.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
    };
    let one = with(1);
    for threads in [2, 3, 8] {
        assert!(with(threads) == one, "{name}: {threads} threads give other bits than one");
    }
}
