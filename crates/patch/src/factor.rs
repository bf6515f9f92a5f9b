//! One tensor of a patch file: a share in the mapped file, and its way onto a device.

use std::fmt;
use std::sync::Arc;

use checkpoint::{Checkpoint, Entry, EntryBytes};
use meta::{DType, Encoding, Shape};
use tensor::{Lane, Tensor, Weight};

use crate::factors::Factors;
use crate::{Allocate, Result};

/// One tensor of a patch file. Cloning copies no bytes.
#[derive(Clone)]
pub struct Factor(Arc<Stored>);

/// Where the tensor is and what it is.
struct Stored {
    name: Box<str>,
    bytes: EntryBytes,
    encoding: Encoding,
    shape: Shape,
    stored_shape: Shape,
}

impl Factor {
    pub(crate) fn new(checkpoint: &Checkpoint, entry: &Entry) -> Factor {
        Factor(Arc::new(Stored {
            name: entry.name().into(),
            bytes: checkpoint.entry_bytes(entry),
            encoding: entry.encoding(),
            shape: *entry.shape(),
            stored_shape: *entry.stored_shape(),
        }))
    }

    /// A weight of a model, seen in its file.
    #[must_use]
    pub fn of_weight(name: &str, bytes: EntryBytes, encoding: Encoding, shape: Shape) -> Factor {
        Factor(Arc::new(Stored { name: name.into(), bytes, encoding, shape, stored_shape: shape }))
    }

    /// The tensor's name in the file.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The stored bytes.
    pub fn bytes(&self) -> &EntryBytes {
        &self.0.bytes
    }

    /// How the values are stored.
    pub fn encoding(&self) -> Encoding {
        self.0.encoding
    }

    /// The dimensions.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// The first dimension, and all others together; 1 where there are none.
    pub(crate) fn flat(&self) -> (usize, usize) {
        flat(&self.0.shape)
    }

    /// The dimensions under which the bytes are stored.
    pub(crate) fn stored_shape(&self) -> &Shape {
        &self.0.stored_shape
    }

    /// Tells this tensor apart from all others that live.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Bytes of [`Factor::weight`].
    pub(crate) fn weight_bytes(&self) -> usize {
        let doubles = self.encoding() == Encoding::Plain(DType::F64);
        if doubles { self.bytes().len() / 2 } else { self.bytes().len() }
    }

    /// The stored bytes on the lane's device, seen as a matrix. Doubles become f32: no layer computes with them.
    pub(crate) fn weight(&self, lane: &Lane, allocate: &mut Allocate<'_>) -> Result<Weight> {
        let (rows, columns) = self.flat();
        let buffer = allocate(self.weight_bytes())?;
        if self.encoding() == Encoding::Plain(DType::F64) {
            let lane = lane.with_dtype(DType::F32)?;
            let weight = Weight::whole(buffer, Encoding::F32, [rows, columns])?;
            let values = Factors::default().matrix(&lane, self)?;
            values.copy_into(&Tensor::new(weight.operand().clone(), lane))?;
            return Ok(weight);
        }
        lane.stream().write(&buffer.whole(), self.bytes())?;
        let stored = Weight::whole(buffer, self.0.encoding, self.0.stored_shape)?;
        Ok(Weight::new(stored.operand().reshape([rows, columns])?))
    }

    /// The values on the host, of plain floats of 16 or 32 bits.
    pub(crate) fn values(&self) -> Option<Vec<f32>> {
        let bytes: &[u8] = &self.0.bytes;
        let pairs = || bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        match self.0.encoding.dtype()? {
            DType::F32 => {
                let four = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                Some(bytes.chunks_exact(4).map(four).collect())
            }
            DType::F16 => Some(pairs().map(|bits| half(bits) as f32).collect()),
            DType::BF16 => Some(pairs().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect()),
            _ => None,
        }
    }

    /// The value, if there is exactly one and its type is a plain float or a small integer.
    pub(crate) fn scalar(&self) -> Option<f64> {
        let dtype = self.0.encoding.dtype().filter(|_| self.0.shape.count() == 1)?;
        let bytes: &[u8] = &self.0.bytes;
        match dtype {
            DType::F64 => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
            DType::F32 => Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
            DType::BF16 => {
                let bits = u16::from_le_bytes(bytes.try_into().ok()?);
                Some(f64::from(f32::from_bits(u32::from(bits) << 16)))
            }
            DType::F16 => Some(half(u16::from_le_bytes(bytes.try_into().ok()?))),
            DType::I64 => Some(i64::from_le_bytes(bytes.try_into().ok()?) as f64),
            DType::I32 => Some(f64::from(i32::from_le_bytes(bytes.try_into().ok()?))),
            _ => None,
        }
    }
}

impl fmt::Debug for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Factor('{}', {}, {})", self.0.name, self.0.encoding, self.0.shape)
    }
}

/// The first dimension of a shape, and all others together; 1 where there are none.
pub(crate) fn flat(shape: &Shape) -> (usize, usize) {
    match shape.dims() {
        [] => (1, 1),
        [rows, rest @ ..] => (*rows, rest.iter().fold(1, |n: usize, d| n.saturating_mul(*d))),
    }
}

/// The value of an IEEE half.
fn half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10 & 0x1F), f64::from(bits & 0x3FF));
    sign * match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_every_kind() {
        for (bits, value) in [
            (0x3C00, 1.0),
            (0xC000, -2.0),
            (0x4400, 4.0),
            (0x7BFF, 65504.0),
            (0x0001, 2f64.powi(-24)),
            (0x0400, 2f64.powi(-14)),
            (0x7C00, f64::INFINITY),
        ] {
            assert_eq!(half(bits), value, "{bits:04x}");
        }
        assert!(half(0x7E00).is_nan());
    }

    #[test]
    fn flat_views() {
        assert_eq!(flat(&Shape::scalar()), (1, 1));
        assert_eq!(flat(&Shape::from([5])), (5, 1));
        assert_eq!(flat(&Shape::from([5, 2, 3, 3])), (5, 18));
    }
}
