//! Blocks that are read from the disk at every step, because host memory does not hold them. Threads read ahead in the
//! order of use, from the last block of a step on to the first of the next, into a ring of pinned buffers; as soon as a part
//! of a block is there and the block has its slot, its copy is queued. So disk, link and computing work at the same time,
//! and the page cache is left to what is used more often. What is cast on its way is cast by whoever read it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use checkpoint::{DIRECT_ALIGN, EntryBytes};
use device::op::Copy;
use device::{Buffer, Cancel, Device, Error, Event, HostBuffer, Operand, Reservation, Result, Stream};
use meta::{DeviceId, Encoding};
use placement::Reading;

use crate::layout::BlockLayout;
use crate::manifest::{Manifest, WeightSpec};
use crate::profile::CopyMarks;

/// Threads that read at the same time: a disk works on several requests at once.
const THREADS: usize = 4;
/// What is read although nobody wants it, so that what lies on both sides of it is read at once.
const WIDEST_GAP: usize = 64 << 10;
/// Where values that were cast may begin in a buffer, which suits all element types.
const CAST_ALIGN: usize = 16;
/// How often who waits looks whether it is cancelled.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How long a disk is read to know its speed, and how much at most.
const MEASURED_TIME: Duration = Duration::from_millis(300);
const MEASURED_BYTES: usize = 1 << 30;
/// What is read at a time for that.
const MEASURED_PART: usize = 8 << 20;

/// Reads blocks over and over.
pub(crate) struct Reader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A block of a reader.
pub(crate) struct DiskBlock {
    reader: Arc<Reader>,
    /// Which of the reader's blocks.
    number: usize,
}

/// A block on its way; dropping it gives up what has not been queued of it.
pub(crate) struct PendingRead {
    shared: Arc<Shared>,
    arriving: Arc<Arriving>,
}

/// When a block will have arrived: known once all of it is read and its copy is queued.
#[derive(Default)]
pub(crate) struct Arriving {
    outcome: Mutex<Option<Result<CopyMarks>>>,
    known: Condvar,
}

struct Shared {
    /// All that is read for a step, in the order of use.
    parts: Vec<FilePart>,
    /// Of each block, its parts.
    blocks: Vec<Range<usize>>,
    buffers: Vec<HostBuffer>,
    /// What casts.
    host: Stream,
    state: Mutex<State>,
    changed: Condvar,
    /// Set when the reader goes.
    gone: Cancel,
}

/// Bytes of a file that belong to a block.
#[derive(Clone)]
pub(crate) struct Piece {
    /// Their place in the block.
    to: usize,
    bytes: EntryBytes,
    cast: Option<Cast>,
}

/// How values are stored, and how they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cast {
    stored: Encoding,
    kept: Encoding,
}

/// A part of a file that is read at once.
struct FilePart {
    /// Whole pages.
    bytes: EntryBytes,
    runs: Vec<Run>,
    /// Whether it is read into one buffer and cast into another.
    is_cast: bool,
}

/// Bytes of a part that belong to the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Their place in the part, and how many they are there.
    from: usize,
    len: usize,
    /// Their place in the buffer that is copied from, and how many they are then.
    at: usize,
    kept_len: usize,
    /// Their place in the block.
    to: usize,
    cast: Option<Cast>,
}

/// What a thread reads next.
struct Next {
    place: usize,
    course: u64,
    /// The buffer that is copied from later, and where it is read before if it is cast; with when they may be filled.
    buffer: (usize, Option<Event>),
    raw: Option<(usize, Option<Event>)>,
}

struct State {
    /// The next part to be read and the next to be copied, counted on from step to step.
    next_read: usize,
    next_copy: usize,
    /// Raised when reading goes on at another place: what is being read then is not wanted.
    course: u64,
    /// Buffers that may be filled, once what was copied from them last is.
    free: VecDeque<(usize, Option<Event>)>,
    /// The buffers of parts that are read and not copied yet.
    ready: BTreeMap<usize, usize>,
    /// Blocks that have a slot, in the order in which they are wanted.
    wanted: VecDeque<Wanted>,
    failure: Option<Error>,
}

/// A block that is wanted in a slot.
struct Wanted {
    number: usize,
    stream: Stream,
    slot: Buffer,
    last_use: Option<Event>,
    /// The mark before its first copy.
    begin: Option<Event>,
    bytes: u64,
    arriving: Arc<Arriving>,
}

impl Reader {
    /// Reads these blocks for a device. The buffers come out of bytes of the host that were promised.
    pub(crate) fn new(
        (device, host): (&Device, &Device),
        blocks: Vec<Vec<Piece>>,
        reading: Reading,
        mut reserved: Option<&mut Reservation>,
    ) -> Result<Arc<Reader>> {
        let bytes = reading.buffer_bytes as usize;
        // A buffer need not begin at a page.
        let most = bytes.saturating_sub(DIRECT_ALIGN).max(DIRECT_ALIGN) / DIRECT_ALIGN * DIRECT_ALIGN;
        let (mut parts, mut places) = (Vec::new(), Vec::new());
        for pieces in blocks {
            let start = parts.len();
            parts.extend(parts_of(&pieces, most));
            places.push(start..parts.len());
        }
        let mut buffers = Vec::new();
        for _ in 0..reading.buffers {
            let buffer = match &mut reserved {
                Some(reserved) => device.allocate_pinned_from(reserved, bytes)?,
                None => device.allocate_pinned(host, bytes)?,
            };
            buffers.push(HostBuffer::new(buffer)?);
        }
        let state = State {
            next_read: 0,
            next_copy: 0,
            course: 0,
            free: (0..buffers.len()).map(|buffer| (buffer, None)).collect(),
            ready: BTreeMap::new(),
            wanted: VecDeque::new(),
            failure: None,
        };
        let count = THREADS.min(buffers.len());
        let (state, changed, gone) = (Mutex::new(state), Condvar::new(), Cancel::default());
        let host = host.compute_stream()?;
        let shared = Arc::new(Shared { parts, blocks: places, buffers, host, state, changed, gone });
        let read = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.read_ahead())
        };
        let threads = (0..count).map(read).collect();
        Ok(Arc::new(Reader { shared, threads }))
    }

    /// One of its blocks, by the order in which they were given.
    pub(crate) fn block(self: &Arc<Reader>, number: usize) -> DiskBlock {
        DiskBlock { reader: Arc::clone(self), number }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.gone.cancel();
        // Under the lock, so that nobody begins to wait between looking and this.
        let state = self.shared.lock();
        self.shared.changed.notify_all();
        drop(state);
        for thread in self.threads.drain(..) {
            // A panic has been printed by its thread; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

impl DiskBlock {
    /// Bytes of it that move.
    pub(crate) fn bytes(&self) -> u64 {
        let parts = &self.reader.shared.parts[self.reader.shared.blocks[self.number].clone()];
        parts.iter().flat_map(|part| &part.runs).map(|run| run.kept_len as u64).sum()
    }

    /// Brings it into a slot by a copy stream, as soon as the disk gives it and after the slot's last use.
    pub(crate) fn copy_to(&self, stream: &Stream, slot: &Buffer, last_use: Option<Event>) -> PendingRead {
        let arriving = Arc::new(Arriving::default());
        let wanted = Wanted {
            number: self.number,
            stream: stream.clone(),
            slot: slot.clone(),
            last_use,
            begin: None,
            bytes: self.bytes(),
            arriving: Arc::clone(&arriving),
        };
        let shared = Arc::clone(&self.reader.shared);
        if shared.blocks[self.number].is_empty() {
            arriving.finish(wanted.marks());
            return PendingRead { shared, arriving };
        }
        let mut state = shared.lock();
        if state.failure.take().is_some() {
            // Whoever waited was told; this one tries again.
            shared.go_to(&mut state, self.number);
        }
        state.wanted.push_back(wanted);
        shared.queue_copies(&mut state);
        drop(state);
        PendingRead { shared, arriving }
    }
}

impl PendingRead {
    pub(crate) fn arriving(&self) -> Arc<Arriving> {
        Arc::clone(&self.arriving)
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.wanted.retain(|wanted| !Arc::ptr_eq(&wanted.arriving, &self.arriving));
        self.arriving.finish(Err(failed("another use of the same slot failed".into())));
        self.shared.queue_copies(&mut state);
    }
}

impl Arriving {
    /// Whether [`Arriving::wait`] has nothing to wait for.
    pub(crate) fn is_known(&self) -> bool {
        lock(&self.outcome).is_some()
    }

    /// Waits until the copy is queued; its marks.
    pub(crate) fn wait(&self, cancel: &Cancel) -> Result<CopyMarks> {
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(known) = &*outcome {
                return known.clone();
            }
            cancel.check()?;
            let woken = self.known.wait_timeout(outcome, LOOK_INTERVAL);
            outcome = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The first outcome counts.
    pub(crate) fn finish(&self, result: Result<CopyMarks>) {
        lock(&self.outcome).get_or_insert(result);
        self.known.notify_all();
    }
}

impl Shared {
    /// What a thread does.
    fn read_ahead(&self) {
        while let Some(next) = self.next() {
            let Next { place, course, buffer: (buffer, copied), raw } = next;
            let (raw, also) = raw.unzip();
            // A copy that failed uses its buffer no more, either.
            let mut copies = [copied, also.flatten()].into_iter().flatten();
            if copies.any(|copied| copied.wait_unless(&self.gone) == Err(Error::Cancelled)) {
                return;
            }
            let read = self.read(&self.parts[place % self.parts.len()], buffer, raw);
            let mut state = self.lock();
            state.free.extend(raw.map(|raw| (raw, None)));
            match read {
                Ok(()) if course == state.course => {
                    state.ready.insert(place, buffer);
                }
                Ok(()) => state.free.push_back((buffer, None)),
                Err(error) => {
                    state.free.push_back((buffer, None));
                    if course == state.course {
                        state.failure = Some(error);
                    }
                }
            }
            self.queue_copies(&mut state);
        }
    }

    /// Waits for something to read, and room for it. None when the reader goes.
    fn next(&self) -> Option<Next> {
        let mut state = self.lock();
        loop {
            if self.gone.is_cancelled() || self.parts.is_empty() {
                return None;
            }
            let is_cast = self.parts[state.next_read % self.parts.len()].is_cast;
            let has_room = state.free.len() > usize::from(is_cast);
            if state.failure.is_none()
                && has_room
                && let Some(buffer) = state.free.pop_front()
            {
                let raw = if is_cast { state.free.pop_front() } else { None };
                let place = state.next_read;
                state.next_read += 1;
                return Some(Next { place, course: state.course, buffer, raw });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads a part into a buffer, by way of another if it is cast.
    fn read(&self, part: &FilePart, buffer: usize, raw: Option<usize>) -> Result<()> {
        let read_into = &self.buffers[raw.unwrap_or(buffer)];
        let start = read_into.aligned_start(DIRECT_ALIGN);
        let end = start + part.bytes.len().next_multiple_of(DIRECT_ALIGN);
        let read = read_into.fill(start..end, |into| part.bytes.read_past_cache(into))?;
        read.map_err(|error| failed(error.to_string()))?;
        match raw {
            Some(_) => self.cast(part, (read_into, start), &self.buffers[buffer]),
            None => Ok(()),
        }
    }

    /// Puts what was read, from a place on, into the form in which it is kept.
    fn cast(&self, part: &FilePart, (raw, start): (&HostBuffer, usize), buffer: &HostBuffer) -> Result<()> {
        let kept = buffer.aligned_start(DIRECT_ALIGN);
        for run in &part.runs {
            let (from, to) = (start + run.from, kept + run.at);
            let from = raw.span(from..from + run.len)?;
            let to = buffer.span(to..to + run.kept_len)?;
            let Some(Cast { stored, kept }) = run.cast else {
                self.host.copy(&to, &from)?;
                continue;
            };
            let count = run.len / stored.block_bytes();
            let x = Operand::new(from.buffer, stored, [count], from.offset)?;
            let out = Operand::new(to.buffer, kept, [count], to.offset)?;
            self.host.launch(&Copy { x, out }.into())?;
        }
        Ok(())
    }

    /// Queues the copies of what is read, for those that wait for it. It is called whenever one or the other changes.
    fn queue_copies(&self, state: &mut State) {
        while let Some(number) = state.wanted.front().map(|wanted| wanted.number) {
            let begins = state.wanted.front().is_some_and(|wanted| wanted.begin.is_none());
            if begins && state.next_copy % self.parts.len().max(1) != self.blocks[number].start {
                self.go_to(state, number);
            }
            if let Some(error) = state.failure.clone().filter(|_| !state.ready.contains_key(&state.next_copy))
            {
                state.wanted.drain(..).for_each(|wanted| wanted.arriving.finish(Err(error.clone())));
                break;
            }
            let Some(buffer) = state.ready.remove(&state.next_copy) else { break };
            let place = state.next_copy % self.parts.len();
            state.next_copy += 1;
            let Some(wanted) = state.wanted.front_mut() else { break };
            let queued = wanted.queue(&self.parts[place], &self.buffers[buffer]);
            let is_last = place + 1 == self.blocks[number].end;
            let copied = wanted.stream.record();
            state.free.push_back((buffer, copied.ok()));
            match queued {
                Ok(()) if !is_last => {}
                done => {
                    let Some(wanted) = state.wanted.pop_front() else { break };
                    wanted.arriving.finish(done.and_then(|()| wanted.marks()));
                }
            }
        }
        self.changed.notify_all();
    }

    /// Lets reading go on at a block.
    fn go_to(&self, state: &mut State, number: usize) {
        let unwanted = std::mem::take(&mut state.ready);
        state.free.extend(unwanted.into_values().map(|buffer| (buffer, None)));
        state.course += 1;
        (state.next_read, state.next_copy) = (self.blocks[number].start, self.blocks[number].start);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Wanted {
    /// Queues the copies of one part.
    fn queue(&mut self, part: &FilePart, buffer: &HostBuffer) -> Result<()> {
        if self.begin.is_none() {
            if let Some(last_use) = self.last_use.take() {
                self.stream.wait(&last_use)?;
            }
            self.begin = Some(self.stream.record_timed()?);
        }
        let start = buffer.aligned_start(DIRECT_ALIGN);
        for run in &part.runs {
            let from = buffer.span(start + run.at..start + run.at + run.kept_len)?;
            self.stream.copy(&self.slot.span(run.to..run.to + run.kept_len)?, &from)?;
        }
        Ok(())
    }

    /// The marks of the copy, all of which is queued.
    fn marks(&self) -> Result<CopyMarks> {
        let end = self.stream.record_timed()?;
        let begin = self.begin.clone().unwrap_or_else(|| end.clone());
        Ok(CopyMarks { begin, end, bytes: self.bytes })
    }
}

/// Whether the weights of a block can be read at every step: where one is cast, its values are single ones that lie in
/// their file so that they can be cast out of any of its pages.
pub(crate) fn is_readable(specs: &[WeightSpec]) -> bool {
    let castable = |spec: &WeightSpec| {
        spec.encoding.dtype().zip(spec.kept_as.dtype()).is_some_and(|(stored, _)| {
            let is_whole = spec.bytes.len() == spec.shape.count() * stored.bytes();
            is_whole && spec.bytes.place().start.is_multiple_of(stored.bytes())
        })
    };
    specs.iter().all(|spec| !spec.is_cast() || castable(spec))
}

/// What there is to read of a block.
pub(crate) fn pieces(specs: &[WeightSpec], layout: &BlockLayout) -> Vec<Piece> {
    if !specs.iter().any(WeightSpec::is_cast) {
        let joined = layout.joined_pieces(specs).into_iter();
        return joined.map(|(to, bytes)| Piece { to, bytes, cast: None }).collect();
    }
    let mut all = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let cast = spec.is_cast().then_some(Cast { stored: spec.encoding, kept: spec.kept_as });
        all.push(Piece { to: layout.offset(index), bytes: spec.bytes.clone(), cast });
        for (to, companion) in layout.companion_offsets(index).into_iter().zip(spec.companions.all()) {
            let companion =
                to.zip(companion).map(|(to, it)| Piece { to, bytes: it.bytes.clone(), cast: None });
            all.extend(companion);
        }
    }
    all
}

/// Cuts the pieces of a block into parts of files, each of whole pages and at most so many bytes, cast or not. What lies
/// close together is read at once.
fn parts_of(pieces: &[Piece], most: usize) -> Vec<FilePart> {
    let growth = pieces.iter().filter_map(|piece| piece.cast).map(Cast::growth).max();
    // Behind each run of values that were cast there may be a gap.
    let most =
        growth.map_or(most, |growth| (most / growth / 2 / DIRECT_ALIGN * DIRECT_ALIGN).max(DIRECT_ALIGN));
    let files = EntryBytes::one_of_each_file(pieces.iter().map(|piece| &piece.bytes));
    let mut parts = Vec::new();
    for file in files {
        let mut here: Vec<&Piece> =
            pieces.iter().filter(|piece| piece.bytes.same_file(&file) && !piece.bytes.is_empty()).collect();
        here.sort_by_key(|piece| piece.bytes.place().start);
        let mut stretches: Vec<(EntryBytes, Vec<&Piece>)> = Vec::new();
        for piece in here {
            if let Some((stretch, within)) = stretches.last_mut()
                && piece.bytes.place().start <= stretch.place().end + WIDEST_GAP
                && let Some(both) = stretch.through(&piece.bytes)
            {
                *stretch = both;
                within.push(piece);
            } else {
                stretches.push((piece.bytes.clone(), vec![piece]));
            }
        }
        for (stretch, within) in stretches {
            let pages = stretch.whole_pages();
            let cuts = (0..pages.len()).step_by(most);
            parts.extend(
                cuts.map(|start| FilePart::new(pages.slice(start..pages.len().min(start + most)), &within)),
            );
        }
    }
    parts.retain(|part| !part.runs.is_empty());
    parts
}

impl FilePart {
    /// What pages have of pieces.
    fn new(bytes: EntryBytes, pieces: &[&Piece]) -> FilePart {
        let mut runs: Vec<Run> = pieces.iter().filter_map(|piece| piece.within(&bytes)).collect();
        let is_cast = runs.iter().any(|run| run.cast.is_some());
        if is_cast {
            let mut end = 0usize;
            for run in &mut runs {
                run.at = end;
                end = (end + run.kept_len).next_multiple_of(CAST_ALIGN);
            }
        }
        FilePart { bytes, runs, is_cast }
    }
}

impl Piece {
    /// What a part of the file has of it.
    fn within(&self, part: &EntryBytes) -> Option<Run> {
        let (part, piece) = (part.place(), self.bytes.place());
        let (start, end) = (part.start.max(piece.start), part.end.min(piece.end));
        let kept = |bytes: usize| self.cast.map_or(bytes, |cast| cast.kept_bytes(bytes));
        (start < end).then(|| Run {
            from: start - part.start,
            len: end - start,
            at: start - part.start,
            kept_len: kept(end - start),
            to: self.to + kept(start - piece.start),
            cast: self.cast,
        })
    }
}

impl Cast {
    /// What so many bytes of stored values become.
    fn kept_bytes(self, stored: usize) -> usize {
        stored / self.stored.block_bytes() * self.kept.block_bytes()
    }

    /// How many times as long values become, at most.
    fn growth(self) -> usize {
        self.kept.block_bytes().div_ceil(self.stored.block_bytes()).max(1)
    }
}

/// How fast the disk with a model's weights is read past the page cache, in bytes per second: for a moment, and not from
/// the beginning, which was looked at before. None if nothing of it is on a disk, or it cannot be read.
pub(crate) fn disk_bytes_per_s(manifest: &Manifest) -> Option<f64> {
    let files = Manifest::files_of(manifest.weights());
    let all = files.iter().filter(|bytes| bytes.file_stamp().is_some());
    let weights = |file: &EntryBytes| {
        let here = manifest.weights().iter().filter(|spec| spec.bytes.same_file(file));
        let last = here.clone().max_by_key(|spec| spec.bytes.place().start)?;
        here.min_by_key(|spec| spec.bytes.place().start)?.bytes.through(&last.bytes)
    };
    let largest = all.filter_map(weights).max_by_key(|bytes| bytes.len())?.whole_pages();
    let starts = (0..largest.len().min(MEASURED_BYTES)).step_by(MEASURED_PART);
    let parts: Vec<EntryBytes> =
        starts.rev().map(|start| largest.slice(start..largest.len().min(start + MEASURED_PART))).collect();
    let (next, start) = (Mutex::new(parts.iter()), Instant::now());
    let read = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| read_for_a_moment(&next, start))).collect();
        threads.into_iter().map(|thread| thread.join().ok().flatten()).sum::<Option<usize>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    (read > 0 && seconds > 0.0).then(|| read as f64 / seconds)
}

/// Reads what is next until the time is over; how much that was.
fn read_for_a_moment(next: &Mutex<std::slice::Iter<'_, EntryBytes>>, start: Instant) -> Option<usize> {
    let mut room = vec![0; MEASURED_PART + DIRECT_ALIGN];
    let begin = room.as_ptr().addr().next_multiple_of(DIRECT_ALIGN) - room.as_ptr().addr();
    let mut read = 0;
    while start.elapsed() < MEASURED_TIME {
        let Some(part) = lock(next).next() else { break };
        let end = begin + part.len().next_multiple_of(DIRECT_ALIGN);
        part.read_past_cache(&mut room[begin..end]).ok()?;
        read += part.len();
    }
    Some(read)
}

fn failed(reason: String) -> Error {
    Error::Device { device: DeviceId::CPU, action: "reading weights from the disk".into(), reason }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use checkpoint::Checkpoint;
    use meta::{DType, Shape};
    use testkit::{SafetensorsWriter, ScratchDir};

    use super::*;

    /// Tensors of odd lengths at odd places, some of them far apart: every byte of them is in one part, at its place.
    #[test]
    fn parts_have_every_byte_once() {
        let lens = [1usize, 4095, 4097, 13, 200_000, 7, 70_001, 1, 9000, 300_003];
        let mut writer = SafetensorsWriter::new();
        for (index, len) in lens.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + index * 7) as u8).collect();
            writer = writer.tensor(format!("t{index}"), DType::U8, Shape::from([len]), bytes);
        }
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().join("odd.safetensors");
        writer.write(&path).unwrap();
        let file = Checkpoint::open(&path).unwrap();
        // Not all of them, and not in the order of the file.
        let mut at = 5;
        let mut pieces = Vec::new();
        for index in [8usize, 0, 2, 3, 9, 1, 5] {
            let bytes = file.entry_bytes(file.entry(&format!("t{index}")).unwrap());
            pieces.push(Piece { to: at, bytes: bytes.clone(), cast: None });
            at += bytes.len() + index;
        }
        for most in [DIRECT_ALIGN, 3 * DIRECT_ALIGN, 1 << 20] {
            let mut expected = vec![0u8; at];
            for Piece { to, bytes, .. } in &pieces {
                expected[*to..*to + bytes.len()].copy_from_slice(bytes);
            }
            let (mut got, mut written) = (vec![0u8; at], 0);
            let mut room = vec![0; most + DIRECT_ALIGN];
            let begin = room.as_ptr().align_offset(DIRECT_ALIGN);
            for part in parts_of(&pieces, most) {
                assert!(part.bytes.len() <= most && part.bytes.place().start.is_multiple_of(DIRECT_ALIGN));
                part.bytes.read_past_cache(&mut room[begin..begin + most]).unwrap();
                for run in part.runs {
                    got[run.to..run.to + run.len]
                        .copy_from_slice(&room[begin + run.from..begin + run.from + run.len]);
                    written += run.len;
                }
            }
            assert_eq!(written, pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>());
            assert!(got == expected, "{most}");
        }
    }

    /// Values that are cast: every one is in one part, cut between values, and has room in the buffer.
    #[test]
    fn values_are_cut_between_them() {
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().join("cast.safetensors");
        let bytes = vec![0; 4 * 30_001];
        SafetensorsWriter::new().tensor("a", DType::F32, Shape::from([30_001]), bytes).write(&path).unwrap();
        let file = Checkpoint::open(&path).unwrap();
        let bytes = file.entry_bytes(file.entry("a").unwrap());
        for kept in [DType::BF16, DType::F8E4M3] {
            let cast = Some(Cast { stored: DType::F32.into(), kept: kept.into() });
            let piece = Piece { to: 256, bytes: bytes.clone(), cast };
            let most = 8 * DIRECT_ALIGN;
            let mut next = 256;
            for part in parts_of(&[piece], most) {
                for run in part.runs {
                    assert_eq!((run.to, run.len % 4), (next, 0));
                    assert!(part.is_cast && run.at + run.kept_len <= most && part.bytes.len() <= most);
                    next += run.kept_len;
                }
            }
            assert_eq!(next, 256 + 30_001 * kept.bytes());
        }
    }

    #[test]
    fn who_waits_for_the_disk_can_be_cancelled() {
        let (arriving, cancel) = (Arriving::default(), Cancel::default());
        cancel.cancel();
        assert!(!arriving.is_known() && arriving.wait(&cancel).is_err_and(|error| error == Error::Cancelled));
        arriving.finish(Err(failed("gone".into())));
        assert!(arriving.wait(&Cancel::NEVER).is_err_and(|error| error.to_string().contains("gone")));
    }
}
