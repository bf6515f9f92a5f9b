//! The table that a self-test makes.

use device::Device;
use meta::{DType, DeviceId};
use serde::Serialize;

use super::case::Case;
use crate::table::Table;

/// All outcomes, with the devices they are of.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
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
pub(crate) struct Outcome {
    op: &'static str,
    variant: String,
    device: String,
    dtype: &'static str,
    /// Compared with plain loops in f64 on the CPU, with the CPU elsewhere.
    against: &'static str,
    relative_error: Option<f64>,
    allowed: f64,
    passed: bool,
    failure: Option<String>,
    milliseconds: f64,
}

impl Outcome {
    pub(super) fn new(
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
    pub(super) fn new(devices: &[Device]) -> Report {
        let tested = |d: &Device| Tested {
            id: d.id().to_string(),
            name: d.description().name.clone(),
            detail: d.description().detail.clone(),
            simulated: d.description().simulated,
        };
        let devices = devices.iter().map(tested).collect();
        Report { version: env!("CARGO_PKG_VERSION"), devices, outcomes: Vec::new() }
    }

    pub(super) fn extend(&mut self, outcomes: impl IntoIterator<Item = Outcome>) {
        self.outcomes.extend(outcomes);
    }

    /// Whether no case ran.
    pub(crate) fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Whether all cases passed, and there were some.
    pub(crate) fn passed(&self) -> bool {
        !self.outcomes.is_empty() && self.outcomes.iter().all(|o| o.passed)
    }

    #[cfg(test)]
    pub(super) fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// One line for each failure.
    pub(crate) fn failures(&self) -> String {
        let failed = self.outcomes.iter().filter_map(|o| {
            let why = o.failure.as_ref()?;
            Some(format!("{} {} on {} in {}: {why}", o.op, o.variant, o.device, o.dtype))
        });
        failed.collect::<Vec<_>>().join("\n")
    }

    /// The worst error of each operation on each device and type; all cases if `every`.
    pub(crate) fn table(&self, every: bool) -> String {
        let mut table = Table::new(&[
            "operation",
            "cases",
            "device",
            "type",
            "against",
            "worst error",
            "allowed",
            "result",
        ]);
        let mut shown: Vec<(String, &Outcome, usize, bool)> = Vec::new();
        for o in &self.outcomes {
            let name = if every { format!("{} {}", o.op, o.variant) } else { o.op.to_owned() };
            let same = |(n, s, _, _): &&mut (String, &Outcome, usize, bool)| {
                *n == name && s.device == o.device && s.dtype == o.dtype
            };
            match shown.iter_mut().find(same) {
                Some((_, worst, count, passed)) => {
                    *count += 1;
                    *passed &= o.passed;
                    if rank(o) > rank(worst) {
                        *worst = o;
                    }
                }
                None => shown.push((name, o, 1, o.passed)),
            }
        }
        for (name, o, count, passed) in shown {
            let error = o
                .relative_error
                .map_or("failed".into(), |e| if e == 0.0 { "0".into() } else { format!("{e:.1e}") });
            let allowed = if o.allowed == 0.0 { "same bits".into() } else { format!("{:.0e}", o.allowed) };
            let result = if passed { "ok" } else { "FAILED" };
            table.row(&[&name, &count.to_string(), &o.device, o.dtype, o.against, &error, &allowed, result]);
        }
        table.to_string()
    }

    /// How many of how many passed.
    pub(crate) fn summary(&self) -> String {
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
    pub(crate) fn is_simulation(&self) -> bool {
        self.simulated().count() == self.devices.len()
    }
}

/// Failures first, then by error.
fn rank(o: &Outcome) -> f64 {
    if o.passed { o.relative_error.unwrap_or(0.0) } else { f64::INFINITY }
}
