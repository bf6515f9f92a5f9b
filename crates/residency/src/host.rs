//! A block's bytes on the host: the mapped file itself, or a packed copy that a GPU copies from at full
//! speed. A patched weight has bytes of its own in place of the file's.

use std::sync::Arc;

use checkpoint::EntryBytes;
use device::{Buffer, Device, Result, Stream};
use meta::DeviceKind;

use crate::layout::BlockLayout;
use crate::manifest::WeightSpec;

/// A block on the host, in pieces or packed as its layout says.
pub(crate) enum HostBlock {
    /// Offset in the layout and bytes, piece by piece.
    Mapped(Vec<(usize, Buffer)>),
    /// All pieces at their offsets.
    Packed(Buffer),
}

impl HostBlock {
    /// The host copy from which `device` will stream: packed and pinned for a GPU, else the file.
    pub(crate) fn new(
        specs: &[WeightSpec],
        layout: &BlockLayout,
        device: &Device,
        host: &Device,
    ) -> Result<HostBlock> {
        if device.id().kind == DeviceKind::Cuda {
            HostBlock::packed(specs, layout, device, host)
        } else {
            Ok(HostBlock::mapped(specs, layout))
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

    fn packed(
        specs: &[WeightSpec],
        layout: &BlockLayout,
        device: &Device,
        host: &Device,
    ) -> Result<HostBlock> {
        let buffer = device.allocate_pinned(host, layout.len())?;
        let stream = host.compute_stream()?;
        layout.pieces(specs, |offset, bytes| {
            let bytes = bytes.as_ref();
            stream.write(&buffer.span(offset..offset + bytes.len())?, bytes)
        })?;
        Ok(HostBlock::Packed(buffer))
    }

    /// Puts other bytes of the same length in place of a weight's.
    pub(crate) fn replace(&mut self, offset: usize, bytes: &[u8], host: &Device) -> Result<()> {
        match self {
            HostBlock::Packed(buffer) => {
                host.compute_stream()?.write(&buffer.span(offset..offset + bytes.len())?, bytes)
            }
            HostBlock::Mapped(pieces) => {
                let own = host.upload(bytes)?;
                pieces.iter_mut().filter(|(at, _)| *at == offset).for_each(|(_, piece)| *piece = own.clone());
                Ok(())
            }
        }
    }

    /// Puts the file's bytes back.
    pub(crate) fn restore(&mut self, offset: usize, bytes: &EntryBytes, host: &Device) -> Result<()> {
        match self {
            HostBlock::Packed(_) => self.replace(offset, bytes.as_ref(), host),
            HostBlock::Mapped(pieces) => {
                let mapped = over(bytes);
                pieces
                    .iter_mut()
                    .filter(|(at, _)| *at == offset)
                    .for_each(|(_, piece)| *piece = mapped.clone());
                Ok(())
            }
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
        }
        Ok(moved)
    }
}

/// A buffer over mapped bytes.
pub(crate) fn over(bytes: &EntryBytes) -> Buffer {
    Buffer::over(Arc::new(bytes.clone()))
}
