//! What the inputs of a variant say of placing.

use std::str::FromStr;

use graph::{Call, Failure, Input};
use meta::DeviceId;
use placement::AllocationText;
use residency::Retention;

use crate::{Error, Runtime};
use runtime::Placing;

/// A choice of the machine's devices.
pub(super) fn device_input(runtime: &Runtime, name: &str, default: &str) -> Input {
    Input::choice(name, runtime.device_names()).with("default", default)
}

/// The device that variants choose unless told: the first accelerator, or the host.
pub(super) fn usual_device(runtime: &Runtime) -> String {
    let names = runtime.device_names();
    names.get(1).or(names.first()).cloned().unwrap_or_default()
}

/// How many gigabytes leave the compute device.
pub(super) fn virtual_vram_input(name: &str, default: f64, most: f64) -> Input {
    Input::float(name, default, 0.0, most, 0.1)
}

/// A line that says where every byte goes.
pub(super) fn expert_input(name: &str) -> Input {
    Input::text(name, "").with("multiline", false)
}

/// Whether an input that names a device is absent, and there are several workers that each have one.
pub(super) fn follows(call: &Call, input: &str) -> bool {
    call.job.worker.is_some() && call.inputs.first(input).is_none()
}

/// The device of an input; that of the job's worker if it is absent.
pub(super) fn device_of(runtime: &Runtime, call: &Call, input: &str) -> Result<DeviceId, Failure> {
    if call.inputs.first(input).is_none() {
        return Ok(runtime.device_for(&call.job));
    }
    let name = call.text(input)?;
    DeviceId::from_str(name).map_err(|error| Failure::value(format!("{input} is {name:?}: {error}")))
}

/// Where bytes go, as a variant says it.
pub(super) struct Asked<'a> {
    pub(super) compute: DeviceId,
    /// Whether that is the device of the worker, because the user names none: another worker has its own.
    pub(super) follows: bool,
    pub(super) virtual_vram_gb: f64,
    /// Who takes what leaves the compute device, in this order.
    pub(super) donors: Vec<DeviceId>,
    /// What the user wrote.
    pub(super) expert: &'a str,
}

impl Asked<'_> {
    /// The allocation in the form that older tools stored: what the user wrote, then `#` and the normal mode.
    pub(super) fn allocation(&self, runtime: &Runtime) -> Result<AllocationText, Failure> {
        let expert = self.expert.trim();
        // What the compute device gives to itself does not move.
        let donors = self.donors.iter().filter(|donor| **donor != self.compute).map(ToString::to_string);
        let donors = donors.collect::<Vec<_>>().join(",");
        let moves = self.virtual_vram_gb > 0.0 && !donors.is_empty();
        let compute = if self.follows { String::new() } else { self.compute.to_string() };
        let text = match (expert.is_empty(), moves) {
            // Somebody who writes the `#` says the normal mode as well.
            _ if expert.contains('#') => expert.to_owned(),
            (true, false) => return Ok(AllocationText::automatic()),
            (_, true) => format!("{expert}#{compute};{};{donors}", self.virtual_vram_gb),
            (false, false) if self.follows => expert.to_owned(),
            (false, false) => format!("{expert}#{compute}"),
        };
        let devices: Vec<DeviceId> = runtime.devices.iter().map(device::Device::id).collect();
        let parsed = AllocationText::parse_for(&text, &devices);
        Ok(parsed.map_err(|error| Error::from(placement::PlanError::from(error)))?)
    }
}

/// Whether a model stays: what `keep_loaded` says, if it is there.
pub(super) fn retention_of(call: &Call) -> Result<Retention, Failure> {
    let given = call.inputs.first("keep_loaded").is_some();
    let keep = if given { Some(call.boolean("keep_loaded")?) } else { None };
    Ok(Retention::from_keep_loaded(keep))
}

/// Whether others leave before it loads; they do not if the input is absent.
pub(super) fn eject_of(call: &Call) -> Result<bool, Failure> {
    let given = call.inputs.first("eject_models").is_some();
    if given { call.boolean("eject_models") } else { Ok(false) }
}

/// A number that may be absent.
pub(super) fn float_or(call: &Call, input: &str, absent: f64) -> Result<f64, Failure> {
    if call.inputs.first(input).is_some() { call.float(input) } else { Ok(absent) }
}

/// A text that may be absent.
pub(super) fn text_or<'a>(call: &'a Call, input: &str, absent: &'a str) -> Result<&'a str, Failure> {
    if call.inputs.first(input).is_some() { call.text(input) } else { Ok(absent) }
}

/// All of a network on the device of an input; on that of whoever uses it if the input is absent.
pub(super) fn automatic(runtime: &Runtime, call: &Call, input: &str) -> Result<Placing, Failure> {
    match call.inputs.first(input) {
        Some(_) => Ok(Placing::automatic(device_of(runtime, call, input)?)),
        None => Ok(Placing::following(runtime.device_for(&call.job))),
    }
}

/// A placing by its parts.
pub(super) fn placing(runtime: &Runtime, call: &Call, asked: &Asked<'_>) -> Result<Placing, Failure> {
    Ok(Placing {
        compute: asked.compute,
        follows: asked.follows,
        allocation: asked.allocation(runtime)?,
        retention: retention_of(call)?,
        eject_others: eject_of(call)?,
    })
}
