//! A model's copies on devices, as its plan says.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use checkpoint::EntryBytes;
use device::{Buffer, Cancel, Device, Operand, Registry, Span, Stream, StreamKind};
use meta::{DType, DeviceId, DeviceKind};
use placement::{BlockMode, BlockPlan, Plan};
use tensor::{Lane, Weight};

use crate::cast;
use crate::checker::Checker;
use crate::coder::{Coder, CodingTime, Keeping, Late, Task};
use crate::coding::{CodedBlock, FoundCoded};
use crate::host::{self, HostBlock, PinnedFiles};
use crate::layout::BlockLayout;
use crate::manifest::{Manifest, WeightSpec};
use crate::moving_in::{Moves, MovingIn, Newcomer};
use crate::needs::{self, Bytes, HostSource};
use crate::patching::{Patching, Reserved};
use crate::profile::{ArrivalMarks, Recorder};
use crate::reading::{self, Reader};
use crate::ring::{Ring, Source};
use crate::sidecar::{Found, FoundBlock};
use crate::staging::StagingOptions;
use crate::streaming::{Sizes, Streaming};
use crate::{CodingReport, Error, Result, StreamStats};

/// Why blocks stay plain that were to be coded.
const HOST_IS_SHORT: &str = "the host has no memory for them beside what streams until they are coded";

/// Everything of a model that is on devices now.
pub(crate) struct Staged {
    layouts: Vec<BlockLayout>,
    blocks: Vec<StagedBlock>,
    streaming: Option<Streaming>,
    lanes: BTreeMap<DeviceId, Lane>,
    /// Replaced as a whole; the lock is held only for that.
    patching: RwLock<Arc<Patching>>,
    recorder: Recorder,
    /// Of files that coded blocks are read from, some bytes each.
    files: Vec<EntryBytes>,
    moving_in: MovingIn,
}

/// One block's copy.
enum StagedBlock {
    /// Where it computes.
    Resident {
        device: DeviceId,
        weights: Vec<Weight>,
        /// Of one that may be on its way.
        newcomer: Option<Newcomer>,
    },
    /// At this position of the order in which blocks pass through the ring, or are decoded.
    Streamed { position: usize },
}

impl Staged {
    /// Gives every block its home, out of bytes that were reserved before. Blocks that stay on an accelerator as they are in
    /// the file are copied there from then on; all others are there when this is done. Blocks that are to be coded beside
    /// steps are so from the moment on when this is done.
    pub(crate) fn new(
        manifest: &Manifest,
        plan: &Plan,
        (devices, source): (&Registry, HostSource),
        reserved: &mut Reserved,
        options: &StagingOptions,
        cancel: &Cancel,
    ) -> Result<Staged> {
        let since = Instant::now();
        manifest.verify()?;
        let layouts: Vec<BlockLayout> =
            (0..manifest.blocks().len()).map(|i| BlockLayout::new(manifest, i)).collect();
        let compute = devices.get(plan.compute)?;
        let found = found_blocks((manifest, plan), &layouts, options);
        let late = match options.coding {
            _ if found.is_some() => None,
            CodingTime::First if options.cars.is_none() => None,
            CodingTime::First | CodingTime::Beside => {
                Late::promised((manifest, plan), (devices, source), reserved)?
            }
        };
        let is_short = options.coding == CodingTime::Beside && found.is_none() && late.is_none();
        let left = if is_short { left_plain((manifest, plan), source) } else { None };
        let why = left.as_ref().map(|_| (tasks(manifest, plan, &layouts).len(), HOST_IS_SHORT.to_owned()));
        let plan = left.as_ref().unwrap_or(plan);
        let mut copying = Copying {
            manifest,
            devices,
            source,
            reserved,
            copies: BTreeMap::new(),
            cancel,
            waiting_bytes: needs::waiting(manifest, plan),
            waiting: BTreeMap::new(),
            coded_first: late.is_none(),
            found: FoundBlocks::new(compute, found)?,
            from_disk: FromDisk::default(),
            moves: Moves::default(),
        };
        copying.from_disk = copying.reader(plan, &layouts, compute)?;
        let pinned = copying.pin(plan, compute)?;
        let host = devices.get(DeviceId::CPU)?;
        let (blocks, sources) = filled_beside(manifest, &layouts, host, |fills| {
            let (mut blocks, mut sources) = (Vec::new(), Vec::new());
            for (index, (block, layout)) in plan.blocks.iter().zip(&layouts).enumerate() {
                blocks.push(if !is_ringed(block) {
                    copying.resident(index, block, layout)?
                } else {
                    let source = copying.source((index, block, layout), compute, pinned.as_ref())?;
                    if let Source::Host(block) = &source {
                        fills.extend(block.to_fill().map(|buffer| (index, buffer.clone())));
                    }
                    sources.push(source);
                    StagedBlock::Streamed { position: sources.len() - 1 }
                });
            }
            Ok((blocks, sources))
        })?;
        copying.finish()?;
        let files = copying.found.files();
        let streaming = copying.streaming(plan, &layouts, (late, options), sources)?;
        let streaming = streaming.map(|streaming| streaming.leaving_plain(why));
        if let Some(streaming) = streaming.as_ref().filter(|_| options.coding == CodingTime::First) {
            streaming.code_now(cancel)?;
        }
        let lanes = lanes(plan, devices, options.dtype)?;
        let patching = RwLock::default();
        let moving_in = std::mem::take(&mut copying.moves).begin(manifest, since)?;
        let recorder = Recorder::default();
        Ok(Staged { layouts, blocks, streaming, lanes, patching, recorder, files, moving_in })
    }

    /// The device on which a block computes.
    pub(crate) fn runs_on(&self, block: usize, compute: DeviceId) -> DeviceId {
        match &self.blocks[block] {
            StagedBlock::Resident { device, .. } => *device,
            StagedBlock::Streamed { .. } => compute,
        }
    }

    /// Waits until a block that stays where it computes is there; whether that took a look at its copy.
    pub(crate) fn wait_until_here(&self, block: usize, cancel: &Cancel) -> Result<bool> {
        match &self.blocks[block] {
            StagedBlock::Resident { newcomer: Some(newcomer), .. } => Ok(newcomer.wait(cancel)?),
            StagedBlock::Resident { .. } | StagedBlock::Streamed { .. } => Ok(false),
        }
    }

    /// Whether some of its blocks are still on their way to where they stay.
    pub(crate) fn is_moving_in(&self) -> bool {
        self.moving_in.goes_on()
    }

    /// How long making the copies took, told once, when all are made.
    pub(crate) fn take_load_time(&self) -> Option<Duration> {
        self.moving_in.take_time()
    }

    /// The block's weights where it computes, and the slot they are in if it is streamed. Work that is queued on
    /// `compute` after this finds them there.
    pub(crate) fn acquire(
        &self,
        manifest: &Manifest,
        block: usize,
        (patching, compute): (&Patching, &Stream),
    ) -> Result<(Vec<Weight>, Option<usize>)> {
        match (&self.blocks[block], &self.streaming) {
            (StagedBlock::Resident { weights, .. }, _) => {
                let first = manifest.blocks()[block].weights.start;
                let own =
                    |(place, weight): (usize, &Weight)| patching.own(first + place).unwrap_or(weight).clone();
                Ok((weights.iter().enumerate().map(own).collect(), None))
            }
            (StagedBlock::Streamed { position }, Some(streaming)) => {
                let (slot, buffer) = streaming.acquire(*position, compute)?;
                match self.layouts[block].weights(manifest.weights_of(block), &buffer) {
                    Ok(weights) => Ok((weights, Some(slot))),
                    Err(error) => {
                        streaming.release(slot);
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

    pub(crate) fn streaming(&self) -> Option<&Streaming> {
        self.streaming.as_ref()
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

    /// Of files that coded blocks are read from, some bytes each.
    pub(crate) fn files(&self) -> &[EntryBytes] {
        &self.files
    }

    /// Whether all copies were made, as far as is known, and nobody found one of these files damaged so far.
    pub(crate) fn is_intact(&self) -> bool {
        !self.moving_in.has_failed() && self.files.iter().all(|bytes| bytes.check_intact().is_ok())
    }

    /// The marks of its steps.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// What brought the block that was just leased in a slot.
    pub(crate) fn arrival_marks(&self, slot: usize) -> ArrivalMarks {
        self.streaming.as_ref().map(|streaming| streaming.arrival_marks(slot)).unwrap_or_default()
    }

    /// A session of a job begins.
    pub(crate) fn begin_session(&self, job: &Cancel) {
        if let Some(streaming) = &self.streaming {
            streaming.begin_session(job);
        }
    }

    /// The slot of a leased block is free again.
    pub(crate) fn release(&self, slot: usize) {
        if let Some(streaming) = &self.streaming {
            streaming.release(slot);
        }
    }

    /// How blocks are kept that are to be coded; none if there are none.
    pub(crate) fn coding(&self) -> Option<CodingReport> {
        self.streaming.as_ref().and_then(Streaming::coding)
    }

    pub(crate) fn stats(&self) -> StreamStats {
        self.streaming.as_ref().map(Streaming::stats).unwrap_or_default()
    }
}

/// The plan for a host that is short of memory: what streams from a file goes on doing so. Nobody waits for blocks that are to be
/// coded beside steps, and they take memory that files give back. None where blocks are packed in memory, of which they take
/// less coded.
fn left_plain((manifest, plan): (&Manifest, &Plan), source: HostSource) -> Option<Plan> {
    if needs::packs_coded_blocks(manifest, plan, source) { None } else { plan.before_coding() }
}

/// Whether a block passes through the ring, or is decoded beside it.
pub(crate) fn is_ringed(block: &BlockPlan) -> bool {
    block.mode == BlockMode::Streamed || block.is_kept_coded()
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
    /// Whether blocks are coded now, if they are to be coded.
    coded_first: bool,
    /// Those that were coded at an earlier start.
    found: FoundBlocks,
    from_disk: FromDisk,
    /// What is copied once everything has its place.
    moves: Moves,
}

/// Who reads blocks from the disk, and which block is which of the reader's.
#[derive(Default)]
struct FromDisk {
    reader: Option<Arc<Reader>>,
    numbers: BTreeMap<usize, usize>,
}

impl FromDisk {
    fn block(&self, index: usize) -> Option<Source> {
        let (reader, number) = (self.reader.as_ref()?, self.numbers.get(&index)?);
        Some(Source::Disk(reader.block(*number)))
    }
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
            let plain = block.coded_bytes.is_none() || !self.coded_first;
            let on_host = block.home.kind == DeviceKind::Cpu || block.is_kept_coded();
            is_ringed(block) && on_host && plain && !block.from_disk && !self.manifest.is_cast(*index)
        };
        let blocks = plan.blocks.iter().enumerate().filter(from_file);
        Ok(PinnedFiles::new(compute, blocks.map(|(index, _)| self.manifest.weights_of(index)))?)
    }

    /// Who reads the blocks that host memory does not hold.
    fn reader(&mut self, plan: &Plan, layouts: &[BlockLayout], compute: &Device) -> Result<FromDisk> {
        let Some(planned) = plan.reading else { return Ok(FromDisk::default()) };
        let indices = || plan.blocks.iter().enumerate().filter(|(_, block)| block.from_disk);
        let weights = |index: usize| self.manifest.weights_of(index);
        if let Some((index, _)) = indices().find(|(index, _)| !reading::is_readable(weights(*index))) {
            let reason = format!("block {index} cannot be cast as it is read from the disk");
            return Err(Error::Manifest { name: self.manifest.name().to_owned(), reason });
        }
        let blocks = indices().map(|(index, _)| reading::pieces(weights(index), &layouts[index]));
        let host = self.devices.get(DeviceId::CPU)?;
        let reserved = self.reserved.get_mut(&DeviceId::CPU);
        let reader = Reader::new((compute, host), blocks.collect(), planned, reserved)?;
        let numbers = indices().enumerate().map(|(number, (index, _))| (index, number)).collect();
        Ok(FromDisk { reader: Some(reader), numbers })
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
        let (device, specs) = (block.runs_on, self.manifest.weights_of(index));
        if block.home.kind == DeviceKind::Cpu {
            let weights = self.host_weights(index, layout)?;
            return Ok(StagedBlock::Resident { device, weights, newcomer: None });
        }
        if self.manifest.is_cast(index) {
            let weights = layout.weights(specs, &self.block(index, layout, block.home)?)?;
            return Ok(StagedBlock::Resident { device, weights, newcomer: None });
        }
        let home = self.devices.get(block.home)?.clone();
        let buffer = self.allocate(&home, layout.len())?;
        let piece = |(offset, bytes): (usize, EntryBytes)| {
            let source = host::over(&bytes);
            Ok((buffer.span(offset..offset + source.len())?, source))
        };
        let pieces = layout.joined_pieces(specs).into_iter().map(piece).collect::<Result<Vec<_>>>()?;
        let newcomer = Some(self.moves.add(&home, pieces)?);
        Ok(StagedBlock::Resident { device, weights: layout.weights(specs, &buffer)?, newcomer })
    }

    /// What a block is streamed from.
    fn source(
        &mut self,
        (index, block, layout): (usize, &BlockPlan, &BlockLayout),
        compute: &Device,
        pinned: Option<&PinnedFiles>,
    ) -> Result<Source> {
        if let Some(read) = self.from_disk.block(index) {
            return Ok(read);
        }
        if let Some(coded) = self.found_block((index, block, layout), compute)? {
            return Ok(coded);
        }
        if block.is_kept_coded() && self.coded_first {
            return Ok(Source::Here(self.kept(index, layout, block.home)?));
        }
        if let Some(bytes) = block.coded_bytes.filter(|_| self.coded_first)
            && let Some(coded) = self.coded(index, layout, (compute, bytes as usize))?
        {
            return Ok(Source::Host(HostBlock::Coded(coded)));
        }
        // One that is to stay coded comes from the file until it is.
        Ok(if block.home.kind == DeviceKind::Cpu || block.is_kept_coded() {
            Source::Host(self.host_block((index, layout), compute, pinned)?)
        } else {
            Source::Donor(self.block(index, layout, block.home)?)
        })
    }

    /// A block that was coded at an earlier start.
    fn found_block(
        &mut self,
        (index, block, layout): (usize, &BlockPlan, &BlockLayout),
        compute: &Device,
    ) -> Result<Option<Source>> {
        let Some(found) = self.found.take(index) else { return Ok(None) };
        let FoundBlock { bytes, parts, len, check, .. } = found;
        let host = self.devices.get(DeviceId::CPU)?;
        let pieces = self.found.pinned(&bytes).unwrap_or_else(|| vec![(0, host::over(&bytes).whole())]);
        let found = FoundCoded {
            coded: CodedBlock::of_pieces(pieces, parts, len),
            check,
            host: host.clone(),
            specs: self.manifest.weights_of(index).to_vec(),
            layout: layout.clone(),
            own: OnceLock::new(),
        };
        if block.is_kept_coded() {
            let device = self.devices.get(block.home)?.clone();
            let stay = self.allocate(&device, found.coded.travelling_bytes())?;
            let stream = self.copy_stream(&device)?;
            self.cancel.check()?;
            return Ok(Some(Source::Here(found.checked()?.clone().moved_to(&stream, &stay)?)));
        }
        if self.source == HostSource::File {
            return Ok(Some(Source::Host(HostBlock::Found(Box::new(found)))));
        }
        let wanted = found.coded.travelling_bytes();
        let pinned = match self.reserved.get_mut(&DeviceId::CPU) {
            Some(reserved) if reserved.bytes() >= wanted as u64 => {
                compute.allocate_pinned_from(reserved, wanted)?
            }
            _ => compute.allocate_pinned(host, wanted)?,
        };
        self.cancel.check()?;
        let copied = found.checked()?.clone().moved_to(&host.compute_stream()?, &pinned)?;
        Ok(Some(Source::Host(HostBlock::Coded(copied))))
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
        Ok(CodedBlock::new((host, &host.compute_stream()?), self.manifest.weights_of(index), layout, buffer)?)
    }

    /// A block that stays coded on a device, which is coded on the host before.
    fn kept(&mut self, index: usize, layout: &BlockLayout, home: DeviceId) -> Result<CodedBlock> {
        let host = self.devices.get(DeviceId::CPU)?.clone();
        self.cancel.check()?;
        // Parts that do not shrink are as long as they were, so this is always enough.
        let waiting = host.allocate(layout.len())?;
        let on_host = host.compute_stream()?;
        let coded = CodedBlock::new((&host, &on_host), self.manifest.weights_of(index), layout, waiting)?;
        let coded = coded.ok_or_else(|| Error::Manifest {
            name: self.manifest.name().to_owned(),
            reason: format!("block {index} is longer when it is coded"),
        })?;
        let device = self.devices.get(home)?.clone();
        let stay = self.allocate(&device, coded.travelling_bytes())?;
        let stream = self.copy_stream(&device)?;
        Ok(coded.moved_to(&stream, &stay)?)
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

    /// The ring for what is streamed, and what codes blocks beside steps.
    fn streaming(
        &mut self,
        plan: &Plan,
        layouts: &[BlockLayout],
        (late, options): (Option<Late>, &StagingOptions),
        sources: Vec<Source>,
    ) -> Result<Option<Streaming>> {
        let Some(planned) = plan.ring.filter(|_| !sources.is_empty()) else { return Ok(None) };
        let ringed = plan.blocks.iter().enumerate().filter(|(_, block)| is_ringed(block));
        let lens: Vec<usize> = ringed.map(|(index, _)| layouts[index].len()).collect();
        let compute = self.devices.get(plan.compute)?;
        let sizes = match &late {
            None => Sizes::of(sources.iter(), &lens, planned.slots),
            Some(_) => Sizes::plain(compute, &lens, planned),
        };
        let memory = sizes.allocate(|bytes| self.allocate(compute, bytes))?;
        let ring = Ring::new(compute, memory.slots, memory.room, sources)?;
        let coder = match late {
            None => None,
            Some(late) => {
                let host = self.devices.get(DeviceId::CPU)?.clone();
                let left = planned.bytes().saturating_sub(sizes.taken(compute));
                let spare = self.reserved.get_mut(&compute.id()).map(|reserved| reserved.split(left));
                let manifest = self.manifest.clone();
                let keeping = options.cars.clone().map(|cars| Keeping { cars, manifest });
                let homes = late.homes(host, compute.clone(), keeping);
                Some((Coder::start(tasks(self.manifest, plan, layouts), homes, self.cancel), spare))
            }
        };
        let streaming = Streaming::new(compute, planned, lens, ring, coder);
        Ok(Some(streaming.read_from_files(!self.found.is_empty())))
    }
}

/// The coded blocks of a plan, if all of them are in a file of an earlier start.
fn found_blocks(
    (manifest, plan): (&Manifest, &Plan),
    layouts: &[BlockLayout],
    options: &StagingOptions,
) -> Option<Found> {
    let cars = options.cars.as_ref()?;
    let coded = plan.blocks.iter().enumerate().filter(|(_, block)| block.coded_bytes.is_some());
    let lens: Vec<(usize, usize)> = coded.map(|(index, _)| (index, layouts[index].len())).collect();
    if lens.is_empty() { None } else { cars.find(manifest, &lens) }
}

/// Blocks that were coded at an earlier start, in a file that is pinned where it lies if that is possible.
#[derive(Default)]
struct FoundBlocks {
    blocks: BTreeMap<usize, FoundBlock>,
    pinned: Option<PinnedFiles>,
    file: Option<EntryBytes>,
    /// It works for as long as somebody may ask it.
    _checker: Option<Arc<Checker>>,
}

impl FoundBlocks {
    fn new(compute: &Device, found: Option<Found>) -> Result<FoundBlocks> {
        let Some(Found { blocks, checker }) = found else { return Ok(FoundBlocks::default()) };
        let pinned = PinnedFiles::over(compute, blocks.iter().map(|block| vec![block.bytes.clone()]))?;
        let file = blocks.first().map(|block| block.bytes.clone());
        let blocks = blocks.into_iter().map(|block| (block.index, block)).collect();
        Ok(FoundBlocks { blocks, pinned, file, _checker: Some(checker) })
    }

    fn take(&mut self, index: usize) -> Option<FoundBlock> {
        self.blocks.remove(&index)
    }

    fn is_empty(&self) -> bool {
        self.file.is_none()
    }

    /// Some bytes of the file.
    fn files(&self) -> Vec<EntryBytes> {
        self.file.iter().cloned().collect()
    }

    fn pinned(&self, bytes: &EntryBytes) -> Option<Vec<(usize, Span)>> {
        self.pinned.as_ref()?.pieces(0, bytes.clone())
    }
}

/// The blocks that are to be coded.
fn tasks(manifest: &Manifest, plan: &Plan, layouts: &[BlockLayout]) -> Vec<Task> {
    let ringed = plan.blocks.iter().enumerate().filter(|(_, block)| is_ringed(block)).enumerate();
    let task = |(position, (index, block)): (usize, (usize, &BlockPlan))| {
        Some(Task {
            name: manifest.blocks()[index].name.clone(),
            position,
            specs: manifest.weights_of(index).to_vec(),
            layout: layouts[index].clone(),
            bytes: block.coded_bytes? as usize,
            stays: block.is_kept_coded(),
        })
    };
    ringed.filter_map(task).collect()
}
