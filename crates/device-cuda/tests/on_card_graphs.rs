//! What only a card can show of graphs and of memory that is freed while work goes on: the same bits as without them.
//! Run it as `on_card`, with `--include-ignored --test-threads=1`.
#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::sync::Arc;

use device::op::{self, Activation, AttentionMask, BinaryKind};
use device::{Device, Error, NullBackend, OpCall, Operand, Result, Stream, StreamKind};
use device_cuda::{CudaConfig, discover};
use half::bf16;
use meta::{DType, Encoding, Shape};

/// The first card.
fn card() -> Device {
    let roots = std::env::var_os("GANTRY_CUDA_ROOTS");
    let search_roots = roots.iter().flat_map(std::env::split_paths).collect();
    match discover(&CudaConfig { search_roots, ..CudaConfig::default() }) {
        Ok(mut devices) => Device::new(Arc::new(devices.swap_remove(0)), 16 << 30),
        Err(unavailable) => panic!("this test needs a card: {unavailable}"),
    }
}

/// Numbers from -0.5 to 0.5 in bf16.
fn numbers(count: usize, seed: u64) -> Vec<u8> {
    let number =
        |i: u64| ((i + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 24) as f32;
    (0..count as u64).flat_map(|i| bf16::from_f32(number(i) - 0.5).to_ne_bytes()).collect()
}

fn tensor(device: &Device, dims: &[usize], seed: u64) -> Operand {
    let shape = Shape::new(dims).unwrap();
    let buffer = device.upload(&numbers(shape.count(), seed)).unwrap();
    Operand::new(buffer, Encoding::BF16, shape, 0).unwrap()
}

fn empty(device: &Device, dims: &[usize]) -> Operand {
    let shape = Shape::new(dims).unwrap();
    let buffer = device.allocate(shape.count() * 2).unwrap();
    Operand::new(buffer, Encoding::BF16, shape, 0).unwrap()
}

fn bytes(stream: &Stream, operand: &Operand) -> Vec<u8> {
    let mut bytes = vec![0; operand.extent()];
    stream.read(&operand.span(), &mut bytes).unwrap();
    bytes
}

/// A few layers with weights that are shared by all runs.
struct Layers {
    device: Device,
    stream: Stream,
    weight: Operand,
    bias: Operand,
}

const ROWS: usize = 96;
const WIDTH: usize = 256;

impl Layers {
    fn new() -> Layers {
        let device = card();
        let stream = device.compute_stream().unwrap();
        let (weight, bias) = (tensor(&device, &[WIDTH, WIDTH], 2), tensor(&device, &[WIDTH], 3));
        Layers { device, stream, weight, bias }
    }

    /// Products, whose workspaces are taken for a moment, sums, norms and attentions, into `out`.
    fn queue(&self, x: &Operand, out: &Operand) -> Result<()> {
        let launch = |call: OpCall| self.stream.launch(&call);
        let same = || empty(&self.device, &[ROWS, WIDTH]);
        let mut x = x.clone();
        for activation in [Some(Activation::GeluTanh), None, Some(Activation::Silu)] {
            let inner = same();
            launch(
                op::Linear {
                    x: x.clone(),
                    weight: self.weight.clone(),
                    scales: None,
                    bias: Some(self.bias.clone()),
                    activation,
                    out: inner.clone(),
                }
                .into(),
            )?;
            let sum = same();
            launch(op::Binary { kind: BinaryKind::Add, a: x, b: inner, out: sum.clone() }.into())?;
            let normed = same();
            let weight = Some(self.bias.clone());
            launch(op::RmsNorm { x: sum, axis: 1, weight, eps: 1e-6, out: normed.clone() }.into())?;
            let (heads, attended) = (normed.reshape([1, ROWS, 4, WIDTH / 4])?, same());
            launch(
                op::Attention {
                    q: heads.clone(),
                    k: heads.clone(),
                    v: heads,
                    mask: AttentionMask::None,
                    scale: 0.125,
                    soft_cap: None,
                    out: attended.reshape([1, ROWS, 4, WIDTH / 4])?,
                }
                .into(),
            )?;
            x = attended;
        }
        launch(op::Copy { x, out: out.clone() }.into())
    }

    /// The result without a graph.
    fn expected(&self, seed: u64) -> Vec<u8> {
        let out = empty(&self.device, &[ROWS, WIDTH]);
        self.queue(&tensor(&self.device, &[ROWS, WIDTH], seed), &out).unwrap();
        bytes(&self.stream, &out)
    }
}

#[test]
#[ignore = "needs a card"]
fn a_graph_gives_the_same_bits_again_and_again() {
    let layers = Layers::new();
    let expected: Vec<Vec<u8>> = (10..16).map(|seed| layers.expected(seed)).collect();
    let used = layers.device.ledger().report().used;
    let (x, out) = (tensor(&layers.device, &[ROWS, WIDTH], 1), empty(&layers.device, &[ROWS, WIDTH]));
    let graph = layers.stream.capture(|| layers.queue(&x, &out)).unwrap().unwrap();
    let held = layers.device.ledger().report().used - used;
    // Twelve outputs between input and result, and at least one workspace.
    assert!(held > 14 * (ROWS * WIDTH * 2) as u64, "{held}");
    for (seed, expected) in (10..16).zip(&expected) {
        layers.stream.write(&x.span(), &numbers(ROWS * WIDTH, seed)).unwrap();
        graph.launch().unwrap();
        // Work that takes and writes memory meanwhile must not get any of the graph's.
        layers.expected(seed + 100);
        assert!(bytes(&layers.stream, &out) == *expected, "input {seed}");
        graph.launch().unwrap();
        assert!(bytes(&layers.stream, &out) == *expected, "input {seed} again");
    }
    drop((graph, x, out));
    assert_eq!(layers.device.ledger().report().used, used, "all of it is back");
    assert!(layers.expected(10) == expected[0]);
}

#[test]
#[ignore = "needs a card"]
fn a_capture_that_fails_leaves_the_stream_as_it_was() {
    let layers = Layers::new();
    let expected = layers.expected(10);
    let out = empty(&layers.device, &[ROWS, WIDTH]);
    let x = tensor(&layers.device, &[ROWS, WIDTH], 10);
    let failed = layers.stream.capture(|| {
        layers.queue(&x, &out)?;
        layers.stream.synchronize()
    });
    assert!(matches!(failed, Err(Error::Device { .. })), "{failed:?}");
    layers.queue(&x, &out).unwrap();
    assert!(bytes(&layers.stream, &out) == expected);
}

/// A block that only the compute stream used is taken by another stream while the compute stream still reads it.
#[test]
#[ignore = "needs a card"]
fn another_stream_waits_for_the_work_on_a_block_it_gets() {
    const BYTES: usize = 48 << 20;
    let device = card();
    let host = Device::new(Arc::new(NullBackend::new(0, 1 << 40)), 1 << 40);
    let compute = device.compute_stream().unwrap();
    let copies = device.open_stream(StreamKind::Copy).unwrap();
    let pattern = device.allocate_pinned(&host, BYTES).unwrap();
    copies.write(&pattern.whole(), &vec![0xff; BYTES]).unwrap();
    let results: Vec<_> = (0..8).map(|_| device.allocate_pinned(&host, BYTES).unwrap()).collect();
    let ones = Operand::new(device.upload(&[1; 2]).unwrap(), DType::U8.into(), [1], 0).unwrap();
    for result in &results {
        let block = device.allocate(BYTES).unwrap();
        let filled = Operand::new(block.clone(), DType::U8.into(), [BYTES], 0).unwrap();
        let x = ones.broadcast([BYTES]).unwrap();
        compute.launch(&op::Copy { x, out: filled.clone() }.into()).unwrap();
        compute.copy(&result.whole(), &block.whole()).unwrap();
        drop((block, filled));
        let again = device.allocate(BYTES).unwrap();
        copies.copy(&again.whole(), &pattern.whole()).unwrap();
    }
    compute.synchronize().unwrap();
    copies.synchronize().unwrap();
    let mut bytes = vec![0; BYTES];
    for (turn, result) in results.iter().enumerate() {
        compute.read(&result.whole(), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 1), "turn {turn}");
    }
}
