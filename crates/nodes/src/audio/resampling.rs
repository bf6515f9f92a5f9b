//! Sound at another rate: each value is a sum over those around it, weighted by a windowed sine.

use std::f64::consts::PI;

/// Zero crossings of the sine on each side.
const CROSSINGS: f64 = 6.0;
/// How much of what the lower rate can carry is kept.
const ROLLOFF: f64 = 0.99;

/// A sound of one channel at another rate.
pub(super) fn resampled(sound: &[f32], from: u32, to: u32) -> Vec<f32> {
    if from == to || from == 0 || sound.is_empty() {
        return sound.to_vec();
    }
    let shared = divisor(from, to);
    let (from, to) = ((from / shared) as usize, (to / shared) as usize);
    let base = from.min(to) as f64 * ROLLOFF;
    let reach = (CROSSINGS * from as f64 / base).ceil() as usize;
    let taps = 2 * reach + from;
    // The values between two old ones repeat after as many new ones as the rates have in common.
    let kernels: Vec<Vec<f64>> =
        (0..to).map(|phase| kernel(phase, [from, to], (base, reach), taps)).collect();
    let length = (sound.len() * to).div_ceil(from);
    let value = |at: usize| {
        let first = (at / to * from) as isize - reach as isize;
        let of = |tap: usize| usize::try_from(first + tap as isize).ok().and_then(|place| sound.get(place));
        let kernel = kernels[at % to].iter().enumerate();
        kernel.map(|(tap, weight)| of(tap).map_or(0.0, |value| f64::from(*value) * weight)).sum::<f64>()
            as f32
    };
    (0..length).map(value).collect()
}

/// The weights of the values around a new one.
fn kernel(phase: usize, [from, to]: [usize; 2], (base, reach): (f64, usize), taps: usize) -> Vec<f64> {
    let weight = |tap: usize| {
        let time = (tap as f64 - reach as f64) / from as f64 - phase as f64 / to as f64;
        let at = (time * base).clamp(-CROSSINGS, CROSSINGS);
        let window = (at * PI / CROSSINGS / 2.0).cos().powi(2);
        let sine = if at == 0.0 { 1.0 } else { (at * PI).sin() / (at * PI) };
        sine * window * base / from as f64
    };
    (0..taps).map(weight).collect()
}

fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_stays_a_tone() {
        let tone = |rate: u32, length: usize| -> Vec<f32> {
            (0..length).map(|at| (2.0 * PI * 440.0 * at as f64 / f64::from(rate)).sin() as f32).collect()
        };
        for from in [8_000, 44_100, 48_000] {
            let got = resampled(&tone(from, from as usize / 10), from, 16_000);
            assert_eq!(got.len(), 1600, "{from}");
            let want = tone(16_000, 1600);
            // The ends look into silence.
            let worst = (100..1500).map(|at| (got[at] - want[at]).abs()).fold(0.0, f32::max);
            assert!(worst < 2e-3, "{from}: {worst}");
        }
        assert_eq!(resampled(&[1.0, 2.0], 16_000, 16_000), [1.0, 2.0]);
        assert_eq!(resampled(&[0.5; 7], 3, 2).len(), 5);
    }

    #[test]
    fn what_the_lower_rate_cannot_carry_is_gone() {
        let high: Vec<f32> =
            (0..4800).map(|at| (2.0 * PI * 12_000.0 * f64::from(at) / 48_000.0).sin() as f32).collect();
        let got = resampled(&high, 48_000, 16_000);
        assert!(got[100..1500].iter().all(|value| value.abs() < 1e-2));
    }
}
