//! What the cases gave, as a value that is printed or kept as JSON.

use device::Device;
use meta::{DType, DeviceId};
use serde::Serialize;

use crate::case::Case;

/// All outcomes, with the devices they are of.
#[derive(Debug, Serialize)]
pub struct Report {
    version: &'static str,
    devices: Vec<Tested>,
    outcomes: Vec<Outcome>,
}

#[derive(Debug, Serialize)]
struct Tested {
    id: String,
    name: String,
    detail: String,
    simulated: bool,
}

/// What one case gave on one device.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The operation, as its cases call it.
    pub op: &'static str,
    /// What is special about the case.
    pub variant: String,
    /// The device.
    pub device: String,
    /// The element type of activations.
    pub dtype: &'static str,
    /// Compared with plain loops in f64 on the CPU, with the CPU elsewhere.
    pub against: &'static str,
    /// ‖got − want‖ / ‖want‖; none if there was nothing to compare.
    pub relative_error: Option<f64>,
    /// The largest error that passes; 0 means the same bits.
    pub allowed: f64,
    /// Whether the error is allowed.
    pub passed: bool,
    /// Why it did not pass.
    pub failure: Option<String>,
    /// How long the case took, copies included.
    pub milliseconds: f64,
}

impl Outcome {
    pub(crate) fn new(
        case: &Case,
        device: DeviceId,
        dtype: DType,
        error: Result<f64, String>,
        allowed: f64,
        milliseconds: f64,
    ) -> Outcome {
        let passed = error.as_ref().is_ok_and(|e| *e <= allowed);
        let failure = match &error {
            Err(text) => Some(text.clone()),
            Ok(e) if !passed => Some(format!("relative error {e:.2e} above {allowed:.0e}")),
            Ok(_) => None,
        };
        let against = if device == DeviceId::CPU { "f64 loops" } else { "cpu" };
        Outcome {
            op: case.op(),
            variant: case.variant().to_owned(),
            device: device.to_string(),
            dtype: dtype.name(),
            against,
            relative_error: error.ok(),
            allowed,
            passed,
            failure,
            milliseconds,
        }
    }
}

impl Report {
    pub(crate) fn new(devices: &[Device]) -> Report {
        let tested = |d: &Device| Tested {
            id: d.id().to_string(),
            name: d.description().name.clone(),
            detail: d.description().detail.clone(),
            simulated: d.description().simulated,
        };
        let devices = devices.iter().map(tested).collect();
        Report { version: env!("CARGO_PKG_VERSION"), devices, outcomes: Vec::new() }
    }

    pub(crate) fn extend(&mut self, outcomes: impl IntoIterator<Item = Outcome>) {
        self.outcomes.extend(outcomes);
    }

    /// Whether no case ran.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Whether all cases passed, and there were some.
    pub fn passed(&self) -> bool {
        !self.outcomes.is_empty() && self.outcomes.iter().all(|o| o.passed)
    }

    /// What every case gave, in the order of the cases.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// One line for each failure.
    pub fn failures(&self) -> String {
        let failed = self.outcomes.iter().filter_map(|o| {
            let why = o.failure.as_ref()?;
            Some(format!("{} {} on {} in {}: {why}", o.op, o.variant, o.device, o.dtype))
        });
        failed.collect::<Vec<_>>().join("\n")
    }

    /// How many of how many passed.
    pub fn summary(&self) -> String {
        let passed = self.outcomes.iter().filter(|o| o.passed).count();
        let simulated: Vec<&str> = self.simulated().collect();
        let tested = self.devices.len() - simulated.len();
        let mut text = format!("{passed} of {} cases passed on {tested} device(s)", self.outcomes.len());
        if !simulated.is_empty() {
            text.push_str(&format!("; simulated, so not compared: {}", simulated.join(", ")));
        }
        text
    }

    /// The devices that compute with another's kernels.
    fn simulated(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().filter(|device| device.simulated).map(|device| device.id.as_str())
    }

    /// Whether there is nothing but simulations, which prove nothing.
    pub fn is_simulation(&self) -> bool {
        self.simulated().count() == self.devices.len()
    }
}
