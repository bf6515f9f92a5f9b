//! Backends as others may write them: without the fused operations, and with memory that no other can address.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use device::op::RopeLayout;
use device::{
    Backend, Cancel, Description, Device, Event, Ledger, Memory, MemoryInfo, OpCall, Result, Span,
    StreamBackend, StreamKind,
};
use device_cpu::CpuBackend;
use meta::{DType, DeviceId, Encoding};
use tensor::{Activation, Lane, Tensor, Weight};
use testkit::{assert_close, random_normal};

const BUDGET: u64 = 1 << 30;

/// The CPU's kernels and memory under another id, behind a seam that shows less of them.
struct Other {
    cpu: Arc<CpuBackend>,
    id: DeviceId,
    /// Whether it has the operations that are made of others.
    is_fused: bool,
    /// Whether the host and other devices cannot address its memory.
    is_closed: bool,
    refused: AtomicUsize,
    crossed: Arc<AtomicUsize>,
}

impl Other {
    fn device(id: DeviceId, is_fused: bool, is_closed: bool) -> (Device, Arc<Other>) {
        let other = Arc::new(Other {
            cpu: Arc::new(CpuBackend::new()),
            id,
            is_fused,
            is_closed,
            refused: AtomicUsize::new(0),
            crossed: Arc::default(),
        });
        (Device::new(Arc::clone(&other) as Arc<dyn Backend>, BUDGET), other)
    }
}

impl Backend for Other {
    fn describe(&self) -> Description {
        Description { id: self.id, activations: &[DType::F32], ..self.cpu.describe() }
    }
    fn memory(&self) -> Result<MemoryInfo> {
        self.cpu.memory()
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.cpu.allocate(bytes)
    }
    fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.cpu.allocate(bytes)
    }
    fn open_stream(&self, kind: StreamKind, ledger: &Ledger) -> Result<Arc<dyn StreamBackend>> {
        let inner = self.cpu.open_stream(kind, ledger)?;
        Ok(Arc::new(OtherStream {
            inner,
            id: self.id,
            is_closed: self.is_closed,
            crossed: Arc::clone(&self.crossed),
        }))
    }
    fn supports(&self, call: &OpCall) -> Result<(), String> {
        let fused = matches!(
            call,
            OpCall::ModulatedNorm(_)
                | OpCall::Modulate(_)
                | OpCall::GatedAdd(_)
                | OpCall::GatedActivation(_)
                | OpCall::NormedRope(_)
        );
        if fused && !self.is_fused {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err("only the plain operations are here".to_owned());
        }
        self.cpu.supports(call)
    }
    fn trim(&self) -> Result<()> {
        Ok(())
    }
    fn reaches(&self, other: DeviceId) -> bool {
        other == self.id || !self.is_closed
    }
    fn addresses(&self, memory: &dyn Memory) -> bool {
        // Its own memory is told from others' by nobody here, so a closed one says no to all.
        !self.is_closed && memory.host_pointer().is_some()
    }
}

/// A stream that fails where it would touch another device's memory, if such memory is closed.
struct OtherStream {
    inner: Arc<dyn StreamBackend>,
    id: DeviceId,
    is_closed: bool,
    /// Bytes that went over the host.
    crossed: Arc<AtomicUsize>,
}

impl StreamBackend for OtherStream {
    fn launch(&self, call: &OpCall, cancel: &Cancel) -> Result<()> {
        self.inner.launch(call, cancel)
    }
    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
        let is_own = [to, from].iter().all(|span| span.buffer.device() == self.id);
        assert!(is_own || !self.is_closed, "{to:?} and {from:?} cannot reach each other");
        self.inner.copy(to, from, cancel)
    }
    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
        self.crossed.fetch_add(to.len(), Ordering::Relaxed);
        self.inner.read(from, to, cancel)
    }
    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
        self.inner.write(to, from, cancel)
    }
    fn record(&self) -> Result<Event> {
        self.inner.record()
    }
    fn record_timed(&self) -> Result<Event> {
        self.inner.record_timed()
    }
    fn wait(&self, event: &Event, cancel: &Cancel) -> Result<()> {
        self.inner.wait(event, cancel)
    }
    fn synchronize(&self, cancel: &Cancel) -> Result<()> {
        self.inner.synchronize(cancel)
    }
}

fn lane(device: &Device) -> Lane {
    Lane::new(device, DType::F32).unwrap()
}

/// Values of every fused operation, on a lane.
fn fused(lane: &Lane) -> Vec<(&'static str, Vec<f32>)> {
    let tensor =
        |seed: u64, dims: [usize; 4]| lane.tensor(dims, &random_normal(seed, dims.iter().product())).unwrap();
    let x = tensor(1, [2, 5, 3, 8]);
    let (scale, shift) = (tensor(2, [2, 1, 1, 8]), tensor(3, [2, 1, 1, 8]));
    let y = tensor(4, [2, 5, 3, 8]);
    let angles = random_normal(5, 5 * 4);
    let table = |f: fn(f32) -> f32| {
        let values: Vec<f32> = angles.iter().map(|angle| f(*angle)).collect();
        lane.tensor([1, 5, 4], &values).unwrap()
    };
    let bytes: Vec<u8> = random_normal(6, 8).iter().flat_map(|value| value.to_le_bytes()).collect();
    let weight = Weight::upload(lane.device(), Encoding::F32, [8], &bytes).unwrap();
    let rotated = lane.empty([2, 5, 3, 8]).unwrap();
    x.normed_rope_into(
        &weight,
        1e-6,
        [&table(f32::cos), &table(f32::sin)],
        RopeLayout::Interleaved,
        &rotated,
    )
    .unwrap();
    let values = |tensor: Tensor| tensor.to_vec().unwrap();
    vec![
        ("modulate", values(x.modulate(&scale, &shift).unwrap())),
        ("modulated norm", values(x.modulated_norm(&scale, &shift, 1e-6).unwrap())),
        ("gated add", values(x.gated_add(&scale, &y).unwrap())),
        ("gated activation", values(x.gate(Activation::Silu, &y).unwrap())),
        ("normed rope", values(rotated)),
    ]
}

#[test]
fn a_backend_without_the_fused_operations_computes_them_by_the_others() {
    let (whole, _) = Other::device(DeviceId::CPU, true, false);
    let (plain, backend) = Other::device(DeviceId::CPU, false, false);
    let (expected, got) = (fused(&lane(&whole)), fused(&lane(&plain)));
    for ((name, expected), (_, got)) in expected.iter().zip(&got) {
        assert_close(name, got, expected, 1e-6);
    }
    // The norm refuses twice: itself, and the modulation that it is made of.
    assert_eq!(backend.refused.load(Ordering::Relaxed), 6);
    drop(got);
    assert_eq!(plain.ledger().report().used, 0, "what lay between is given back");
    assert!(plain.ledger().peak() > whole.ledger().peak(), "and was in the ledger meanwhile");
}

#[test]
fn what_lies_between_needs_room() {
    let (_, other) = Other::device(DeviceId::CPU, false, false);
    let small = Device::new(other, 2 * 4096 + 512);
    let lane = lane(&small);
    let full = lane.tensor([1024], &random_normal(1, 1024)).unwrap();
    let error = full.modulate(&full, &full).unwrap_err().to_string();
    assert!(error.contains("out of memory") && error.contains("modulate"), "{error}");
}

#[test]
fn devices_that_cannot_reach_each_other_exchange_values_over_the_host() {
    let (here, from) = Other::device(DeviceId::sim(0), true, true);
    let (there, _) = Other::device(DeviceId::null(0), true, true);
    let values = random_normal(7, 3 * 1000);
    let x = lane(&here).tensor([3, 1000], &values).unwrap();
    let part = x.slice(0, 1, 2).unwrap();
    let moved = part.to_lane(&lane(&there)).unwrap();
    assert_eq!(from.crossed.load(Ordering::Relaxed), 2 * 1000 * 4);
    assert_eq!(moved.lane().device().id(), DeviceId::null(0));
    assert_eq!(moved.to_vec().unwrap(), values[1000..]);
    // And back, after work that is queued there.
    let back = moved.add(&moved).unwrap().to_lane(&lane(&here)).unwrap();
    let doubled: Vec<f32> = values[1000..].iter().map(|value| 2.0 * value).collect();
    assert_eq!(back.to_vec().unwrap(), doubled);
}

#[test]
fn one_that_can_reach_the_other_copies_itself() {
    let (closed, from) = Other::device(DeviceId::sim(0), true, true);
    let (open, _) = Other::device(DeviceId::null(0), true, false);
    let values = random_normal(8, 500);
    let x = lane(&closed).tensor([500], &values).unwrap();
    let there = x.to_lane(&lane(&open)).unwrap();
    assert_eq!(from.crossed.load(Ordering::Relaxed), 0, "nothing went over the host");
    let back = there.to_lane(&lane(&closed)).unwrap();
    assert_eq!(back.to_vec().unwrap(), values);
}
