//! A model's copies on devices, as its plan says.

use std::collections::{BTreeMap, HashMap};

use device::{Buffer, Cancel, Device, Registry, Reservation, Stream, StreamKind};
use meta::{DType, DeviceId, DeviceKind, Encoding};
use patch::{Beside, PatchSet};
use placement::{BlockMode, BlockPlan, Plan};
use tensor::{Lane, Weight};

use crate::host::{self, HostBlock, PinnedFiles};
use crate::layout::BlockLayout;
use crate::manifest::{Manifest, WeightSpec};
use crate::profile::{CopyMarks, Recorder};
use crate::ring::{Ring, Source};
use crate::{Error, Result, StreamStats};

/// Everything of a model that is on devices now.
pub(crate) struct Staged {
    layouts: Vec<BlockLayout>,
    blocks: Vec<StagedBlock>,
    ring: Option<Ring>,
    lanes: BTreeMap<DeviceId, Lane>,
    host: Device,
    /// Patched weights whose stored form cannot hold the patches, by weight name.
    patched: HashMap<String, Patched>,
    patches: PatchSet,
    recorder: Recorder,
}

/// The patches of a weight that stays as it is stored.
pub(crate) enum Patched {
    /// They run beside the linear layer that the weight belongs to.
    Beside(Beside),
    /// This is used instead of the stored weight.
    Instead(Box<Weight>),
}

/// One block's copy.
enum StagedBlock {
    /// Where it computes.
    Resident { device: DeviceId, weights: Vec<Weight> },
    /// At this position of the ring's order.
    Streamed { position: usize },
}

/// What streamed blocks are copied from on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostSource {
    /// The mapped file, which is no allocation.
    File,
    /// A pinned copy, for a GPU that cannot pin the file where it lies.
    Copy,
}

impl HostSource {
    /// What the compute device of a plan needs.
    pub(crate) fn of(plan: &Plan, devices: &Registry) -> Result<HostSource> {
        let copies = plan.compute.kind == DeviceKind::Cuda && !devices.get(plan.compute)?.pins_in_place();
        Ok(if copies { HostSource::Copy } else { HostSource::File })
    }
}

/// Bytes that staging takes of each device.
pub(crate) fn needs(manifest: &Manifest, plan: &Plan, source: HostSource) -> Result<BTreeMap<DeviceId, u64>> {
    if plan.blocks.len() != manifest.blocks().len() {
        return Err(Error::PlanMismatch {
            name: manifest.name().to_owned(),
            planned: plan.blocks.len(),
            blocks: manifest.blocks().len(),
        });
    }
    let mut needs: BTreeMap<DeviceId, u64> = BTreeMap::new();
    let mut largest = 0;
    for (index, block) in plan.blocks.iter().enumerate() {
        let bytes = BlockLayout::new(manifest, index).len() as u64;
        // Weights that live on the host are the mapped file, which is no allocation.
        if block.home.kind != DeviceKind::Cpu {
            *needs.entry(block.home).or_default() += bytes;
        } else if source == HostSource::Copy && block.mode == BlockMode::Streamed {
            *needs.entry(DeviceId::CPU).or_default() += bytes;
        }
        if block.mode == BlockMode::Streamed {
            largest = largest.max(bytes);
        }
    }
    if let Some(ring) = &plan.ring {
        *needs.entry(plan.compute).or_default() += ring.slots as u64 * largest;
    }
    Ok(needs)
}

/// Bytes of a model that each device holds, the mapped file's on the host among them.
pub(crate) fn holds(manifest: &Manifest, plan: &Plan, source: HostSource) -> BTreeMap<DeviceId, u64> {
    let mut held = needs(manifest, plan, source).unwrap_or_default();
    for (index, block) in plan.blocks.iter().enumerate() {
        let counted = source == HostSource::Copy && block.mode == BlockMode::Streamed;
        if block.home.kind == DeviceKind::Cpu && !counted {
            *held.entry(block.home).or_default() += BlockLayout::new(manifest, index).len() as u64;
        }
    }
    held
}

impl Staged {
    /// Copies every block to its home, out of bytes that were reserved before.
    pub(crate) fn new(
        manifest: &Manifest,
        plan: &Plan,
        devices: &Registry,
        reserved: &mut BTreeMap<DeviceId, Reservation>,
        dtype: Option<DType>,
        cancel: &Cancel,
    ) -> Result<Staged> {
        manifest.verify()?;
        let layouts: Vec<BlockLayout> =
            (0..manifest.blocks().len()).map(|i| BlockLayout::new(manifest, i)).collect();
        let mut staging = Staging { manifest, devices, reserved, copies: BTreeMap::new(), cancel };
        let mut blocks = Vec::new();
        let mut sources = Vec::new();
        let compute = devices.get(plan.compute)?;
        let host = devices.get(DeviceId::CPU)?;
        let from_host =
            |block: &&BlockPlan| block.mode == BlockMode::Streamed && block.home.kind == DeviceKind::Cpu;
        let streamed = plan.blocks.iter().enumerate().filter(|(_, block)| from_host(block));
        let pinned = PinnedFiles::new(compute, streamed.map(|(index, _)| manifest.weights_of(index)))?;
        for (index, (block, layout)) in plan.blocks.iter().zip(&layouts).enumerate() {
            let on_host = block.home.kind == DeviceKind::Cpu;
            blocks.push(match block.mode {
                BlockMode::Resident if on_host => {
                    StagedBlock::Resident { device: block.runs_on, weights: mapped_weights(manifest, index)? }
                }
                BlockMode::Resident => {
                    let buffer = staging.block(index, layout, block.home)?;
                    let weights = layout.weights(manifest.weights_of(index), &buffer)?;
                    StagedBlock::Resident { device: block.runs_on, weights }
                }
                BlockMode::Streamed => {
                    sources.push(if on_host {
                        let reserved = staging.reserved.get_mut(&DeviceId::CPU);
                        let specs = manifest.weights_of(index);
                        Source::Host(HostBlock::new(
                            specs,
                            layout,
                            (compute, host),
                            pinned.as_ref(),
                            reserved,
                        )?)
                    } else {
                        Source::Donor(staging.block(index, layout, block.home)?)
                    });
                    StagedBlock::Streamed { position: sources.len() - 1 }
                }
            });
        }
        staging.finish()?;
        let ring = staging.ring(plan, &layouts, compute, sources)?;
        let mut lanes = BTreeMap::new();
        for block in &plan.blocks {
            let device = devices.get(block.runs_on)?;
            let lane = dtype.map_or_else(|| Lane::preferred(device), |dtype| Lane::new(device, dtype))?;
            lanes.insert(block.runs_on, lane);
        }
        let host = host.clone();
        let (patched, patches, recorder) = (HashMap::new(), PatchSet::new(), Recorder::default());
        Ok(Staged { layouts, blocks, ring, lanes, host, patched, patches, recorder })
    }

    /// The lane on which a block computes.
    fn lane(&self, block: usize, compute: DeviceId) -> Option<&Lane> {
        self.lanes.get(&self.runs_on(block, compute))
    }

    /// The device on which a block computes.
    pub(crate) fn runs_on(&self, block: usize, compute: DeviceId) -> DeviceId {
        match &self.blocks[block] {
            StagedBlock::Resident { device, .. } => *device,
            StagedBlock::Streamed { .. } => compute,
        }
    }

    /// The lanes on which blocks compute.
    pub(crate) fn lanes(&self) -> &BTreeMap<DeviceId, Lane> {
        &self.lanes
    }

    /// The block's weights where it computes, and the slot they are in if it is streamed. Work that is queued on
    /// `compute` after this finds them there.
    pub(crate) fn acquire(
        &self,
        manifest: &Manifest,
        block: usize,
        compute: &Stream,
    ) -> Result<(Vec<Weight>, Option<usize>)> {
        match (&self.blocks[block], &self.ring) {
            (StagedBlock::Resident { weights, .. }, _) => Ok((weights.clone(), None)),
            (StagedBlock::Streamed { position }, Some(ring)) => {
                let (slot, buffer) = ring.acquire(*position, compute)?;
                Ok((self.layouts[block].weights(manifest.weights_of(block), &buffer)?, Some(slot)))
            }
            (StagedBlock::Streamed { .. }, None) => Err(Error::NoSuchBlock {
                model: manifest.name().to_owned(),
                index: block,
                blocks: self.blocks.len(),
            }),
        }
    }

    /// The marks of its steps.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The copy that brought the block in a slot.
    pub(crate) fn copy_marks(&self, slot: usize) -> Option<CopyMarks> {
        self.ring.as_ref().and_then(|ring| ring.copy_marks(slot))
    }

    /// A session begins.
    pub(crate) fn begin_session(&self) {
        if let Some(ring) = &self.ring {
            ring.begin_session();
        }
    }

    /// The slot of a leased block is free again.
    pub(crate) fn release(&self, slot: usize) {
        if let Some(ring) = &self.ring {
            ring.release(slot);
        }
    }

    /// What is used beside or instead of a weight as it is stored.
    pub(crate) fn patched(&self, weight: &str) -> Option<&Patched> {
        self.patched.get(weight)
    }

    /// The patches in force.
    pub(crate) fn patches(&self) -> &PatchSet {
        &self.patches
    }

    /// A weight with its patches merged, in 32 bits.
    pub(crate) fn merged(&self, lane: &Lane, name: &str, stored: &Weight) -> Result<Weight> {
        merge_exactly(lane, stored, self.patches.patches(name))
    }

    pub(crate) fn stats(&self) -> StreamStats {
        self.ring.as_ref().map(Ring::stats).unwrap_or_default()
    }

    /// Makes the copies those of another patch set: what did not change is not touched.
    pub(crate) fn patch(
        &mut self,
        manifest: &Manifest,
        plan: &Plan,
        patches: &PatchSet,
        cancel: &Cancel,
    ) -> Result<usize> {
        let before = std::mem::take(&mut self.patches);
        let mut touched = 0;
        for name in patches.changed_since(&before) {
            cancel.check()?;
            let Some(index) = manifest.index_of(name) else { continue };
            let Some(block) = manifest.block_of(index) else { continue };
            self.patch_weight(manifest, plan.compute, (block, index), patches)?;
            touched += 1;
        }
        self.patches = patches.clone();
        Ok(touched)
    }

    /// Stages one weight again, patched: in full precision on the lane, before it goes home. A weight whose
    /// stored form would lose what the lane can tell apart stays as it is: the patches of a matrix are staged
    /// beside it, anything else is small and is patched in 32 bits.
    fn patch_weight(
        &mut self,
        manifest: &Manifest,
        compute: DeviceId,
        (block, index): (usize, usize),
        patches: &PatchSet,
    ) -> Result<()> {
        let spec = &manifest.weights()[index];
        let lane = self.lane(block, compute).cloned().ok_or_else(|| Error::NoSuchBlock {
            model: manifest.name().to_owned(),
            index: block,
            blocks: self.blocks.len(),
        })?;
        let list = patches.patches(&spec.name);
        let source = || upload(&lane, spec);
        if loses_patches(spec, &lane) {
            let patched = match list {
                [] => None,
                list if spec.shape.rank() == 2 => {
                    Some(Patched::Beside(Beside::stage(&lane, list, Some(&source()?))?))
                }
                list => Some(Patched::Instead(Box::new(merge_exactly(&lane, &source()?, list)?))),
            };
            match patched {
                None => self.patched.remove(&spec.name),
                Some(patched) => self.patched.insert(spec.name.clone(), patched),
            };
            return Ok(());
        }
        let merged = match list {
            [] => None,
            list => Some(patch::merge_stored(&lane, &source()?, list)?),
        };
        let place = index - manifest.blocks()[block].weights.start;
        match &mut self.blocks[block] {
            StagedBlock::Resident { weights, .. } if lane.device().id().kind == DeviceKind::Cpu => {
                weights[place] = match merged {
                    Some(merged) => merged,
                    None => Weight::whole(host::over(&spec.bytes), spec.encoding, spec.shape)?,
                };
            }
            StagedBlock::Resident { weights, .. } => {
                let target = weights[place].operand().span();
                match merged {
                    Some(merged) => lane.stream().copy(&target, &merged.operand().span())?,
                    None => lane.stream().write(&target, spec.bytes.as_ref())?,
                }
            }
            StagedBlock::Streamed { position } => {
                let bytes = merged.map(|merged| read(&lane, &merged)).transpose()?;
                let offset = self.layouts[block].offset(place);
                let (ring, host) = (self.ring.as_ref(), &self.host);
                if let Some(ring) = ring {
                    ring.change_source(*position, |source| {
                        change(source, offset, bytes.as_deref(), &spec.bytes, &lane, host)
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a patched weight, stored as its file stores it, would be coarser than what the lane computes in.
fn loses_patches(spec: &WeightSpec, lane: &Lane) -> bool {
    match spec.encoding {
        _ if spec.scale.is_some() => true,
        Encoding::Plain(dtype) => dtype.bytes() < lane.dtype().bytes(),
        Encoding::Quant(_) => true,
    }
}

/// A weight on the lane's device, from the file.
fn upload(lane: &Lane, spec: &WeightSpec) -> Result<Weight> {
    let weight = Weight::upload(lane.device(), spec.encoding, spec.shape, spec.bytes.as_ref())?;
    Ok(match &spec.scale {
        None => weight,
        Some(scale) => {
            let scale = Weight::upload(lane.device(), Encoding::F32, [1], scale.as_ref())?;
            weight.scaled(scale.operand().clone())
        }
    })
}

/// The weight with its patches, in 32 bits.
fn merge_exactly(lane: &Lane, weight: &Weight, patches: &[patch::Patch]) -> Result<Weight> {
    let lane = lane.with_dtype(DType::F32)?;
    Ok(Weight::new(patch::apply(&lane, &lane.unpack(weight)?, patches)?.operand().clone()))
}

/// Puts patched bytes, or the file's, into the source of a streamed block.
fn change(
    source: &mut Source,
    offset: usize,
    patched: Option<&[u8]>,
    original: &checkpoint::EntryBytes,
    lane: &Lane,
    host: &Device,
) -> device::Result<()> {
    match (source, patched) {
        (Source::Host(block), Some(bytes)) => block.replace(offset, bytes, host),
        (Source::Host(block), None) => block.restore(offset, original, host),
        (Source::Donor(buffer), bytes) => {
            let bytes = bytes.unwrap_or_else(|| original.as_ref());
            lane.stream().write(&buffer.span(offset..offset + bytes.len())?, bytes)
        }
    }
}

/// A weight's bytes as they are on its device.
fn read(lane: &Lane, weight: &Weight) -> device::Result<Vec<u8>> {
    let span = weight.operand().span();
    let mut bytes = vec![0; span.len];
    lane.stream().read(&span, &mut bytes)?;
    Ok(bytes)
}

/// Weights that compute where they lie in the file.
fn mapped_weights(manifest: &Manifest, block: usize) -> Result<Vec<Weight>> {
    let weight = |spec: &WeightSpec| {
        let weight = Weight::whole(host::over(&spec.bytes), spec.encoding, spec.shape)?;
        match &spec.scale {
            None => Ok(weight),
            Some(scale) => {
                let scale = Weight::whole(host::over(scale), Encoding::F32, [1])?;
                Ok(weight.scaled(scale.operand().clone()))
            }
        }
    };
    manifest.weights_of(block).iter().map(weight).collect()
}

/// Copies under way to homes.
struct Staging<'a> {
    manifest: &'a Manifest,
    devices: &'a Registry,
    reserved: &'a mut BTreeMap<DeviceId, Reservation>,
    copies: BTreeMap<DeviceId, Stream>,
    cancel: &'a Cancel,
}

impl Staging<'_> {
    /// A buffer out of the reservation.
    fn allocate(&mut self, device: &Device, bytes: usize) -> device::Result<Buffer> {
        match self.reserved.get_mut(&device.id()) {
            Some(reservation) => device.allocate_from(reservation, bytes),
            None => device.allocate(bytes),
        }
    }

    /// Queues the copy of a block from the file to its home.
    fn block(&mut self, index: usize, layout: &BlockLayout, home: DeviceId) -> Result<Buffer> {
        let device = self.devices.get(home)?.clone();
        let buffer = self.allocate(&device, layout.len())?;
        let stream = match self.copies.get(&home) {
            Some(stream) => stream.clone(),
            None => {
                let stream = device.open_stream(StreamKind::Copy)?.with_cancel(self.cancel);
                self.copies.insert(home, stream.clone());
                stream
            }
        };
        for (offset, bytes) in layout.joined_pieces(self.manifest.weights_of(index)) {
            let source = host::over(&bytes);
            stream.copy(&buffer.span(offset..offset + source.len())?, &source.whole())?;
        }
        Ok(buffer)
    }

    /// Waits until every block is at home.
    fn finish(&mut self) -> Result<()> {
        let results: Vec<device::Result<()>> = self.copies.values().map(Stream::synchronize).collect();
        results.into_iter().try_for_each(|result| Ok(result?))
    }

    /// The slots for what is streamed.
    fn ring(
        &mut self,
        plan: &Plan,
        layouts: &[BlockLayout],
        compute: &Device,
        sources: Vec<Source>,
    ) -> Result<Option<Ring>> {
        let Some(planned) = plan.ring.filter(|_| !sources.is_empty()) else { return Ok(None) };
        let streamed = plan.blocks.iter().zip(layouts).filter(|(block, _)| block.mode == BlockMode::Streamed);
        let largest = streamed.map(|(_, layout)| layout.len()).max().unwrap_or(0);
        let slots = (0..planned.slots)
            .map(|_| self.allocate(compute, largest))
            .collect::<device::Result<Vec<_>>>()?;
        Ok(Some(Ring::new(compute, slots, sources)?))
    }
}
