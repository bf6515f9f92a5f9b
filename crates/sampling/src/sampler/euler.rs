//! Samplers that follow the slope: Euler, Heun, Heun++, DPM-Solver-2 with a middle point, gradient estimation.

use super::{Run, lerp};
use crate::{Error, Latent};

impl Run<'_> {
    /// Euler steps (Karras et al. 2022, algorithm 2 without churn).
    pub(super) fn euler(&mut self, mut x: Latent) -> Result<Latent, Error> {
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            x = x.step(&x.slope(&denoised, sigma), next - sigma);
        }
        Ok(x)
    }

    /// Heun steps: the mean of the slopes at both ends.
    pub(super) fn heun(&mut self, mut x: Latent) -> Result<Latent, Error> {
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            let slope = x.slope(&denoised, sigma);
            let ahead = x.step(&slope, next - sigma);
            x = if next == 0.0 {
                ahead
            } else {
                let second = self.slope_at(&ahead, next)?;
                x.step(&slope.zip(&second, |a, b| (a + b) / 2.0), next - sigma)
            };
        }
        Ok(x)
    }

    /// Heun++: slopes at up to three levels, weighted by the levels.
    pub(super) fn heunpp2(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let (top, end) = (self.sigmas[0], self.sigmas[self.steps()]);
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            let slope = x.slope(&denoised, sigma);
            let ahead = x.step(&slope, next - sigma);
            if next == end {
                x = ahead;
                continue;
            }
            let second = self.slope_at(&ahead, next)?;
            let after = self.sigmas[step + 2];
            let mean = if after == end {
                let w2 = next / (2.0 * top);
                slope.blend(1.0 - w2, &second, w2)
            } else {
                let third = self.slope_at(&ahead.step(&second, after - next), after)?;
                let (w2, w3) = (next / (3.0 * top), after / (3.0 * top));
                let w1 = 1.0 - w2 - w3;
                slope.zip3(&second, &third, |a, b, c| w1 * a + w2 * b + w3 * c)
            };
            x = x.step(&mean, next - sigma);
        }
        Ok(x)
    }

    /// DPM-Solver-2: the slope at the geometric middle of the step.
    pub(super) fn dpm_2(&mut self, mut x: Latent) -> Result<Latent, Error> {
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            let slope = x.slope(&denoised, sigma);
            x = if next == 0.0 {
                x.step(&slope, next - sigma)
            } else {
                self.midpoint(&x, &slope, sigma, next)?
            };
        }
        Ok(x)
    }

    /// Euler steps with the gradient extrapolated from the last one; CFG++ follows the negative slope.
    pub(super) fn gradient_estimation(&mut self, mut x: Latent, cfg_pp: bool) -> Result<Latent, Error> {
        const GAMMA: f32 = 2.0;
        let mut last: Option<Latent> = None;
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let (denoised, away) = self.denoise_with(&x, sigma, cfg_pp)?;
            let slope = x.slope(&away, sigma);
            self.report(step, &x, &denoised)?;
            let length = next - sigma;
            if next == 0.0 {
                x = denoised;
            } else {
                x = if cfg_pp { denoised.step(&slope, next) } else { x.step(&slope, length) };
                if let Some(last) = &last {
                    x = x.zip3(&slope, last, |x, now, before| x + (GAMMA - 1.0) * (now - before) * length);
                }
            }
            last = Some(slope);
        }
        Ok(x)
    }

    /// The slope that the model sees at `x`.
    pub(super) fn slope_at(&mut self, x: &Latent, sigma: f32) -> Result<Latent, Error> {
        Ok(x.slope(&self.denoise(x, sigma)?, sigma))
    }

    /// One step from `sigma` to `to` along the slope found at their geometric middle.
    pub(super) fn midpoint(
        &mut self,
        x: &Latent,
        slope: &Latent,
        sigma: f32,
        to: f32,
    ) -> Result<Latent, Error> {
        let middle = lerp(sigma.ln(), to.ln(), 0.5).exp();
        let second = self.slope_at(&x.step(slope, middle - sigma), middle)?;
        Ok(x.step(&second, to - sigma))
    }
}
