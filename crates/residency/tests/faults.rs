//! Devices that fail, memory that runs out at every point, files that shrink: the ledger stays exact and
//! the next load works.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use device::{
    Backend, Cancel, Description, Device, Error, Event, HostExecutor, Ledger, Memory, MemoryInfo,
    NullBackend, OpCall, OutOfMemory, Registry, Span, StreamBackend, StreamKind,
};
use device_cpu::CpuBackend;
use meta::{DType, DeviceId, Encoding};
use residency::{LoadOptions, Residency, Retention};
use support::*;

/// How many more calls succeed; negative: all.
#[derive(Default)]
struct Fuse(AtomicI64);

impl Fuse {
    fn set(&self, calls: i64) {
        self.0.store(calls, Ordering::SeqCst);
    }

    /// Whether this call is the one that fails.
    fn blows(&self) -> bool {
        self.0.fetch_sub(1, Ordering::SeqCst) == 0
    }
}

/// A simulated device whose allocations and copies fail when their fuse blows.
struct Faulty {
    inner: Arc<dyn Backend>,
    allocations: Arc<Fuse>,
    copies: Arc<Fuse>,
    launches: Arc<Fuse>,
}

struct FaultyStream {
    inner: Arc<dyn StreamBackend>,
    copies: Arc<Fuse>,
    launches: Arc<Fuse>,
}

impl Backend for Faulty {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn memory(&self) -> device::Result<MemoryInfo> {
        self.inner.memory()
    }

    fn allocate(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        if self.allocations.blows() {
            // The retry after emptying caches must fail too.
            self.allocations.set(0);
            return Err(Error::OutOfMemory(OutOfMemory {
                device: DeviceId::sim(0),
                wanted: bytes as u64,
                available: 0,
                budget: 0,
                used: 0,
                reserved: 0,
                op: None,
            }));
        }
        self.inner.allocate(bytes)
    }

    fn allocate_pinned(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        if bytes == 0 { NullBackend::new(0, 0).allocate(0) } else { self.inner.allocate_pinned(bytes) }
    }

    fn open_stream(&self, kind: StreamKind, ledger: &Ledger) -> device::Result<Arc<dyn StreamBackend>> {
        let (copies, launches) = (Arc::clone(&self.copies), Arc::clone(&self.launches));
        Ok(Arc::new(FaultyStream { inner: self.inner.open_stream(kind, ledger)?, copies, launches }))
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        self.inner.supports(call)
    }

    fn trim(&self) -> device::Result<()> {
        self.inner.trim()
    }

    fn reaches(&self, other: DeviceId) -> bool {
        self.inner.reaches(other)
    }
}

impl StreamBackend for FaultyStream {
    fn launch(&self, call: &OpCall, cancel: &Cancel) -> device::Result<()> {
        if self.launches.blows() {
            return Err(injected());
        }
        self.inner.launch(call, cancel)
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> device::Result<()> {
        if self.copies.blows() {
            return Err(injected());
        }
        self.inner.copy(to, from, cancel)
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> device::Result<()> {
        self.inner.read(from, to, cancel)
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> device::Result<()> {
        self.inner.write(to, from, cancel)
    }

    fn record(&self) -> device::Result<Event> {
        self.inner.record()
    }

    fn record_timed(&self) -> device::Result<Event> {
        self.inner.record_timed()
    }

    fn wait(&self, event: &Event, cancel: &Cancel) -> device::Result<()> {
        self.inner.wait(event, cancel)
    }

    fn synchronize(&self, cancel: &Cancel) -> device::Result<()> {
        self.inner.synchronize(cancel)
    }
}

/// Does the work of the simulated device; a transfer under way fails when the fuse blows.
struct FaultyExecutor {
    inner: Arc<dyn HostExecutor>,
    transfers: Arc<Fuse>,
}

impl HostExecutor for FaultyExecutor {
    fn run(&self, call: &OpCall, cancel: &Cancel) -> device::Result<()> {
        self.inner.run(call, cancel)
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> device::Result<()> {
        if self.transfers.blows() {
            return Err(injected());
        }
        self.inner.copy(to, from, cancel)
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> device::Result<()> {
        self.inner.read(from, to, cancel)
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> device::Result<()> {
        self.inner.write(to, from, cancel)
    }
}

fn injected() -> Error {
    Error::Device { device: DeviceId::sim(0), action: "copying".into(), reason: "injected".into() }
}

struct Bench {
    residency: Residency,
    allocations: Arc<Fuse>,
    copies: Arc<Fuse>,
    transfers: Arc<Fuse>,
    launches: Arc<Fuse>,
}

fn faulty_machine() -> Bench {
    let host = Arc::new(CpuBackend::new());
    let spec = "64mb@50gbps".parse().unwrap();
    let [allocations, copies, transfers, launches] = std::array::from_fn(|_| Arc::new(Fuse::default()));
    [&allocations, &copies, &transfers, &launches].into_iter().for_each(|fuse| fuse.set(-1));
    let executor = FaultyExecutor { inner: host.executor(), transfers: Arc::clone(&transfers) };
    let memory = Arc::clone(&host) as Arc<dyn Backend>;
    let inner: Arc<dyn Backend> = Arc::new(device::SimBackend::new(0, spec, memory, Arc::new(executor)));
    let faulty = Faulty {
        inner,
        allocations: Arc::clone(&allocations),
        copies: Arc::clone(&copies),
        launches: Arc::clone(&launches),
    };
    let devices = [Device::new(host as Arc<dyn Backend>, 1 << 30), Device::new(Arc::new(faulty), 64 << 20)];
    Bench { residency: Residency::new(Registry::new(devices)), allocations, copies, transfers, launches }
}

/// Blows a fuse at every possible call of a load and two steps; each time the run must fail cleanly, leave
/// no byte behind once the model is gone, and the next run must give the right output.
fn survives(text: &str, least_failures: usize, fuse: impl Fn(&Bench) -> &Fuse) {
    survives_with(&write_model(80, Encoding::BF16), text, None, least_failures, fuse);
}

/// The same with patches in force.
fn survives_with(
    file: &ModelFile,
    text: &str,
    patches: Option<&patch::PatchSet>,
    least_failures: usize,
    fuse: impl Fn(&Bench) -> &Fuse,
) {
    let bench = faulty_machine();
    let load = |residency: &Residency, file: &ModelFile, name: &str, text: &str, retention: Retention| {
        let id = load(residency, file, name, text, retention);
        if let Some(patches) = patches {
            residency.set_patches(id, patches.clone()).unwrap();
        }
        id
    };
    let expected = {
        let id = load(&bench.residency, file, "model", text, Retention::Default);
        let output = run(&bench.residency, id).unwrap();
        bench.residency.unload(id).unwrap();
        output
    };
    let mut failures = 0;
    for calls in 0.. {
        let id = load(&bench.residency, file, "model", text, Retention::Default);
        fuse(&bench).set(calls);
        let outcome = run(&bench.residency, id).and_then(|_| run(&bench.residency, id));
        let exhausted = fuse(&bench).0.load(Ordering::SeqCst) > 0;
        fuse(&bench).set(-1);
        assert_nothing_reserved(bench.residency.devices());
        assert_eq!(run(&bench.residency, id).unwrap(), expected, "{text}: after failing at call {calls}");
        bench.residency.unload(id).unwrap();
        assert_eq!(used(bench.residency.devices()), [0, 0], "{text}: after failing at call {calls}");
        failures += usize::from(outcome.is_err());
        if exhausted {
            assert!(outcome.is_ok());
            break;
        }
    }
    assert!(failures >= least_failures, "{text}: only {failures} calls could fail");
}

#[test]
fn an_allocation_failure_at_every_point_leaves_the_ledger_exact() {
    survives("sim:0,50%;cpu,50%", 40, |bench| &bench.allocations);
}

#[test]
fn a_copy_that_dies_under_way_at_every_point_leaves_the_ledger_exact() {
    // Which of two copies at the same time dies is not always the same, and nobody waits for those that run ahead of the end.
    survives("sim:0,50%;cpu,50%", 50, |bench| &bench.transfers);
    survives("sim:0,0%;cpu,100%", 100, |bench| &bench.transfers);
}

#[test]
fn a_copy_that_cannot_be_queued_is_tried_again_and_leaves_the_ledger_exact() {
    survives("sim:0,50%;cpu,50%", BLOCKS / 2, |bench| &bench.copies);
    survives("sim:0,0%;cpu,100%", 1, |bench| &bench.copies);
}

/// Half-merged blocks are brought again, and what waited for them is given back.
#[test]
fn a_failure_while_patches_are_staged_or_merged_leaves_the_ledger_exact() {
    let file = write_model(85, Encoding::F32);
    let model = manifest(&file, "model");
    let [lora, loha] = ["LoRA", "LoHa"].map(|form| patches_of(&file, &model, form, 0.6));
    let (all, half) = ("sim:0,0%;cpu,100%", "sim:0,50%;cpu,50%");
    survives_with(&file, all, Some(&lora), 100, |bench| &bench.launches);
    survives_with(&file, half, Some(&lora), 100, |bench| &bench.allocations);
    survives_with(&file, half, Some(&loha), 100, |bench| &bench.launches);
}

#[test]
fn a_file_that_shrank_is_an_error_and_others_still_load() {
    let (file, other) = (write_model(81, Encoding::BF16), write_model(82, Encoding::BF16));
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let id = load(&residency, &file, "shrunk", "", Retention::Default);
    std::fs::OpenOptions::new().write(true).open(&file.path).unwrap().set_len(4096).unwrap();
    let error = run(&residency, id).unwrap_err().to_string();
    assert!(
        error.starts_with("shrunk cannot be read any more") && error.contains("model.safetensors"),
        "{error}"
    );
    assert_eq!(used(residency.devices()), [0, 0]);
    assert_nothing_reserved(residency.devices());
    let id = load(&residency, &other, "whole", "", Retention::Default);
    assert!(run(&residency, id).is_ok());
}

#[test]
fn a_deleted_file_still_loads_because_the_map_keeps_it() {
    let file = write_model(83, Encoding::BF16);
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let id = load(&residency, &file, "deleted", "sim:0,0%;cpu,100%", Retention::Default);
    std::fs::remove_file(&file.path).unwrap();
    assert!(run(&residency, id).is_ok());
}

#[test]
fn a_plan_for_another_model_is_refused() {
    let file = write_model(84, Encoding::BF16);
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let model = manifest(&file, "model");
    let mut plan = plan(&model, residency.devices(), DeviceId::sim(0), "", placement::RemotePolicy::Auto);
    plan.blocks.pop();
    let options = LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() };
    let error = residency.load(model, plan, options).unwrap_err().to_string();
    assert_eq!(error, "the plan has 19 blocks, the model model has 20");
}
