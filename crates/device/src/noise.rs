//! PyTorch's CPU `randn` in f32, to the bit: mt19937 and its two ways to normal values.
//!
//! Sixteen values or more: uniforms of 24 bits, then Box-Muller in groups of sixteen with the Cephes
//! single-precision polynomials, fused multiply-adds exactly where `mul_add` stands. Fewer: pairs from
//! 53-bit uniforms in f64, the second of a pair kept for the next value.

use std::f64::consts::PI;

/// A seeded generator. Successive calls continue its sequence, as in PyTorch.
#[derive(Clone)]
pub struct NormalGenerator {
    twister: Twister,
    kept: Option<f64>,
}

impl NormalGenerator {
    /// Only the low 32 bits of the seed count, as in PyTorch.
    pub fn new(seed: u64) -> NormalGenerator {
        NormalGenerator { twister: Twister::new(seed as u32), kept: None }
    }

    /// Fills `out` as one call of `randn` with that many values would.
    pub fn fill(&mut self, out: &mut [f32]) {
        self.fill_while(out, || true);
    }

    /// The same for as long as it is `wanted`, which is asked every few milliseconds; whether all was filled.
    pub fn fill_while(&mut self, out: &mut [f32], wanted: impl Fn() -> bool) -> bool {
        /// Values between two questions, in whole groups.
        const PART: usize = 1 << 18;
        if out.len() < 16 {
            out.iter_mut().for_each(|v| *v = self.one() as f32);
            return true;
        }
        let (groups, rest) = out.split_at_mut(out.len() / 16 * 16);
        for part in groups.chunks_mut(PART) {
            if !wanted() {
                return false;
            }
            for group in part.chunks_exact_mut(16) {
                group.iter_mut().for_each(|v| *v = self.uniform24());
                box_muller(group);
            }
        }
        if !rest.is_empty() {
            // The last group is drawn anew, after the values that do not fill one.
            rest.iter_mut().for_each(|v| *v = self.uniform24());
            let tail = out.len() - 16;
            out[tail..].iter_mut().for_each(|v| *v = self.uniform24());
            box_muller(&mut out[tail..]);
        }
        true
    }

    fn uniform24(&mut self) -> f32 {
        (self.twister.next() & 0x00FF_FFFF) as f32 * (1.0 / 16_777_216.0)
    }

    fn uniform53(&mut self) -> f64 {
        let (high, low) = (self.twister.next() as u64, self.twister.next() as u64);
        ((high << 32 | low) & ((1 << 53) - 1)) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    fn one(&mut self) -> f64 {
        if let Some(kept) = self.kept.take() {
            return kept;
        }
        let (u1, u2) = (self.uniform53(), self.uniform53());
        let (r, t) = ((-2.0 * (-u2).ln_1p()).sqrt(), 2.0 * PI * u1);
        self.kept = Some(r * t.sin());
        r * t.cos()
    }
}

/// Sixteen uniforms to sixteen normal values.
fn box_muller(group: &mut [f32]) {
    let (radii, angles) = group.split_at_mut(8);
    for (a, b) in radii.iter_mut().zip(angles) {
        let r = (-2.0 * log(1.0 - *a)).sqrt();
        let (sin, cos) = sin_cos((2.0 * PI) as f32 * *b);
        (*a, *b) = (r * cos, r * sin);
    }
}

/// Natural logarithm of a positive normal number.
#[allow(clippy::excessive_precision, reason = "the published coefficients")]
fn log(x: f32) -> f32 {
    const P: [f32; 8] = [
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    ];
    let bits = x.to_bits();
    let mut e = ((bits >> 23) as i32 - 126) as f32;
    let m = f32::from_bits((bits & 0x807F_FFFF) | 0x3F00_0000);
    let mut x = m - 1.0;
    if m < std::f32::consts::FRAC_1_SQRT_2 {
        e -= 1.0;
        x += m;
    }
    let z = x * x;
    let y = P.iter().fold(7.0376836292e-2f32, |y, p| y.mul_add(x, *p));
    let y = (y * x).mul_add(z, e * -2.12194440e-4) - z * 0.5;
    e.mul_add(0.693359375, x + y)
}

/// Sine and cosine of a number that is not negative.
#[allow(clippy::excessive_precision, reason = "the published coefficients")]
fn sin_cos(x: f32) -> (f32, f32) {
    let j = ((x * 1.27323954473516) as i32 + 1) & !1;
    let x = [-0.78515625f32, -2.4187564849853515625e-4, -3.77489497744594108e-8]
        .iter()
        .fold(x, |x, d| (j as f32).mul_add(*d, x));
    let z = x * x;
    let c = 2.443315711809948e-5f32.mul_add(z, -1.388731625493765e-3).mul_add(z, 4.166664568298827e-2);
    let c = (c * z).mul_add(z, -(z * 0.5)) + 1.0;
    let s = (-1.9515295891e-4f32).mul_add(z, 8.3321608736e-3).mul_add(z, -1.6666654611e-1);
    let s = (s * z).mul_add(x, x);
    let (sin, cos) = if j & 2 != 0 { (c, s) } else { (s, c) };
    (if j & 4 != 0 { -sin } else { sin }, if !(j - 2) & 4 != 0 { -cos } else { cos })
}

/// The Mersenne twister mt19937.
#[derive(Clone)]
struct Twister {
    state: [u32; Twister::N],
    at: usize,
}

impl Twister {
    const N: usize = 624;

    fn new(seed: u32) -> Twister {
        let mut state = [seed; Twister::N];
        for i in 1..Twister::N {
            let last = state[i - 1];
            state[i] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Twister { state, at: Twister::N }
    }

    fn next(&mut self) -> u32 {
        if self.at == Twister::N {
            self.twist();
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..Twister::N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % Twister::N] & 0x7FFF_FFFF);
            let odd = if y & 1 == 0 { 0 } else { 0x9908_B0DF };
            self.state[i] = self.state[(i + 397) % Twister::N] ^ (y >> 1) ^ odd;
        }
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twister_is_the_published_one() {
        // The 10,000th output for the reference seed, as the C++ standard fixes it.
        let mut twister = Twister::new(5489);
        let value = (0..10_000).map(|_| twister.next()).last();
        assert_eq!(value, Some(4_123_659_995));
    }

    #[test]
    fn filling_ends_when_it_is_not_wanted_any_more() {
        let (mut whole, mut part) = (vec![0.0; 1 << 20], vec![0.0; 1 << 20]);
        assert!(NormalGenerator::new(7).fill_while(&mut whole, || true));
        let asked = std::cell::Cell::new(0);
        let wanted = || {
            asked.set(asked.get() + 1);
            asked.get() < 3
        };
        assert!(!NormalGenerator::new(7).fill_while(&mut part, wanted));
        let filled = part.iter().filter(|v| **v != 0.0).count();
        assert!(filled > 1000 && filled < whole.len(), "{filled}");
        assert_eq!(part[..1000], whole[..1000]);
    }

    #[test]
    fn moments_are_normal() {
        let mut values = vec![0.0; 100_003];
        NormalGenerator::new(7).fill(&mut values);
        let n = values.len() as f64;
        let mean = values.iter().map(|v| *v as f64).sum::<f64>() / n;
        let variance = values.iter().map(|v| (*v as f64 - mean).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "mean {mean}, variance {variance}");
    }
}
