//! Turns the amounts of an allocation into bytes per device, for one machine and one model.

use std::collections::BTreeMap;

use meta::DeviceId;

use crate::allocation::{Amounts, Entry};
use crate::language::{AllocationError, AllocationProblem as Problem, AllocationText};
use crate::request::{DeviceSpec, Overfull};

/// What amounts are relative to.
pub(crate) struct Scale<'a> {
    pub(crate) devices: &'a BTreeMap<DeviceId, &'a DeviceSpec>,
    pub(crate) compute: DeviceId,
    pub(crate) model_bytes: u64,
    pub(crate) overfull: Overfull,
    /// Whether what the host has no room for can be read from the disk.
    pub(crate) has_disk: bool,
}

/// Bytes of weights per device. The shares come to exactly the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Targets {
    /// In the order written.
    pub(crate) shares: Vec<(DeviceId, u64)>,
    /// Who takes what whole blocks leave over.
    pub(crate) taker: DeviceId,
}

impl Targets {
    /// The share of a device.
    pub(crate) fn share(&self, device: DeviceId) -> u64 {
        self.shares.iter().find(|(d, _)| *d == device).map_or(0, |(_, bytes)| *bytes)
    }

    /// Gives a device more, listing it if it was not listed.
    pub(crate) fn add(&mut self, device: DeviceId, bytes: u64) {
        match self.shares.iter_mut().find(|(d, _)| *d == device) {
            Some((_, share)) => *share += bytes,
            None => self.shares.push((device, bytes)),
        }
    }
}

/// Checks that every device of the text is here and can play its part.
pub(crate) fn check_devices(text: &AllocationText, scale: &Scale<'_>) -> Result<(), AllocationError> {
    let available = || scale.devices.keys().copied().collect();
    let allocation = text.allocation();
    if let (Some(written), Some(span)) = (allocation.compute, text.compute_mark())
        && written != scale.compute
    {
        let problem = match scale.devices.contains_key(&written) {
            true => Problem::OtherCompute { written, requested: scale.compute },
            false => Problem::UnknownDevice { device: written, available: available() },
        };
        return Err(text.error(span, problem));
    }
    let (named, are_donors): (Vec<DeviceId>, bool) = match &allocation.amounts {
        Amounts::Automatic => (Vec::new(), false),
        Amounts::Normal { donors, .. } => (donors.clone(), true),
        Amounts::Bytes(entries) => (entries.iter().map(|e| e.device).collect(), false),
        Amounts::Percent(entries) | Amounts::Fraction(entries) => {
            (entries.iter().map(|e| e.device).collect(), false)
        }
    };
    for (index, device) in named.into_iter().enumerate() {
        let (span, _) = text.entry_marks(index);
        if !scale.devices.contains_key(&device) {
            return Err(text.error(span, Problem::UnknownDevice { device, available: available() }));
        }
        if are_donors && device == scale.compute {
            return Err(text.error(span, Problem::DonorIsCompute { device }));
        }
    }
    Ok(())
}

/// The bytes per device of an allocation that gives amounts; none for normal and automatic mode, whose
/// bytes depend on how much room there is. The devices have been checked.
pub(crate) fn resolve(text: &AllocationText, scale: &Scale<'_>) -> Result<Option<Targets>, AllocationError> {
    Ok(Some(match &text.allocation().amounts {
        Amounts::Automatic | Amounts::Normal { .. } => return Ok(None),
        Amounts::Bytes(entries) => resolve_bytes(text, scale, entries)?,
        Amounts::Percent(entries) => resolve_percent(text, scale, entries)?,
        Amounts::Fraction(entries) => resolve_fraction(text, scale, entries)?,
    }))
}

fn resolve_bytes(
    text: &AllocationText,
    scale: &Scale<'_>,
    entries: &[Entry<u64>],
) -> Result<Targets, AllocationError> {
    let amounts: Vec<u64> = entries.iter().map(|entry| entry.amount.number().unwrap_or(0)).collect();
    let listed: Vec<DeviceId> = entries.iter().map(|entry| entry.device).collect();
    let shares = give_out(text, scale, &listed, &amounts)?;
    let star = entries.iter().find(|entry| entry.amount.takes_remainder()).map(|entry| entry.device);
    let left = scale.model_bytes - shares.iter().map(|(_, bytes)| bytes).sum::<u64>();
    if star.is_none() && left == 0 {
        return Ok(numbered(shares, scale));
    }
    let taker = star.unwrap_or(DeviceId::CPU);
    if !scale.devices.contains_key(&taker) {
        let (_, amount) = text.entry_marks(entries.len() - 1);
        return Err(text.error(amount, Problem::NowhereForRemainder));
    }
    Ok(with_remainder(shares, taker, left))
}

fn resolve_percent(
    text: &AllocationText,
    scale: &Scale<'_>,
    entries: &[Entry<f64>],
) -> Result<Targets, AllocationError> {
    let listed: Vec<DeviceId> = entries.iter().map(|entry| entry.device).collect();
    let percents: Vec<f64> = entries.iter().map(|entry| entry.amount.number().unwrap_or(0.0)).collect();
    let star = entries.iter().find(|entry| entry.amount.takes_remainder()).map(|entry| entry.device);
    let mut sum = 0.0;
    for (index, percent) in percents.iter().enumerate() {
        sum += percent;
        if star.is_some() && sum > 100.0 + 1e-9 {
            return Err(text.error(text.entry_marks(index).1, Problem::PercentOverfull { sum }));
        }
    }
    let whole = if star.is_some() { 100.0 } else { sum };
    let amounts = portions(scale.model_bytes, &percents, whole);
    let shares = give_out(text, scale, &listed, &amounts)?;
    Ok(match star {
        Some(taker) => {
            let left = scale.model_bytes - amounts.iter().sum::<u64>();
            with_remainder(shares, taker, left)
        }
        None => numbered(shares, scale),
    })
}

fn resolve_fraction(
    text: &AllocationText,
    scale: &Scale<'_>,
    entries: &[Entry<f64>],
) -> Result<Targets, AllocationError> {
    let listed: Vec<DeviceId> = entries.iter().map(|entry| entry.device).collect();
    let total = |device: DeviceId| scale.devices.get(&device).map_or(0, |spec| spec.total_bytes);
    let held: Vec<f64> = entries
        .iter()
        .map(|entry| entry.amount.number().unwrap_or(0.0) * total(entry.device) as f64)
        .collect();
    let star = entries.iter().find(|entry| entry.amount.takes_remainder()).map(|entry| entry.device);
    let sum: f64 = held.iter().sum();
    if star.is_none() && sum >= scale.model_bytes as f64 {
        let amounts = portions(scale.model_bytes, &held, sum.max(1.0));
        return Ok(numbered(give_out(text, scale, &listed, &amounts)?, scale));
    }
    let amounts: Vec<u64> = held.iter().map(|bytes| *bytes as u64).collect();
    let shares = give_out(text, scale, &listed, &amounts)?;
    let left = scale.model_bytes - shares.iter().map(|(_, bytes)| bytes).sum::<u64>();
    Ok(with_remainder(shares, star.unwrap_or(scale.compute), left))
}

/// Each part's share of the model, rounded down, never more than the model together.
fn portions(model_bytes: u64, parts: &[f64], whole: f64) -> Vec<u64> {
    let mut left = model_bytes;
    let mut portion = |part: &f64| {
        let bytes = ((model_bytes as f64 * (part / whole)) as u64).min(left);
        left -= bytes;
        bytes
    };
    parts.iter().map(&mut portion).collect()
}

/// Checks amounts in the order written against the devices and the model.
fn give_out(
    text: &AllocationText,
    scale: &Scale<'_>,
    devices: &[DeviceId],
    amounts: &[u64],
) -> Result<Vec<(DeviceId, u64)>, AllocationError> {
    let mut left = scale.model_bytes;
    let mut shares = Vec::with_capacity(devices.len());
    for (index, (device, amount)) in devices.iter().copied().zip(amounts).enumerate() {
        let wanted = if scale.overfull == Overfull::Trim { left.min(*amount) } else { *amount };
        let total = scale.devices.get(&device).map_or(0, |spec| spec.total_bytes);
        let (_, mark) = text.entry_marks(index);
        if wanted > total && !(scale.has_disk && device == DeviceId::CPU) {
            return Err(text.error(mark, Problem::DeviceOverfull { device, wanted, total }));
        }
        if wanted > left {
            let given = scale.model_bytes - left + wanted;
            let problem = Problem::ModelOverfull { model: scale.model_bytes, wanted: given, left };
            return Err(text.error(mark, problem));
        }
        left -= wanted;
        shares.push((device, wanted));
    }
    Ok(shares)
}

fn with_remainder(shares: Vec<(DeviceId, u64)>, taker: DeviceId, left: u64) -> Targets {
    let mut targets = Targets { shares, taker };
    targets.add(taker, left);
    targets
}

/// Targets where every device has a number: the host, which has the most room to spare, takes what
/// whole blocks leave over; else the compute device; else the last one.
fn numbered(shares: Vec<(DeviceId, u64)>, scale: &Scale<'_>) -> Targets {
    let listed = |device: DeviceId| shares.iter().any(|(d, _)| *d == device).then_some(device);
    let taker = listed(DeviceId::CPU)
        .or_else(|| listed(scale.compute))
        .or_else(|| shares.iter().map(|(device, _)| *device).max())
        .unwrap_or(scale.compute);
    let left = scale.model_bytes - shares.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let mut targets = Targets { shares, taker };
    targets.add(taker, left);
    targets
}
