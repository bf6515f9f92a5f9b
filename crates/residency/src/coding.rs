//! Blocks that wait in host memory and travel losslessly coded, or stay so where they compute: what coding would make of them, and the coded block itself.
//! They are decoded on the device that computes, into the layout that a plain block has.

use codec::{Format, Layout, Portable, TileCoder};
use device::op::{Decode, Encode};
use device::{Buffer, Device, Error, Operand, Result, Stream};
use meta::{DType, Encoding};

use crate::cast;
use crate::layout::BlockLayout;
use crate::manifest::WeightSpec;

/// Where parts of a coded block may start, which suits all devices.
const ALIGN: usize = 256;
/// Tiles of a weight that are looked at to tell how far it shrinks.
const SAMPLED_TILES: usize = 64;
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
    let every = tiles.div_ceil(SAMPLED_TILES);
    let sampled = (0..tiles).step_by(every);
    let count = sampled.clone().count();
    let values: &[u8] = spec.bytes.as_ref();
    let windows = sampled.map(|tile| Portable.survey(layout.format(), &values[layout.tile_place(tile)]));
    let escapes: usize = windows.map(|window| usize::from(window.escapes)).sum();
    let escapes = escapes * tiles / count;
    let codes = layout.elements().div_ceil(codec::GROUP) * codec::CODE_BITS * codec::PLANE_BYTES;
    let exact = layout.variable_start() + tiles * (codec::RANK_BYTES + 8) + codes + escapes;
    let bytes = if every > 1 { exact + exact / MARGIN } else { exact };
    ((bytes as f64) < MOST_KEPT * layout.original_bytes() as f64).then_some(bytes)
}

/// A coded block: in host memory, as it travels, or where it computes.
pub(crate) struct CodedBlock {
    buffer: Buffer,
    parts: Vec<Part>,
    /// Bytes of the block when it is decoded.
    len: usize,
}

/// A part of a coded block.
struct Part {
    /// Its place in the coded block.
    from: usize,
    bytes: usize,
    /// Its place in the block.
    to: usize,
    /// Its values, if it is coded; else it is moved as it is.
    coded: Option<(DType, usize)>,
}

impl CodedBlock {
    /// Codes a block into `buffer`; none if it does not fit.
    pub(crate) fn new(
        host: &Device,
        specs: &[WeightSpec],
        layout: &BlockLayout,
        buffer: Buffer,
    ) -> Result<Option<CodedBlock>> {
        let stream = host.compute_stream()?;
        // The block as it would be streamed plainly, for a moment.
        let plain = host.allocate(layout.len())?;
        cast::fill_block(host, specs, layout, &plain)?;
        let mut coded = CodedBlock { buffer, parts: Vec::new(), len: layout.len() };
        for (index, spec) in specs.iter().enumerate() {
            let (at, bytes) = (layout.offset(index), spec.kept_bytes());
            let fits = match layout_of(spec) {
                Some(codes) => coded.add_coded(host, &stream, (&plain, at), &codes)?,
                None => coded.add_plain(&stream, (&plain, at), bytes)?,
            };
            let beside = layout.companion_offsets(index).into_iter().zip(spec.companions.all());
            let mut all = fits;
            for (offset, companion) in beside {
                if let (Some(offset), Some(companion)) = (offset, companion) {
                    all = all && coded.add_plain(&stream, (&plain, offset), companion.bytes.len())?;
                }
            }
            if !all {
                return Ok(None);
            }
        }
        stream.synchronize()?;
        Ok(Some(coded))
    }

    fn end(&self) -> usize {
        self.parts.last().map_or(0, |part| (part.from + part.bytes).next_multiple_of(ALIGN))
    }

    /// Codes a weight behind what is there, or moves it as it is if it does not shrink; whether there was room.
    fn add_coded(
        &mut self,
        host: &Device,
        stream: &Stream,
        (plain, at): (&Buffer, usize),
        layout: &Layout,
    ) -> Result<bool> {
        let (dtype, count) = (layout.format().dtype(), layout.elements());
        let room = host.allocate(layout.max_coded_bytes())?;
        let bytes = Encoding::Plain(DType::U8);
        let values = Operand::new(plain.clone(), dtype.into(), [count], at)?;
        let out = Operand::new(room.clone(), bytes, [layout.max_coded_bytes()], 0)?;
        stream.launch(&Encode { values, out }.into())?;
        let mut header = [0; codec::HEADER_BYTES];
        stream.read(&room.span(0..header.len())?, &mut header)?;
        let coded = codec::stated_bytes(&header).map_err(|error| not_coded(host, &error))?;
        if coded as f64 >= MOST_KEPT * layout.original_bytes() as f64 {
            return self.add_plain(stream, (plain, at), layout.original_bytes());
        }
        let from = self.end();
        if from + coded > self.buffer.len() {
            return Ok(false);
        }
        stream.copy(&self.buffer.span(from..from + coded)?, &room.span(0..coded)?)?;
        self.parts.push(Part { from, bytes: coded, to: at, coded: Some((dtype, count)) });
        Ok(true)
    }

    /// Moves bytes of the block behind what is there; whether there was room.
    fn add_plain(&mut self, stream: &Stream, (plain, at): (&Buffer, usize), bytes: usize) -> Result<bool> {
        let from = self.end();
        if from + bytes > self.buffer.len() {
            return Ok(false);
        }
        stream.copy(&self.buffer.span(from..from + bytes)?, &plain.span(at..at + bytes)?)?;
        self.parts.push(Part { from, bytes, to: at, coded: None });
        Ok(true)
    }

    /// Queues the copy of the block to where it stays. `stay` has the bytes that travel.
    pub(crate) fn moved_to(self, stream: &Stream, stay: Buffer) -> Result<CodedBlock> {
        self.copy_to(stream, &stay)?;
        Ok(CodedBlock { buffer: stay, ..self })
    }

    /// Queues what makes the block of its coded bytes where they stay.
    pub(crate) fn decode_here(&self, stream: &Stream, room: &Buffer) -> Result<()> {
        self.decode(stream, &self.buffer, room)
    }

    /// Bytes that travel.
    pub(crate) fn travelling_bytes(&self) -> usize {
        self.parts.last().map_or(0, |part| part.from + part.bytes)
    }

    /// Bytes of the block when it is decoded.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Queues the copy of the coded block; the number of bytes that move.
    pub(crate) fn copy_to(&self, stream: &Stream, slot: &Buffer) -> Result<u64> {
        let bytes = self.travelling_bytes();
        stream.copy(&slot.span(0..bytes)?, &self.buffer.span(0..bytes)?)?;
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

fn not_coded(host: &Device, error: &codec::Error) -> Error {
    Error::Device { device: host.id(), action: "coding weights".into(), reason: error.to_string() }
}
