//! `gantry devices`: what there is, its memory, and how fast bytes reach it.

use std::process::ExitCode;

use anyhow::Result;
use device::{Device, MemoryInfo};
use meta::{ByteSize, DeviceId};
use serde::Serialize;

use super::{print, print_json};
use crate::bandwidth::{self, Bandwidth};
use crate::cli::Output;
use crate::machine::Machine;
use crate::table::Table;

#[derive(Serialize)]
struct Shown {
    id: String,
    name: String,
    detail: String,
    simulated: bool,
    total_bytes: u64,
    free_bytes: u64,
    cached_bytes: u64,
    budget_bytes: u64,
    used_bytes: u64,
    activations: Vec<&'static str>,
    bandwidth_bytes_per_s: Option<Bandwidth>,
}

#[derive(Serialize)]
struct Listing<'a> {
    devices: &'a [Shown],
    note: Option<&'a str>,
}

pub(super) fn run(machine: &Machine, output: Output) -> Result<ExitCode> {
    let shown =
        machine.registry().iter().map(|device| show(device, machine.cpu())).collect::<Result<Vec<_>>>()?;
    if output.json {
        print_json(&Listing { devices: &shown, note: machine.note() })?;
    } else {
        print(&table(&shown))?;
        if let Some(note) = machine.note() {
            print(&format!("\n{note}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(device: &Device, cpu: &Device) -> Result<Shown> {
    let MemoryInfo { total, free, cached } = device.memory()?;
    let report = device.ledger().report();
    let description = device.description();
    let bandwidth = if device.id() == DeviceId::CPU { None } else { Some(bandwidth::measure(device, cpu)?) };
    Ok(Shown {
        id: device.id().to_string(),
        name: description.name.clone(),
        detail: description.detail.clone(),
        simulated: description.simulated,
        total_bytes: total,
        free_bytes: free,
        cached_bytes: cached,
        budget_bytes: report.budget,
        used_bytes: report.used,
        activations: description.activations.iter().map(|d| d.name()).collect(),
        bandwidth_bytes_per_s: bandwidth,
    })
}

fn table(shown: &[Shown]) -> String {
    let head =
        ["device", "name", "total", "free", "budget", "types", "from pinned", "from pageable", "to pinned"];
    let mut table = Table::new(&head);
    for device in shown {
        let rate = |pick: fn(&Bandwidth) -> f64| {
            device.bandwidth_bytes_per_s.as_ref().map_or("-".into(), |b| format!("{:.1} GB/s", pick(b) / 1e9))
        };
        let size = |bytes: u64| ByteSize(bytes).to_string();
        table.row(&[
            &device.id,
            &device.name,
            &size(device.total_bytes),
            &size(device.free_bytes),
            &size(device.budget_bytes),
            &device.activations.join(" "),
            &rate(|b| b.pinned_to_device),
            &rate(|b| b.pageable_to_device),
            &rate(|b| b.device_to_pinned),
        ]);
    }
    let details =
        shown.iter().map(|device| format!("{}: {}\n", device.id, device.detail)).collect::<String>();
    format!("{table}\n{details}")
}
