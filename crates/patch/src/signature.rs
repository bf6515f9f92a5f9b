//! Signatures: 64 bits that stay the same from run to run and differ where what they stand for differs.

/// FNV-1a over everything added, with lengths so that neighbours cannot run together.
#[derive(Clone, Copy)]
pub(crate) struct Signature(u64);

impl Signature {
    pub(crate) fn new() -> Signature {
        Signature(0xCBF2_9CE4_8422_2325)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Signature {
        self.number(bytes.len() as u64);
        self.raw(bytes);
        self
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut Signature {
        self.raw(&number.to_le_bytes());
        self
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0
    }

    fn raw(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_run_together() {
        let of = |a: &[u8], b: &[u8]| Signature::new().bytes(a).bytes(b).finish();
        assert_ne!(of(b"ab", b"c"), of(b"a", b"bc"));
        assert_eq!(of(b"ab", b"c"), of(b"ab", b"c"));
        assert_eq!(Signature::new().finish(), 0xCBF2_9CE4_8422_2325);
    }
}
