//! The element types that are coded, and how each falls apart into an exponent and the rest.

use meta::DType;

use crate::{Error, GROUP, PLANE_BYTES, Result, WINDOW};

/// An element type that can be coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 8 exponent bits; sign and mantissa are a byte.
    Bf16,
    /// 5 exponent bits; 8 bits of the mantissa are a byte, sign and two more are bit-planes.
    F16,
    /// 4 exponent bits; sign and mantissa are four bit-planes.
    F8E4M3,
}

impl Format {
    /// Every one.
    pub const ALL: [Format; 3] = [Format::Bf16, Format::F16, Format::F8E4M3];

    /// The one of a type.
    ///
    /// # Errors
    /// It has none.
    pub fn of(dtype: DType) -> Result<Format> {
        Format::ALL.into_iter().find(|format| format.dtype() == dtype).ok_or(Error::Type { dtype })
    }

    /// The type.
    pub const fn dtype(self) -> DType {
        match self {
            Format::Bf16 => DType::BF16,
            Format::F16 => DType::F16,
            Format::F8E4M3 => DType::F8E4M3,
        }
    }

    /// The number that stands for it in headers.
    pub(crate) const fn mark(self) -> u8 {
        match self {
            Format::Bf16 => 1,
            Format::F16 => 2,
            Format::F8E4M3 => 3,
        }
    }

    /// Bytes of one value.
    pub const fn element_bytes(self) -> usize {
        match self {
            Format::Bf16 | Format::F16 => 2,
            Format::F8E4M3 => 1,
        }
    }

    /// Bits of an exponent.
    pub const fn exponent_bits(self) -> usize {
        match self {
            Format::Bf16 => 8,
            Format::F16 => 5,
            Format::F8E4M3 => 4,
        }
    }

    /// Whether the low eight bits of sign and mantissa stand as bytes.
    pub const fn has_low_bytes(self) -> bool {
        !matches!(self, Format::F8E4M3)
    }

    /// Bit-planes of what else sign and mantissa have.
    pub const fn rest_planes(self) -> usize {
        match self {
            Format::Bf16 => 0,
            Format::F16 => 3,
            Format::F8E4M3 => 4,
        }
    }

    /// The largest base of a window.
    pub const fn max_base(self) -> u8 {
        ((1usize << self.exponent_bits()) - WINDOW) as u8
    }

    /// Bytes of a group in the fixed area.
    pub const fn fixed_group_bytes(self) -> usize {
        (if self.has_low_bytes() { GROUP } else { 0 }) + self.rest_planes() * PLANE_BYTES
    }

    /// Bytes of a group of raw exponents.
    pub const fn raw_group_bytes(self) -> usize {
        self.exponent_bits() * PLANE_BYTES
    }

    /// A value as its low byte of sign and mantissa, the rest of those, and its exponent.
    #[inline(always)]
    pub const fn split(self, bits: u16) -> [u8; 3] {
        match self {
            Format::Bf16 => [(bits >> 8 & 0x80 | bits & 0x7f) as u8, 0, (bits >> 7) as u8],
            Format::F16 => [bits as u8, (bits >> 13 & 4 | bits >> 8 & 3) as u8, (bits >> 10 & 31) as u8],
            Format::F8E4M3 => [0, (bits >> 4 & 8 | bits & 7) as u8, (bits >> 3 & 15) as u8],
        }
    }

    /// The value of which [`Format::split`] gives these.
    #[inline(always)]
    pub const fn join(self, [low, rest, exponent]: [u8; 3]) -> u16 {
        let (low, rest, exponent) = (low as u16, rest as u16, exponent as u16);
        match self {
            Format::Bf16 => (low & 0x80) << 8 | exponent << 7 | low & 0x7f,
            Format::F16 => (rest & 4) << 13 | (exponent & 31) << 10 | (rest & 3) << 8 | low,
            Format::F8E4M3 => (rest & 8) << 4 | (exponent & 15) << 3 | rest & 7,
        }
    }

    /// The bits of the value at the start of `bytes`.
    pub(crate) fn load(self, bytes: &[u8]) -> u16 {
        match (self.element_bytes(), bytes) {
            (2, [low, high, ..]) => u16::from_le_bytes([*low, *high]),
            (_, [low, ..]) => u16::from(*low),
            _ => 0,
        }
    }

    /// The exponent of the value at the start of `bytes`.
    pub fn exponent(self, bytes: &[u8]) -> u8 {
        self.split(self.load(bytes))[2]
    }

    /// The bytes of a value that is a power of two with this exponent; what fills up groups.
    pub fn filler(self, exponent: u8) -> [u8; 2] {
        self.join([0, 0, exponent]).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_and_its_parts_have_their_bits() {
        for format in Format::ALL {
            for bits in 0..=u16::MAX >> (16 - 8 * format.element_bytes()) {
                let [low, rest, exponent] = format.split(bits);
                assert_eq!(format.join([low, rest, exponent]), bits, "{format:?}");
                assert!(
                    usize::from(rest) < 1 << format.rest_planes() && (format.has_low_bytes() || low == 0)
                );
                assert!(usize::from(exponent) < 1 << format.exponent_bits());
            }
            let bits = 8 * format.fixed_group_bytes() + 8 * format.raw_group_bytes();
            assert_eq!(bits, GROUP * 8 * format.element_bytes(), "raw tiles are as large as their values");
        }
    }
}
