//! DEIS (Zhang and Chen 2022): slopes' interpolating polynomial, integrated against the exponential kernel.

use std::collections::VecDeque;

use super::Run;
use crate::schedule::linspace;
use crate::{Error, Latent};

const MAX_ORDER: usize = 3;
/// How finely a step is cut to integrate over it.
const PIECES: usize = 10_000;

impl Run<'_> {
    /// Steps of order three with tabulated weights.
    pub(super) fn deis(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let clock = Clock::new();
        let times: Vec<f32> = self.sigmas.iter().map(|s| clock.time(*s)).collect();
        let mut slopes: VecDeque<Latent> = VecDeque::new();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            slopes.push_front(x.slope(&denoised, sigma));
            slopes.truncate(MAX_ORDER);
            if slopes.len() == 1 || next <= 0.0 {
                let length = next - sigma;
                x = x.zip(&slopes[0], |x, slope| x + length * slope);
                continue;
            }
            let weights = clock.weights(&times, step, slopes.len());
            for (weight, slope) in weights.iter().zip(&slopes) {
                x = x.zip(slope, |x, slope| x + weight * slope);
            }
        }
        Ok(x)
    }
}

/// The variance-preserving time in which DEIS integrates, fitted to levels from 0.002 to 80.
struct Clock {
    beta_min: f32,
    beta_range: f32,
}

impl Clock {
    fn new() -> Clock {
        const EPSILON: f32 = 1e-3;
        let (low, high) = ((0.002f32 * 0.002 + 1.0).ln(), (80f32 * 80.0 + 1.0).ln());
        let beta_range = 2.0 * (low / EPSILON - high) / (EPSILON - 1.0);
        Clock { beta_range, beta_min: high - 0.5 * beta_range }
    }

    fn time(&self, sigma: f32) -> f32 {
        let root = self.beta_min * self.beta_min + 2.0 * self.beta_range * (sigma * sigma + 1.0).ln();
        (root.sqrt() - self.beta_min) / self.beta_range
    }

    /// The weights of the newest slopes for one step, newest first.
    fn weights(&self, times: &[f32], step: usize, order: usize) -> Vec<f32> {
        let (from, to) = (times[step], times[step + 1]);
        let piece = (to - from) / PIECES as f32;
        let beta_max = self.beta_range + self.beta_min;
        let range = beta_max - self.beta_min;
        let mut sums = vec![0.0f64; order];
        for t in linspace(from, to, PIECES) {
            let alpha = (-0.5 * (t * t) * range - t * self.beta_min).exp();
            let kernel = -0.5 * (-(t * range) - self.beta_min) / (alpha * (1.0 - alpha)).sqrt();
            for (j, sum) in sums.iter_mut().enumerate() {
                let polynomial = (0..order).filter(|k| *k != j).fold(1.0, |product, k| {
                    product * ((t - times[step - k]) / (times[step - j] - times[step - k]))
                });
                *sum += f64::from(kernel * polynomial);
            }
        }
        sums.into_iter().map(|sum| sum as f32 * piece).collect()
    }
}
