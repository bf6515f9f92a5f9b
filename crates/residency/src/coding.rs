//! Blocks that wait in host memory and travel losslessly coded, or stay so where they compute: what coding would make of them, and the coded block itself.
//! They are decoded on the device that computes, into the layout that a plain block has.

use std::sync::OnceLock;

use codec::{Format, Layout, Portable, TileCoder};
use device::op::{Copy, Decode, Encode};
use device::{Buffer, Device, Error, Operand, Result, Span, Stream};
use meta::{DType, Encoding};

use crate::checker::BlockCheck;
use crate::host::over;
use crate::layout::BlockLayout;
use crate::manifest::WeightSpec;

/// Where parts of a coded block may start, which suits all devices.
const ALIGN: usize = 256;
/// Tiles of a weight that are looked at to tell how far it shrinks: runs of them, since a file that nobody has read yet is
/// on the disk, and each place of it costs a look there.
const SAMPLED_TILES: usize = RUNS * RUN_TILES;
const RUNS: usize = 8;
const RUN_TILES: usize = 8;
/// What is added to a size that was told from some of the tiles, as one part of so many.
const MARGIN: usize = 100;
/// A weight that keeps more than this of its bytes is not worth decoding.
const MOST_KEPT: f64 = 0.95;

/// The bytes of a block when it is coded, from some of each weight's tiles, with a margin; none if it would not shrink.
pub(crate) fn coded_bytes(specs: &[WeightSpec], layout: &BlockLayout) -> Option<u64> {
    let mut bytes = 0;
    let mut shrinks = false;
    for spec in specs {
        let estimate = estimated_bytes(spec);
        shrinks |= estimate.is_some();
        bytes += estimate.unwrap_or(spec.kept_bytes()).next_multiple_of(ALIGN);
        let beside = spec.companions.all().into_iter().flatten();
        bytes += beside.map(|companion| companion.bytes.len().next_multiple_of(ALIGN)).sum::<usize>();
    }
    (shrinks && bytes < layout.len()).then_some(bytes as u64)
}

/// The layout of a weight as it is kept, if that is a type that is coded.
fn layout_of(spec: &WeightSpec) -> Option<Layout> {
    let dtype = spec.kept_as.dtype().filter(|dtype| Format::of(*dtype).is_ok())?;
    Layout::new(dtype, spec.kept_bytes() / dtype.bytes()).ok().filter(|layout| layout.elements() > 0)
}

/// The coded bytes of a weight, if it shrinks. One that is cast is taken for as large as if nothing were outside of its
/// windows but what usually is: it is not cast for the sake of knowing.
fn estimated_bytes(spec: &WeightSpec) -> Option<usize> {
    let layout = layout_of(spec)?;
    if spec.is_cast() {
        return None;
    }
    let tiles = layout.tiles();
    let sampled = sampled_tiles(tiles);
    let count = sampled.clone().count();
    let values: &[u8] = spec.bytes.as_ref();
    let windows = sampled.map(|tile| Portable.survey(layout.format(), &values[layout.tile_place(tile)]));
    let escapes: usize = windows.map(|window| usize::from(window.escapes)).sum();
    let escapes = escapes * tiles / count;
    let codes = layout.elements().div_ceil(codec::GROUP) * codec::CODE_BITS * codec::PLANE_BYTES;
    let exact = layout.variable_start() + tiles * (codec::RANK_BYTES + 8) + codes + escapes;
    let bytes = if count < tiles { exact + exact / MARGIN } else { exact };
    ((bytes as f64) < MOST_KEPT * layout.original_bytes() as f64).then_some(bytes)
}

/// The tiles that tell of all: every one of a few, else runs of them at even distances.
fn sampled_tiles(tiles: usize) -> impl Iterator<Item = usize> + Clone {
    let runs = if tiles > SAMPLED_TILES { RUNS } else { 1 };
    let run = if tiles > SAMPLED_TILES { RUN_TILES } else { tiles };
    (0..runs).flat_map(move |at| {
        let start = at * (tiles - run) / (runs - 1).max(1);
        start..start + run
    })
}

/// A coded block: in host memory, as it travels, or where it computes.
#[derive(Clone)]
pub(crate) struct CodedBlock {
    /// Its bytes, each piece with its place among them: one piece, unless they lie in a file that is pinned part by part.
    pieces: Vec<(usize, Span)>,
    parts: Vec<Part>,
    /// Bytes of the block when it is decoded.
    len: usize,
}

/// A part of a coded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its place in the coded block.
    pub(crate) from: usize,
    pub(crate) bytes: usize,
    /// Its place in the block.
    pub(crate) to: usize,
    /// Its values, if it is coded; else it is moved as it is.
    pub(crate) coded: Option<(DType, usize)>,
}

/// A coded block in a file of an earlier start, which is checked before it is used.
pub(crate) struct FoundCoded {
    pub(crate) coded: CodedBlock,
    pub(crate) check: BlockCheck,
    pub(crate) host: Device,
    pub(crate) specs: Vec<WeightSpec>,
    pub(crate) layout: BlockLayout,
    /// The block coded anew, if the file's is damaged.
    pub(crate) own: OnceLock<CodedBlock>,
}

impl FoundCoded {
    /// The block, once it is checked; coded anew if it is damaged.
    pub(crate) fn checked(&self) -> Result<&CodedBlock> {
        if let Some(own) = self.own.get() {
            return Ok(own);
        }
        if self.check.is_good() {
            return Ok(&self.coded);
        }
        let (host, stream) = (&self.host, self.host.compute_stream()?);
        let room = host.allocate(self.coded.travelling_bytes())?;
        let own = CodedBlock::new((host, &stream), &self.specs, &self.layout, room)?;
        // Where the parts are was checked before, and coding is always the same.
        let own = own.filter(|own| own.parts == self.coded.parts).ok_or_else(|| Error::Device {
            device: host.id(),
            action: "coding weights".into(),
            reason: "a block is coded differently than at an earlier start; load the model again".into(),
        })?;
        Ok(self.own.get_or_init(|| own))
    }
}

/// A coded block that is being made.
struct Making {
    buffer: Buffer,
    parts: Vec<Part>,
}

impl CodedBlock {
    /// Codes a block into `buffer` with a stream of the host; none if it does not fit.
    pub(crate) fn new(
        (host, stream): (&Device, &Stream),
        specs: &[WeightSpec],
        layout: &BlockLayout,
        buffer: Buffer,
    ) -> Result<Option<CodedBlock>> {
        let mut coded = Making { buffer, parts: Vec::new() };
        for (index, spec) in specs.iter().enumerate() {
            let at = layout.offset(index);
            let values = kept_values((host, stream), spec)?;
            let mut all = match layout_of(spec) {
                Some(codes) => coded.add_coded((host, stream), (&values, at), &codes)?,
                None => coded.add_plain(stream, (&values, at))?,
            };
            let beside = layout.companion_offsets(index).into_iter().zip(spec.companions.all());
            for (offset, companion) in beside {
                if let (Some(offset), Some(companion)) = (offset, companion) {
                    all = all && coded.add_plain(stream, (&over(&companion.bytes), offset))?;
                }
            }
            if !all {
                return Ok(None);
            }
        }
        stream.synchronize()?;
        let Making { buffer, parts } = coded;
        Ok(Some(CodedBlock { pieces: vec![(0, buffer.whole())], parts, len: layout.len() }))
    }

    /// A block whose coded bytes lie in these pieces.
    pub(crate) fn of_pieces(pieces: Vec<(usize, Span)>, parts: Vec<Part>, len: usize) -> CodedBlock {
        CodedBlock { pieces, parts, len }
    }

    /// Queues the copy of the block to where it stays. `stay` has the bytes that travel.
    pub(crate) fn moved_to(self, stream: &Stream, stay: &Buffer) -> Result<CodedBlock> {
        self.copy_to(stream, stay)?;
        Ok(CodedBlock { pieces: vec![(0, stay.whole())], ..self })
    }

    /// Queues what makes the block of its coded bytes where they stay.
    pub(crate) fn decode_here(&self, stream: &Stream, room: &Buffer) -> Result<()> {
        match self.pieces.first() {
            Some((_, span)) => self.decode(stream, &span.buffer, room),
            None => Ok(()),
        }
    }

    /// Its parts, in order.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Bytes that travel.
    pub(crate) fn travelling_bytes(&self) -> usize {
        self.parts.last().map_or(0, |part| part.from + part.bytes)
    }

    /// Bytes of the block when it is decoded.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Reads its coded bytes in host memory from front to back, so many at a time.
    pub(crate) fn read<E: From<Error>>(
        &self,
        stream: &Stream,
        most: usize,
        mut visit: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut room = vec![0; most.min(self.travelling_bytes())];
        for (at, span) in &self.pieces {
            let len = span.len.min(self.travelling_bytes() - at);
            for start in (0..len).step_by(most) {
                let bytes = &mut room[..most.min(len - start)];
                let from = span.offset + start;
                stream.read(&span.buffer.span(from..from + bytes.len())?, bytes)?;
                visit(bytes)?;
            }
        }
        Ok(())
    }

    /// Queues the copy of the coded block; the number of bytes that move.
    pub(crate) fn copy_to(&self, stream: &Stream, slot: &Buffer) -> Result<u64> {
        let bytes = self.travelling_bytes();
        for (at, span) in &self.pieces {
            let len = span.len.min(bytes - at);
            let from = span.buffer.span(span.offset..span.offset + len)?;
            stream.copy(&slot.span(*at..at + len)?, &from)?;
        }
        Ok(bytes as u64)
    }

    /// Queues what makes the block of its coded bytes in a slot.
    pub(crate) fn decode(&self, stream: &Stream, slot: &Buffer, room: &Buffer) -> Result<()> {
        for part in &self.parts {
            match part.coded {
                Some((dtype, count)) => {
                    let coded =
                        Operand::new(slot.clone(), Encoding::Plain(DType::U8), [part.bytes], part.from)?;
                    let out = Operand::new(room.clone(), dtype.into(), [count], part.to)?;
                    stream.launch(&Decode { coded, out }.into())?;
                }
                None => {
                    let to = room.span(part.to..part.to + part.bytes)?;
                    stream.copy(&to, &slot.span(part.from..part.from + part.bytes)?)?;
                }
            }
        }
        Ok(())
    }
}

impl Making {
    /// Where the next part may start. What lies before it is no part of any and is nothing, so that blocks are the same
    /// whatever their memory held.
    fn next_start(&self, stream: &Stream) -> Result<usize> {
        let end = self.parts.last().map_or(0, |part| part.from + part.bytes);
        let start = end.next_multiple_of(ALIGN);
        if start <= self.buffer.len() {
            stream.write(&self.buffer.span(end..start)?, &[0; ALIGN][..start - end])?;
        }
        Ok(start)
    }

    /// Codes a weight behind what is there, or moves it as it is if it does not shrink; whether there was room.
    fn add_coded(
        &mut self,
        (host, stream): (&Device, &Stream),
        (values, at): (&Buffer, usize),
        layout: &Layout,
    ) -> Result<bool> {
        let (dtype, count) = (layout.format().dtype(), layout.elements());
        let (from, most) = (self.next_start(stream)?, layout.max_coded_bytes());
        // Where coding could take more than there is room left, it is seen elsewhere first how much it takes.
        let (room, start) = match from + most <= self.buffer.len() {
            true => (self.buffer.clone(), from),
            false => (host.allocate(most)?, 0),
        };
        let operand = Operand::new(values.clone(), dtype.into(), [count], 0)?;
        let out = Operand::new(room.clone(), Encoding::Plain(DType::U8), [most], start)?;
        stream.launch(&Encode { values: operand, out }.into())?;
        let mut header = [0; codec::HEADER_BYTES];
        stream.read(&room.span(start..start + header.len())?, &mut header)?;
        let coded = codec::stated_bytes(&header).map_err(|error| not_coded(host, &error))?;
        if coded as f64 >= MOST_KEPT * layout.original_bytes() as f64 {
            return self.add_plain(stream, (values, at));
        }
        if from + coded > self.buffer.len() {
            return Ok(false);
        }
        if !room.same_memory(&self.buffer) {
            stream.copy(&self.buffer.span(from..from + coded)?, &room.span(0..coded)?)?;
        }
        self.parts.push(Part { from, bytes: coded, to: at, coded: Some((dtype, count)) });
        Ok(true)
    }

    /// Moves bytes of the block behind what is there; whether there was room.
    fn add_plain(&mut self, stream: &Stream, (values, at): (&Buffer, usize)) -> Result<bool> {
        let (from, bytes) = (self.next_start(stream)?, values.len());
        if from + bytes > self.buffer.len() {
            return Ok(false);
        }
        stream.copy(&self.buffer.span(from..from + bytes)?, &values.whole())?;
        self.parts.push(Part { from, bytes, to: at, coded: None });
        Ok(true)
    }
}

/// A weight on the host as devices keep it: where it lies in the file, or cast for a moment.
fn kept_values((host, stream): (&Device, &Stream), spec: &WeightSpec) -> Result<Buffer> {
    if !spec.is_cast() {
        return Ok(over(&spec.bytes));
    }
    let kept = host.allocate(spec.kept_bytes())?;
    let x = Operand::new(over(&spec.bytes), spec.encoding, spec.shape, 0)?;
    let out = Operand::new(kept.clone(), spec.kept_as, spec.shape, 0)?;
    stream.launch(&Copy { x, out }.into())?;
    Ok(kept)
}

fn not_coded(host: &Device, error: &codec::Error) -> Error {
    Error::Device { device: host.id(), action: "coding weights".into(), reason: error.to_string() }
}
