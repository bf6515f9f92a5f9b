//! How a block's weights lie in one buffer: each at an aligned offset, in the order of the file, scales behind
//! them.
//! The same layout holds on the host, on donors and in the slots of a ring, so a block moves as one copy; and one that
//! lies in one piece in its file can move from there as one, too.

use device::{Buffer, Operand};
use tensor::Weight;

use crate::companion::Companions;
use crate::manifest::{Manifest, WeightSpec};

/// Every weight starts at a multiple of this, which suits all devices.
const ALIGN: usize = 256;

/// Offsets of one block's weights.
#[derive(Clone, Debug)]
pub(crate) struct BlockLayout {
    places: Vec<Place>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    weight: usize,
    companions: [Option<usize>; Companions::MOST],
}

impl BlockLayout {
    pub(crate) fn new(manifest: &Manifest, block: usize) -> BlockLayout {
        let mut len = 0usize;
        let mut take = |bytes: usize| {
            let start = len;
            len = (start + bytes).next_multiple_of(ALIGN);
            start
        };
        let specs = manifest.weights_of(block);
        let mut in_file: Vec<usize> = (0..specs.len()).collect();
        in_file.sort_by_key(|index| specs[*index].bytes.place().start);
        let mut places = vec![Place { weight: 0, companions: [None; Companions::MOST] }; specs.len()];
        for index in &in_file {
            places[*index].weight = take(specs[*index].kept_bytes());
        }
        for index in in_file {
            let all = specs[index].companions.all();
            places[index].companions =
                all.map(|companion| companion.map(|companion| take(companion.bytes.len())));
        }
        BlockLayout { places, len }
    }

    /// Bytes of the whole block.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where a weight starts.
    pub(crate) fn offset(&self, weight: usize) -> usize {
        self.places[weight].weight
    }

    /// Where the companions of a weight start, those that it has.
    pub(crate) fn companion_offsets(&self, weight: usize) -> [Option<usize>; Companions::MOST] {
        self.places[weight].companions
    }

    /// Calls `visit` with every piece of a block none of whose weights is cast: its offset and its bytes in the file.
    pub(crate) fn pieces<'a, E>(
        &self,
        specs: &'a [WeightSpec],
        mut visit: impl FnMut(usize, &'a checkpoint::EntryBytes) -> Result<(), E>,
    ) -> Result<(), E> {
        for (place, spec) in self.places.iter().zip(specs) {
            visit(place.weight, &spec.bytes)?;
            for (at, companion) in place.companions.into_iter().zip(spec.companions.all()) {
                if let (Some(at), Some(companion)) = (at, companion) {
                    visit(at, &companion.bytes)?;
                }
            }
        }
        Ok(())
    }

    /// The pieces with those joined that follow each other in the file as they do in the layout.
    pub(crate) fn joined_pieces(&self, specs: &[WeightSpec]) -> Vec<(usize, checkpoint::EntryBytes)> {
        let mut pieces = Vec::new();
        let Ok(()) = self.pieces(specs, |offset, bytes| {
            pieces.push((offset, bytes.clone()));
            Ok::<(), std::convert::Infallible>(())
        });
        pieces.sort_by_key(|(offset, _)| *offset);
        let mut joined: Vec<(usize, checkpoint::EntryBytes)> = Vec::new();
        for (offset, bytes) in pieces {
            if let Some((at, last)) = joined.last_mut()
                && *at + last.len() == offset
                && last.place().end == bytes.place().start
                && let Some(both) = last.through(&bytes)
            {
                *last = both;
            } else {
                joined.push((offset, bytes));
            }
        }
        joined
    }

    /// The block's weights as they lie in `buffer`.
    pub(crate) fn weights(&self, specs: &[WeightSpec], buffer: &Buffer) -> device::Result<Vec<Weight>> {
        let weight = |(place, spec): (&Place, &WeightSpec)| {
            let stored = Operand::new(buffer.clone(), spec.kept_as, *spec.stored_shape(), place.weight)?;
            spec.assemble(stored, |index, companion| {
                let at = place.companions[index].unwrap_or(0);
                Operand::new(buffer.clone(), companion.encoding, companion.shape, at)
            })
        };
        self.places.iter().zip(specs).map(weight).collect()
    }
}
