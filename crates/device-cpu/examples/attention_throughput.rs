//! How fast attention is here, at the shapes of Stable Diffusion 1.5 (512² pixels) and FLUX (512² and 1024²):
//! `cargo run --release -p device-cpu --example attention_throughput [rounds]`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::op::{Attention, AttentionMask};
use device::{Device, OpCall, Operand, Result};
use device_cpu::CpuBackend;
use meta::Encoding;

/// Batch, queries, keys, heads and the size of a head.
const SHAPES: [[usize; 5]; 6] = [
    [2, 4096, 4096, 8, 40],
    [2, 4096, 77, 8, 40],
    [2, 1024, 1024, 8, 80],
    [2, 1024, 77, 8, 80],
    [1, 1536, 1536, 24, 128],
    [1, 4608, 4608, 24, 128],
];

fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3);
    let device = Device::new(Arc::new(CpuBackend::new()), 8 << 30);
    println!("{}: {}", device.description().name, device.description().detail);
    for shape @ [batch, queries, keys, heads, size] in SHAPES {
        let call = OpCall::from(Attention {
            q: random(&device, [batch, queries, heads, size], 1)?,
            k: random(&device, [batch, keys, heads, size], 2)?,
            v: random(&device, [batch, keys, heads, size], 3)?,
            mask: AttentionMask::None,
            scale: 1.0 / (size as f32).sqrt(),
            soft_cap: None,
            out: random(&device, [batch, queries, heads, size], 4)?,
        });
        let time = fastest(&device, &call, rounds)?;
        let rate = call.flops() as f64 / time.as_secs_f64() / 1e9;
        println!("{shape:?}: {:9.2} ms {rate:7.1} GFLOP/s", time.as_secs_f64() * 1e3);
    }
    Ok(())
}

fn random(device: &Device, shape: [usize; 4], seed: u64) -> Result<Operand> {
    let values = testkit::random_normal(seed, shape.iter().product());
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    Operand::new(device.upload(&bytes)?, Encoding::F32, shape, 0)
}

/// The shortest of some runs; short ones are repeated more often.
fn fastest(device: &Device, call: &OpCall, rounds: usize) -> Result<Duration> {
    let stream = device.compute_stream()?;
    let mut best = Duration::MAX;
    for _ in 0..rounds.max((20_000_000_000 / call.flops()).min(30) as usize) {
        let start = Instant::now();
        stream.launch(call)?;
        stream.synchronize()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}
