//! Blocks that are coded while steps run plain: the load does not wait, a later step takes them, and no bit differs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use device::{
    Backend, Description, Device, HostExecutor, HostStream, Ledger, Memory, MemoryInfo, OpCall, Registry,
    SimBackend, SimSpec, Span, StreamBackend, StreamKind,
};
use device_cpu::CpuBackend;
use meta::{DType, DeviceId, Encoding};
use placement::{AllocationText, CodingPolicy, Plan};
use residency::{
    Cancel, CodingReport, CodingState, CodingTime, LoadOptions, Manifest, ModelId, Residency, Session,
};
use support::*;

/// How many operations that nobody waits for may still run.
#[derive(Default)]
struct Gate {
    left: Mutex<usize>,
    opened: Condvar,
}

impl Gate {
    fn open(&self, operations: usize) {
        *self.left.lock().unwrap() += operations;
        self.opened.notify_all();
    }

    fn pass(&self, cancel: &Cancel) -> device::Result<()> {
        let mut left = self.left.lock().unwrap();
        while *left == 0 {
            cancel.check()?;
            left = self.opened.wait_timeout(left, Duration::from_millis(5)).unwrap().0;
        }
        *left -= 1;
        Ok(())
    }
}

/// The host, whose background work waits at a gate.
struct GatedHost {
    host: Arc<CpuBackend>,
    gate: Arc<Gate>,
    /// What it says that is free, if not the truth.
    free: Option<u64>,
}

impl Backend for GatedHost {
    fn describe(&self) -> Description {
        self.host.describe()
    }

    fn memory(&self) -> device::Result<MemoryInfo> {
        let memory = self.host.memory()?;
        Ok(MemoryInfo { free: self.free.unwrap_or(memory.free), ..memory })
    }

    fn allocate(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        self.host.allocate(bytes)
    }

    fn allocation_bytes(&self, bytes: usize) -> u64 {
        self.host.allocation_bytes(bytes)
    }

    fn allocate_pinned(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        self.host.allocate_pinned(bytes)
    }

    fn open_stream(&self, kind: StreamKind, ledger: &Ledger) -> device::Result<Arc<dyn StreamBackend>> {
        if kind != StreamKind::Background {
            return self.host.open_stream(kind, ledger);
        }
        let executor = GatedExecutor { executor: self.host.executor(), gate: Arc::clone(&self.gate) };
        Ok(Arc::new(HostStream::new(Arc::new(executor), kind)))
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        self.host.supports(call)
    }

    fn trim(&self) -> device::Result<()> {
        self.host.trim()
    }

    fn reaches(&self, other: DeviceId) -> bool {
        self.host.reaches(other)
    }
}

struct GatedExecutor {
    executor: Arc<dyn HostExecutor>,
    gate: Arc<Gate>,
}

impl HostExecutor for GatedExecutor {
    fn run(&self, call: &OpCall, cancel: &Cancel) -> device::Result<()> {
        self.gate.pass(cancel)?;
        self.executor.run(call, cancel)
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> device::Result<()> {
        self.executor.copy(to, from, cancel)
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> device::Result<()> {
        self.executor.read(from, to, cancel)
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> device::Result<()> {
        self.executor.write(to, from, cancel)
    }
}

/// Operations that coding a block takes: two matrices and a bias.
const CODED_PER_BLOCK: usize = 3;

/// A machine with one simulated device whose host codes as far as the gate lets it.
fn gated(spec: &str) -> (Residency, Arc<Gate>) {
    gated_with(spec, None)
}

/// The same with so much free on the host.
fn gated_with(spec: &str, free: Option<u64>) -> (Residency, Arc<Gate>) {
    let (host, gate) = (Arc::new(CpuBackend::new()), Arc::<Gate>::default());
    let spec: SimSpec = spec.parse().unwrap();
    let sim = SimBackend::new(0, spec, Arc::clone(&host) as Arc<dyn Backend>, host.executor());
    let gated = GatedHost { host, gate: Arc::clone(&gate), free };
    let devices = vec![Device::new(Arc::new(gated), 8 << 30), Device::new(Arc::new(sim), spec.memory)];
    (Residency::new(Registry::new(devices)), gate)
}

/// A plan in which every block that can be is coded.
fn coded_plan(manifest: &Manifest, devices: &Registry, text: &str) -> Plan {
    let mut request = Residency::plan_request(manifest, DeviceId::sim(0), device_specs(devices));
    request.allocation =
        if text.is_empty() { AllocationText::automatic() } else { AllocationText::parse(text).unwrap() };
    request.coding.policy = CodingPolicy::Force;
    request.coding.coded_bytes = Residency::coded_bytes(manifest);
    request.coding.decode_bytes_per_s = Some(1e9);
    placement::plan(&request).unwrap()
}

fn load_beside(residency: &Residency, manifest: Manifest, text: &str) -> ModelId {
    let plan = coded_plan(&manifest, residency.devices(), text);
    let options = LoadOptions { coding: CodingTime::Beside, ..LoadOptions::default() };
    residency.load(manifest, plan, options).unwrap()
}

/// Waits until coding is where it should be.
fn wait_until(residency: &Residency, id: ModelId, there: impl Fn(&CodingReport) -> bool) -> CodingReport {
    let start = Instant::now();
    loop {
        let report = residency.coding(id).unwrap();
        if there(&report) {
            return report;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{report:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn used(residency: &Residency, device: DeviceId) -> (u64, u64) {
    let report = residency.devices().get(device).unwrap().ledger().report();
    (report.used, report.reserved)
}

/// Bytes that the steps copied since an earlier look.
fn copied(session: &Session, before: &mut u64) -> u64 {
    let now = session.stats().bytes;
    now - std::mem::replace(before, now)
}

/// What a model of plain blocks gives.
fn plain_output(file: &ModelFile) -> Vec<f32> {
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let id = load(&residency, file, "plain", "sim:0,0%;cpu,100%", residency::Retention::Default);
    run(&residency, id).unwrap()
}

/// Steps run plain first, then some blocks are coded, then all, and the next step has them.
#[test]
fn steps_run_plain_and_then_coded() {
    for dtype in [DType::BF16, DType::F16, DType::F8E4M3] {
        let file = write_model(1, dtype.into());
        let expected = plain_output(&file);
        let (residency, gate) = gated("64mb@20gbps");
        let manifest = manifest(&file, "model");
        let (bytes, blocks) = (manifest.bytes(), manifest.blocks().len());
        let id = load_beside(&residency, manifest, "sim:0,0%;cpu,100%");
        let plan = residency.models()[0].plan.clone();
        let coded_bytes: u64 = plan.blocks.iter().filter_map(|block| block.coded_bytes).sum();
        let session = residency.open(id, &Cancel::default()).unwrap();
        // Promised before they are taken.
        let (host_used, host_reserved) = used(&residency, DeviceId::CPU);
        assert!(host_used + host_reserved >= coded_bytes, "{host_used} + {host_reserved} of {coded_bytes}");
        let held = |(used, reserved): (u64, u64)| used + reserved;
        let planned_ring = plan.ring.unwrap().bytes();
        assert!(held(used(&residency, DeviceId::sim(0))) <= planned_ring, "{dtype}");

        let mut before = 0;
        assert_eq!(forward(&session, &input()).unwrap(), expected);
        assert!(copied(&session, &mut before) >= bytes * 99 / 100, "{dtype}: plain");
        let report = residency.coding(id).unwrap();
        assert_eq!((report.state, report.done, report.blocks), (CodingState::Coding, 0, blocks));

        gate.open(CODED_PER_BLOCK * blocks / 2);
        let report = wait_until(&residency, id, |report| report.done >= blocks / 2);
        assert_eq!(report.state, CodingState::Coding);
        assert_eq!(forward(&session, &input()).unwrap(), expected);

        gate.open(CODED_PER_BLOCK * blocks);
        wait_until(&residency, id, |report| report.done == blocks);
        assert_eq!(residency.coding(id).unwrap().state, CodingState::Coding, "until a step begins");
        assert_eq!(forward(&session, &input()).unwrap(), expected);
        copied(&session, &mut before);
        assert_eq!(residency.coding(id).unwrap().state, CodingState::Coded);
        assert_eq!(forward(&session, &input()).unwrap(), expected);
        let travelled = copied(&session, &mut before);
        assert!(travelled < bytes * 94 / 100, "{dtype}: {travelled} of {bytes}");
        assert!(used(&residency, DeviceId::sim(0)).0 <= planned_ring);
        // Nothing stays but the coded blocks.
        let start = Instant::now();
        while used(&residency, DeviceId::CPU).0 > coded_bytes && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let (host_used, _) = used(&residency, DeviceId::CPU);
        assert!(host_used <= coded_bytes && host_used * 10 > coded_bytes * 9, "{host_used} of {coded_bytes}");
        drop(session);
        residency.unload(id).unwrap();
        assert_eq!(used(&residency, DeviceId::CPU), (0, 0));
        assert_eq!(used(&residency, DeviceId::sim(0)), (0, 0));
    }
}

/// The change happens while nobody has a block, and in the middle of no step.
#[test]
fn a_lease_holds_up_the_change() {
    let file = write_model(2, Encoding::BF16);
    let (residency, gate) = gated("64mb@20gbps");
    let manifest = manifest(&file, "model");
    let blocks = manifest.blocks().len();
    let stored: Vec<Vec<u8>> = manifest.weights().iter().map(|spec| spec.bytes.as_ref().to_vec()).collect();
    let id = load_beside(&residency, manifest, "sim:0,0%;cpu,100%");
    let session = residency.open(id, &Cancel::default()).unwrap();
    let held = session.lease(3).unwrap();
    gate.open(usize::MAX / 2);
    wait_until(&residency, id, |report| report.done == blocks);
    drop(session.lease(0).unwrap());
    assert_eq!(residency.coding(id).unwrap().state, CodingState::Coding, "block 3 is leased");
    let weight = held.weight("blocks.3.up.weight").unwrap();
    let mut bytes = vec![0; weight.operand().span().len];
    held.lane().stream().read(&weight.operand().span(), &mut bytes).unwrap();
    assert!(bytes == stored[3 * 3]);
    drop((held, weight));
    // In the middle of a step nothing changes; its end is not seen before the next begins.
    drop(session.lease(5).unwrap());
    assert_eq!(residency.coding(id).unwrap().state, CodingState::Coding);
    drop(session.lease(0).unwrap());
    assert_eq!(residency.coding(id).unwrap().state, CodingState::Coded);
}

/// A cancelled job stops it, the next goes on with it, and unloading ends it and gives everything back.
#[test]
fn cancelling_stops_it_and_unloading_ends_it() {
    let file = write_model(3, Encoding::BF16);
    let (residency, gate) = gated("64mb@20gbps");
    let id = load_beside(&residency, manifest(&file, "model"), "sim:0,0%;cpu,100%");
    let job = Cancel::default();
    let session = residency.open(id, &job).unwrap();
    forward(&session, &input()).unwrap();
    job.cancel();
    drop(session);
    gate.open(usize::MAX / 2);
    std::thread::sleep(Duration::from_millis(200));
    let stopped = residency.coding(id).unwrap();
    assert!(stopped.done <= 1, "the block that was begun at most: {stopped:?}");
    let session = residency.open(id, &Cancel::default()).unwrap();
    wait_until(&residency, id, |report| report.done == report.blocks);
    drop(session);
    residency.unload(id).unwrap();
    assert_eq!((used(&residency, DeviceId::CPU), used(&residency, DeviceId::sim(0))), ((0, 0), (0, 0)));

    // The same while it waits for the processor.
    let (residency, gate) = gated("64mb@20gbps");
    let id = load_beside(&residency, manifest(&file, "model"), "sim:0,0%;cpu,100%");
    let session = residency.open(id, &Cancel::default()).unwrap();
    gate.open(4);
    wait_until(&residency, id, |report| report.done == 1);
    forward(&session, &input()).unwrap();
    drop(session);
    let start = Instant::now();
    residency.unload(id).unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!((used(&residency, DeviceId::CPU), used(&residency, DeviceId::sim(0))), ((0, 0), (0, 0)));
}

/// Patches that are in force stay so.
#[test]
fn patches_are_in_force_before_and_after() {
    let file = write_model(4, Encoding::BF16);
    let outputs = |beside: bool| {
        let (residency, gate) = gated("64mb@20gbps");
        let manifest = manifest(&file, "model");
        let set = lora(&file, &manifest, 0.8);
        let other = lora(&file, &manifest, -0.3);
        let id = if beside {
            load_beside(&residency, manifest, "sim:0,0%;cpu,100%")
        } else {
            load(&residency, &file, "model", "sim:0,0%;cpu,100%", residency::Retention::Default)
        };
        residency.set_patches(id, set).unwrap();
        let mut outputs = vec![run(&residency, id).unwrap()];
        gate.open(usize::MAX / 2);
        if beside {
            wait_until(&residency, id, |report| report.done == report.blocks);
        }
        outputs.push(run(&residency, id).unwrap());
        residency.set_patches(id, other).unwrap();
        outputs.push(run(&residency, id).unwrap());
        if beside {
            assert_eq!(residency.coding(id).unwrap().state, CodingState::Coded);
        }
        outputs
    };
    let plain = outputs(false);
    assert_eq!(plain[0], plain[1]);
    assert_ne!(plain[1], plain[2]);
    assert_eq!(plain, outputs(true));
}

/// Blocks that are to stay on the device coded travel until they are.
#[test]
fn blocks_that_stay_coded_travel_until_they_are() {
    let file = write_model(5, Encoding::BF16);
    let expected = plain_output(&file);
    let (residency, gate) = gated("64mb@20gbps");
    let manifest = manifest(&file, "model");
    let bytes = manifest.bytes();
    let id = load_beside(&residency, manifest, "");
    let plan = residency.models()[0].plan.clone();
    assert!(plan.blocks.iter().all(placement::BlockPlan::is_kept_coded), "{plan}");
    let session = residency.open(id, &Cancel::default()).unwrap();
    let planned = plan.device(DeviceId::sim(0)).unwrap();
    let (device_used, device_reserved) = used(&residency, DeviceId::sim(0));
    assert!(device_used + device_reserved <= planned.weight_bytes + planned.ring_bytes);
    let mut before = 0;
    assert_eq!(forward(&session, &input()).unwrap(), expected);
    assert!(copied(&session, &mut before) >= bytes * 99 / 100);
    gate.open(usize::MAX / 2);
    wait_until(&residency, id, |report| report.done == report.blocks);
    assert_eq!(forward(&session, &input()).unwrap(), expected);
    assert_eq!(residency.coding(id).unwrap().state, CodingState::Coded);
    copied(&session, &mut before);
    assert_eq!(forward(&session, &input()).unwrap(), expected);
    assert_eq!(copied(&session, &mut before), 0, "nothing travels any more");
    let (device_used, _) = used(&residency, DeviceId::sim(0));
    assert!(device_used <= planned.weight_bytes + planned.ring_bytes, "{device_used}: {plan}");
    drop(session);
    residency.unload(id).unwrap();
    assert_eq!((used(&residency, DeviceId::CPU), used(&residency, DeviceId::sim(0))), ((0, 0), (0, 0)));
}

/// A host that is short of memory keeps none of its own for what it can read from a file: steps stay plain, and say why.
#[test]
fn a_short_host_stays_plain() {
    let file = write_model(7, Encoding::BF16);
    let expected = plain_output(&file);
    let (residency, gate) = gated_with("64mb@20gbps", Some(1000));
    gate.open(usize::MAX / 2);
    let id = load_beside(&residency, manifest(&file, "model"), "sim:0,0%;cpu,100%");
    let plan = residency.models()[0].plan.clone();
    let session = residency.open(id, &Cancel::default()).unwrap();
    for _ in 0..2 {
        assert_eq!(forward(&session, &input()).unwrap(), expected);
    }
    let report = session.coding().unwrap();
    assert_eq!((report.state, report.done), (CodingState::Plain, 0), "{report:?}");
    assert!(report.reason.is_some_and(|reason| reason.contains("no memory")));
    assert_eq!(session.stats().decoded_bytes, 0);
    assert_eq!(used(&residency, DeviceId::CPU), (0, 0));
    assert!(used(&residency, DeviceId::sim(0)).0 <= plan.device(DeviceId::sim(0)).unwrap().total_bytes());
    drop(session);
    residency.unload(id).unwrap();
    assert_eq!(used(&residency, DeviceId::sim(0)), (0, 0));
}

/// What decoding takes is measured apart from waiting and computing.
#[test]
fn decoding_is_measured() {
    let file = write_model(8, Encoding::BF16);
    let (residency, gate) = gated("64mb@20gbps");
    gate.open(usize::MAX / 2);
    let manifest = manifest(&file, "model");
    let bytes = manifest.bytes();
    let id = load_beside(&residency, manifest, "sim:0,0%;cpu,100%");
    let session = residency.open(id, &Cancel::default()).unwrap();
    forward(&session, &input()).unwrap();
    let decoded =
        |step: &residency::StepProfile| -> f64 { step.blocks.iter().map(|block| block.decode).sum() };
    let report = wait_until(&residency, id, |report| report.done == report.blocks);
    assert_eq!(report.state, CodingState::Coding);
    forward(&session, &input()).unwrap();
    forward(&session, &input()).unwrap();
    assert!(session.stats().decoded_bytes >= 2 * bytes * 99 / 100, "{:?}", session.stats());
    drop(session);
    let step = residency.profile(id).unwrap();
    let parts: f64 = step.blocks.iter().map(|block| block.stall + block.decode + block.compute).sum();
    assert!(decoded(&step) > 0.0 && parts <= step.seconds * 1.001, "{step:?}");
}

/// Where the link is the limit, a step is hardly longer while blocks are coded beside it.
#[test]
fn steps_are_hardly_slower_meanwhile() {
    let file = write_model(6, Encoding::BF16);
    let (residency, gate) = gated("64mb@5mbps");
    let id = load_beside(&residency, manifest(&file, "model"), "sim:0,0%;cpu,100%");
    let session = residency.open(id, &Cancel::default()).unwrap();
    let seconds = |steps: u32| {
        let start = Instant::now();
        (0..steps).for_each(|_| drop(forward(&session, &input()).unwrap()));
        (start.elapsed() / steps).as_secs_f64()
    };
    seconds(1);
    let quiet = seconds(4);
    // A block or so per step, so that coding goes on throughout the steps that are timed.
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let feeder = {
        let (done, gate) = (Arc::clone(&done), Arc::clone(&gate));
        std::thread::spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                gate.open(1);
                std::thread::sleep(Duration::from_millis(60));
            }
        })
    };
    let busy = seconds(4);
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    feeder.join().unwrap();
    let report = residency.coding(id).unwrap();
    println!("{quiet:.3} s quiet, {busy:.3} s while {} of {} blocks were coded", report.done, report.blocks);
    assert!(report.done > 0 && report.state == CodingState::Coding, "{report:?}");
    assert!(busy < quiet * 1.10, "{busy} beside {quiet}");
}
