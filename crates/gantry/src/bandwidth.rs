//! How fast bytes move between the host and a device, as it is shown.

use device::{Device, Result};
use serde::Serialize;

pub(crate) use runtime::bandwidth_between as between;

/// Bytes per second of copies.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bandwidth {
    /// From pinned host memory.
    pub(crate) pinned_to_device: f64,
    /// From ordinary host memory.
    pub(crate) pageable_to_device: f64,
    /// To pinned host memory.
    pub(crate) device_to_pinned: f64,
}

/// Measures a device against the host.
pub(crate) fn measure(device: &Device, host: &Device) -> Result<Bandwidth> {
    let runtime::Bandwidth { pinned_to_device, pageable_to_device, device_to_pinned } =
        runtime::bandwidth(device, host)?;
    Ok(Bandwidth { pinned_to_device, pageable_to_device, device_to_pinned })
}
