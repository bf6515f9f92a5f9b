//! How fast matrix products and convolutions are here, at the shapes of Stable Diffusion 1.5 and FLUX:
//! `cargo run --release -p device-cpu --example throughput [part of a name]`.
#![allow(unsafe_code, reason = "only the C library tells the processor time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::op::{Convolution, Linear, Matmul, Padding, Window};
use device::{Device, OpCall, Operand, Result};
use device_cpu::CpuBackend;
use meta::{DType, Encoding, QuantFormat, Shape};

/// Rows, depth and columns of linear layers.
const LINEAR: [(usize, usize, usize); 12] = [
    (4096, 320, 1280),
    (4096, 320, 2560),
    (1024, 640, 5120),
    (256, 1280, 1280),
    (77, 768, 3072),
    (1536, 3072, 9216),
    (1536, 3072, 12288),
    (1536, 12288, 3072),
    (4608, 3072, 3072),
    (512, 4096, 10240),
    (1, 3072, 18432),
    (2, 1280, 1280),
];

/// Images, channels in, channels out, size and kernel.
const CONVOLUTION: [(usize, usize, usize, usize, usize); 15] = [
    (1, 320, 320, 64, 3),
    (1, 640, 640, 32, 3),
    (1, 1280, 1280, 16, 3),
    (1, 1280, 1280, 8, 3),
    (2, 1280, 1280, 8, 3),
    (1, 2560, 1280, 16, 3),
    (1, 960, 640, 32, 3),
    (1, 320, 320, 32, 3),
    (1, 4, 320, 64, 3),
    (1, 512, 512, 64, 3),
    (1, 256, 256, 256, 3),
    (1, 128, 128, 512, 3),
    (1, 128, 3, 512, 3),
    (1, 640, 640, 32, 1),
    (1, 512, 256, 128, 1),
];

fn main() -> Result<()> {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let device = Device::new(Arc::new(CpuBackend::new()), 8 << 30);
    println!("{}: {}", device.description().name, device.description().detail);
    let quantised = QuantFormat::Q8_0.into();
    for (rows, depth, columns) in LINEAR {
        for encoding in [Encoding::F32, Encoding::BF16, quantised, QuantFormat::Q4_K.into()] {
            let name = format!("linear {rows} {depth} {columns} {encoding}");
            if name.contains(&filter) && depth % encoding.block_len() == 0 {
                let call = linear(&device, [rows, depth, columns], encoding)?;
                report(&device, &name, &call, encoding.bytes(&Shape::from([columns, depth]))?)?;
            }
        }
    }
    for size in [512, 1024, 2048] {
        let name = format!("matmul {size}");
        if name.contains(&filter) {
            let [a, b, out] = [1, 2, 3].map(|seed| tensor(&device, &[size, size], DType::F32.into(), seed));
            report(
                &device,
                &name,
                &Matmul { a: a?, b: b?, alpha: 1.0, accumulate: false, out: out? }.into(),
                0,
            )?;
        }
    }
    for shape in CONVOLUTION {
        let (images, channels, filters, size, kernel) = shape;
        let name = format!("conv {images} {channels} {filters} {size} {kernel}");
        if name.contains(&filter) {
            report(&device, &name, &convolution(&device, shape, 1)?, 0)?;
        }
    }
    let name = "depthwise 1 320 64 3";
    if name.contains(&filter) {
        report(&device, name, &convolution(&device, (1, 320, 320, 64, 3), 320)?, 0)?;
    }
    Ok(())
}

fn linear(device: &Device, [rows, depth, columns]: [usize; 3], encoding: Encoding) -> Result<OpCall> {
    let call = Linear {
        x: tensor(device, &[rows, depth], Encoding::F32, 1)?,
        weight: tensor(device, &[columns, depth], encoding, 2)?,
        scales: None,
        bias: Some(tensor(device, &[columns], Encoding::F32, 3)?),
        activation: None,
        out: tensor(device, &[rows, columns], Encoding::F32, 4)?,
    };
    Ok(call.into())
}

fn convolution(
    device: &Device,
    (images, channels, filters, size, kernel): (usize, usize, usize, usize, usize),
    groups: usize,
) -> Result<OpCall> {
    let call = Convolution {
        x: tensor(device, &[images, channels, size, size], Encoding::F32, 1)?,
        weight: tensor(device, &[filters, channels / groups, kernel, kernel], Encoding::F32, 2)?,
        bias: Some(tensor(device, &[filters], Encoding::F32, 3)?),
        window: vec![Window::padded(kernel / 2); 2],
        padding: Padding::Constant(0.0),
        groups,
        transposed: false,
        out: tensor(device, &[images, filters, size, size], Encoding::F32, 4)?,
    };
    Ok(call.into())
}

/// A tensor of arbitrary, harmless bytes.
fn tensor(device: &Device, dims: &[usize], encoding: Encoding, seed: u32) -> Result<Operand> {
    let shape = Shape::new(dims).expect("at most four dimensions");
    let len = encoding.bytes(&shape)? as usize;
    // Every second byte 0x3C: values near 0.01 in f32 and 1 in bf16, and quantised scales near 1.
    let mut state = seed;
    let bytes: Vec<u8> = (0..len)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if i % 2 == 1 { 0x3C } else { (state >> 24) as u8 }
        })
        .collect();
    Operand::new(device.upload(&bytes)?, encoding, shape, 0)
}

/// Runs a call for a while and prints its best times: of the clock, and of the processor, which other
/// programs disturb less (it adds up all threads, so run it with `RAYON_NUM_THREADS=1`).
fn report(device: &Device, name: &str, call: &OpCall, weight_bytes: u64) -> Result<()> {
    let stream = device.compute_stream()?;
    let (started, mut best, mut runs) = (Instant::now(), (f64::MAX, f64::MAX), 0);
    while runs < 3 || started.elapsed() < Duration::from_millis(400) {
        let (start, busy) = (Instant::now(), processor_seconds());
        stream.launch(call)?;
        stream.synchronize()?;
        best = (best.0.min(start.elapsed().as_secs_f64()), best.1.min(processor_seconds() - busy));
        runs += 1;
    }
    let speed = |seconds: f64| call.flops() as f64 / seconds / 1e9;
    print!("{name}\t{:.1} GFLOP/s\t{:.3} ms", speed(best.0), best.0 * 1e3);
    print!("\t{:.1} GFLOP/s of processor time", speed(best.1));
    match weight_bytes {
        0 => println!(),
        bytes => println!("\tweights at {:.1} GB/s", bytes as f64 / best.0 / 1e9),
    }
    Ok(())
}

/// Time that this process has spent on processors.
#[cfg(unix)]
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Not counted here.
#[cfg(not(unix))]
fn processor_seconds() -> f64 {
    0.0
}
