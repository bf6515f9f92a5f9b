//! What stands beside a weight in its file: the scales that make numbers of its codes.

use checkpoint::{Checkpoint, Entry, EntryBytes, ProductMark};
use device::Operand;
use device::op::Scales;
use meta::{DType, Encoding, Shape};
use tensor::Weight;

use crate::manifest::WeightSpec;

/// A tensor beside a weight.
#[derive(Clone, Debug)]
pub struct Companion {
    /// How it is stored.
    pub encoding: Encoding,
    /// Its shape.
    pub shape: Shape,
    /// Its bytes in the mapped file.
    pub bytes: EntryBytes,
}

/// All that stands beside a weight; nothing beside most.
#[derive(Clone, Debug, Default)]
pub struct Companions {
    /// One number for all its values, one for each row, or the bytes of one for each block.
    pub scale: Option<Companion>,
    /// One number that multiplies the scales of blocks.
    pub tensor_scale: Option<Companion>,
    /// What the input of its layer is multiplied with.
    pub input_factor: Option<Companion>,
    /// What the file says of its products.
    pub product: ProductMark,
}

impl Companions {
    /// How many tensors there can be beside a weight.
    pub(crate) const MOST: usize = 3;

    /// What the file has beside one of its weights.
    pub fn of(checkpoint: &Checkpoint, weight: &Entry) -> Companions {
        let companion = |entry: &Entry| Companion {
            // Scales of blocks are bytes, whatever numbers they stand for.
            encoding: if entry.encoding().block_bytes() == 1 { DType::U8.into() } else { entry.encoding() },
            shape: *entry.shape(),
            bytes: checkpoint.entry_bytes(entry),
        };
        Companions {
            scale: checkpoint.scale_of(weight).map(companion),
            tensor_scale: checkpoint.tensor_scale_of(weight).map(companion),
            input_factor: checkpoint.input_factor_of(weight).map(companion),
            product: weight.product(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all().iter().all(Option::is_none)
    }

    /// Each of them, in one order.
    pub(crate) fn all(&self) -> [Option<&Companion>; Companions::MOST] {
        [self.scale.as_ref(), self.tensor_scale.as_ref(), self.input_factor.as_ref()]
    }
}

impl WeightSpec {
    /// The bytes of the weight and of what stands beside it.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &EntryBytes> {
        let beside = self.companions.all().into_iter().flatten().map(|companion| &companion.bytes);
        std::iter::once(&self.bytes).chain(beside)
    }

    /// The weight that lies at `operand`, with its companions from where `place` says that the one of this index lies.
    pub(crate) fn assemble<E: From<device::Error>>(
        &self,
        operand: Operand,
        mut place: impl FnMut(usize, &Companion) -> Result<Operand, E>,
    ) -> Result<Weight, E> {
        let [scale, tensor, factor] = self.companions.all();
        let mut at = |index: usize, companion: Option<&Companion>| {
            companion.map(|companion| place(index, companion)).transpose()
        };
        let mut weight = Weight::new(operand).cut_to(self.shape)?.with_fp8_product(self.fp8_product);
        let tensor = at(1, tensor)?;
        if let Some(scale) = at(0, scale)? {
            weight = weight.with_scales(Scales::new(scale, tensor));
        }
        if let Some(factor) = at(2, factor)? {
            weight = weight.with_input_factor(factor);
        }
        Ok(weight)
    }
}
