//! The footprint of work: what it takes beside the weights, found by doing it on a null device that counts as the real
//! one would. No size is computed by a formula.

use std::sync::Arc;

use device::{Device, NullBackend, OpCall, Registry};
use meta::{DType, DeviceId};
use placement::{DeviceProfile, PlanRequest};
use residency::{Cancel, LoadOptions, Manifest, Residency};

use super::{Source, Work};
use crate::Result;

/// Memory of a null device: more than any model takes.
const BOUNDLESS: u64 = 1 << 52;

/// What work takes of a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Footprint {
    /// The most bytes at a time beside the weights.
    pub(crate) working_bytes: u64,
    /// The most bytes that one block hands to the next.
    pub(crate) handed_bytes: u64,
    /// Seconds of every block on the device, by its profile.
    pub(crate) block_seconds: Vec<f64>,
}

impl Footprint {
    /// Does the work on a null device like this one.
    pub(super) fn of(
        source: &Source,
        manifest: Manifest,
        work: &Work,
        (device, host): (&Device, &Device),
        (dtype, profile): (DType, &DeviceProfile),
    ) -> Result<Footprint> {
        let profile = profile.clone();
        let seconds = move |call: &OpCall| profile.seconds(&cost_of(call)).unwrap_or(0.0);
        let null = Device::new(Arc::new(NullBackend::like(device, 0, Arc::new(seconds))), BOUNDLESS);
        let residency = Residency::new(Registry::new([host.clone(), null.clone()]));
        let blocks = manifest.blocks().len();
        let plan = placement::plan(&on(&manifest, null.id()))?;
        let id = residency.load(manifest, plan, LoadOptions { dtype: Some(dtype), ..LoadOptions::default() })?;
        let session = residency.open(id, &Cancel::default())?;
        let weights = null.ledger().report().used;
        null.ledger().take_peak();
        source.network.rehearse(&session, work)?;
        let peak = null.ledger().take_peak();
        drop(session);
        let profile = residency.models().into_iter().find_map(|model| model.profile);
        let mut footprint = Footprint {
            working_bytes: peak.saturating_sub(weights),
            handed_bytes: 0,
            block_seconds: vec![0.0; blocks],
        };
        for block in profile.iter().flat_map(|profile| &profile.blocks) {
            footprint.block_seconds[block.block] += block.compute;
            // What the first block is handed comes from the host, wherever it computes.
            if block.block > 0 {
                footprint.handed_bytes = footprint.handed_bytes.max(block.handed_bytes);
            }
        }
        Ok(footprint)
    }

    /// Seconds of all blocks.
    pub(crate) fn seconds(&self) -> f64 {
        self.block_seconds.iter().sum()
    }
}

/// Everything on one device that has room for it.
fn on(manifest: &Manifest, device: DeviceId) -> PlanRequest {
    let spec = placement::DeviceSpec {
        id: device,
        total_bytes: BOUNDLESS,
        available_bytes: BOUNDLESS,
        link_bytes_per_s: 1.0,
        compute_factor: 1.0,
        reaches: Vec::new(),
    };
    Residency::plan_request(manifest, device, vec![spec])
}

fn cost_of(call: &OpCall) -> placement::OpCost {
    let device::OpCost { kind, dtype, flops, bytes } = call.cost();
    let kind = match kind {
        device::WorkKind::Product => placement::WorkKind::Product,
        device::WorkKind::Attention => placement::WorkKind::Attention,
        device::WorkKind::Convolution => placement::WorkKind::Convolution,
        device::WorkKind::Memory => placement::WorkKind::Memory,
    };
    placement::OpCost { kind, dtype, flops, bytes }
}
