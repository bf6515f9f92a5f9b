//! Values of stored tensors on the host: for what is too small to be worth a device.

use half::{bf16, f16};
use meta::{DType, Encoding};

use crate::{Checkpoint, Entry};

impl Checkpoint {
    /// The values of an entry of 16 or 32 bits; none for other encodings.
    pub fn values(&self, entry: &Entry) -> Option<Vec<f32>> {
        let bytes = self.bytes(entry);
        let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        match entry.encoding() {
            Encoding::Plain(DType::F32) => {
                let four = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                Some(bytes.chunks_exact(4).map(four).collect())
            }
            Encoding::Plain(DType::F16) => {
                Some(pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect())
            }
            Encoding::Plain(DType::BF16) => {
                Some(pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect())
            }
            _ => None,
        }
    }
}
