//! `gantry plan`: where every block of a file would go on this machine, and what a step would cost.

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
    if args.output.json {
        print_json(&plan)?;
    } else {
        print(&format!("{plan}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the devices for a moment and plans.
pub(super) fn answer(machine: &Machine, question: &Question) -> Result<Plan> {
    let ids: Vec<DeviceId> = machine.registry().iter().map(Device::id).collect();
    // The text is read first: a slip in it should not wait for measurements.
    let allocation = AllocationText::parse_for(&question.text, &ids)?;
    let checkpoint = Checkpoint::open(&question.file)?;
    let file = &question.file;
    let name = file.file_name().map_or_else(|| file.display().to_string(), |n| n.to_string_lossy().into());
    let manifest = Manifest::by_names(&checkpoint, &name, question.rows)?;
    let written = allocation.allocation().compute;
    let compute = question.compute.or(written).unwrap_or_else(|| first_accelerator(&ids));
    let rates = rates(machine)?;
    let rate = rates.iter().find(|(id, _)| *id == compute).map(|(_, rate)| *rate);
    let rate =
        rate.with_context(|| format!("there is no device {compute} here; available: {}", list(&ids)))?;
    let devices = device_specs(machine, &rates, rate)?;
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

/// Operations per second of every device in a linear layer, measured for a moment.
fn rates(machine: &Machine) -> Result<Vec<(DeviceId, f64)>> {
    machine.registry().iter().map(|device| Ok((device.id(), throughput(device)?))).collect()
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
fn device_specs(machine: &Machine, rates: &[(DeviceId, f64)], compute_rate: f64) -> Result<Vec<DeviceSpec>> {
    let mut specs = Vec::new();
    for (device, (id, rate)) in machine.registry().iter().zip(rates) {
        let link = match id.kind {
            DeviceKind::Cpu => 1.0,
            _ => bandwidth::measure(device, machine.cpu())?.pinned_to_device,
        };
        let peers = machine.registry().iter().filter(|peer| peer.id() != *id && peer.reaches(*id));
        let report = device.ledger().report();
        specs.push(DeviceSpec {
            id: *id,
            total_bytes: device.memory()?.total,
            available_bytes: report.available(),
            link_bytes_per_s: link,
            compute_factor: compute_rate / rate,
            reaches: peers.map(|peer| PeerLink { device: peer.id(), bytes_per_s: link }).collect(),
        });
    }
    Ok(specs)
}
