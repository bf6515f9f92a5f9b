//! What the planner is told of the machine where nothing is measured device by device.

use device::{Device, Registry};
use placement::DeviceSpec;

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
