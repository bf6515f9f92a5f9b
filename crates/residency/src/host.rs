//! A block's bytes on the host: the mapped file itself, pinned where it lies for a GPU that can read it so, or a packed
//! copy that a GPU copies from at full speed. A patched weight has bytes of its own in place of the file's.

use std::sync::Arc;

use checkpoint::EntryBytes;
use device::{Buffer, Device, Reservation, Result, SharedBytes, Span, Stream};
use meta::DeviceKind;

use crate::layout::BlockLayout;
use crate::manifest::WeightSpec;

/// A block on the host, in pieces or packed as its layout says.
pub(crate) enum HostBlock {
    /// Offset in the layout and bytes, piece by piece.
    Mapped(Vec<(usize, Buffer)>),
    /// The same in memory that is pinned where it lies, in as few pieces as there can be.
    Pinned(PinnedBlock),
    /// All pieces at their offsets.
    Packed(Buffer),
}

/// A block in a pinned file.
pub(crate) struct PinnedBlock {
    /// Offset in the layout and bytes.
    pieces: Vec<(usize, Span)>,
    specs: Vec<WeightSpec>,
    layout: BlockLayout,
    /// Who copies from here.
    device: Device,
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
        if !device.pins_in_place() {
            return Ok(None);
        }
        let mut regions: Vec<EntryBytes> = Vec::new();
        for specs in blocks {
            let mut pieces: Vec<EntryBytes> = specs
                .iter()
                .flat_map(|spec| std::iter::once(&spec.bytes).chain(&spec.scale))
                .map(EntryBytes::whole_pages)
                .collect();
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
    fn block(&self, specs: &[WeightSpec], layout: &BlockLayout, device: &Device) -> Option<PinnedBlock> {
        let mut pieces = Vec::new();
        for (mut offset, mut bytes) in layout.joined_pieces(specs) {
            while !bytes.is_empty() {
                let (region, buffer) =
                    self.regions.iter().find(|(region, _)| region.holds_start_of(&bytes))?;
                let start = bytes.place().start - region.place().start;
                let len = bytes.len().min(region.len() - start);
                pieces.push((offset, buffer.span(start..start + len).ok()?));
                bytes = bytes.slice(len..bytes.len());
                offset += len;
            }
        }
        Some(PinnedBlock { pieces, specs: specs.to_vec(), layout: layout.clone(), device: device.clone() })
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
    /// The host copy from which `device` will stream: the pinned file, a packed and pinned copy for a GPU that cannot
    /// pin files, else the file.
    pub(crate) fn new(
        specs: &[WeightSpec],
        layout: &BlockLayout,
        (device, host): (&Device, &Device),
        pinned: Option<&PinnedFiles>,
        reserved: Option<&mut Reservation>,
    ) -> Result<HostBlock> {
        if let Some(block) = pinned.and_then(|files| files.block(specs, layout, device)) {
            return Ok(HostBlock::Pinned(block));
        }
        match reserved.filter(|_| device.id().kind == DeviceKind::Cuda) {
            Some(reserved) => {
                let buffer = device.allocate_pinned_from(reserved, layout.len())?;
                Ok(HostBlock::Packed(pack(host, specs, layout, buffer)?))
            }
            None => Ok(HostBlock::mapped(specs, layout)),
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

    /// Puts other bytes of the same length in place of a weight's.
    pub(crate) fn replace(&mut self, offset: usize, bytes: &[u8], host: &Device) -> Result<()> {
        if let HostBlock::Pinned(block) = self {
            // The file cannot be written, so the block gets pinned memory of its own.
            let buffer = block.device.allocate_pinned(host, block.layout.len())?;
            *self = HostBlock::Packed(pack(host, &block.specs, &block.layout, buffer)?);
        }
        match self {
            HostBlock::Packed(buffer) => write(host, buffer, offset, bytes),
            HostBlock::Mapped(pieces) => {
                let own = host.upload(bytes)?;
                pieces.iter_mut().filter(|(at, _)| *at == offset).for_each(|(_, piece)| *piece = own.clone());
                Ok(())
            }
            HostBlock::Pinned(_) => Ok(()),
        }
    }

    /// Puts the file's bytes back.
    pub(crate) fn restore(&mut self, offset: usize, bytes: &EntryBytes, host: &Device) -> Result<()> {
        match self {
            HostBlock::Packed(buffer) => write(host, buffer, offset, bytes.as_ref()),
            HostBlock::Mapped(pieces) => {
                let mapped = over(bytes);
                pieces
                    .iter_mut()
                    .filter(|(at, _)| *at == offset)
                    .for_each(|(_, piece)| *piece = mapped.clone());
                Ok(())
            }
            HostBlock::Pinned(_) => Ok(()),
        }
    }

    /// Queues the copy of the block into a buffer; the number of bytes that move.
    pub(crate) fn copy_to(&self, stream: &Stream, target: &Buffer) -> Result<u64> {
        let mut moved = 0;
        match self {
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
            HostBlock::Pinned(block) => {
                for (offset, piece) in &block.pieces {
                    stream.copy(&target.span(*offset..offset + piece.len)?, piece)?;
                    moved += piece.len as u64;
                }
            }
        }
        Ok(moved)
    }
}

fn write(host: &Device, buffer: &Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
    host.compute_stream()?.write(&buffer.span(offset..offset + bytes.len())?, bytes)
}

/// Puts a block's pieces at their offsets in pinned memory.
fn pack(host: &Device, specs: &[WeightSpec], layout: &BlockLayout, buffer: Buffer) -> Result<Buffer> {
    layout.pieces(specs, |offset, bytes| write(host, &buffer, offset, bytes.as_ref()))?;
    Ok(buffer)
}

/// A buffer over mapped bytes.
pub(crate) fn over(bytes: &EntryBytes) -> Buffer {
    Buffer::over(Arc::new(bytes.clone()))
}
