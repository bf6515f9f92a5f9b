//! Conformance of devices: every operation against the CPU, and the CPU against plain loops in f64.
//!
//! Whoever writes a backend runs [`run`] on it, in a test or in a program of their own, with the CPU as the reference;
//! `gantry selftest` does the same with the devices of the machine. A simulated device computes with the kernels of
//! another, so it proves nothing and is only listed.
//!
//! | to get | use |
//! |---|---|
//! | all cases on some devices | [`run`] |
//! | what came out, and whether it passed | [`Report`], [`Outcome`] |
//!
//! No backend is named here, and no case is about one: what a device cannot do it refuses, and the refusal is a failure.
#![forbid(unsafe_code)]

mod case;
mod elementwise;
mod error;
mod images;
mod layout;
mod naive;
mod norms;
mod products;
mod quantised;
mod report;

use std::time::Instant;

use device::Device;
use meta::DType;
use tensor::Lane;

use case::{Case, Prepared};
pub use error::Error;
pub use report::{Outcome, Report};

/// Largest relative error (‖got − want‖ / ‖want‖) that passes, by the activations' type.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-5,
        _ => 1e-2,
    }
}

/// All cases, in the order in which they are shown.
fn cases() -> Vec<Case> {
    [
        products::cases(),
        quantised::cases(),
        images::cases(),
        norms::cases(),
        elementwise::cases(),
        layout::cases(),
    ]
    .concat()
}

/// Runs the cases whose name (operation and variant) contains `filter` on the devices that are no simulation, for each
/// type of activation they have. `cpu` is the reference. What fails on a device is in the report; it is an error only if
/// the reference itself fails.
pub fn run(cpu: &Device, devices: &[Device], filter: &str) -> Result<Report, Error> {
    let reference = Lane::new(cpu, DType::F32)?;
    let mut report = Report::new(devices);
    let devices: Vec<&Device> = devices.iter().filter(|device| !device.description().simulated).collect();
    for case in cases().iter().filter(|case| case.name().contains(filter)) {
        let types: Vec<DType> = devices.iter().flat_map(|d| d.description().activations).copied().collect();
        for dtype in [DType::F32, DType::BF16, DType::F16].into_iter().filter(|d| types.contains(d)) {
            let prepared = Prepared::new(case, &reference, dtype)?;
            let want = prepared.run(&reference)?;
            for device in devices.iter().filter(|d| d.description().activations.contains(&dtype)) {
                report.extend(compare(case, &prepared, &want, device, dtype));
            }
        }
    }
    Ok(report)
}

/// Runs one case on one device. The CPU is compared with the plain loops, other devices with the CPU;
/// a case without plain loops has nothing to say about the CPU.
fn compare(case: &Case, prepared: &Prepared, want: &[f32], device: &Device, dtype: DType) -> Option<Outcome> {
    let expected: Vec<f64> = match device.id() {
        meta::DeviceId::CPU => prepared.naive()?,
        _ => want.iter().map(|v| f64::from(*v)).collect(),
    };
    let start = Instant::now();
    let result = Lane::new(device, dtype).and_then(|lane| prepared.run(&lane));
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let allowed = match case.is_exact() && dtype == DType::F32 {
        true => 0.0,
        false => tolerance(dtype).max(case.tolerance()),
    };
    let error = result.map_err(|error| error.to_string()).and_then(|got| relative_error(&got, &expected));
    Some(Outcome::new(case, device.id(), dtype, error, allowed, milliseconds))
}

/// ‖got − want‖ / ‖want‖. A NaN on one side only, or another length, is an error of its own.
fn relative_error(got: &[f32], want: &[f64]) -> Result<f64, String> {
    if got.len() != want.len() {
        return Err(format!("{} values instead of {}", got.len(), want.len()));
    }
    let (mut difference, mut norm) = (0.0, 0.0);
    for (index, (&g, &w)) in got.iter().zip(want).enumerate() {
        let g = f64::from(g);
        if g == w || (g.is_nan() && w.is_nan()) {
            norm += if w.is_finite() { w * w } else { 0.0 };
            continue;
        }
        if !g.is_finite() || !w.is_finite() {
            return Err(format!("value {index} is {g}, expected {w}"));
        }
        difference += (g - w) * (g - w);
        norm += w * w;
    }
    Ok(if difference == 0.0 { 0.0 } else { (difference / norm.max(f64::MIN_POSITIVE)).sqrt() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_error_sees_nan_length_and_size() {
        assert_eq!(relative_error(&[3.0, 4.0], &[3.0, 4.0]), Ok(0.0));
        assert!((relative_error(&[3.0, 4.5], &[3.0, 4.0]).unwrap() - 0.1).abs() < 1e-12);
        assert!(relative_error(&[f32::NAN], &[1.0]).is_err());
        assert!(relative_error(&[1.0], &[1.0, 2.0]).is_err());
        assert!(relative_error(&[1.0], &[0.0]).unwrap() > 1.0);
    }
}
