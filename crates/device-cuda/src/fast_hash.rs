//! A quick hash for keys that this program makes itself: looking up a kernel must cost little beside launching it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys nobody outside can choose.
pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// Multiplies and turns word by word. It does not resist keys that are chosen to collide.
#[derive(Default)]
pub(crate) struct FastHasher(u64);

/// An odd number whose bits look like chance.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl FastHasher {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    }
}

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_ne_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.word(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.word(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.word(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.word(value as u64);
    }

    fn finish(&self) -> u64 {
        // The map takes its place from the lowest bits and its tag from the highest; the product has mixed the high ones.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;

    #[test]
    fn keys_that_differ_little_hash_apart() {
        let build = BuildHasherDefault::<FastHasher>::default();
        let mut seen: Vec<u64> = (0..4096u64).map(|n| build.hash_one([n * 64, n & 1]) & 0xffff).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 3800, "{} places of 4096 keys", seen.len());
    }
}
