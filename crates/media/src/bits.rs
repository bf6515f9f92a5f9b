//! Bits of headers, the first the highest of its byte.

/// Reads bits one after the other; none behind the end.
pub(crate) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Zeros in front of the longest number that is read.
const MOST_ZEROS: u32 = 31;

impl<'a> Bits<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Bits<'a> {
        Bits { bytes, at: 0 }
    }

    /// A number of so many bits, 32 at most.
    pub(crate) fn number(&mut self, bits: u32) -> Option<u32> {
        let mut value = 0;
        for _ in 0..bits {
            let byte = *self.bytes.get(self.at / 8)?;
            value = value << 1 | u32::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Some(value)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        self.number(1).map(|bit| bit == 1)
    }

    pub(crate) fn skip(&mut self, bits: u32) -> Option<()> {
        self.at += bits as usize;
        (self.at <= self.bytes.len() * 8).then_some(())
    }

    /// A number with as many zeros in front as it has bits behind its first (Exp-Golomb).
    pub(crate) fn golomb(&mut self) -> Option<u32> {
        let mut zeros = 0;
        while !self.flag()? {
            zeros += 1;
            if zeros > MOST_ZEROS {
                return None;
            }
        }
        Some(((1u64 << zeros) - 1) as u32 + self.number(zeros)?)
    }

    /// The same with a sign: 0, 1, -1, 2, -2 …
    pub(crate) fn signed_golomb(&mut self) -> Option<i32> {
        let code = i64::from(self.golomb()?);
        i32::try_from(if code % 2 == 1 { (code + 1) / 2 } else { -code / 2 }).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_bit_by_bit() {
        let mut bits = Bits::of(&[0b1010_0110, 0b0100_0010]);
        assert_eq!((bits.number(3), bits.flag()), (Some(5), Some(false)));
        // 011, 00100, 0010 and no more.
        assert_eq!((bits.golomb(), bits.signed_golomb()), (Some(2), Some(2)));
        assert_eq!((bits.golomb(), bits.number(1)), (None, None));
        assert!(Bits::of(&[0; 16]).golomb().is_none());
    }
}
