//! Random test data from a seed: the same everywhere, on any number of threads.

use crate::Procedural;
use crate::procedural::mix;

/// A stream of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number from 0 to `bound - 1`. `bound` must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "there is no number below 0");
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number from `low` up to, but not including, `high`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.next_u64() >> 40) as f32 / 16_777_216.0)
    }

    /// A number with mean 0 and variance 1, nearly normal and never beyond 6: the sum of twelve uniform ones.
    /// It needs no logarithm or cosine, so it is the same on every machine.
    pub fn normal(&mut self) -> f32 {
        let sum: u64 =
            (0..3).map(|_| self.next_u64()).flat_map(|x| [0, 16, 32, 48].map(|s| x >> s & 0xFFFF)).sum();
        // Twelve draws of 16 bits, each half a step above its lower bound.
        (sum as f32 + 6.0) / 65536.0 - 6.0
    }
}

/// `count` values, uniform in -1..1.
pub fn random_f32(seed: u64, count: usize) -> Vec<f32> {
    Procedural::from_seed(seed, 1.0, 0.0).values(count)
}

/// `count` values, nearly normal with mean 0 and variance 1.
pub fn random_normal(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.normal()).collect()
}

/// A matrix with statistics like those of trained weights: nearly normal values of deviation 0.02, each row of which is
/// scaled by its own power of two with an exponent that is normal too, with the deviation `spread`.
pub fn random_trained(seed: u64, [rows, columns]: [usize; 2], spread: f32) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut values = Vec::with_capacity(rows * columns);
    for _ in 0..rows {
        let scale = 0.02 * (spread * random.normal()).exp2();
        values.extend((0..columns).map(|_| scale * random.normal()));
    }
    values
}

/// `count` random bytes.
pub fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; count];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_values_fill_the_interval() {
        let values = random_f32(1, 100_000);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let (least, most) = values.iter().fold((0f32, 0f32), |(a, b), &v| (a.min(v), b.max(v)));
        assert!(mean.abs() < 0.01 && least < -0.999 && most > 0.999, "mean {mean}, from {least} to {most}");
        assert_ne!(values[..10], random_f32(2, 10));
    }

    #[test]
    fn normal_values_have_the_normal_moments() {
        let values = random_normal(3, 100_000);
        let moment = |p: i32| values.iter().map(|v| f64::from(*v).powi(p)).sum::<f64>() / values.len() as f64;
        assert!(moment(1).abs() < 0.01, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.02, "variance {}", moment(2));
        // Twelve uniform numbers have a fourth moment of 2.9 where the normal distribution has 3.
        assert!((moment(4) - 2.9).abs() < 0.1, "fourth moment {}", moment(4));
    }

    #[test]
    fn bytes_and_bounded_numbers() {
        assert_eq!(random_bytes(5, 11)[..8], random_bytes(5, 8));
        let mut random = Random::new(9);
        let mut seen = [0; 5];
        (0..5000).for_each(|_| seen[random.below(5)] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert!((0..1000).map(|_| random.uniform(2.0, 3.0)).all(|v| (2.0..3.0).contains(&v)));
    }
}
