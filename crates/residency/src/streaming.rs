//! The ring of a staging, and the change from a ring of plain blocks to one of coded ones: between two steps, when all
//! blocks are coded, while nobody has leased one. What blocks hold is the same before and after.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use device::{Buffer, Cancel, Device, Reservation, Stream};

use crate::coder::{Coder, CodingReport, CodingState};
use crate::coding::CodedBlock;
use crate::profile::ArrivalMarks;
use crate::ring::{Ring, Source};
use crate::{Result, StreamStats};

/// Blocks that are not where they compute, or not plain: those that travel, and those that stay coded.
pub(crate) struct Streaming {
    device: Device,
    /// The slots of the plan, and the room to decode in.
    planned: placement::Ring,
    /// Bytes of each block when it is plain.
    lens: Vec<usize>,
    now: RwLock<Now>,
    coder: Option<Coder>,
    /// Whether coded blocks were read and not coded.
    is_read: bool,
    /// Blocks that were to be coded and stay plain, and why.
    left_plain: Option<(usize, String)>,
    /// What of the ring's bytes the plain one leaves to the coded one.
    spare: Mutex<Option<Reservation>>,
    /// The position that was asked for last: a lower one after it begins a step.
    latest: AtomicUsize,
}

enum Now {
    Ring(Box<Ring>),
    /// A ring is to be made over these.
    Between {
        sources: Vec<Source>,
        stats: StreamStats,
    },
}

/// The memory of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
    /// 0 if nothing is coded.
    pub(crate) room_bytes: usize,
}

impl Sizes {
    /// Of a ring over these sources: as many slots as planned.
    pub(crate) fn of<'a>(sources: impl Iterator<Item = &'a Source>, lens: &[usize], slots: usize) -> Sizes {
        let (mut slot_bytes, mut room_bytes) = (0, 0);
        for (source, len) in sources.zip(lens) {
            room_bytes = room_bytes.max(source.coded().map_or(0, CodedBlock::len));
            slot_bytes = slot_bytes.max(match source {
                Source::Here(_) => 0,
                source => source.coded().map_or(*len, CodedBlock::travelling_bytes),
            });
        }
        Sizes { slots: if slot_bytes > 0 { slots } else { 0 }, slot_bytes, room_bytes }
    }

    /// Of a ring of plain blocks in the memory that was planned for one of coded blocks.
    pub(crate) fn plain(device: &Device, lens: &[usize], planned: placement::Ring) -> Sizes {
        let slot_bytes = lens.iter().copied().max().unwrap_or(0);
        let fit = planned.bytes() / device.allocation_bytes(slot_bytes).max(1);
        let slots = (fit as usize).clamp(1, lens.len().max(1));
        Sizes { slots, slot_bytes, room_bytes: 0 }
    }

    /// What it takes of the device.
    pub(crate) fn taken(&self, device: &Device) -> u64 {
        let room = if self.room_bytes > 0 { device.allocation_bytes(self.room_bytes) } else { 0 };
        self.slots as u64 * device.allocation_bytes(self.slot_bytes) + room
    }

    /// Gets it.
    pub(crate) fn allocate(
        &self,
        mut allocate: impl FnMut(usize) -> device::Result<Buffer>,
    ) -> device::Result<RingMemory> {
        let slots = (0..self.slots).map(|_| allocate(self.slot_bytes)).collect::<device::Result<Vec<_>>>()?;
        let room = (self.room_bytes > 0).then(|| allocate(self.room_bytes)).transpose()?;
        Ok(RingMemory { slots, room })
    }
}

/// The slots of a ring, and the room in which coded blocks are decoded.
pub(crate) struct RingMemory {
    pub(crate) slots: Vec<Buffer>,
    pub(crate) room: Option<Buffer>,
}

impl Streaming {
    pub(crate) fn new(
        device: &Device,
        planned: placement::Ring,
        lens: Vec<usize>,
        ring: Ring,
        coder: Option<(Coder, Option<Reservation>)>,
    ) -> Streaming {
        let (coder, spare) = coder.unzip();
        Streaming {
            device: device.clone(),
            planned,
            lens,
            now: RwLock::new(Now::Ring(Box::new(ring))),
            coder,
            is_read: false,
            left_plain: None,
            spare: Mutex::new(spare.flatten()),
            latest: AtomicUsize::new(usize::MAX),
        }
    }

    /// The blocks that are coded were so at an earlier start.
    #[must_use]
    pub(crate) fn read_from_files(self, is_read: bool) -> Streaming {
        Streaming { is_read, ..self }
    }

    /// Says that so many blocks were to be coded and are not, and why.
    #[must_use]
    pub(crate) fn leaving_plain(self, left: Option<(usize, String)>) -> Streaming {
        Streaming { left_plain: left, ..self }
    }

    /// Waits until all blocks are coded, and takes them.
    pub(crate) fn code_now(&self, cancel: &Cancel) -> Result<()> {
        let Some(coder) = &self.coder else { return Ok(()) };
        coder.wait(cancel)?;
        self.switch()
    }

    /// Leases a block. See [`Ring::acquire`]. When it is the first of a step, the coded blocks take the place of the plain
    /// ones before, if they are all there.
    pub(crate) fn acquire(&self, position: usize, compute: &Stream) -> Result<(usize, Buffer)> {
        if position <= self.latest.swap(position, Ordering::Relaxed) {
            self.switch()?;
        }
        match &*self.read() {
            Now::Ring(ring) => Ok(ring.acquire(position, compute)?),
            Now::Between { .. } => Err(self.between().into()),
        }
    }

    /// Lets coded blocks take the place of plain ones, if it is time.
    fn switch(&self) -> Result<()> {
        let Some(coder) = &self.coder else { return Ok(()) };
        // Whoever else holds the lock leases a block, so that it is not between steps.
        let Ok(mut now) = self.now.try_write() else { return Ok(()) };
        if let Now::Ring(ring) = &*now {
            if !ring.is_idle() {
                return Ok(());
            }
            let Some(coded) = coder.take() else { return Ok(()) };
            ring.drain()?;
            self.replace(&mut now, coder, coded);
        }
        let Now::Between { sources, stats } = &mut *now else { return Ok(()) };
        if sources.len() != self.lens.len() {
            return Err(self.between().into());
        }
        let sizes = self.sizes(sources);
        let mut reserved =
            self.device.ledger().reserve(sizes.taken(&self.device)).map_err(device::Error::from)?;
        // Only when the memory is there the sources are taken, so that a device that is short for a moment loses nothing.
        let memory = sizes.allocate(|bytes| self.device.allocate_from(&mut reserved, bytes))?;
        let ring = Ring::new(&self.device, memory.slots, memory.room, std::mem::take(sources))?;
        *now = Now::Ring(Box::new(ring.counting_from(*stats)));
        Ok(())
    }

    /// The most slots that the planned memory has room for; those of plain blocks if none is coded.
    fn sizes(&self, sources: &[Source]) -> Sizes {
        if sources.iter().all(|source| source.coded().is_none()) {
            return Sizes::plain(&self.device, &self.lens, self.planned);
        }
        let of = |slots: usize| Sizes::of(sources.iter(), &self.lens, slots);
        (1..=self.planned.slots).rev().map(of).find(|sizes| self.fits(sizes)).unwrap_or_else(|| of(1))
    }

    fn fits(&self, sizes: &Sizes) -> bool {
        sizes.taken(&self.device) <= self.planned.bytes()
    }

    /// Lets the plain ring go and leaves the sources of the coded one, unless that would take more memory than is planned.
    fn replace(&self, now: &mut Now, coder: &Coder, coded: Vec<(usize, Source)>) {
        let before =
            std::mem::replace(now, Now::Between { sources: Vec::new(), stats: StreamStats::default() });
        let Now::Ring(ring) = before else { return };
        let (mut sources, stats) = ring.into_sources();
        let plain = swapped(&mut sources, coded);
        let left = if self.fits(&self.sizes(&sources)) {
            plain
        } else {
            coder.give_up("some blocks do not shrink as their values told".into());
            swapped(&mut sources, plain)
        };
        coder.let_go(left.into_iter().map(|(_, source)| source).collect());
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        *now = Now::Between { sources, stats };
    }

    /// How the blocks are kept; none if the plan wants none coded.
    pub(crate) fn coding(&self) -> Option<CodingReport> {
        if let Some(coder) = &self.coder {
            return Some(coder.report());
        }
        if let Some((blocks, reason)) = &self.left_plain {
            let (state, reason) = (CodingState::Plain, Some(reason.clone()));
            return Some(CodingReport {
                state,
                done: 0,
                blocks: *blocks,
                seconds: 0.0,
                is_read: false,
                reason,
            });
        }
        let blocks = match &*self.read() {
            Now::Ring(ring) => ring.coded_blocks(),
            Now::Between { .. } => 0,
        };
        let coded = CodingReport {
            state: CodingState::Coded,
            done: blocks,
            blocks,
            seconds: 0.0,
            is_read: self.is_read,
            reason: None,
        };
        (blocks > 0).then_some(coded)
    }

    /// See [`Ring::merge_once`].
    pub(crate) fn merge_once(&self, slot: usize, merge: impl FnOnce() -> Result<()>) -> Result<()> {
        match &*self.read() {
            Now::Ring(ring) => ring.merge_once(slot, merge),
            Now::Between { .. } => Err(self.between().into()),
        }
    }

    /// See [`Ring::refill`].
    pub(crate) fn refill(&self, positions: &BTreeSet<usize>) {
        if let Now::Ring(ring) = &*self.read() {
            ring.refill(positions);
        }
    }

    /// See [`Ring::arrival_marks`].
    pub(crate) fn arrival_marks(&self, slot: usize) -> ArrivalMarks {
        match &*self.read() {
            Now::Ring(ring) => ring.arrival_marks(slot),
            Now::Between { .. } => ArrivalMarks::default(),
        }
    }

    /// A session of a job begins.
    pub(crate) fn begin_session(&self, job: &Cancel) {
        if let Some(coder) = &self.coder {
            coder.begin_session(job);
        }
        if let Now::Ring(ring) = &*self.read() {
            ring.begin_session();
        }
    }

    /// The slot of a leased block is free again.
    pub(crate) fn release(&self, slot: usize) {
        if let Now::Ring(ring) = &*self.read() {
            ring.release(slot);
        }
    }

    pub(crate) fn stats(&self) -> StreamStats {
        match &*self.read() {
            Now::Ring(ring) => ring.stats(),
            Now::Between { stats, .. } => *stats,
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a lease while there is no ring, because the device was short of memory for it.
    fn between(&self) -> device::Error {
        device::Error::Device {
            device: self.device.id(),
            action: "leasing a coded block".into(),
            reason: "there is no memory for the slots; the next step asks for it again".into(),
        }
    }
}

/// Puts sources in the places of others, which are answered.
fn swapped(sources: &mut [Source], others: Vec<(usize, Source)>) -> Vec<(usize, Source)> {
    let swap = |(position, other)| (position, std::mem::replace(&mut sources[position], other));
    others.into_iter().map(swap).collect()
}
