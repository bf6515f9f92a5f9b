//! A model's copies on devices, as its plan says.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};

use device::{Buffer, Cancel, Device, Operand, Registry, Stream, StreamKind};
use meta::{DType, DeviceId, DeviceKind};
use placement::{BlockMode, BlockPlan, Plan};
use tensor::{Lane, Weight};

use crate::cast;
use crate::coding::CodedBlock;
use crate::host::{self, HostBlock, PinnedFiles};
use crate::layout::BlockLayout;
use crate::manifest::{Manifest, WeightSpec};
use crate::needs::{self, Bytes, HostSource};
use crate::patching::{Patching, Reserved};
use crate::profile::{CopyMarks, Recorder};
use crate::ring::{Ring, Source};
use crate::{Error, Result, StreamStats};

/// Everything of a model that is on devices now.
pub(crate) struct Staged {
    layouts: Vec<BlockLayout>,
    blocks: Vec<StagedBlock>,
    ring: Option<Ring>,
    lanes: BTreeMap<DeviceId, Lane>,
    /// Replaced as a whole; the lock is held only for that.
    patching: RwLock<Arc<Patching>>,
    recorder: Recorder,
}

/// One block's copy.
enum StagedBlock {
    /// Where it computes.
    Resident { device: DeviceId, weights: Vec<Weight> },
    /// At this position of the ring's order, behind those that travel if it stays coded.
    Streamed { position: usize },
}

impl Staged {
    /// Copies every block to its home, out of bytes that were reserved before.
    pub(crate) fn new(
        manifest: &Manifest,
        plan: &Plan,
        (devices, source): (&Registry, HostSource),
        reserved: &mut Reserved,
        dtype: Option<DType>,
        cancel: &Cancel,
    ) -> Result<Staged> {
        manifest.verify()?;
        let layouts: Vec<BlockLayout> =
            (0..manifest.blocks().len()).map(|i| BlockLayout::new(manifest, i)).collect();
        let mut copying = Copying {
            manifest,
            devices,
            source,
            reserved,
            copies: BTreeMap::new(),
            cancel,
            waiting_bytes: needs::waiting(manifest, plan),
            waiting: BTreeMap::new(),
        };
        let compute = devices.get(plan.compute)?;
        let pinned = copying.pin(plan, compute)?;
        let host = devices.get(DeviceId::CPU)?;
        let (blocks, sources) = filled_beside(manifest, &layouts, host, |fills| {
            let mut blocks = Vec::new();
            let (mut sources, mut kept) = (Vec::new(), Vec::new());
            let travelling = plan.blocks.iter().filter(|block| block.mode == BlockMode::Streamed).count();
            for (index, (block, layout)) in plan.blocks.iter().zip(&layouts).enumerate() {
                blocks.push(match block.mode {
                    BlockMode::Resident if block.is_kept_coded() => {
                        kept.push(Source::Here(copying.kept(index, layout, block.home)?));
                        StagedBlock::Streamed { position: travelling + kept.len() - 1 }
                    }
                    BlockMode::Resident => copying.resident(index, block, layout)?,
                    BlockMode::Streamed => {
                        let source = copying.source((index, block, layout), compute, pinned.as_ref())?;
                        if let Source::Host(block) = &source {
                            fills.extend(block.to_fill().map(|buffer| (index, buffer.clone())));
                        }
                        sources.push(source);
                        StagedBlock::Streamed { position: sources.len() - 1 }
                    }
                });
            }
            sources.extend(kept);
            Ok((blocks, sources))
        })?;
        copying.finish()?;
        let ring = copying.ring(plan, &layouts, compute, sources)?;
        let lanes = lanes(plan, devices, dtype)?;
        let patching = RwLock::default();
        Ok(Staged { layouts, blocks, ring, lanes, patching, recorder: Recorder::default() })
    }

    /// The device on which a block computes.
    pub(crate) fn runs_on(&self, block: usize, compute: DeviceId) -> DeviceId {
        match &self.blocks[block] {
            StagedBlock::Resident { device, .. } => *device,
            StagedBlock::Streamed { .. } => compute,
        }
    }

    /// The block's weights where it computes, and the slot they are in if it is streamed. Work that is queued on
    /// `compute` after this finds them there.
    pub(crate) fn acquire(
        &self,
        manifest: &Manifest,
        block: usize,
        (patching, compute): (&Patching, &Stream),
    ) -> Result<(Vec<Weight>, Option<usize>)> {
        match (&self.blocks[block], &self.ring) {
            (StagedBlock::Resident { weights, .. }, _) => {
                let first = manifest.blocks()[block].weights.start;
                let own =
                    |(place, weight): (usize, &Weight)| patching.own(first + place).unwrap_or(weight).clone();
                Ok((weights.iter().enumerate().map(own).collect(), None))
            }
            (StagedBlock::Streamed { position }, Some(ring)) => {
                let (slot, buffer) = ring.acquire(*position, compute)?;
                match self.layouts[block].weights(manifest.weights_of(block), &buffer) {
                    Ok(weights) => Ok((weights, Some(slot))),
                    Err(error) => {
                        ring.release(slot);
                        Err(error.into())
                    }
                }
            }
            (StagedBlock::Streamed { .. }, None) => Err(Error::NoSuchBlock {
                model: manifest.name().to_owned(),
                index: block,
                blocks: self.blocks.len(),
            }),
        }
    }

    pub(crate) fn lanes(&self) -> &BTreeMap<DeviceId, Lane> {
        &self.lanes
    }

    /// A weight of a block that stays where it computes, by its place in the block.
    pub(crate) fn resident(&self, block: usize, place: usize) -> Option<&Weight> {
        match &self.blocks[block] {
            StagedBlock::Resident { weights, .. } => weights.get(place),
            StagedBlock::Streamed { .. } => None,
        }
    }

    /// A streamed block's position in the ring's order.
    pub(crate) fn position(&self, block: usize) -> Option<usize> {
        match &self.blocks[block] {
            StagedBlock::Resident { .. } => None,
            StagedBlock::Streamed { position } => Some(*position),
        }
    }

    pub(crate) fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref()
    }

    /// The patches in force.
    pub(crate) fn patching(&self) -> Arc<Patching> {
        Arc::clone(&self.patching.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn put_in_force(&self, patching: Patching) {
        let next = Arc::new(patching);
        let before =
            std::mem::replace(&mut *self.patching.write().unwrap_or_else(PoisonError::into_inner), next);
        drop(before);
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

    pub(crate) fn stats(&self) -> StreamStats {
        self.ring.as_ref().map(Ring::stats).unwrap_or_default()
    }
}

/// The lanes on which the blocks of a plan compute.
pub(crate) fn lanes(
    plan: &Plan,
    devices: &Registry,
    dtype: Option<DType>,
) -> Result<BTreeMap<DeviceId, Lane>> {
    let mut lanes = BTreeMap::new();
    for block in &plan.blocks {
        if let Entry::Vacant(place) = lanes.entry(block.runs_on) {
            let device = devices.get(block.runs_on)?;
            // A device that has not the type computes in f32.
            place.insert(
                dtype.map_or_else(|| Lane::preferred(device), |dtype| Lane::choose(device, &[dtype]))?,
            );
        }
    }
    Ok(lanes)
}

/// A weight of the file on the lane's device, as it is kept.
pub(crate) fn kept_weight(lane: &Lane, spec: &WeightSpec) -> Result<Weight> {
    let buffer = lane.device().allocate(spec.kept_bytes())?;
    let stored = Operand::new(buffer, spec.kept_as, *spec.stored_shape(), 0)?;
    cast::write_weight(lane, spec, &stored)?;
    spec.assemble(stored, |_, companion| {
        let beside = lane.device().upload(companion.bytes.as_ref())?;
        Ok(Operand::new(beside, companion.encoding, companion.shape, 0)?)
    })
}

/// Weights that compute where they lie in the file.
fn mapped_weights(manifest: &Manifest, block: usize) -> Result<Vec<Weight>> {
    let weight = |spec: &WeightSpec| {
        let stored = Operand::new(host::over(&spec.bytes), spec.encoding, *spec.stored_shape(), 0)?;
        spec.assemble(stored, |_, companion| {
            Ok(Operand::new(host::over(&companion.bytes), companion.encoding, companion.shape, 0)?)
        })
    };
    manifest.weights_of(block).iter().map(weight).collect()
}

/// Memory of blocks that waits to be filled.
struct Fills(Sender<(usize, Buffer)>);

impl Extend<(usize, Buffer)> for Fills {
    fn extend<T: IntoIterator<Item = (usize, Buffer)>>(&mut self, fills: T) {
        // Whoever fills is gone only after a failure, which it tells at the end.
        fills.into_iter().for_each(|fill| drop(self.0.send(fill)));
    }
}

/// Does something that asks for memory to be filled, and fills it meanwhile: getting pinned memory takes as long as
/// casting weights into it.
fn filled_beside<T>(
    manifest: &Manifest,
    layouts: &[BlockLayout],
    host: &Device,
    make: impl FnOnce(&mut Fills) -> Result<T>,
) -> Result<T> {
    std::thread::scope(|scope| {
        let (sender, waiting) = channel::<(usize, Buffer)>();
        let filling = scope.spawn(move || {
            waiting.into_iter().try_for_each(|(index, buffer)| {
                cast::fill_block(host, manifest.weights_of(index), &layouts[index], &buffer)
            })
        });
        let mut fills = Fills(sender);
        let made = make(&mut fills);
        drop(fills);
        let filled = filling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let made = made?;
        filled?;
        Ok(made)
    })
}

/// Copies under way to homes.
struct Copying<'a> {
    manifest: &'a Manifest,
    devices: &'a Registry,
    source: HostSource,
    reserved: &'a mut Reserved,
    copies: BTreeMap<DeviceId, Stream>,
    cancel: &'a Cancel,
    /// How many bytes wait to be cast on each device, and where.
    waiting_bytes: Bytes,
    waiting: BTreeMap<DeviceId, Buffer>,
}

impl Copying<'_> {
    /// A buffer out of the reservation.
    fn allocate(&mut self, device: &Device, bytes: usize) -> device::Result<Buffer> {
        match self.reserved.get_mut(&device.id()) {
            // What was not foreseen is asked for anew: blocks that do not shrink as they were planned to.
            Some(reservation) if reservation.bytes() >= device.allocation_bytes(bytes) => {
                device.allocate_from(reservation, bytes)
            }
            _ => device.allocate(bytes),
        }
    }

    /// Pins the parts of files that blocks are streamed from as they are.
    fn pin(&self, plan: &Plan, compute: &Device) -> Result<Option<PinnedFiles>> {
        let from_file = |(index, block): &(usize, &BlockPlan)| {
            block.mode == BlockMode::Streamed
                && block.home.kind == DeviceKind::Cpu
                && block.coded_bytes.is_none()
                && !self.manifest.is_cast(*index)
        };
        let blocks = plan.blocks.iter().enumerate().filter(from_file);
        Ok(PinnedFiles::new(compute, blocks.map(|(index, _)| self.manifest.weights_of(index)))?)
    }

    /// What a block is streamed from on the host.
    fn host_block(
        &mut self,
        (index, layout): (usize, &BlockLayout),
        compute: &Device,
        pinned: Option<&PinnedFiles>,
    ) -> Result<HostBlock> {
        let host = self.devices.get(DeviceId::CPU)?;
        let (specs, reserved) = (self.manifest.weights_of(index), self.reserved.get_mut(&DeviceId::CPU));
        Ok(HostBlock::new((specs, layout), (compute, host), self.source, pinned, reserved)?)
    }

    /// A block that stays where it computes.
    fn resident(&mut self, index: usize, block: &BlockPlan, layout: &BlockLayout) -> Result<StagedBlock> {
        let weights = if block.home.kind == DeviceKind::Cpu {
            self.host_weights(index, layout)?
        } else {
            let buffer = self.block(index, layout, block.home)?;
            layout.weights(self.manifest.weights_of(index), &buffer)?
        };
        Ok(StagedBlock::Resident { device: block.runs_on, weights })
    }

    /// What a block is streamed from.
    fn source(
        &mut self,
        (index, block, layout): (usize, &BlockPlan, &BlockLayout),
        compute: &Device,
        pinned: Option<&PinnedFiles>,
    ) -> Result<Source> {
        if let Some(bytes) = block.coded_bytes
            && let Some(coded) = self.coded(index, layout, (compute, bytes as usize))?
        {
            return Ok(Source::Host(HostBlock::Coded(coded)));
        }
        Ok(if block.home.kind == DeviceKind::Cpu {
            Source::Host(self.host_block((index, layout), compute, pinned)?)
        } else {
            Source::Donor(self.block(index, layout, block.home)?)
        })
    }

    /// A block in coded form; none if that does not fit into so many bytes of pinned memory, which are given back then.
    fn coded(
        &mut self,
        index: usize,
        layout: &BlockLayout,
        (compute, bytes): (&Device, usize),
    ) -> Result<Option<CodedBlock>> {
        let host = self.devices.get(DeviceId::CPU)?;
        let buffer = match self.reserved.get_mut(&DeviceId::CPU) {
            Some(reserved) => compute.allocate_pinned_from(reserved, bytes)?,
            None => compute.allocate_pinned(host, bytes)?,
        };
        self.cancel.check()?;
        Ok(CodedBlock::new(host, self.manifest.weights_of(index), layout, buffer)?)
    }

    /// A block that stays coded on a device, which is coded on the host before.
    fn kept(&mut self, index: usize, layout: &BlockLayout, home: DeviceId) -> Result<CodedBlock> {
        let host = self.devices.get(DeviceId::CPU)?.clone();
        self.cancel.check()?;
        // Parts that do not shrink are as long as they were, so this is always enough.
        let waiting = host.allocate(layout.len())?;
        let coded = CodedBlock::new(&host, self.manifest.weights_of(index), layout, waiting)?;
        let coded = coded.ok_or_else(|| Error::Manifest {
            name: self.manifest.name().to_owned(),
            reason: format!("block {index} is longer when it is coded"),
        })?;
        let device = self.devices.get(home)?.clone();
        let stay = self.allocate(&device, coded.travelling_bytes())?;
        let stream = self.copy_stream(&device)?;
        Ok(coded.moved_to(&stream, stay)?)
    }

    /// The stream that copies to a device.
    fn copy_stream(&mut self, device: &Device) -> Result<Stream> {
        if let Some(stream) = self.copies.get(&device.id()) {
            return Ok(stream.clone());
        }
        let stream = device.open_stream(StreamKind::Copy)?.with_cancel(self.cancel);
        self.copies.insert(device.id(), stream.clone());
        Ok(stream)
    }

    /// The weights of a block that computes on the host: where they lie in the file, or cast.
    fn host_weights(&mut self, index: usize, layout: &BlockLayout) -> Result<Vec<Weight>> {
        if !self.manifest.is_cast(index) {
            return mapped_weights(self.manifest, index);
        }
        let host = self.devices.get(DeviceId::CPU)?.clone();
        let buffer = self.allocate(&host, layout.len())?;
        let specs = self.manifest.weights_of(index);
        cast::fill_block(&host, specs, layout, &buffer)?;
        Ok(layout.weights(specs, &buffer)?)
    }

    /// Queues the copy of a block from the file to its home.
    fn block(&mut self, index: usize, layout: &BlockLayout, home: DeviceId) -> Result<Buffer> {
        let device = self.devices.get(home)?.clone();
        let buffer = self.allocate(&device, layout.len())?;
        let stream = self.copy_stream(&device)?;
        let specs = self.manifest.weights_of(index);
        if self.manifest.is_cast(index) {
            let waiting = self.waiting(&device)?;
            cast::copy_block(&stream, specs, layout, &waiting, &buffer)?;
            return Ok(buffer);
        }
        for (offset, bytes) in layout.joined_pieces(specs) {
            let source = host::over(&bytes);
            stream.copy(&buffer.span(offset..offset + source.len())?, &source.whole())?;
        }
        Ok(buffer)
    }

    /// Memory of a device in which bytes wait to be cast. It is one and the same for all blocks, since a stream does one
    /// after the other.
    fn waiting(&mut self, device: &Device) -> Result<Buffer> {
        if let Some(waiting) = self.waiting.get(&device.id()) {
            return Ok(waiting.clone());
        }
        let bytes = self.waiting_bytes.get(&device.id()).copied().unwrap_or(0);
        let waiting = self.allocate(device, bytes as usize)?;
        self.waiting.insert(device.id(), waiting.clone());
        Ok(waiting)
    }

    /// Waits until every block is at home.
    fn finish(&mut self) -> Result<()> {
        let results: Vec<device::Result<()>> = self.copies.values().map(Stream::synchronize).collect();
        self.waiting.clear();
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
        // A block that did not shrink as it was planned is plain.
        let travelling = streamed.zip(&sources).map(|((_, layout), source)| match source {
            Source::Host(HostBlock::Coded(coded)) => coded.travelling_bytes(),
            Source::Host(_) | Source::Donor(_) | Source::Here(_) => layout.len(),
        });
        let largest = travelling.max().unwrap_or(0);
        let slots = (0..planned.slots)
            .map(|_| self.allocate(compute, largest))
            .collect::<device::Result<Vec<_>>>()?;
        let decoded = sources.iter().filter_map(Source::coded).map(CodedBlock::len).max();
        let room = decoded.map(|bytes| self.allocate(compute, bytes)).transpose()?;
        Ok(Some(Ring::new(compute, slots, room, sources)?))
    }
}
