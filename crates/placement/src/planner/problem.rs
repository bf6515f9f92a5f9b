//! A request that has been checked, with what every later room asks of it.

use std::collections::BTreeMap;

use meta::{ByteSize, DeviceId};

use super::layout::Ways;
use crate::allocation::{Amounts, Order};
use crate::error::PlanError;
use crate::request::{BlockSpec, DeviceSpec, Overfull, PlanRequest, RemotePolicy, is_tiny};
use crate::resolve::Scale;

/// Byte counts up to here are exact as `f64`, and sums of a few of them fit a `u64`.
const MAX_BYTES: u64 = 1 << 53;

/// Tiny blocks stay on the compute device as long as they are less than one in so many of the model's bytes.
const MOST_TINY: u64 = 200;

/// A checked request.
pub(super) struct Problem<'a> {
    pub(super) request: &'a PlanRequest,
    pub(super) devices: BTreeMap<DeviceId, &'a DeviceSpec>,
    pub(super) model_bytes: u64,
    /// The blocks that must stay on the compute device.
    pub(super) fixed: Vec<bool>,
    /// Their bytes.
    pub(super) fixed_bytes: u64,
    pub(super) order: Order,
    pub(super) remote: RemotePolicy,
}

impl<'a> Problem<'a> {
    pub(super) fn new(request: &'a PlanRequest) -> Result<Problem<'a>, PlanError> {
        let mut devices = BTreeMap::new();
        for spec in &request.devices {
            check_device(spec)?;
            if devices.insert(spec.id, spec).is_some() {
                return Err(PlanError::RepeatedDevice { device: spec.id });
            }
        }
        if !devices.contains_key(&request.compute) {
            let available = devices.keys().copied().collect();
            return Err(PlanError::NoComputeDevice { device: request.compute, available });
        }
        if let Some(disk) = &request.disk
            && !(disk.bytes_per_s.is_finite() && disk.bytes_per_s > 0.0)
        {
            let (what, value) = ("disk bandwidth", disk.bytes_per_s);
            return Err(PlanError::BadDevice { device: DeviceId::CPU, what, value });
        }
        let slow =
            request.blocks.iter().find(|b| !(b.compute_seconds.is_finite() && b.compute_seconds >= 0.0));
        if let Some(block) = slow {
            let (block, seconds) = (block.name.clone(), block.compute_seconds);
            return Err(PlanError::BadBlockTime { block, seconds });
        }
        let sum = request.blocks.iter().try_fold(0u64, |sum, block| sum.checked_add(block.bytes));
        let whole = sum.and_then(|sum| sum.checked_add(request.working_bytes));
        let (Some(model_bytes), Some(0..=MAX_BYTES)) = (sum, whole) else {
            return Err(PlanError::TooManyBytes);
        };
        let fixed = fixed_blocks(&request.blocks, model_bytes);
        let fixed_bytes = request.blocks.iter().zip(&fixed).filter(|(_, fixed)| **fixed);
        Ok(Problem {
            request,
            devices,
            model_bytes,
            fixed_bytes: fixed_bytes.map(|(block, _)| block.bytes).sum(),
            fixed,
            order: request.allocation.allocation().order.unwrap_or(request.order),
            remote: request.allocation.allocation().remote.unwrap_or(request.remote),
        })
    }

    /// What amounts are relative to.
    pub(super) fn scale(&self) -> Scale<'_> {
        Scale {
            devices: &self.devices,
            compute: self.request.compute,
            model_bytes: self.model_bytes,
            overfull: self.request.overfull,
            has_disk: self.request.disk.is_some() && self.request.compute != DeviceId::CPU,
        }
    }

    pub(super) const fn compute(&self) -> DeviceId {
        self.request.compute
    }

    /// The bytes that may leave the compute device.
    pub(super) const fn free_bytes(&self) -> u64 {
        self.model_bytes - self.fixed_bytes
    }

    /// What a plan may use of a device.
    pub(super) fn available(&self, device: DeviceId) -> u64 {
        self.devices.get(&device).map_or(0, |spec| spec.available_bytes)
    }

    /// Room for weights on a device: less where blocks compute there.
    pub(super) fn room(&self, device: DeviceId, ways: &Ways) -> u64 {
        let working = if ways.contains_key(&device) { self.request.working_bytes } else { 0 };
        self.available(device).saturating_sub(working)
    }

    /// The largest block that may move.
    pub(super) fn largest_free_block(&self) -> u64 {
        self.free_blocks().map(|block| block.bytes).max().unwrap_or(0)
    }

    /// The blocks that may move.
    pub(super) fn free_blocks(&self) -> impl Iterator<Item = &BlockSpec> {
        self.request.blocks.iter().zip(&self.fixed).filter(|(_, fixed)| !**fixed).map(|(block, _)| block)
    }

    /// The accelerators other than the compute device.
    pub(super) fn other_accelerators(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let others = self.devices.values().filter(|spec| !spec.is_host() && spec.id != self.compute());
        others.map(|spec| spec.id)
    }

    /// The size of the smallest block that may move, at least one byte.
    pub(super) fn smallest_free_block(&self) -> u64 {
        self.free_blocks().map(|block| block.bytes).filter(|bytes| *bytes > 0).min().unwrap_or(1)
    }

    /// Bytes per second between two devices. Without a direct link the bytes cross the host, one hop
    /// after the other.
    pub(super) fn bandwidth(&self, from: DeviceId, to: DeviceId) -> f64 {
        let (Some(from), Some(to)) = (self.devices.get(&from), self.devices.get(&to)) else {
            return f64::INFINITY;
        };
        match (from.is_host(), to.is_host()) {
            (true, true) => f64::INFINITY,
            (true, false) => to.link_bytes_per_s,
            (false, true) => from.link_bytes_per_s,
            (false, false) => {
                let link =
                    |a: &DeviceSpec, b: DeviceId| a.reaches.iter().find(|link| link.device == b).copied();
                match link(from, to.id).or_else(|| link(to, from.id)) {
                    Some(link) => link.bytes_per_s,
                    None => 1.0 / (1.0 / from.link_bytes_per_s + 1.0 / to.link_bytes_per_s),
                }
            }
        }
    }

    /// How much longer a device computes than the compute device.
    pub(super) fn slowness(&self, device: DeviceId) -> f64 {
        if device == self.compute() {
            return 1.0;
        }
        let factor = |device: DeviceId| self.devices.get(&device).map_or(1.0, |spec| spec.compute_factor);
        factor(device) / factor(self.compute())
    }

    /// Says so if byte amounts were cut to the model's size.
    pub(super) fn trim_note(&self) -> Option<String> {
        let Amounts::Bytes(entries) = &self.request.allocation.allocation().amounts else {
            return None;
        };
        let written: u64 =
            entries.iter().filter_map(|entry| entry.amount.number()).fold(0, u64::saturating_add);
        (self.request.overfull == Overfull::Trim && written > self.model_bytes).then(|| {
            let (written, model) = (ByteSize(written), ByteSize(self.model_bytes));
            format!(
                "{written} was given out and the model has {model}; entries were filled in the order written"
            )
        })
    }
}

/// Pinned blocks and tiny ones. Where tiny blocks come to something together, moving them is worth it, and the user's
/// amounts would be wrong without them.
fn fixed_blocks(blocks: &[BlockSpec], model_bytes: u64) -> Vec<bool> {
    let tiny = |block: &BlockSpec| is_tiny(block.bytes, model_bytes);
    let together: u64 = blocks.iter().filter(|block| tiny(block)).map(|block| block.bytes).sum();
    let few = together < model_bytes / MOST_TINY;
    blocks.iter().map(|block| block.pinned || (few && tiny(block))).collect()
}

fn check_device(spec: &DeviceSpec) -> Result<(), PlanError> {
    let link = (!spec.is_host()).then_some(("host link bandwidth", spec.link_bytes_per_s));
    let peers = spec.reaches.iter().map(|link| ("peer link bandwidth", link.bytes_per_s));
    let speed = ("compute factor", spec.compute_factor);
    for (what, value) in link.into_iter().chain(peers).chain([speed]) {
        if !(value.is_finite() && value > 0.0) {
            return Err(PlanError::BadDevice { device: spec.id, what, value });
        }
    }
    Ok(())
}
