//! SEEDS (Gonzalez et al. 2023): stochastic exponential solvers with two and three stages, and exponential Heun.

use super::{Run, Tuning, lerp};
use crate::noise::{Independent, NoiseSource};
use crate::{Error, Latent};

/// `h` times the first of the exponential integrators' functions.
fn phi_1(h: f32) -> f32 {
    h.exp_m1()
}

/// `h` times the second of them.
fn phi_2(h: f32) -> f32 {
    (h.exp_m1() - h) / h
}

/// How a second stage is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// Alone.
    Second,
    /// Together with the first.
    Both,
}

/// One step in half-log-SNR time, and the noise gathered in it.
struct Stages<'n> {
    sigma: f32,
    from: f32,
    h: f32,
    tuning: Tuning,
    source: &'n mut Independent,
    /// Share of the step done, its level, and the noise of it.
    done: (f32, f32, Option<Latent>),
}

impl Stages<'_> {
    fn h_eta(&self) -> f32 {
        self.h * (self.tuning.eta + 1.0)
    }

    /// The signal's share at a level at `share` of the step.
    fn alpha(&self, share: f32, level: f32) -> f32 {
        level * lerp(self.from, self.from + self.h, share).exp()
    }

    /// What is left of `x` at `share` of the step.
    fn shrink(&self, share: f32, level: f32) -> f32 {
        level / self.sigma * (-share * self.h * self.tuning.eta).exp()
    }

    /// Adds the noise gathered from the step's start to `share`.
    fn add_noise(&mut self, x: Latent, share: f32, level: f32) -> Latent {
        let Tuning { eta, s_noise } = self.tuning;
        if !(eta > 0.0 && s_noise > 0.0) {
            return x;
        }
        let (before, level_before, gathered) = std::mem::replace(&mut self.done, (share, level, None));
        let part = (before - share) * self.h * eta;
        let deviation = (-(part * 2.0).exp_m1()).sqrt();
        let fresh = self.source.draw(level_before, level);
        let gathered = match gathered {
            Some(gathered) => {
                let fade = part.exp();
                gathered.zip(&fresh, |g, n| g * fade + deviation * n)
            }
            None => fresh.map(|n| deviation * n),
        };
        let x = x.zip(&gathered, |x, n| x + n * level * s_noise);
        self.done.2 = Some(gathered);
        x
    }
}

impl Run<'_> {
    /// Two stages, the second half way.
    pub(super) fn seeds_2(&mut self, x: Latent) -> Result<Latent, Error> {
        self.two_stages(x, 0.5, self.tuning, Weights::Second)
    }

    /// Exponential Heun: the second stage at the step's end.
    pub(super) fn exp_heun(&mut self, x: Latent, tuning: Tuning) -> Result<Latent, Error> {
        self.two_stages(x, 1.0, tuning, Weights::Both)
    }

    fn two_stages(
        &mut self,
        mut x: Latent,
        share: f32,
        tuning: Tuning,
        weights: Weights,
    ) -> Result<Latent, Error> {
        let mut source = self.independent_noise();
        self.offset_first_sigma();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let (mut stages, to) = self.stages((sigma, next), tuning, &mut source);
            let level = self.sampling.sigma_of_half_log_snr(lerp(stages.from, to, share));
            let h_eta = stages.h_eta();
            let weight = stages.alpha(share, level) * phi_1(-share * h_eta);
            let ahead = x.blend(stages.shrink(share, level), &denoised, -weight);
            let ahead = stages.add_noise(ahead, share, level);
            let second = self.denoise(&ahead, level)?;
            let alpha = next * to.exp();
            let shrink = stages.shrink(1.0, next);
            let (b1, b2) = match weights {
                Weights::Second => (0.0, phi_1(-h_eta)),
                Weights::Both => {
                    let b2 = phi_2(-h_eta) / share;
                    (phi_1(-h_eta) - b2, b2)
                }
            };
            x = x.zip3(&denoised, &second, |x, d, d2| shrink * x - alpha * (b1 * d + b2 * d2));
            x = stages.add_noise(x, 1.0, next);
        }
        Ok(x)
    }

    /// Three stages, at a third and two thirds of the step.
    pub(super) fn seeds_3(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let (r1, r2) = ((1.0f64 / 3.0) as f32, (2.0f64 / 3.0) as f32);
        let mut source = self.independent_noise();
        self.offset_first_sigma();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let (mut stages, to) = self.stages((sigma, next), self.tuning, &mut source);
            let level_at = |share: f32| self.sampling.sigma_of_half_log_snr(lerp(stages.from, to, share));
            let (level_1, level_2) = (level_at(r1), level_at(r2));
            let h_eta = stages.h_eta();
            let weight = stages.alpha(r1, level_1) * phi_1(-r1 * h_eta);
            let ahead = x.blend(stages.shrink(r1, level_1), &denoised, -weight);
            let ahead = stages.add_noise(ahead, r1, level_1);
            let second = self.denoise(&ahead, level_1)?;

            let a2 = r2 / r1 * phi_2(-r2 * h_eta);
            let a1 = phi_1(-r2 * h_eta) - a2;
            let (shrink, alpha) = (stages.shrink(r2, level_2), stages.alpha(r2, level_2));
            let ahead = x.zip3(&denoised, &second, |x, d, d2| shrink * x - alpha * (a1 * d + a2 * d2));
            let ahead = stages.add_noise(ahead, r2, level_2);
            let third = self.denoise(&ahead, level_2)?;

            let b3 = phi_2(-h_eta) / r2;
            let b1 = phi_1(-h_eta) - b3;
            let (shrink, alpha) = (stages.shrink(1.0, next), next * to.exp());
            x = x.zip3(&denoised, &third, |x, d, d3| shrink * x - alpha * (b1 * d + b3 * d3));
            x = stages.add_noise(x, 1.0, next);
        }
        Ok(x)
    }

    fn stages<'n>(
        &self,
        (sigma, next): (f32, f32),
        tuning: Tuning,
        source: &'n mut Independent,
    ) -> (Stages<'n>, f32) {
        let (from, to) = (self.sampling.half_log_snr(sigma), self.sampling.half_log_snr(next));
        (Stages { sigma, from, h: to - from, tuning, source, done: (0.0, sigma, None) }, to)
    }
}
