//! A block's bytes on the host: the mapped file itself, pinned where it lies for a GPU that can read it so; or a packed
//! copy, for a GPU that copies at full speed only from such memory, or because its weights are cast. They are as the file
//! has them: patches are merged where the block arrives.

use std::sync::Arc;

use checkpoint::EntryBytes;
use device::{Buffer, Device, Reservation, Result, SharedBytes, Span, Stream};

use crate::coding::{CodedBlock, FoundCoded};
use crate::layout::BlockLayout;
use crate::manifest::WeightSpec;
use crate::needs::HostSource;

/// A block on the host, in pieces or packed as its layout says.
pub(crate) enum HostBlock {
    /// Offset in the layout and bytes, piece by piece.
    Mapped(Vec<(usize, Buffer)>),
    /// The same in memory that is pinned where it lies, in as few pieces as there can be.
    Pinned(Vec<(usize, Span)>),
    /// All pieces at their offsets.
    Packed(Buffer),
    /// Losslessly coded.
    Coded(CodedBlock),
    /// The same in a file of an earlier start.
    Found(Box<FoundCoded>),
}

/// The parts of files that hold streamed blocks, pinned where they lie.
pub(crate) struct PinnedFiles {
    regions: Vec<(EntryBytes, Buffer)>,
}

/// What is pinned at a time, in whole pages.
const PART_BYTES: usize = 128 << 20;
/// More regions than these are not worth the driver's while; such a file is packed.
const MOST_REGIONS: usize = 4096;

impl PinnedFiles {
    /// Pins what these blocks need, in their order of use; none where the device cannot.
    pub(crate) fn new<'a>(
        device: &Device,
        blocks: impl Iterator<Item = &'a [WeightSpec]>,
    ) -> Result<Option<PinnedFiles>> {
        PinnedFiles::over(
            device,
            blocks.map(|specs| specs.iter().flat_map(WeightSpec::pieces).cloned().collect()),
        )
    }

    /// Pins these bytes of files, with what else lies on their pages; none where the device cannot.
    pub(crate) fn over(
        device: &Device,
        pieces: impl Iterator<Item = Vec<EntryBytes>>,
    ) -> Result<Option<PinnedFiles>> {
        if !device.pins_in_place() {
            return Ok(None);
        }
        let mut regions: Vec<EntryBytes> = Vec::new();
        for pieces in pieces {
            let mut pieces: Vec<EntryBytes> = pieces.iter().map(EntryBytes::whole_pages).collect();
            pieces.sort_by_key(|piece| piece.place().start);
            pieces.into_iter().for_each(|piece| add_region(&mut regions, piece));
        }
        if regions.len() > MOST_REGIONS {
            return Ok(None);
        }
        let regions: Vec<EntryBytes> = regions.iter().flat_map(parts).collect();
        let shared = regions.iter().map(|region| Arc::new(region.clone()) as SharedBytes).collect();
        let Some(buffers) = device.pin_in_place(shared)? else { return Ok(None) };
        Ok(Some(PinnedFiles { regions: regions.into_iter().zip(buffers).collect() }))
    }

    /// A block's pieces, cut where a region ends.
    fn block(&self, specs: &[WeightSpec], layout: &BlockLayout) -> Option<Vec<(usize, Span)>> {
        let mut pieces = Vec::new();
        for (offset, bytes) in layout.joined_pieces(specs) {
            pieces.extend(self.pieces(offset, bytes)?);
        }
        Some(pieces)
    }

    /// Bytes that go to `offset`, cut where a region ends; none if they are not pinned.
    pub(crate) fn pieces(&self, mut offset: usize, mut bytes: EntryBytes) -> Option<Vec<(usize, Span)>> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let (region, buffer) = self.regions.iter().find(|(region, _)| region.holds_start_of(&bytes))?;
            let start = bytes.place().start - region.place().start;
            let len = bytes.len().min(region.len() - start);
            pieces.push((offset, buffer.span(start..start + len).ok()?));
            bytes = bytes.slice(len..bytes.len());
            offset += len;
        }
        Some(pieces)
    }
}

/// Adds pages to the regions, as part of one that they touch if there is one. Regions may not share a page.
fn add_region(regions: &mut Vec<EntryBytes>, mut piece: EntryBytes) {
    while let Some(touching) =
        regions.iter().position(|region| region.reaches(&piece) || piece.reaches(region))
    {
        let other = regions.remove(touching);
        let joined = other.through(&piece).or_else(|| piece.through(&other));
        piece = joined.unwrap_or(piece);
    }
    regions.push(piece);
}

/// A region in parts, each of which is pinned when it is first used, beside the copy of the one before.
fn parts(region: &EntryBytes) -> impl Iterator<Item = EntryBytes> {
    let starts = (0..region.len()).step_by(PART_BYTES);
    starts.map(|start| region.slice(start..region.len().min(start + PART_BYTES)))
}

impl HostBlock {
    /// The host copy from which `device` will stream: memory of its own where the block is cast or `source` says so, which
    /// is to be filled before it is used; else the file, pinned if it is.
    pub(crate) fn new(
        (specs, layout): (&[WeightSpec], &BlockLayout),
        (device, host): (&Device, &Device),
        source: HostSource,
        pinned: Option<&PinnedFiles>,
        reserved: Option<&mut Reservation>,
    ) -> Result<HostBlock> {
        let cast = specs.iter().any(WeightSpec::is_cast);
        if let Some(pieces) = pinned.filter(|_| !cast).and_then(|files| files.block(specs, layout)) {
            return Ok(HostBlock::Pinned(pieces));
        }
        if !cast && source == HostSource::File {
            return Ok(HostBlock::mapped(specs, layout));
        }
        let buffer = match reserved {
            Some(reserved) => device.allocate_pinned_from(reserved, layout.len())?,
            None => device.allocate_pinned(host, layout.len())?,
        };
        Ok(HostBlock::Packed(buffer))
    }

    /// The memory of its own that is to be filled, if it has some.
    pub(crate) fn to_fill(&self) -> Option<&Buffer> {
        match self {
            HostBlock::Packed(buffer) => Some(buffer),
            HostBlock::Mapped(_) | HostBlock::Pinned(_) | HostBlock::Coded(_) | HostBlock::Found(_) => None,
        }
    }

    fn mapped(specs: &[WeightSpec], layout: &BlockLayout) -> HostBlock {
        let mut pieces = Vec::new();
        let Ok(()) = layout.pieces(specs, |offset, bytes| {
            pieces.push((offset, over(bytes)));
            Ok::<(), std::convert::Infallible>(())
        });
        HostBlock::Mapped(pieces)
    }

    /// Queues the copy of the block into a buffer; the number of bytes that move.
    pub(crate) fn copy_to(&self, stream: &Stream, target: &Buffer) -> Result<u64> {
        let mut moved = 0;
        match self {
            HostBlock::Coded(block) => moved += block.copy_to(stream, target)?,
            HostBlock::Found(block) => moved += block.checked()?.copy_to(stream, target)?,
            HostBlock::Packed(buffer) => {
                stream.copy(&target.span(0..buffer.len())?, &buffer.whole())?;
                moved += buffer.len() as u64;
            }
            HostBlock::Mapped(pieces) => {
                for (offset, piece) in pieces {
                    stream.copy(&target.span(*offset..offset + piece.len())?, &piece.whole())?;
                    moved += piece.len() as u64;
                }
            }
            HostBlock::Pinned(pieces) => {
                for (offset, piece) in pieces {
                    stream.copy(&target.span(*offset..offset + piece.len)?, piece)?;
                    moved += piece.len as u64;
                }
            }
        }
        Ok(moved)
    }
}

/// A buffer over mapped bytes.
pub(crate) fn over(bytes: &EntryBytes) -> Buffer {
    Buffer::over(Arc::new(bytes.clone()))
}
