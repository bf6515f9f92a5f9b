//! How many bytes a model takes of each device: its copies, what casting takes for a moment, and its patches.

use std::collections::BTreeMap;

use device::Registry;
use meta::{DType, DeviceId, DeviceKind};
use patch::{Beside, Merge, Patch, PatchSet};
use placement::{BlockMode, BlockPlan, Plan};
use tensor::Lane;

use crate::cast;
use crate::layout::BlockLayout;
use crate::manifest::{Manifest, WeightSpec};
use crate::{Error, Result};

/// Bytes by device.
pub(crate) type Bytes = BTreeMap<DeviceId, u64>;

/// What streamed blocks are copied from on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostSource {
    /// The mapped file, which is no allocation.
    File,
    /// A pinned copy, for a device that copies slowly from other memory and cannot pin the file where it lies.
    Copy,
}

impl HostSource {
    /// What the compute device of a plan needs.
    pub(crate) fn of(plan: &Plan, devices: &Registry) -> Result<HostSource> {
        let compute = devices.get(plan.compute)?;
        let copies = compute.copies_fast_from_pinned_only() && !compute.pins_in_place();
        Ok(if copies { HostSource::Copy } else { HostSource::File })
    }
}

/// Bytes that a model's copies take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    /// While the copies are there.
    pub(crate) kept: Bytes,
    /// Besides, while they are made.
    pub(crate) once: Bytes,
    /// Of the host's copies, those that lie in the mapped file and take nothing.
    pub(crate) mapped: u64,
}

impl Needs {
    /// Of a model under a plan: what the devices' allocations really take.
    pub(crate) fn of(
        manifest: &Manifest,
        plan: &Plan,
        source: HostSource,
        devices: &Registry,
    ) -> Result<Needs> {
        if plan.blocks.len() != manifest.blocks().len() {
            return Err(Error::PlanMismatch {
                name: manifest.name().to_owned(),
                planned: plan.blocks.len(),
                blocks: manifest.blocks().len(),
            });
        }
        let taken = |device: DeviceId, bytes: usize| -> Result<u64> {
            Ok(devices.get(device)?.allocation_bytes(bytes))
        };
        let mut needs = Needs::default();
        for (device, bytes) in waiting(manifest, plan) {
            needs.once.insert(device, taken(device, bytes as usize)?);
        }
        let (mut largest, mut room) = (0, 0);
        for (index, block) in plan.blocks.iter().enumerate() {
            let bytes = BlockLayout::new(manifest, index).len();
            let streamed = block.mode == BlockMode::Streamed;
            let on_host = block.home.kind == DeviceKind::Cpu;
            if block.from_disk {
                largest = largest.max(bytes);
                continue;
            }
            if let Some(coded) = block.coded_bytes.filter(|_| block.is_kept_coded()) {
                *needs.kept.entry(block.home).or_default() += taken(block.home, coded as usize)?;
                room = room.max(bytes);
                continue;
            }
            if let Some(coded) = block.coded_bytes {
                // Pinned memory is taken as it is asked for.
                *needs.kept.entry(DeviceId::CPU).or_default() += coded;
                largest = largest.max(coded as usize);
                room = room.max(bytes);
                continue;
            }
            if !on_host || (manifest.is_cast(index) && !streamed) {
                *needs.kept.entry(block.home).or_default() += taken(block.home, bytes)?;
            } else if manifest.is_cast(index) || (source == HostSource::Copy && streamed) {
                // Pinned memory is taken as it is asked for.
                *needs.kept.entry(DeviceId::CPU).or_default() += bytes as u64;
            } else {
                needs.mapped += bytes as u64;
            }
            if streamed {
                largest = largest.max(bytes);
            }
        }
        if let Some(reading) = &plan.reading {
            *needs.kept.entry(DeviceId::CPU).or_default() += reading.bytes();
        }
        if let Some(ring) = &plan.ring {
            let slot = taken(plan.compute, largest)?;
            let room = if room > 0 { taken(plan.compute, room)? } else { 0 };
            *needs.kept.entry(plan.compute).or_default() += ring.slots as u64 * slot + room;
        }
        Ok(needs)
    }

    /// Bytes of the model that each device holds, the mapped file's on the host among them.
    pub(crate) fn held(&self) -> Bytes {
        let mut held = self.kept.clone();
        if self.mapped > 0 {
            *held.entry(DeviceId::CPU).or_default() += self.mapped;
        }
        held
    }
}

/// Bytes that wait on each device to be cast there, at most.
pub(crate) fn waiting(manifest: &Manifest, plan: &Plan) -> Bytes {
    let mut waiting = Bytes::new();
    for (index, block) in plan.blocks.iter().enumerate() {
        if block.home.kind != DeviceKind::Cpu && manifest.is_cast(index) {
            let most = waiting.entry(block.home).or_default();
            *most = (*most).max(cast::waiting_bytes(manifest, index) as u64);
        }
    }
    waiting
}

/// Whether some of the blocks that a plan wants coded travel from memory of their own until they are, and not from their file.
pub(crate) fn packs_coded_blocks(manifest: &Manifest, plan: &Plan, source: HostSource) -> bool {
    let coded = plan.blocks.iter().enumerate().filter(|(_, block)| block.coded_bytes.is_some());
    coded.map(|(index, _)| index).any(|index| source == HostSource::Copy || manifest.is_cast(index))
}

/// Bytes of host memory that a plan casts weights into.
pub(crate) fn cast_on_host(manifest: &Manifest, plan: &Plan) -> u64 {
    let cast = |(index, block): &(usize, &BlockPlan)| {
        block.home.kind == DeviceKind::Cpu && !block.from_disk && manifest.is_cast(*index)
    };
    let blocks = plan.blocks.iter().enumerate().filter(cast);
    blocks.map(|(index, _)| BlockLayout::new(manifest, index).len() as u64).sum()
}

/// How the patches of a weight are put in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Into the copy itself.
    Merged,
    /// Beside the linear layer that it belongs to: as it is kept, it would be coarser than what the lane computes in.
    Beside,
    /// The same for a weight that is no matrix, which is small: patched in 32 bits, and used instead.
    Instead,
}

impl Way {
    pub(crate) fn of(spec: &WeightSpec, lane: &Lane) -> Way {
        let holds = |dtype: DType| {
            let wanted = if spec.rounds_patches { DType::F16.bytes() } else { lane.dtype().bytes() };
            dtype.bytes() >= wanted.min(lane.dtype().bytes())
        };
        let coarser = spec.companions.scale.is_some() || !spec.kept_as.dtype().is_some_and(holds);
        match coarser {
            false => Way::Merged,
            true if spec.shape.rank() == 2 => Way::Beside,
            true => Way::Instead,
        }
    }
}

/// What a patched weight is merged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Memory of its own, once.
    Resident,
    /// The mapped file, which cannot be written, so it gets memory of its own.
    Mapped,
    /// A slot, at each arrival; or the room in which a coded block is decoded.
    Streamed,
}

impl Copies {
    pub(crate) fn of(block: &BlockPlan) -> Copies {
        match block.mode {
            BlockMode::Streamed => Copies::Streamed,
            BlockMode::Resident if block.is_kept_coded() => Copies::Streamed,
            BlockMode::Resident if block.home.kind == DeviceKind::Cpu => Copies::Mapped,
            BlockMode::Resident => Copies::Resident,
        }
    }
}

/// Bytes that the patches of one weight take on the lane's device for as long as they are in force.
pub(crate) fn patch_bytes(spec: &WeightSpec, copies: Copies, lane: &Lane, patches: &[Patch]) -> Result<u64> {
    if patches.is_empty() {
        return Ok(0);
    }
    let bytes = match (Way::of(spec, lane), copies) {
        (Way::Merged, Copies::Resident) => return Ok(0),
        (Way::Merged, Copies::Streamed) => Merge::bytes_for(lane.device(), spec.kept_as, patches)?,
        (Way::Merged, Copies::Mapped) => spec.kept_bytes() as u64,
        (Way::Beside, _) => Beside::bytes_for(lane.dtype(), patches),
        (Way::Instead, _) => (spec.shape.count() * DType::F32.bytes()) as u64,
    };
    Ok(lane.device().allocation_bytes(bytes as usize))
}

/// Bytes that a set takes on a device if every block computes there and is streamed to it, or lies in the mapped file if
/// it is the host: no plan takes more. What the largest merge takes for a moment is among them.
pub(crate) fn most_patch_bytes(manifest: &Manifest, patches: &PatchSet, lane: &Lane) -> Result<u64> {
    let on_host = lane.device().id().kind == DeviceKind::Cpu;
    let copies = if on_host { Copies::Mapped } else { Copies::Streamed };
    let (mut held, mut moment) = (0, 0);
    for (name, list) in patches.iter() {
        let Some(index) = manifest.index_of(name) else { continue };
        let spec = &manifest.weights()[index];
        held += patch_bytes(spec, copies, lane, list)?;
        if copies == Copies::Streamed && Way::of(spec, lane) == Way::Merged {
            moment = Merge::moment_bytes_for(lane.device(), spec.kept_as, list)?.max(moment);
        }
    }
    Ok(held + moment)
}
