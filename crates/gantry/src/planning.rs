//! Plans for measurements: by the planner that serves, and for made-up models by numbers.

use std::sync::Arc;

use anyhow::{Context, Result};
use checkpoint::Checkpoint;
use device::{Device, Registry};
use meta::DeviceId;
use placement::{DeviceSpec, Plan};
use residency::Products;
use runtime::{PlanQuestion, Runtime, Settings};

use crate::environment;

/// Where every block of a file goes, as a job that loads it has it.
pub(crate) fn plan_file(
    (devices, compute): (&Registry, DeviceId),
    file: &Arc<Checkpoint>,
    products: Products,
    question: &PlanQuestion,
) -> Result<Plan> {
    Ok(runtime_on(devices, compute, products)?.plan_file(file, question)?)
}

/// A runtime with nothing loaded, as the program that serves has it.
pub(crate) fn runtime_on(devices: &Registry, compute: DeviceId, products: Products) -> Result<Runtime> {
    let folders = runtime::Folders::at(&environment::current_dir().context("finding the current folder")?);
    let settings = Settings { profile_file: environment::profile_file(), products, ..Settings::default() };
    Ok(Runtime::new(folders, devices.clone(), compute, settings))
}

/// Every device with its budget and what is left of it, links of the same speed, the same computing speed.
pub(crate) fn device_specs(devices: &Registry, link_bytes_per_s: f64) -> Vec<DeviceSpec> {
    let spec = |device: &Device| DeviceSpec {
        id: device.id(),
        total_bytes: device.ledger().report().budget,
        available_bytes: device.ledger().report().available(),
        link_bytes_per_s,
        compute_factor: 1.0,
        reaches: Vec::new(),
    };
    devices.iter().map(spec).collect()
}
