//! Samplers that remember: linear multistep, the pseudo numerical methods and the refined exponential solver.

use std::collections::VecDeque;

use super::{Run, ancestral_step};
use crate::{Error, Latent};

impl Run<'_> {
    /// Linear multistep of order four: the slopes' interpolating polynomial, integrated over the step.
    pub(super) fn lms(&mut self, mut x: Latent) -> Result<Latent, Error> {
        const ORDER: usize = 4;
        let mut slopes = VecDeque::new();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            slopes.push_front(x.slope(&denoised, sigma));
            slopes.truncate(ORDER);
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let weights: Vec<f32> =
                (0..slopes.len()).map(|j| lms_weight(&self.sigmas, step, slopes.len(), j) as f32).collect();
            x = x.zip(&weighted(&weights, &slopes), |x, sum| x + sum);
        }
        Ok(x)
    }

    /// Improved pseudo numerical method: Adams-Bashforth weights for equal steps.
    pub(super) fn ipndm(&mut self, x: Latent) -> Result<Latent, Error> {
        const WEIGHTS: [(&[f32], f32); 4] = [
            (&[1.0], 1.0),
            (&[3.0, -1.0], 2.0),
            (&[23.0, -16.0, 5.0], 12.0),
            (&[55.0, -59.0, 37.0, -9.0], 24.0),
        ];
        self.adams_bashforth(x, |_, _, order| {
            let (weights, divisor) = WEIGHTS[order - 1];
            (weights.to_vec(), divisor)
        })
    }

    /// The same with weights for the steps' own lengths.
    pub(super) fn ipndm_v(&mut self, x: Latent) -> Result<Latent, Error> {
        self.adams_bashforth(x, |sigmas, step, order| (varying_weights(sigmas, step, order), 1.0))
    }

    /// Steps along a weighted sum of up to four slopes; `weights` gives them, newest first, and a divisor.
    fn adams_bashforth(
        &mut self,
        mut x: Latent,
        weights: impl Fn(&[f32], usize, usize) -> (Vec<f32>, f32),
    ) -> Result<Latent, Error> {
        let mut slopes = VecDeque::new();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            slopes.push_front(x.slope(&denoised, sigma));
            slopes.truncate(4);
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let (weights, divisor) = weights(&self.sigmas, step, slopes.len());
            let length = next - sigma;
            x = x.zip(&weighted(&weights, &slopes), |x, sum| x + length * sum / divisor);
        }
        Ok(x)
    }

    /// Refined exponential solver with two steps (Zhang et al. 2023), with fresh noise and CFG++ as asked.
    pub(super) fn res_multistep(&mut self, mut x: Latent, eta: f32, cfg_pp: bool) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        let mut last: Option<(Latent, f32)> = None;
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let (denoised, away) = self.denoise_with(&x, sigma, cfg_pp)?;
            let (down, up) = ancestral_step(sigma, next, eta);
            self.report(step, &x, &denoised)?;
            x = match &last {
                Some((before, last_down)) if down != 0.0 => {
                    let (t, t_last, end) = (-sigma.ln(), -last_down.ln(), -down.ln());
                    let h = end - t;
                    let c2 = (-self.sigmas[step - 1].ln() - t_last) / h;
                    let phi_1 = (-h).exp_m1() / -h;
                    let phi_2 = (phi_1 - 1.0) / -h;
                    let (b1, b2) = (finite(phi_1 - phi_2 / c2), finite(phi_2 / c2));
                    let shrink = (-h).exp();
                    let moved =
                        if cfg_pp { x.zip3(&denoised, &away, |x, yes, no| x + (yes - no)) } else { x };
                    moved.zip3(&away, before, |x, now, before| shrink * x + h * (b1 * now + b2 * before))
                }
                _ if cfg_pp => denoised.step(&x.slope(&away, sigma), down),
                _ => x.step(&x.slope(&denoised, sigma), down - sigma),
            };
            if next > 0.0 {
                x = self.add_noise(x, &mut noise, (sigma, next), up);
            }
            last = Some((away, down));
        }
        Ok(x)
    }
}

/// The sum of `latents`, each times its weight, in order.
fn weighted(weights: &[f32], latents: &VecDeque<Latent>) -> Latent {
    let mut terms = weights.iter().zip(latents);
    let Some((weight, first)) = terms.next() else { return Latent::zeros(&[]) };
    terms.fold(first.map(|v| weight * v), |sum, (weight, latent)| sum.zip(latent, |sum, v| sum + weight * v))
}

/// The integral over the step of the Lagrange polynomial that is one at the `j`-th level back.
fn lms_weight(sigmas: &[f32], step: usize, order: usize, j: usize) -> f64 {
    // Two Gauss points integrate the polynomials of degree three that occur here exactly.
    let (from, to) = (f64::from(sigmas[step]), f64::from(sigmas[step + 1]));
    let (centre, half) = (0.5 * (from + to), 0.5 * (to - from));
    let polynomial = |at: f64| {
        (0..order).filter(|k| *k != j).fold(1.0, |product, k| {
            let level = f64::from(sigmas[step - k]);
            product * (at - level) / (f64::from(sigmas[step - j]) - level)
        })
    };
    let offset = half / 3f64.sqrt();
    half * (polynomial(centre - offset) + polynomial(centre + offset))
}

/// Adams-Bashforth weights for steps of varying length, newest first.
fn varying_weights(sigmas: &[f32], step: usize, order: usize) -> Vec<f32> {
    let length = |back: usize| sigmas[step + 1 - back] - sigmas[step - back];
    if order == 1 {
        return vec![1.0];
    }
    let (h, h1) = (length(0), length(1));
    let (mut w1, mut w2) = ((2.0 + h / h1) / 2.0, -(h / h1) / 2.0);
    if order == 2 {
        return vec![w1, w2];
    }
    let h2 = length(2);
    let third = (1.0 - h / (3.0 * (h + h1)) * (h * (h + h1)) / (h1 * (h1 + h2))) / 2.0;
    w1 += third;
    w2 -= (1.0 + h1 / h2) * third;
    let mut w3 = third * h1 / h2;
    if order == 3 {
        return vec![w1, w2, w3];
    }
    let h3 = length(3);
    let fourth = ((1.0 - h / (3.0 * (h + h1))) / 2.0
        + (1.0 - h / (2.0 * (h + h1))) * h / (6.0 * (h + h1 + h2)))
        * (h * (h + h1) * (h + h1 + h2))
        / (h1 * (h1 + h2) * (h1 + h2 + h3));
    let ratio = h1 * (h1 + h2) / (h2 * (h2 + h3));
    w1 += fourth;
    w2 -= (1.0 + h1 / h2 + ratio) * fourth;
    w3 += (h1 / h2 + ratio * (1.0 + h2 / h3)) * fourth;
    vec![w1, w2, w3, -fourth * ratio * h1 / h2]
}

/// Undefined as zero, infinite as the largest number.
fn finite(value: f32) -> f32 {
    if value.is_nan() { 0.0 } else { value.clamp(f32::MIN, f32::MAX) }
}
