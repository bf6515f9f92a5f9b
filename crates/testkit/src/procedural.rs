//! Procedural values: value `i` of a tensor follows from the tensor's name, a scale and an offset, so that
//! checkpoints of any size are described by a few lines and rebuilt bit for bit anywhere.
//!
//! ```text
//! seed = FNV-1a 64 of the name's UTF-8 bytes
//! x    = splitmix64 output i of that seed                    (the i-th state is seed + (i + 1) * golden)
//! v    = offset + scale * (2 * (x >> 40) / 2^24 - 1)         (f32; the product is rounded, then the sum)
//! ```

use meta::Encoding;
use rayon::prelude::*;

use crate::Error;
use crate::encode::{Encoder, encoder};

/// The increment of splitmix64's state.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Values made at a time on the stack: small enough for the first-level cache, whole blocks of every
/// encoding that can be made.
const TILE: usize = 1024;

/// Values per parallel task.
pub(crate) const TASK: usize = 256 * TILE;

/// The rule for one tensor's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Procedural {
    seed: u64,
    scale: f32,
    offset: f32,
}

impl Procedural {
    /// The values of the tensor called `name`: uniform in `offset - scale .. offset + scale`.
    pub fn new(name: &str, scale: f32, offset: f32) -> Procedural {
        Procedural { seed: fnv1a(name), scale, offset }
    }

    /// The same rule with the seed itself instead of a name.
    pub fn from_seed(seed: u64, scale: f32, offset: f32) -> Procedural {
        Procedural { seed, scale, offset }
    }

    /// Value `index` in row-major order.
    pub fn value(&self, index: u64) -> f32 {
        self.scaled(mix(self.state(index)))
    }

    /// Writes the values from `start` on, on the calling thread.
    pub fn fill(&self, start: u64, out: &mut [f32]) {
        let mut state = self.state(start);
        for value in out {
            *value = self.scaled(mix(state));
            state = state.wrapping_add(GOLDEN);
        }
    }

    /// The first `count` values, made on all threads.
    pub fn values(&self, count: usize) -> Vec<f32> {
        let mut values = vec![0.0; count];
        values.par_chunks_mut(TASK).enumerate().for_each(|(i, chunk)| self.fill((i * TASK) as u64, chunk));
        values
    }

    /// The first `count` values in `encoding`, made on all threads.
    pub fn encoded(&self, encoding: Encoding, count: usize) -> Result<Vec<u8>, Error> {
        let block = encoding.block_len();
        if !count.is_multiple_of(block) {
            return Err(Error::PartialBlocks { encoding, count, unit: "values", block });
        }
        let encoder = encoder(encoding)?;
        let task_bytes = TASK / block * encoding.block_bytes();
        let mut bytes = vec![0; count / block * encoding.block_bytes()];
        bytes
            .par_chunks_mut(task_bytes)
            .enumerate()
            .for_each(|(i, chunk)| self.fill_encoded((i * TASK) as u64, encoder, chunk));
        Ok(bytes)
    }

    /// Writes the values from `start` on as `encoder` stores them. `out` must be whole blocks, and `start`
    /// the first value of one.
    pub(crate) fn fill_encoded(&self, start: u64, encoder: Encoder, out: &mut [u8]) {
        let mut tile = [0.0; TILE];
        let tile_bytes = TILE / encoder.block_len * encoder.block_bytes;
        for (i, bytes) in out.chunks_mut(tile_bytes).enumerate() {
            let values = &mut tile[..bytes.len() / encoder.block_bytes * encoder.block_len];
            self.fill(start + (i * TILE) as u64, values);
            (encoder.write)(values, bytes);
        }
    }

    fn state(&self, index: u64) -> u64 {
        self.seed.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN))
    }

    /// `2 u - 1` is exact in f32, so it may be written as one product by a power of two.
    #[inline]
    fn scaled(&self, bits: u64) -> f32 {
        let centred = (bits >> 40) as i32 - (1 << 23);
        self.offset + self.scale * (centred as f32 * (1.0 / 8_388_608.0))
    }
}

/// FNV-1a over the bytes of `name`.
fn fnv1a(name: &str) -> u64 {
    name.bytes()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// The output function of splitmix64.
#[inline]
pub(crate) fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::QuantFormat;

    #[test]
    fn known_hashes_and_outputs() {
        // Published test vectors: FNV-1a of "" and "a", and splitmix64 seeded with 1234567.
        assert_eq!(fnv1a(""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a("a"), 0xAF63_DC4C_8601_EC8C);
        let rule = Procedural::from_seed(1_234_567, 1.0, 0.0);
        let outputs: Vec<u64> = (0..3).map(|i| mix(rule.state(i))).collect();
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn values_follow_the_written_formula() {
        let rule = Procedural::new("img_in.weight", 0.2125, -0.01);
        for i in 0..2000u64 {
            let u = (mix(rule.state(i)) >> 40) as f32 / 16_777_216.0;
            let product = 0.2125f32 * (2.0 * u - 1.0);
            assert_eq!(rule.value(i), -0.01f32 + product, "value {i}");
        }
    }

    #[test]
    fn pieces_join_to_the_whole() {
        let rule = Procedural::new("a.weight", 0.5, 1.0);
        let count = 2 * TASK + 3 * TILE + 32;
        let values = rule.values(count);
        for i in [0, 1, TILE - 1, TILE, TASK - 1, TASK, 2 * TASK + 5, count - 1] {
            assert_eq!(values[i], rule.value(i as u64), "value {i}");
        }
        for encoding in [Encoding::F32, Encoding::BF16, QuantFormat::Q8_0.into(), QuantFormat::Q5_1.into()] {
            let whole = crate::encode(encoding, &values).unwrap();
            assert!(rule.encoded(encoding, count).unwrap() == whole, "{encoding}");
        }
        assert!(matches!(
            rule.encoded(QuantFormat::Q8_0.into(), 33),
            Err(Error::PartialBlocks { count: 33, block: 32, .. })
        ));
    }

    #[test]
    fn scale_zero_is_constant() {
        assert_eq!(Procedural::new("alpha", 0.0, 2.5).values(3), [2.5; 3]);
    }
}
