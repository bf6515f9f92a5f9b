//! Tensors of patch files on a device, and the memory that patches are staged in.

use std::collections::HashMap;

use device::{Buffer, Operand};
use meta::Encoding;
use tensor::{Lane, Tensor, Weight};

use crate::factor::flat;
use crate::{Factor, Patch, Result};

/// Gives memory of a device, such as out of bytes that were promised before.
pub type Allocate<'a> = dyn FnMut(usize) -> device::Result<Buffer> + 'a;

/// Every tensor starts at a multiple of this, which suits all devices.
const ALIGN: usize = 256;

/// Bytes that a tensor of so many bytes takes among others.
pub(crate) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// Memory that tensors are put into one after the other.
pub(crate) struct Room {
    buffer: Buffer,
    next: usize,
}

impl Room {
    /// Room for tensors whose padded sizes add up to `bytes`.
    pub(crate) fn new(bytes: usize, allocate: &mut Allocate<'_>) -> Result<Room> {
        Ok(Room { buffer: allocate(bytes)?, next: 0 })
    }

    /// A place for a tensor.
    pub(crate) fn take(&mut self, encoding: Encoding, shape: impl Into<meta::Shape>) -> Result<Operand> {
        let shape = shape.into();
        let operand = Operand::new(self.buffer.clone(), encoding, shape, self.next)?;
        self.next += padded(encoding.bytes(&shape).map_err(device::Error::from)? as usize);
        Ok(operand)
    }
}

/// Tensors of patch files on a device, in the files' encodings. One that is not among them is brought there for each use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Factors(HashMap<usize, Weight>);

impl Factors {
    /// Brings all tensors of the patches to the lane's device.
    pub(crate) fn stage(lane: &Lane, patches: &[Patch], allocate: &mut Allocate<'_>) -> Result<Factors> {
        let mut room = Room::new(Factors::bytes_for(patches), allocate)?;
        let mut staged = HashMap::new();
        for factor in distinct(patches) {
            let place = room.take(factor.encoding(), *factor.stored_shape())?;
            lane.stream().write(&place.span(), factor.bytes())?;
            staged.insert(factor.id(), Weight::new(place));
        }
        Ok(Factors(staged))
    }

    /// Bytes that they take there.
    pub(crate) fn bytes_for(patches: &[Patch]) -> usize {
        distinct(patches).iter().map(|factor| padded(factor.bytes().len())).sum()
    }

    /// The same for patches that are the same changes as those that these were staged for, if read from the file anew.
    pub(crate) fn for_same(&self, staged: &[Patch], patches: &[Patch]) -> Factors {
        let factors = |patches: &[Patch]| -> Vec<usize> {
            patches.iter().flat_map(|patch| patch.adapter().factors()).map(Factor::id).collect()
        };
        let pairs = factors(staged).into_iter().zip(factors(patches));
        Factors(pairs.filter_map(|(old, new)| Some((new, self.0.get(&old)?.clone()))).collect())
    }

    /// A tensor's values on an f32 lane, in their own shape.
    pub(crate) fn tensor(&self, lane: &Lane, factor: &Factor) -> Result<Tensor> {
        let stored = match self.0.get(&factor.id()) {
            Some(stored) => stored.clone(),
            None => Weight::upload(lane.device(), factor.encoding(), *factor.stored_shape(), factor.bytes())?,
        };
        Ok(lane.unpack(&stored)?.reshape(*factor.shape())?)
    }

    /// The same seen as a matrix.
    pub(crate) fn matrix(&self, lane: &Lane, factor: &Factor) -> Result<Tensor> {
        let (rows, columns) = flat(factor.shape());
        Ok(self.tensor(lane, factor)?.reshape([rows, columns])?)
    }
}

/// The tensors of patches that wait on a device, each once.
fn distinct(patches: &[Patch]) -> Vec<&Factor> {
    let mut factors: Vec<&Factor> = Vec::new();
    for factor in patches.iter().flat_map(|patch| patch.adapter().waiting_factors()) {
        if factors.iter().all(|known| known.id() != factor.id()) {
            factors.push(factor);
        }
    }
    factors
}
