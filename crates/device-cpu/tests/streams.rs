//! Streams, events, ledgers and budgets on the devices that need no hardware.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::op::{Unary, UnaryKind};
use device::{
    Backend, Buffer, Device, Error, NullBackend, Operand, Result, SimBackend, SimSpec, Span, StreamKind,
};
use device_cpu::CpuBackend;
use meta::{DeviceId, Encoding};

fn cpu() -> Device {
    Device::new(Arc::new(CpuBackend::new()), 1 << 30)
}

fn sim(spec: &str) -> Device {
    let spec: SimSpec = spec.parse().unwrap();
    let host = Arc::new(CpuBackend::new());
    let executor = host.executor();
    Device::new(Arc::new(SimBackend::new(0, spec, host as Arc<dyn Backend>, executor)), spec.memory)
}

fn read(device: &Device, span: &Span) -> Vec<u8> {
    let mut bytes = vec![0; span.len];
    device.compute_stream().unwrap().read(span, &mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_go_to_a_simulated_device_and_back() {
    let device = sim("64mb@50gbps");
    let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    let buffer = device.upload(&data).unwrap();
    assert_eq!(buffer.device(), DeviceId::sim(0));
    assert_eq!(read(&device, &buffer.whole()), data);
    assert_eq!(read(&device, &buffer.span(10..20).unwrap()), data[10..20]);
}

#[test]
fn a_copy_stream_works_in_order_beside_the_caller() {
    // A tenth of a second for each copy: threads of other tests have their turns meanwhile.
    let device = sim("64mb@0.02gbps");
    let source = Buffer::over(Arc::new(vec![3u8; 2 << 20]));
    let (first, second) = (device.allocate(2 << 20).unwrap(), device.allocate(2 << 20).unwrap());
    let stream = device.open_stream(StreamKind::Copy).unwrap();
    let start = Instant::now();
    stream.copy(&first.whole(), &source.whole()).unwrap();
    let half = stream.record().unwrap();
    stream.copy(&second.whole(), &first.whole()).unwrap();
    let done = stream.record().unwrap();
    assert!(start.elapsed() < Duration::from_millis(50), "queueing took {:?}", start.elapsed());
    assert!(!half.is_done().unwrap());
    half.wait().unwrap();
    assert!(!done.is_done().unwrap());
    done.wait().unwrap();
    assert_eq!(read(&device, &second.whole()), vec![3u8; 2 << 20]);
}

#[test]
fn copies_take_as_long_as_the_link_says() {
    let device = sim("256mb@0.5gbps");
    let bytes = 4 << 20;
    let source = Buffer::over(Arc::new(vec![1u8; bytes]));
    let target = device.allocate(bytes).unwrap();
    let stream = device.open_stream(StreamKind::Copy).unwrap();
    let expected = 5.0 * bytes as f64 / 0.5e9;
    // Never sooner, and in one of some tries about then: other programs may have the processor at any time.
    let mut tries = Vec::new();
    while tries.len() < 8 {
        // A link that was busy a moment ago is taken as busy all the time.
        std::thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        for _ in 0..5 {
            stream.copy(&target.whole(), &source.whole()).unwrap();
        }
        stream.synchronize().unwrap();
        let taken = start.elapsed().as_secs_f64();
        assert!(taken >= expected, "took {taken} s, the link needs {expected} s");
        if taken < 1.25 * expected {
            return;
        }
        tries.push(taken);
    }
    panic!("took {tries:?} s, the link needs {expected} s");
}

#[test]
fn a_compute_stream_waits_for_an_event_of_a_copy_stream() {
    let device = sim("64mb@0.1gbps");
    let values: Vec<u8> = std::iter::repeat_n(2.0f32.to_le_bytes(), 1 << 18).flatten().collect();
    let source = Buffer::over(Arc::new(values));
    let (x, y) = (device.allocate(1 << 20).unwrap(), device.allocate(1 << 20).unwrap());
    let copies = device.open_stream(StreamKind::Copy).unwrap();
    copies.copy(&x.whole(), &source.whole()).unwrap();
    let arrived = copies.record().unwrap();
    let compute = device.compute_stream().unwrap();
    compute.wait(&arrived).unwrap();
    let view = |buffer: &Buffer| Operand::new(buffer.clone(), Encoding::F32, [1 << 18], 0).unwrap();
    compute.launch(&Unary { kind: UnaryKind::Square, x: view(&x), out: view(&y) }.into()).unwrap();
    assert_eq!(read(&device, &y.span(0..4).unwrap()), 4.0f32.to_le_bytes());
}

#[test]
fn a_failed_copy_reaches_its_event_and_is_told_once() {
    let device = cpu();
    let unreachable = Device::new(Arc::new(NullBackend::new(0, 100)), 100).allocate(8).unwrap();
    let (target, source) = (device.allocate(8).unwrap(), device.upload(&[7; 8]).unwrap());
    let stream = device.open_stream(StreamKind::Copy).unwrap();
    stream.copy(&target.whole(), &unreachable.whole()).unwrap();
    let after = stream.record().unwrap();
    assert!(matches!(after.wait(), Err(Error::Device { .. })));
    assert!(matches!(stream.synchronize(), Err(Error::Device { .. })));
    stream.copy(&target.whole(), &source.whole()).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(read(&device, &target.whole()), [7; 8]);
}

#[test]
fn the_ledger_has_every_byte_and_gets_it_back() {
    let device = sim("1mb@10gbps");
    let first = device.allocate(600_000).unwrap();
    assert_eq!(device.ledger().report().used, 600_000);
    let error = device.allocate(600_000).unwrap_err();
    let Error::OutOfMemory(short) = &error else { panic!("{error}") };
    assert_eq!((short.wanted, short.available, short.budget), (600_000, (1 << 20) - 600_000, 1 << 20));
    let handle = first.clone();
    drop(first);
    assert_eq!(device.ledger().report().used, 600_000);
    drop(handle);
    assert_eq!(device.ledger().report().used, 0);
    assert_eq!(device.memory().unwrap().free, 1 << 20);
    let mut promised = device.ledger().reserve(1 << 20).unwrap();
    assert!(device.allocate(1).is_err());
    assert!(device.allocate_from(&mut promised, 1 << 20).is_ok());
}

#[test]
fn a_null_device_counts_without_bytes() {
    let backend = Arc::new(NullBackend::new(2, 1 << 60));
    let device = Device::new(Arc::clone(&backend) as Arc<dyn Backend>, 1 << 60);
    let huge = device.allocate(1 << 50).unwrap();
    let x = Operand::new(huge.clone(), Encoding::F32, [1 << 20, 1 << 20], 0).unwrap();
    let y = Operand::new(device.allocate(1 << 42).unwrap(), Encoding::F32, [1 << 20, 1 << 20], 0).unwrap();
    device
        .compute_stream()
        .unwrap()
        .launch(&Unary { kind: UnaryKind::Neg, x, out: y.clone() }.into())
        .unwrap();
    assert_eq!((backend.launches(), backend.copied_bytes()), (1, 0));
    assert_eq!(device.ledger().report().used, (1 << 50) + (1 << 42));
    drop((huge, y));
    assert_eq!(device.ledger().report().used, 0);
}

#[test]
fn calls_that_do_not_fit_are_refused_before_they_run() {
    let (device, other) = (cpu(), sim("1mb@1gbps"));
    let view = |device: &Device, n: usize| -> Result<Operand> {
        Operand::new(device.allocate(4 * n)?, Encoding::F32, [n], 0)
    };
    let stream = device.compute_stream().unwrap();
    let launch = |x: Operand, out: Operand| stream.launch(&Unary { kind: UnaryKind::Exp, x, out }.into());
    let (a, b) = (view(&device, 8).unwrap(), view(&device, 9).unwrap());
    let error = launch(a.clone(), b).unwrap_err().to_string();
    assert_eq!(error, "unary: output is of shape [9], expected of shape [8]");
    let error = launch(a.clone(), view(&other, 8).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "unary: buffer is on sim:0, expected on cpu");
    let half = |start: usize| a.slice(0, start, 5).unwrap();
    assert!(launch(half(0), half(2)).is_err(), "an output may not lie across an input");
    assert!(launch(a.clone(), a.clone()).is_ok(), "an output may be the input itself");
    let file = Operand::new(Buffer::over(Arc::new(vec![0u8; 32])), Encoding::F32, [8], 0).unwrap();
    assert!(matches!(launch(a, file), Err(Error::Access { state: "read-only", .. })));
}
