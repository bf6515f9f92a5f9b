//! How a block's weights lie in one buffer: each at an aligned offset, its scale behind it. The same
//! layout holds on the host, on donors and in the slots of a ring, so a block moves as one copy.

use device::{Buffer, Operand};
use meta::Encoding;
use tensor::Weight;

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
    scale: Option<usize>,
}

impl BlockLayout {
    pub(crate) fn new(manifest: &Manifest, block: usize) -> BlockLayout {
        let mut len = 0usize;
        let mut take = |bytes: usize| {
            let start = len;
            len = (start + bytes).next_multiple_of(ALIGN);
            start
        };
        let mut places = Vec::new();
        for spec in manifest.weights_of(block) {
            let weight = take(spec.bytes.as_ref().len());
            places.push(Place { weight, scale: spec.scale.as_ref().map(|scale| take(scale.as_ref().len())) });
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

    /// Calls `visit` with every piece: its offset and its bytes in the file.
    pub(crate) fn pieces<'a, E>(
        &self,
        specs: &'a [WeightSpec],
        mut visit: impl FnMut(usize, &'a checkpoint::EntryBytes) -> Result<(), E>,
    ) -> Result<(), E> {
        for (place, spec) in self.places.iter().zip(specs) {
            visit(place.weight, &spec.bytes)?;
            if let (Some(at), Some(scale)) = (place.scale, &spec.scale) {
                visit(at, scale)?;
            }
        }
        Ok(())
    }

    /// The block's weights as they lie in `buffer`.
    pub(crate) fn weights(&self, specs: &[WeightSpec], buffer: &Buffer) -> device::Result<Vec<Weight>> {
        let weight = |(place, spec): (&Place, &WeightSpec)| {
            let weight = Weight::new(Operand::new(buffer.clone(), spec.encoding, spec.shape, place.weight)?);
            match place.scale {
                None => Ok(weight),
                Some(at) => Ok(weight.scaled(Operand::new(buffer.clone(), Encoding::F32, [1], at)?)),
            }
        };
        self.places.iter().zip(specs).map(weight).collect()
    }
}
