//! Shapes of our own answers, which the command line prints as well.

use device::Device;
use placement::Plan;
use residency::ModelReport;
use serde::Serialize;
use serde_json::{Map, Value};

/// One device, as `GET /gantry/devices` and `gantry devices --json` show it.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceShape {
    /// Such as `cuda:0`.
    pub id: String,
    /// The model's name.
    pub name: String,
    /// More about it.
    pub detail: String,
    /// Whether this is a simulation.
    pub simulated: bool,
    /// All its memory.
    pub total_bytes: u64,
    /// What is free for anyone.
    pub free_bytes: u64,
    /// What is held for reuse.
    pub cached_bytes: u64,
    /// What may be used of it.
    pub budget_bytes: u64,
    /// What is in use.
    pub used_bytes: u64,
    /// What is promised and not in use yet.
    pub reserved_bytes: u64,
    /// The most that was in use.
    pub peak_bytes: u64,
    /// Element types that activations may have, the preferred one first.
    pub activations: Vec<&'static str>,
}

impl DeviceShape {
    /// What is known of a device now.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn of(device: &Device) -> device::Result<DeviceShape> {
        let memory = device.memory()?;
        let report = device.ledger().report();
        let description = device.description();
        Ok(DeviceShape {
            id: device.id().to_string(),
            name: description.name.clone(),
            detail: description.detail.clone(),
            simulated: description.simulated,
            total_bytes: memory.total,
            free_bytes: memory.free,
            cached_bytes: memory.cached,
            budget_bytes: report.budget,
            used_bytes: report.used,
            reserved_bytes: report.reserved,
            peak_bytes: report.peak,
            activations: description.activations.iter().map(|dtype| dtype.name()).collect(),
        })
    }
}

/// One loaded model, as `GET /gantry/models` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct ModelShape {
    /// Its id.
    pub id: u64,
    /// Its name, such as its file's.
    pub name: String,
    /// Its family.
    pub family: String,
    /// `keep`, `eject` or `default`.
    pub retention: &'static str,
    /// Bytes of its copies by device.
    pub bytes: Map<String, Value>,
    /// Where everything goes.
    pub plan: Plan,
    /// Whether its copies are on their devices now.
    pub staged: bool,
    /// When it was last opened, in milliseconds since 1970.
    pub last_used: u64,
    /// What streaming did since its copies were made.
    pub streamed: StreamShape,
}

/// What streaming did.
#[derive(Clone, Debug, Serialize)]
pub struct StreamShape {
    /// Blocks copied.
    pub blocks: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// How often a block was waited for.
    pub stalls: u64,
    /// For how long.
    pub stalled_seconds: f64,
}

impl ModelShape {
    /// What is known of a loaded model.
    #[must_use]
    pub fn of(report: &ModelReport) -> ModelShape {
        let since = report.last_used.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        ModelShape {
            id: report.id.0,
            name: report.name.clone(),
            family: report.family.clone(),
            retention: report.retention.name(),
            bytes: report.bytes.iter().map(|(device, bytes)| (device.to_string(), (*bytes).into())).collect(),
            plan: report.plan.clone(),
            staged: report.staged,
            last_used: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            streamed: StreamShape {
                blocks: report.stats.copies,
                bytes: report.stats.bytes,
                stalls: report.stats.stalls,
                stalled_seconds: report.stats.stalled.as_secs_f64(),
            },
        }
    }
}
