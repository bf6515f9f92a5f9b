//! `gantry plan`: where every block of a file would go on this machine, and what a step would cost.

mod picture;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use checkpoint::Checkpoint;
use device::Device;
use meta::{ByteSize, DeviceId, DeviceKind, Encoding};
use placement::{AllocationText, DeviceSpec, PeerLink, Plan};
use residency::{Manifest, Residency};
use tensor::{Lane, Weight};

use super::{print, print_json};
use crate::bandwidth;
use crate::cli::PlanArgs;
use crate::machine::Machine;

/// Rows of activations per step if nothing is said: FLUX at 1024 by 1024.
pub(super) const DEFAULT_ROWS: u64 = 4608;
/// Memory for activations if nothing is said.
pub(super) const DEFAULT_WORKING_BYTES: u64 = 1 << 30;

/// What is to be planned.
pub(super) struct Question {
    pub(super) file: PathBuf,
    /// In the allocation language.
    pub(super) text: String,
    pub(super) compute: Option<DeviceId>,
    pub(super) rows: u64,
    pub(super) working: ByteSize,
}

impl Question {
    fn file_name(&self) -> String {
        let name = self.file.file_name();
        name.map_or_else(|| self.file.display().to_string(), |name| name.to_string_lossy().into())
    }
}

pub(super) fn run(machine: &Machine, args: &PlanArgs) -> Result<ExitCode> {
    let text = allocation_text(args.alloc.as_deref(), args.virtual_vram_gb, &args.donor, args.compute);
    let question = Question {
        file: args.file.clone(),
        text,
        compute: args.compute,
        rows: args.rows,
        working: args.working,
    };
    let plan = answer(machine, &question)?;
    if let Some(path) = &args.picture {
        let name = question.file_name();
        disk::write(path, picture::draw(&plan, &name).as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if args.output.json {
        print_json(&plan)?;
    } else {
        print(&format!("{plan}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the devices for a moment and plans.
pub(super) fn answer(machine: &Machine, question: &Question) -> Result<Plan> {
    answer_with(machine, question, &Checkpoint::open(&question.file)?, || speeds(machine))
}

/// Plans for a file that is open already, with speeds that may be known from before.
pub(super) fn answer_with(
    machine: &Machine,
    question: &Question,
    checkpoint: &Checkpoint,
    speeds: impl FnOnce() -> Result<Vec<Speed>>,
) -> Result<Plan> {
    let ids: Vec<DeviceId> = machine.registry().iter().map(Device::id).collect();
    // The text is read first: a slip in it should not wait for measurements.
    let allocation = AllocationText::parse_for(&question.text, &ids)?;
    let manifest = Manifest::by_names(checkpoint, &question.file_name(), question.rows)?;
    let written = allocation.allocation().compute;
    let compute = question.compute.or(written).unwrap_or_else(|| first_accelerator(&ids));
    let speeds = speeds()?;
    let rate = speeds.iter().find(|speed| speed.id == compute).map(|speed| speed.flops_per_s);
    let rate =
        rate.with_context(|| format!("there is no device {compute} here; available: {}", list(&ids)))?;
    let devices = device_specs(machine, &speeds, rate)?;
    let mut request = Residency::plan_request(&manifest, compute, devices, |flops| flops as f64 / rate);
    request.working_bytes = question.working.0;
    request.allocation = allocation;
    Ok(placement::plan(&request)?)
}

/// What was said, in the allocation language.
pub(super) fn allocation_text(
    text: Option<&str>,
    virtual_vram_gb: Option<f64>,
    donor: &str,
    compute: Option<DeviceId>,
) -> String {
    match (text, virtual_vram_gb) {
        (Some(text), _) => text.to_owned(),
        (None, Some(gigabytes)) => {
            let compute = compute.map_or(String::new(), |id| id.to_string());
            format!("#{compute};{gigabytes};{donor}")
        }
        (None, None) => String::new(),
    }
}

fn first_accelerator(ids: &[DeviceId]) -> DeviceId {
    ids.iter().copied().find(|id| id.kind != DeviceKind::Cpu).unwrap_or(DeviceId::CPU)
}

fn list(ids: &[DeviceId]) -> String {
    ids.iter().map(DeviceId::to_string).collect::<Vec<_>>().join(", ")
}

/// How fast a device is.
#[derive(Clone, Copy)]
pub(super) struct Speed {
    id: DeviceId,
    /// Operations per second in a linear layer.
    flops_per_s: f64,
    /// Bytes per second from pinned host memory; not used for the host itself.
    link_bytes_per_s: f64,
}

/// Measures every device for a moment; what a simulated one was said to have is taken at its word.
pub(super) fn speeds(machine: &Machine) -> Result<Vec<Speed>> {
    let speed = |device: &Device| {
        let (id, said) = (device.id(), machine.simulated(device.id()));
        let flops_per_s = match said.and_then(|spec| spec.flops_per_s) {
            Some(said) => said,
            None => throughput(device)?,
        };
        let link_bytes_per_s = match (id.kind, said) {
            (DeviceKind::Cpu, _) => 1.0,
            (_, Some(said)) => said.link_bytes_per_s,
            (_, None) => bandwidth::measure(device, machine.cpu())?.pinned_to_device,
        };
        Ok(Speed { id, flops_per_s, link_bytes_per_s })
    };
    machine.registry().iter().map(speed).collect()
}

/// Measures one product of a size that fills a device without taking long on a slow one, or a smaller one
/// where there is little room.
fn throughput(device: &Device) -> Result<f64> {
    let bytes = |size: &usize| (12 * size * size) as u64;
    let room = device.ledger().report().available() / 2;
    let size = [1024, 512, 128, 32].into_iter().find(|size| bytes(size) <= room).unwrap_or(16);
    let (m, k, n) = (size / 2, size, size);
    let lane = Lane::preferred(device)?;
    let x = lane.tensor([m, k], &testkit::random_f32(1, m * k))?;
    let bytes = testkit::encode(Encoding::BF16, &testkit::random_f32(2, n * k))?;
    let weight = Weight::upload(device, Encoding::BF16, [n, k], &bytes)?;
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let _y = x.linear(&weight, None)?;
        lane.stream().synchronize()?;
        best = best.min(start.elapsed());
    }
    Ok(2.0 * (m * k * n) as f64 / best.as_secs_f64())
}

/// What the planner is told of the machine.
fn device_specs(machine: &Machine, speeds: &[Speed], compute_rate: f64) -> Result<Vec<DeviceSpec>> {
    let mut specs = Vec::new();
    for (device, speed) in machine.registry().iter().zip(speeds) {
        let (id, link) = (speed.id, speed.link_bytes_per_s);
        let peers = machine.registry().iter().filter(|peer| peer.id() != id && peer.reaches(id));
        let report = device.ledger().report();
        specs.push(DeviceSpec {
            id,
            total_bytes: device.memory()?.total,
            available_bytes: report.available(),
            link_bytes_per_s: link,
            compute_factor: compute_rate / speed.flops_per_s,
            reaches: peers.map(|peer| PeerLink { device: peer.id(), bytes_per_s: link }).collect(),
        });
    }
    Ok(specs)
}
