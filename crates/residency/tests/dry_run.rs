//! A dry run of a device counts as the device does: with the rounding of its allocations, resident and streamed, patched
//! or not, and the profile of a step has the seconds that operations are said to take.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use device::{
    Backend, Description, Device, Ledger, Memory, MemoryInfo, NullBackend, OpCall, Registry, SharedBytes,
    SimBackend, SimSpec, StreamBackend, StreamKind,
};
use device_cpu::CpuBackend;
use meta::{DeviceId, Encoding};
use placement::RemotePolicy;
use residency::{Cancel, LoadOptions, Residency};
use support::*;

/// What blocks of memory are multiples of.
const PAGE: usize = 3000;

/// A simulated device that takes whole pages.
struct Paged(SimBackend);

impl Backend for Paged {
    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn memory(&self) -> device::Result<MemoryInfo> {
        self.0.memory()
    }

    fn allocate(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        self.0.allocate(bytes)
    }

    fn allocation_bytes(&self, bytes: usize) -> u64 {
        bytes.next_multiple_of(PAGE) as u64
    }

    fn allocate_pinned(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        self.0.allocate_pinned(bytes)
    }

    fn pin_in_place(&self, regions: Vec<SharedBytes>) -> device::Result<Option<Vec<Arc<dyn Memory>>>> {
        self.0.pin_in_place(regions)
    }

    fn open_stream(&self, kind: StreamKind, ledger: &Ledger) -> device::Result<Arc<dyn StreamBackend>> {
        self.0.open_stream(kind, ledger)
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        self.0.supports(call)
    }

    fn trim(&self) -> device::Result<()> {
        self.0.trim()
    }

    fn reaches(&self, other: DeviceId) -> bool {
        self.0.reaches(other)
    }
}

/// The CPU, such a device, and its dry run.
fn machine() -> Registry {
    let host = Arc::new(CpuBackend::new());
    let memory = Arc::clone(&host) as Arc<dyn Backend>;
    let spec: SimSpec = "64mb@20gbps".parse().unwrap();
    let paged = Paged(SimBackend::new(0, spec, Arc::clone(&memory), host.executor()));
    let real = Device::new(Arc::new(paged), spec.memory);
    // A microsecond for each operation, and a second for each 10 million of its flops.
    let seconds = Arc::new(|call: &OpCall| 1e-6 + call.flops() as f64 / 1e7);
    let dry = Device::new(Arc::new(NullBackend::like(&real, 0, seconds)), spec.memory);
    Registry::new([Device::new(memory, 8 << 30), real, dry])
}

/// Used bytes while the model is there, the peak of a step, and the seconds of its blocks.
fn measure(file: &ModelFile, device: DeviceId, home: &str, patched: bool) -> (u64, u64, Vec<f64>) {
    let devices = machine();
    let residency = Residency::new(devices.clone());
    let manifest = manifest(file, "model");
    let text = home.replace("DEVICE", &device.to_string());
    let plan = plan(&manifest, &devices, device, &text, RemotePolicy::Auto);
    let patches = patched.then(|| lora(file, &manifest, 0.5));
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    if let Some(patches) = patches {
        residency.set_patches(id, patches).unwrap();
    }
    let session = residency.open(id, &Cancel::default()).unwrap();
    assert_nothing_reserved(&devices);
    let ledger = devices.get(device).unwrap().ledger();
    let used = ledger.report().used;
    ledger.take_peak();
    let result = forward(&session, &input()).unwrap();
    assert_eq!(result.len(), input().len());
    let peak = ledger.peak();
    drop(session);
    let profile = residency.models().remove(0).profile.unwrap();
    residency.unload(id).unwrap();
    assert_eq!(ledger.report().used, 0, "all of it comes back");
    (used, peak, profile.blocks.iter().map(|block| block.compute).collect())
}

#[test]
fn a_dry_run_takes_the_same_bytes() {
    for encoding in [Encoding::F32, Encoding::BF16] {
        let file = write_model(3, encoding);
        for home in ["DEVICE,*", "DEVICE,300kb;cpu,*", "cpu,*"] {
            for patched in [false, true] {
                let what = format!("{encoding} {home} patched {patched}");
                let (used, peak, _) = measure(&file, DeviceId::sim(0), home, patched);
                let (dry_used, dry_peak, seconds) = measure(&file, DeviceId::null(0), home, patched);
                assert_eq!((dry_used, dry_peak), (used, peak), "{what}");
                assert!(used > 0 && peak > used, "{what}: {used} {peak}");
                assert!(used.is_multiple_of(PAGE as u64) && peak.is_multiple_of(PAGE as u64), "{what}");
                assert_eq!(seconds.len(), BLOCKS);
            }
        }
    }
}

#[test]
fn the_profile_of_a_dry_run_has_the_seconds_it_was_told() {
    let file = write_model(4, Encoding::F32);
    let (_, _, seconds) = measure(&file, DeviceId::null(0), "DEVICE,300kb;cpu,*", false);
    // Two products, the sum, and the activation inside the first product.
    let rows = (input().len() / WIDTH) as f64;
    let flops = 2.0 * 2.0 * rows * (WIDTH * INNER) as f64 + rows * WIDTH as f64;
    for block in &seconds {
        assert!((block - (3e-6 + flops / 1e7)).abs() < 1e-9, "{block}");
    }
}
