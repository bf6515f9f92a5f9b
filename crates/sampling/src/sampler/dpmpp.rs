//! DPM-Solver++ (Lu et al. 2022): multistep and stochastic solvers in the clean prediction.

use super::{Run, ancestral_step};
use crate::noise::NoiseSource;
use crate::{Error, Latent};

/// How the stochastic two-step solver weighs the change of the prediction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Correction {
    /// Half of the first-order weight.
    Midpoint,
    /// The exact second weight of the exponential integrator.
    Heun,
}

/// The quantities of one stochastic step in half-log-SNR time.
struct SdeStep {
    h: f32,
    h_eta: f32,
    alpha_next: f32,
}

impl Run<'_> {
    /// DPM-Solver++(2M).
    pub(super) fn dpmpp_2m(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut last: Option<Latent> = None;
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            let (t, end) = (-sigma.ln(), -next.ln());
            let h = end - t;
            let (shrink, weight) = ((-end).exp() / (-t).exp(), (-h).exp_m1());
            x = match &last {
                Some(last) if next != 0.0 => {
                    let r = (t + self.sigmas[step - 1].ln()) / h;
                    let (now, before) = (1.0 + 1.0 / (2.0 * r), 1.0 / (2.0 * r));
                    x.zip3(&denoised, last, |x, d, last| shrink * x - weight * (now * d - before * last))
                }
                _ => x.zip(&denoised, |x, d| shrink * x - weight * d),
            };
            last = Some(denoised);
        }
        Ok(x)
    }

    /// DPM-Solver++, stochastic, with a second prediction half way.
    pub(super) fn dpmpp_sde(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.brownian_noise();
        self.offset_first_sigma();
        let (eta, s_noise) = (self.tuning.eta, self.tuning.s_noise);
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let (from, to) = (self.sampling.half_log_snr(sigma), self.sampling.half_log_snr(next));
            let middle = from + 0.5 * (to - from);
            let sigma_middle = self.sampling.sigma_of_half_log_snr(middle);
            let alpha = sigma * from.exp();
            let mut advance = |lambda: f32, level: f32, clean: &Latent| {
                let alpha_to = level * lambda.exp();
                let (down, up) = ancestral_step((-from).exp(), (-lambda).exp(), eta);
                let h = -down.ln() - from;
                let (shrink, weight) = (alpha_to / alpha * (-h).exp(), alpha_to * (-h).exp_m1());
                let moved = x.zip(clean, |x, d| shrink * x - weight * d);
                if eta > 0.0 && s_noise > 0.0 {
                    moved.zip(&noise.draw(sigma, level), |x, n| x + alpha_to * n * s_noise * up)
                } else {
                    moved
                }
            };
            let ahead = advance(middle, sigma_middle, &denoised);
            // The middle's prediction has all the weight: it is taken at exactly half of the step.
            let second = self.denoise(&ahead, sigma_middle)?;
            x = advance(to, next, &second);
        }
        Ok(x)
    }

    /// DPM-Solver++(2M), stochastic.
    pub(super) fn dpmpp_2m_sde(&mut self, mut x: Latent, correction: Correction) -> Result<Latent, Error> {
        let mut noise = self.brownian_noise();
        self.offset_first_sigma();
        let mut last: Option<(Latent, f32)> = None;
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let SdeStep { h, h_eta, alpha_next } = self.sde_step(sigma, next);
            x = self.sde_base(&x, &denoised, (sigma, next));
            if let Some((before, h_last)) = &last {
                let first = -(-h_eta).exp_m1();
                let weight = match correction {
                    Correction::Heun => alpha_next * (first / -h_eta + 1.0) * (1.0 / (h_last / h)),
                    Correction::Midpoint => 0.5 * alpha_next * first * (1.0 / (h_last / h)),
                };
                x = x.zip3(&denoised, before, |x, now, before| x + weight * (now - before));
            }
            x = self.sde_noise(x, &mut noise, (sigma, next), h);
            last = Some((denoised, h));
        }
        Ok(x)
    }

    /// DPM-Solver++(3M), stochastic.
    pub(super) fn dpmpp_3m_sde(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.brownian_noise();
        self.offset_first_sigma();
        let mut last: Option<(Latent, f32)> = None;
        let mut before: Option<(Latent, f32)> = None;
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let SdeStep { h, h_eta, alpha_next } = self.sde_step(sigma, next);
            x = self.sde_base(&x, &denoised, (sigma, next));
            let phi_2 = (-h_eta).exp_m1() / h_eta + 1.0;
            if let (Some((d1, h1)), Some((d2, h2))) = (&last, &before) {
                let (r0, r1) = (h1 / h, h2 / h);
                let now = denoised.zip(d1, |a, b| (a - b) / r0);
                let then = d1.zip(d2, |a, b| (a - b) / r1);
                let first = now.zip(&then, |a, b| a + (a - b) * r0 / (r0 + r1));
                let second = now.zip(&then, |a, b| (a - b) / (r0 + r1));
                let (w1, w2) = (alpha_next * phi_2, alpha_next * (phi_2 / h_eta - 0.5));
                x = x.zip3(&first, &second, |x, a, b| x + w1 * a - w2 * b);
            } else if let Some((d1, h1)) = &last {
                let (r, weight) = (h1 / h, alpha_next * phi_2);
                x = x.zip3(&denoised, d1, |x, a, b| x + weight * ((a - b) / r));
            }
            x = self.sde_noise(x, &mut noise, (sigma, next), h);
            before = last.replace((denoised, h));
        }
        Ok(x)
    }

    fn sde_step(&self, sigma: f32, next: f32) -> SdeStep {
        let (from, to) = (self.sampling.half_log_snr(sigma), self.sampling.half_log_snr(next));
        let h = to - from;
        SdeStep { h, h_eta: h * (self.tuning.eta + 1.0), alpha_next: next * to.exp() }
    }

    /// The first-order part of a stochastic step.
    fn sde_base(&self, x: &Latent, denoised: &Latent, (sigma, next): (f32, f32)) -> Latent {
        let SdeStep { h, h_eta, alpha_next } = self.sde_step(sigma, next);
        let shrink = next / sigma * (-h * self.tuning.eta).exp();
        x.blend(shrink, denoised, alpha_next * -(-h_eta).exp_m1())
    }

    /// The noise of a stochastic step.
    fn sde_noise(&self, x: Latent, noise: &mut dyn NoiseSource, (sigma, next): (f32, f32), h: f32) -> Latent {
        let (eta, s_noise) = (self.tuning.eta, self.tuning.s_noise);
        if !(eta > 0.0 && s_noise > 0.0) {
            return x;
        }
        let deviation = (-(-2.0 * h * eta).exp_m1()).sqrt();
        x.zip(&noise.draw(sigma, next), |x, n| x + n * next * deviation * s_noise)
    }
}
