//! Model files that anyone can rebuild, and machines to run them on.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod newer;
pub(crate) mod transformers;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use checkpoint::Checkpoint;
use device::{Backend, Device, NullBackend, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use meta::{DType, DeviceId};
use models::diffusion::{Alteration, DiffusionRun, Evaluation};
use placement::{AllocationText, DeviceSpec, PeerLink, Plan, RemotePolicy};
use residency::{Cancel, LoadOptions, Manifest, Residency, Session};
use tensor::Tensor;
use testkit::Golden;

/// A checkpoint of the bundled manifests.
pub(crate) fn checkpoint(name: &str) -> Checkpoint {
    let bytes = testkit::Manifest::bundled(name).unwrap().bytes().unwrap();
    Checkpoint::from_memory((name, bytes.into()), Vec::new()).unwrap()
}

/// Reference results that come with this crate.
pub(crate) fn golden(name: &str) -> Golden {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    Golden::open(data.join(format!("{name}.safetensors"))).unwrap()
}

/// A machine with the CPU and simulated devices.
pub(crate) fn machine(specs: &[&str]) -> Registry {
    let host = Arc::new(CpuBackend::new());
    let mut devices = vec![Device::new(Arc::clone(&host) as Arc<dyn Backend>, 8 << 30)];
    for (ordinal, spec) in specs.iter().enumerate() {
        let spec: SimSpec = spec.parse().unwrap();
        let backend =
            SimBackend::new(ordinal as u16, spec, Arc::clone(&host) as Arc<dyn Backend>, host.executor());
        devices.push(Device::new(Arc::new(backend), spec.memory));
    }
    Registry::new(devices)
}

/// A plan for a model.
pub(crate) fn plan(
    manifest: &Manifest,
    devices: &Registry,
    compute: DeviceId,
    text: &str,
    remote: RemotePolicy,
) -> Plan {
    let ids: Vec<DeviceId> = devices.iter().map(Device::id).collect();
    let spec = |device: &Device| DeviceSpec {
        id: device.id(),
        total_bytes: device.ledger().report().budget,
        available_bytes: device.ledger().report().available(),
        link_bytes_per_s: 10e9,
        compute_factor: 1.0,
        reaches: ids.iter().map(|id| PeerLink { device: *id, bytes_per_s: 10e9 }).collect(),
    };
    let specs = devices.iter().map(spec).collect();
    let mut request = Residency::plan_request(manifest, compute, specs);
    request.allocation =
        if text.is_empty() { AllocationText::automatic() } else { AllocationText::parse(text).unwrap() };
    request.remote = remote;
    placement::plan(&request).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A session on a machine, with activations in f32.
pub(crate) fn open(residency: &Residency, manifest: Manifest, plan: Plan) -> Session {
    let options = LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() };
    let id = residency.load(manifest, plan, options).unwrap();
    residency.open(id, &Cancel::default()).unwrap()
}

/// A session on the CPU alone.
pub(crate) fn open_on_cpu(manifest: Manifest) -> Session {
    let residency = Residency::new(machine(&[]));
    let plan = plan(&manifest, residency.devices(), DeviceId::CPU, "", RemotePolicy::Auto);
    open(&residency, manifest, plan)
}

/// A model on a device that computes nothing and counts what it would.
pub(crate) struct Counted {
    pub(crate) session: Session,
    done: Arc<AtomicU64>,
}

impl Counted {
    pub(crate) fn new(manifest: Manifest) -> Counted {
        let done = Arc::new(AtomicU64::new(0));
        let count = {
            let done = Arc::clone(&done);
            move |call: &device::op::OpCall| {
                done.fetch_add(call.flops(), Ordering::Relaxed);
                0.0
            }
        };
        let host = machine(&[]).get(DeviceId::CPU).unwrap().clone();
        let null = Device::new(Arc::new(NullBackend::like(&host, 0, Arc::new(count))), 8 << 30);
        let devices = Registry::new([host, null]);
        let plan = plan(&manifest, &devices, DeviceId::null(0), "", RemotePolicy::Auto);
        let residency = Residency::new(devices);
        let options = LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() };
        let id = residency.load(manifest, plan, options).unwrap();
        Counted { session: residency.open(id, &Cancel::default()).unwrap(), done }
    }

    /// The operations of one evaluation.
    pub(crate) fn step(&self, run: &dyn DiffusionRun, x: &Tensor, altered: &[Alteration]) -> u64 {
        self.done.store(0, Ordering::Relaxed);
        run.forward(&[Evaluation { altered, ..Evaluation::new(0, x, 0.5) }]).unwrap();
        self.done.load(Ordering::Relaxed)
    }
}
