//! The ring: a few slots on the compute device through which streamed blocks pass. A copy stream runs
//! ahead in order of use and wraps from the last block of a step to the first of the next. What is to be merged into a
//! block is merged in its slot when it is leased, once for each arrival.
//!
//! A block that travels losslessly coded is decoded when it is leased, into a room beside the slots, by the compute stream.
//! Its slot is filled again as soon as that is done, while the block computes. One room is enough for blocks that are
//! leased one after the other; there is another only when a block is leased while one is still in use. A block that stays on
//! the device coded is decoded in the same way, out of where it lies.
//!
//! The copy of a block that is read from the disk is queued part by part as the disk gives it, by whoever reads.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use device::{Buffer, Device, Error, Event, Result, Stream, StreamKind};

use crate::coding::CodedBlock;
use crate::host::HostBlock;
use crate::profile::{ArrivalMarks, CopyMarks, DecodingMarks};
use crate::reading::{Arriving, DiskBlock, PendingRead};

/// Where a streamed block comes from.
pub(crate) enum Source {
    /// Host memory.
    Host(HostBlock),
    /// A copy that lives on another accelerator.
    Donor(Buffer),
    /// The device that computes, where it stays coded: it does not travel.
    Here(CodedBlock),
    /// The disk, at every step.
    Disk(DiskBlock),
}

impl Source {
    /// The block, if it is coded.
    pub(crate) fn coded(&self) -> Option<&CodedBlock> {
        match self {
            Source::Host(HostBlock::Coded(block)) | Source::Here(block) => Some(block),
            Source::Host(HostBlock::Found(block)) => Some(&block.coded),
            Source::Host(_) | Source::Donor(_) | Source::Disk(_) => None,
        }
    }
}

/// What streaming did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Blocks copied.
    pub copies: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Bytes that were decoded, counted decoded.
    pub decoded_bytes: u64,
    /// Leases that had to wait for their copy.
    pub stalls: u64,
    /// How long the host waited in them; a device that waits by itself does not show here.
    pub stalled: Duration,
}

impl std::ops::AddAssign for StreamStats {
    fn add_assign(&mut self, other: StreamStats) {
        self.copies += other.copies;
        self.bytes += other.bytes;
        self.decoded_bytes += other.decoded_bytes;
        self.stalls += other.stalls;
        self.stalled += other.stalled;
    }
}

/// Slots, their copy stream, and what they hold.
pub(crate) struct Ring {
    copies: Stream,
    compute: Stream,
    slots: Vec<Buffer>,
    state: Mutex<State>,
    /// Of each slot, whether its patches have been merged since its block arrived.
    merged: Vec<Mutex<Merged>>,
    /// Where a further room comes from.
    device: Device,
    /// Apart from the state, so that asking for them never waits for a copy to be queued.
    stats: Mutex<StreamStats>,
}

struct State {
    /// Of the blocks that pass through the slots or are decoded in a room, in order of use.
    sources: Vec<Source>,
    /// Of those that travel, the positions among the sources.
    travelling: Vec<usize>,
    /// Of each source its place among those that travel.
    places: Vec<Option<usize>>,
    slots: Vec<Slot>,
    /// Where coded blocks are decoded.
    rooms: Vec<Room>,
    /// An error of a release, which cannot return it; the next call does.
    failure: Option<Error>,
    /// Counts the sessions that began.
    session: u64,
}

/// What became of a slot's patches.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Merged {
    /// The block is as its source has it.
    #[default]
    No,
    Yes,
    /// Nobody knows what is in the slot.
    Failed,
}

/// Memory that a coded block is decoded into. All that uses it is queued on the compute stream, one after the other.
struct Room {
    buffer: Buffer,
    /// Position in the order of use of the block it holds.
    holds: Option<usize>,
    /// The marks of the copy that brought it.
    copy: Option<CopyMarks>,
    /// Those of its decoding, until the lease for which that was done takes them.
    decoding: Option<DecodingMarks>,
    leases: usize,
    merged: Arc<Mutex<Merged>>,
}

impl Room {
    fn new(buffer: Buffer) -> Room {
        Room { buffer, holds: None, copy: None, decoding: None, leases: 0, merged: Arc::default() }
    }
}

#[derive(Default)]
struct Slot {
    /// The block that it holds, by its place among those that travel.
    holds: Option<usize>,
    arrived: Option<Arrival>,
    /// The reading of its block, where that comes from the disk.
    reading: Option<PendingRead>,
    /// The marks of its latest copy.
    copy: Option<CopyMarks>,
    last_use: Option<Event>,
    leases: usize,
    /// The session in which its copy was started.
    session: u64,
}

/// When the block in a slot will have arrived.
#[derive(Clone)]
enum Arrival {
    /// Its copy is queued.
    Queued(Event),
    /// Its copy is queued once it is read.
    Read(Arc<Arriving>),
}

impl Ring {
    /// A ring over these slots for blocks in this order of use, with a room to decode in where some are coded.
    pub(crate) fn new(
        device: &Device,
        slots: Vec<Buffer>,
        room: Option<Buffer>,
        sources: Vec<Source>,
    ) -> Result<Ring> {
        let travels = |position: &usize| !matches!(sources[*position], Source::Here(_));
        let travelling: Vec<usize> = (0..sources.len()).filter(travels).collect();
        let mut places = vec![None; sources.len()];
        travelling.iter().enumerate().for_each(|(place, position)| places[*position] = Some(place));
        let state = State {
            travelling,
            places,
            sources,
            rooms: room.into_iter().map(Room::new).collect(),
            slots: slots.iter().map(|_| Slot::default()).collect(),
            failure: None,
            session: 0,
        };
        Ok(Ring {
            copies: device.open_stream(StreamKind::Copy)?,
            compute: device.compute_stream()?,
            merged: slots.iter().map(|_| Mutex::default()).collect(),
            slots,
            device: device.clone(),
            state: Mutex::new(state),
            stats: Mutex::default(),
        })
    }

    /// A new session begins: copies that the last one had started are not its own.
    pub(crate) fn begin_session(&self) {
        self.lock().session += 1;
    }

    /// Makes later work of the compute stream wait until the block is in a slot, and starts the copies
    /// of the blocks after it. Answers the slot, which stays as it is until it is released.
    pub(crate) fn acquire(&self, position: usize, compute: &Stream) -> Result<(usize, Buffer)> {
        if let Some(room) = self.enter(position) {
            return Ok(room);
        }
        let Some(place) = self.lock().places[position] else { return self.decode(position, None) };
        let slot = self.arrive(place, compute)?;
        if self.lock().sources[position].coded().is_none() {
            return Ok((slot, self.slots[slot].clone()));
        }
        let decoded = self.decode(position, Some(slot));
        self.leave_slot(place, slot);
        decoded
    }

    /// Leases the room that holds a block already, if one does.
    fn enter(&self, position: usize) -> Option<(usize, Buffer)> {
        let mut state = self.lock();
        let index = state.rooms.iter().position(|room| room.holds == Some(position))?;
        let room = &mut state.rooms[index];
        room.leases += 1;
        let entered = (self.slots.len() + index, room.buffer.clone());
        if let Some(place) = state.places[position] {
            self.run_ahead(&mut state, place);
        }
        Some(entered)
    }

    /// Queues the decoding of a block that has arrived in a leased slot, or that stays, and leases the room. The ring's own stream does
    /// it, which no job cancels: the next session may find the block there.
    fn decode(&self, position: usize, slot: Option<usize>) -> Result<(usize, Buffer)> {
        let mut state = self.lock();
        let State { sources, rooms, slots, .. } = &mut *state;
        let free = rooms.iter().position(|room| room.holds == Some(position));
        let free = free.or_else(|| rooms.iter().position(|room| room.leases == 0));
        let index = match free {
            Some(index) => index,
            None => {
                let bytes = sources.iter().filter_map(Source::coded).map(CodedBlock::len).max().unwrap_or(0);
                rooms.push(Room::new(self.device.allocate(bytes)?));
                rooms.len() - 1
            }
        };
        let room = &mut rooms[index];
        if room.holds != Some(position) {
            room.holds = None;
            *lock(&room.merged) = Merged::No;
            if let Some(block) = sources[position].coded() {
                let begin = self.compute.record_timed()?;
                match slot {
                    Some(slot) => block.decode(&self.compute, &self.slots[slot], &room.buffer)?,
                    None => block.decode_here(&self.compute, &room.buffer)?,
                }
                lock(&self.stats).decoded_bytes += block.len() as u64;
                room.decoding = Some(DecodingMarks { begin, end: self.compute.record_timed()? });
            }
            room.holds = Some(position);
            room.copy = slot.and_then(|slot| slots[slot].copy.clone());
        }
        room.leases += 1;
        Ok((self.slots.len() + index, room.buffer.clone()))
    }

    /// The block in a slot has been decoded, or could not be: the slot may be filled again once that is done.
    fn leave_slot(&self, place: usize, slot: usize) {
        self.release(slot);
        let mut state = self.lock();
        // What was decoded is in a room now; a block that is copied again is not looked for here.
        if state.slots[slot].holds == Some(place) && state.slots[slot].leases == 0 {
            state.slots[slot].forget();
        }
        self.run_ahead(&mut state, place);
    }

    /// Makes later work of the compute stream wait until the block at a place among those that travel is in a slot, which
    /// is leased.
    fn arrive(&self, place: usize, compute: &Stream) -> Result<usize> {
        let (slot, arrived, inherited) = self.place(place)?;
        let Err(error) = self.wait(slot, &arrived, compute) else { return Ok(slot) };
        self.give_up(slot, &error);
        // A copy that failed for an earlier session is no failure of this one.
        if !inherited || error == Error::Cancelled {
            return Err(error);
        }
        let (slot, arrived, _) = self.place(place)?;
        match self.wait(slot, &arrived, compute) {
            Ok(()) => Ok(slot),
            Err(error) => {
                self.give_up(slot, &error);
                Err(error)
            }
        }
    }

    /// Finds the slot of a block, starting its copy if there is none, and leases it. Answers also when the
    /// block will have arrived, and whether an earlier session started the copy.
    fn place(&self, place: usize) -> Result<(usize, Arrival, bool)> {
        let mut state = self.lock();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        let held = state.slots.iter().position(|slot| slot.holds == Some(place) && slot.arrived.is_some());
        let slot = match held {
            Some(slot) => slot,
            None => {
                let slot = state.free_slot(place, 0).ok_or_else(|| self.all_leased())?;
                self.start_copy(&mut state, slot, place)?;
                slot
            }
        };
        state.slots[slot].leases += 1;
        self.run_ahead(&mut state, place);
        let arrived = state.slots[slot].arrived.clone().ok_or_else(|| self.all_leased())?;
        Ok((slot, arrived, state.slots[slot].session != state.session))
    }

    /// After a failed copy nothing in the slots can be trusted; the copy stream works again once it has
    /// told its failure. Copies for a job that does not wait for them go on.
    fn give_up(&self, slot: usize, error: &Error) {
        if *error == Error::Cancelled {
            self.lock().slots[slot].leases -= 1;
            return;
        }
        // The failure is the one that the waiting just returned.
        let _ = self.copies.synchronize();
        let mut state = self.lock();
        state.slots[slot].leases -= 1;
        state.slots.iter_mut().for_each(Slot::forget);
    }

    /// The block's work has been queued: its slot may be filled again once that work is done.
    pub(crate) fn release(&self, slot: usize) {
        if let Some(room) = slot.checked_sub(self.slots.len()) {
            // Whatever comes into it is queued behind what was.
            self.lock().rooms[room].leases -= 1;
            return;
        }
        let done = self.compute.record();
        let mut state = self.lock();
        state.slots[slot].leases -= 1;
        match done {
            Ok(done) => state.slots[slot].last_use = Some(done),
            // Without the event nobody knows when the slot may be filled again.
            Err(error) => {
                state.failure.get_or_insert(error);
                return;
            }
        }
        if let Some(place) = state.slots[slot].holds {
            self.run_ahead(&mut state, place);
        }
    }

    /// Runs `merge` on the block in a leased slot, unless that has been done since it arrived. If it fails, nothing in the
    /// slot can be trusted.
    pub(crate) fn merge_once(
        &self,
        slot: usize,
        merge: impl FnOnce() -> crate::Result<()>,
    ) -> crate::Result<()> {
        let room = slot.checked_sub(self.slots.len());
        let of_room = room.map(|room| Arc::clone(&self.lock().rooms[room].merged));
        let mut merged = lock(of_room.as_deref().unwrap_or_else(|| &self.merged[slot]));
        match *merged {
            Merged::Yes => return Ok(()),
            Merged::Failed => return Err(self.not_merged().into()),
            Merged::No => {}
        }
        let done = merge();
        *merged = if done.is_ok() { Merged::Yes } else { Merged::Failed };
        drop(merged);
        if done.is_err() {
            let mut state = self.lock();
            match room {
                Some(room) => state.rooms[room].holds = None,
                None => state.slots[slot].forget(),
            }
        }
        done
    }

    /// Lets blocks whose patches are others now arrive again. What has arrived but is not merged yet is as its source
    /// has it, and stays.
    pub(crate) fn refill(&self, positions: &BTreeSet<usize>) {
        let mut state = self.lock();
        let State { travelling, slots, .. } = &mut *state;
        for (slot, merged) in slots.iter_mut().zip(&self.merged) {
            let named = slot.holds.is_some_and(|place| positions.contains(&travelling[place]));
            if named && *lock(merged) != Merged::No {
                slot.forget();
            }
        }
        for room in &mut state.rooms {
            let named = room.holds.is_some_and(|position| positions.contains(&position));
            if named && *lock(&room.merged) != Merged::No {
                room.holds = None;
            }
        }
    }

    pub(crate) fn stats(&self) -> StreamStats {
        *lock(&self.stats)
    }

    /// How many of its blocks are coded.
    pub(crate) fn coded_blocks(&self) -> usize {
        self.lock().sources.iter().filter(|source| source.coded().is_some()).count()
    }

    /// Whether nobody has leased anything of it, so that another may take its place.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.slots.iter().all(|slot| slot.leases == 0) && state.rooms.iter().all(|room| room.leases == 0)
    }

    /// Waits until nothing on the device uses it. What is still to be read for it is given up.
    pub(crate) fn drain(&self) -> Result<()> {
        self.lock().slots.iter_mut().filter(|slot| slot.reading.is_some()).for_each(Slot::forget);
        self.copies.synchronize()?;
        self.compute.synchronize()
    }

    /// Its sources, once it is not used any more, and what it did so far. Its slots are given back.
    pub(crate) fn into_sources(self) -> (Vec<Source>, StreamStats) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let stats = self.stats.into_inner().unwrap_or_else(PoisonError::into_inner);
        (state.sources, stats)
    }

    /// The ring counts on from what another did before.
    #[must_use]
    pub(crate) fn counting_from(self, stats: StreamStats) -> Ring {
        *lock(&self.stats) = stats;
        self
    }

    /// What brought the block that was just leased in a slot. It is told for one lease only: a block that is still there at the
    /// next was not brought again.
    pub(crate) fn arrival_marks(&self, slot: usize) -> ArrivalMarks {
        let mut state = self.lock();
        match slot.checked_sub(self.slots.len()) {
            Some(room) => {
                let room = &mut state.rooms[room];
                ArrivalMarks { copy: room.copy.take(), decoding: room.decoding.take() }
            }
            None => ArrivalMarks { copy: state.slots[slot].copy.take(), decoding: None },
        }
    }

    /// Starts copies of the blocks after the one at `place` among those that travel, as far as slots are free for them. A copy that cannot
    /// be started now is started again when its block is leased, and fails there if it must.
    fn run_ahead(&self, state: &mut State, place: usize) {
        let blocks = state.travelling.len();
        for ahead in 1..=self.slots.len().min(blocks - 1) {
            let next = (place + ahead) % blocks;
            if state.slots.iter().any(|slot| slot.holds == Some(next)) {
                continue;
            }
            let Some(slot) = state.free_slot(place, ahead) else { break };
            if self.start_copy(state, slot, next).is_err() {
                break;
            }
        }
    }

    fn start_copy(&self, state: &mut State, slot: usize, place: usize) -> Result<()> {
        let State { sources, travelling, slots, session, .. } = state;
        slots[slot].forget();
        *lock(&self.merged[slot]) = Merged::No;
        let (target, last_use) = (&self.slots[slot], slots[slot].last_use.take());
        if let Source::Disk(block) = &sources[travelling[place]] {
            let reading = block.copy_to(&self.copies, target, last_use);
            slots[slot].arrived = Some(Arrival::Read(reading.arriving()));
            slots[slot].reading = Some(reading);
            slots[slot].copy = None;
            slots[slot].holds = Some(place);
            slots[slot].session = *session;
            let mut stats = lock(&self.stats);
            stats.copies += 1;
            stats.bytes += block.bytes();
            return Ok(());
        }
        if let Some(last_use) = last_use {
            self.copies.wait(&last_use)?;
        }
        let begin = self.copies.record_timed()?;
        let bytes = match &sources[travelling[place]] {
            Source::Host(block) => block.copy_to(&self.copies, target)?,
            Source::Here(block) => block.copy_to(&self.copies, target)?,
            Source::Disk(_) => 0,
            Source::Donor(buffer) => {
                self.copies.copy(&target.span(0..buffer.len())?, &buffer.whole())?;
                buffer.len() as u64
            }
        };
        let mut stats = lock(&self.stats);
        stats.copies += 1;
        stats.bytes += bytes;
        drop(stats);
        let end = self.copies.record_timed()?;
        slots[slot].arrived = Some(Arrival::Queued(end.clone()));
        slots[slot].copy = Some(CopyMarks { begin, end, bytes });
        slots[slot].holds = Some(place);
        slots[slot].session = *session;
        Ok(())
    }

    /// Lets the compute stream wait; if the host has to wait for it, or for the disk, that is a stall.
    fn wait(&self, slot: usize, arrived: &Arrival, compute: &Stream) -> Result<()> {
        let start = Instant::now();
        let (arrived, is_read) = match arrived {
            Arrival::Queued(event) => (event.clone(), true),
            Arrival::Read(arriving) => {
                let is_read = arriving.is_known();
                let marks = arriving.wait(compute.cancel())?;
                self.lock().slots[slot].copy = Some(marks.clone());
                (marks.end, is_read)
            }
        };
        if is_read && arrived.is_done()? {
            return Ok(());
        }
        compute.wait(&arrived)?;
        let mut stats = lock(&self.stats);
        stats.stalls += 1;
        stats.stalled += start.elapsed();
        Ok(())
    }

    fn all_leased(&self) -> Error {
        Error::Device {
            device: self.compute.device(),
            action: "leasing a streamed block".into(),
            reason: format!("all {} slots are leased; let go of a block before the next", self.slots.len()),
        }
    }

    /// For a lease of a slot whose merging failed for another.
    fn not_merged(&self) -> Error {
        Error::Device {
            device: self.compute.device(),
            action: "merging patches into a streamed block".into(),
            reason: "it failed in the same slot a moment ago; the next use brings the block again".into(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    /// What is in it is not used again.
    fn forget(&mut self) {
        self.holds = None;
        self.arrived = None;
        self.reading = None;
    }
}

impl State {
    /// A slot that nobody uses and whose block is not needed before the one `ahead` of `place`: an
    /// empty one, else the one that is needed last.
    fn free_slot(&self, place: usize, ahead: usize) -> Option<usize> {
        let blocks = self.travelling.len();
        let until_use = |holds: usize| (holds + blocks - place) % blocks;
        let candidates = self.slots.iter().enumerate().filter(|(_, slot)| slot.leases == 0);
        let ranked = candidates.map(|(index, slot)| (slot.holds.map_or(usize::MAX, until_use), index));
        // A block that was just used has distance 0, but is needed again only after a whole step.
        let ranked = ranked.map(|(distance, index)| (if distance == 0 { blocks } else { distance }, index));
        ranked.filter(|(distance, _)| *distance > ahead).max().map(|(_, index)| index)
    }
}
