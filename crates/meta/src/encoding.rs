//! How a tensor's values are stored: plain elements, quantised blocks, or codes with scales beside them.

use std::fmt;

use crate::{DType, QuantFormat, Scheme, Shape};

/// How the values of a tensor are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encoding {
    /// One element after the other.
    Plain(DType),
    /// Blocks along the last dimension that share scales.
    Quant(QuantFormat),
    /// Codes that mean nothing without the scales beside them.
    Scaled(Scheme),
}

/// Why a shape has no byte size in an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Element count or byte count passes the largest 64-bit number.
    #[error("shape {shape} in {encoding} has more bytes than a 64-bit number can count")]
    Overflow {
        /// The shape asked about.
        shape: Shape,
        /// The encoding asked about.
        encoding: Encoding,
    },
    /// Rows of a quantised tensor must be whole blocks.
    #[error(
        "shape {shape} cannot be stored in {encoding}: its last dimension is not a multiple of {block_len}"
    )]
    PartialBlock {
        /// The shape asked about.
        shape: Shape,
        /// The encoding asked about.
        encoding: Encoding,
        /// Values per block.
        block_len: usize,
    },
}

impl Encoding {
    /// 32-bit floats, the encoding of CPU activations.
    pub const F32: Encoding = Encoding::Plain(DType::F32);
    /// 16-bit IEEE floats.
    pub const F16: Encoding = Encoding::Plain(DType::F16);
    /// 16-bit brain floats.
    pub const BF16: Encoding = Encoding::Plain(DType::BF16);

    /// Values in the smallest unit that has a size of its own.
    pub const fn block_len(self) -> usize {
        match self {
            Encoding::Plain(_) => 1,
            Encoding::Quant(format) => format.block_len(),
            Encoding::Scaled(scheme) => scheme.block_len(),
        }
    }

    /// Bytes of that unit.
    pub const fn block_bytes(self) -> usize {
        match self {
            Encoding::Plain(dtype) => dtype.bytes(),
            Encoding::Quant(format) => format.block_bytes(),
            Encoding::Scaled(scheme) => scheme.block_bytes(),
        }
    }

    /// The element type, if values are stored one by one.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Encoding::Plain(dtype) => Some(dtype),
            Encoding::Quant(_) | Encoding::Scaled(_) => None,
        }
    }

    /// The block format, if values are quantised.
    pub const fn quant(self) -> Option<QuantFormat> {
        match self {
            Encoding::Quant(format) => Some(format),
            Encoding::Plain(_) | Encoding::Scaled(_) => None,
        }
    }

    /// The scheme, if the values need scales beside them.
    pub const fn scheme(self) -> Option<Scheme> {
        match self {
            Encoding::Scaled(scheme) => Some(scheme),
            Encoding::Plain(_) | Encoding::Quant(_) => None,
        }
    }

    /// Bytes that a contiguous tensor of `shape` takes.
    pub fn bytes(self, shape: &Shape) -> Result<u64, SizeError> {
        let overflow = SizeError::Overflow { shape: *shape, encoding: self };
        let count = shape.checked_count().ok_or(overflow)?;
        let block_len = self.block_len();
        let row = shape.dims().last().copied().unwrap_or(1);
        if !row.is_multiple_of(block_len) {
            return Err(SizeError::PartialBlock { shape: *shape, encoding: self, block_len });
        }
        (count / block_len as u64).checked_mul(self.block_bytes() as u64).ok_or(overflow)
    }

    /// The name used in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::Plain(dtype) => dtype.name(),
            Encoding::Quant(format) => format.name(),
            Encoding::Scaled(scheme) => scheme.name(),
        }
    }
}

impl From<DType> for Encoding {
    fn from(dtype: DType) -> Self {
        Encoding::Plain(dtype)
    }
}

impl From<QuantFormat> for Encoding {
    fn from(format: QuantFormat) -> Self {
        Encoding::Quant(format)
    }
}

impl From<Scheme> for Encoding {
    fn from(scheme: Scheme) -> Self {
        Encoding::Scaled(scheme)
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn plain_and_quantised_sizes() {
        assert_eq!(Encoding::BF16.bytes(&shape(&[3, 5])), Ok(30));
        assert_eq!(Encoding::F32.bytes(&shape(&[])), Ok(4));
        assert_eq!(Encoding::F32.bytes(&shape(&[7, 0])), Ok(0));
        assert_eq!(Encoding::from(QuantFormat::Q8_0).bytes(&shape(&[2, 64])), Ok(136));
        assert_eq!(Encoding::from(QuantFormat::Q6_K).bytes(&shape(&[256])), Ok(210));
    }

    #[test]
    fn partial_blocks_and_overflow_are_errors() {
        let q = Encoding::from(QuantFormat::Q4_K);
        assert!(matches!(q.bytes(&shape(&[4, 100])), Err(SizeError::PartialBlock { block_len: 256, .. })));
        let huge = shape(&[1 << 40, 1 << 40]);
        assert!(matches!(Encoding::F32.bytes(&huge), Err(SizeError::Overflow { .. })));
    }
}
