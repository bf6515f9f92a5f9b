//! One huge operation ends soon after it is cancelled, and one that is not cancelled computes what it always does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::op::{Attention, AttentionMask, Convolution, Linear, NormalNoise, Padding, Window};
use device::{Backend, Buffer, Cancel, Device, Error, OpCall, Operand, SimBackend, SimSpec, StreamKind};
use device_cpu::CpuBackend;
use meta::{Encoding, Shape};

/// How long an operation goes on after it was cancelled, at most, on a machine that does much else.
const SOON: Duration = Duration::from_millis(500);

fn cpu() -> Device {
    Device::new(Arc::new(CpuBackend::new()), 16 << 30)
}

fn values(device: &Device, dims: &[usize]) -> Operand {
    let shape = Shape::new(dims).unwrap();
    let buffer = device.allocate(shape.count() * 4).unwrap();
    let out = Operand::new(buffer, Encoding::F32, shape, 0).unwrap();
    // Pages that are there and are no zeros, so that nothing is quicker than usual.
    let fill = NormalNoise { seed: 1, out: out.slice(0, 0, 1).unwrap() };
    device.compute_stream().unwrap().launch(&fill.into()).unwrap();
    out
}

/// Operations that take seconds, by name.
fn huge(device: &Device) -> Vec<(&'static str, OpCall)> {
    let tensor = |shape: &[usize]| values(device, shape);
    let window = Window { stride: 1, pad_before: 1, pad_after: 1, dilation: 1 };
    let convolution = |side: usize, channels: usize, filters: usize| Convolution {
        x: tensor(&[1, channels, side, side]),
        weight: tensor(&[filters, channels, 3, 3]),
        bias: None,
        window: vec![window; 2],
        padding: Padding::Constant(0.0),
        groups: 1,
        transposed: false,
        out: tensor(&[1, filters, side, side]),
    };
    let tokens = 65_536;
    vec![
        (
            "attention",
            OpCall::from(Attention {
                q: tensor(&[1, tokens, 1, 64]),
                k: tensor(&[1, tokens, 1, 64]),
                v: tensor(&[1, tokens, 1, 64]),
                mask: AttentionMask::None,
                scale: 0.125,
                soft_cap: None,
                out: tensor(&[1, tokens, 1, 64]),
            }),
        ),
        (
            "linear",
            Linear {
                x: tensor(&[16_384, 4096]),
                weight: tensor(&[8192, 4096]),
                scales: None,
                bias: None,
                activation: None,
                out: tensor(&[16_384, 8192]),
            }
            .into(),
        ),
        ("a convolution after Winograd", convolution(1024, 64, 64).into()),
        ("a convolution with few channels", convolution(2048, 8, 32).into()),
        ("noise", NormalNoise { seed: 7, out: tensor(&[100_000_000]) }.into()),
    ]
}

/// Runs an operation and cancels it after a moment; how long it went on, and what became of it.
fn cancelled(device: &Device, call: &OpCall, after: Duration) -> (Duration, Result<(), Error>) {
    let cancel = Cancel::default();
    let stream = device.compute_stream().unwrap().with_cancel(&cancel);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            std::thread::sleep(after);
            cancel.cancel();
            Instant::now()
        });
        let outcome = stream.launch(call);
        let ended = Instant::now();
        let asked = asked.join().unwrap();
        (ended.saturating_duration_since(asked), outcome)
    })
}

#[test]
fn huge_operations_end_soon_after_they_are_cancelled() {
    let device = cpu();
    for (name, call) in huge(&device) {
        let (taken, outcome) = cancelled(&device, &call, Duration::from_millis(30));
        println!("{name}: ended {taken:.0?} after it was cancelled");
        if outcome == Ok(()) {
            // A machine that is faster than thought has nothing to stop.
            assert_eq!(taken, Duration::ZERO, "{name}");
            continue;
        }
        assert_eq!(outcome, Err(Error::Cancelled), "{name}");
        assert!(taken < SOON, "{name}: {taken:?}");
    }
    // The stream itself works on, and so do the buffers.
    device.compute_stream().unwrap().synchronize().unwrap();
}

/// A slow link: what waits for it, or for a copy over it, gives up when it is cancelled.
#[test]
fn waiting_ends_when_it_is_cancelled() {
    const BYTES: usize = 16 << 20;
    let spec: SimSpec = "256mb@0.001gbps".parse().unwrap();
    let host = Arc::new(CpuBackend::new());
    let executor = host.executor();
    let device =
        Device::new(Arc::new(SimBackend::new(0, spec, host as Arc<dyn Backend>, executor)), spec.memory);
    let (near, far) = (Buffer::over(Arc::new(vec![1u8; BYTES])), device.allocate(BYTES).unwrap());
    let soon = |name: &str, wait: &dyn Fn(&Cancel) -> Result<(), Error>| {
        let cancel = Cancel::default();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                cancel.cancel();
                Instant::now()
            });
            assert_eq!(wait(&cancel), Err(Error::Cancelled), "{name}");
            let taken = Instant::now().saturating_duration_since(asked.join().unwrap());
            assert!(taken < SOON, "{name}: {taken:?}");
        });
    };
    let compute = device.compute_stream().unwrap();
    soon("writing", &|cancel| compute.with_cancel(cancel).write(&far.whole(), &vec![2; BYTES]));
    let copies = device.open_stream(StreamKind::Copy).unwrap();
    copies.copy(&far.whole(), &near.whole()).unwrap();
    let arrived = copies.record().unwrap();
    soon("waiting for a copy", &|cancel| compute.with_cancel(cancel).wait(&arrived));
    soon("an event", &|cancel| arrived.wait_unless(cancel));
    soon("finishing", &|cancel| copies.with_cancel(cancel).synchronize());
    assert!(!arrived.is_done().unwrap(), "the copy itself goes on");

    // A stream that goes leaves the rest of its work, and says so to who waits for it.
    let since = Instant::now();
    drop(copies);
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    assert_eq!(arrived.wait(), Err(Error::Cancelled));
}

#[test]
fn what_can_be_cancelled_and_is_not_computes_the_same() {
    let device = cpu();
    let shape = &[1, 300, 2, 48];
    let (q, k, v) = (values(&device, shape), values(&device, shape), values(&device, shape));
    let compute = device.compute_stream().unwrap();
    let out = |stream: &device::Stream| {
        let out = values(&device, shape);
        let call = Attention {
            q: q.clone(),
            k: k.clone(),
            v: v.clone(),
            mask: AttentionMask::Causal,
            scale: 0.2,
            soft_cap: None,
            out: out.clone(),
        };
        stream.launch(&call.into()).unwrap();
        let mut bytes = vec![0; out.extent()];
        stream.read(&out.span(), &mut bytes).unwrap();
        bytes
    };
    assert!(out(&compute) == out(&compute.with_cancel(&Cancel::default())));
}
