//! Samplers that step further down and add fresh noise, with the flow models' own formulas.

use super::{Run, ancestral_step};
use crate::noise::{Independent, NoiseSource};
use crate::{Error, Latent};

/// A flow's step with fresh noise: how far down, and how the picture and the noise are mixed again.
struct FlowStep {
    down: f32,
    keep: f32,
    renoise: f32,
}

impl FlowStep {
    fn new(sigma: f32, next: f32, eta: f32) -> FlowStep {
        let down = next * (1.0 + (next / sigma - 1.0) * eta);
        let (alpha_next, alpha_down) = (1.0 - next, 1.0 - down);
        let squared = next * next - down * down * (alpha_next * alpha_next) / (alpha_down * alpha_down);
        // Without fresh noise rounding can leave a little less than nothing.
        FlowStep { down, keep: alpha_next / alpha_down, renoise: squared.max(0.0).sqrt() }
    }
}

impl Run<'_> {
    /// Euler steps with fresh noise.
    pub(super) fn euler_ancestral(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            let (down, up) = ancestral_step(sigma, next, self.tuning.eta);
            x = if down == 0.0 {
                denoised
            } else {
                let moved = x.step(&x.slope(&denoised, sigma), down - sigma);
                self.add_noise(moved, &mut noise, (sigma, next), up)
            };
        }
        Ok(x)
    }

    /// Euler steps with fresh noise for flow models.
    pub(super) fn euler_ancestral_flow(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let flow = FlowStep::new(sigma, next, self.tuning.eta);
            let ratio = flow.down / sigma;
            x = x.blend(ratio, &denoised, 1.0 - ratio);
            if self.tuning.eta > 0.0 {
                x = self.renoise(&x, &mut noise, (sigma, next), &flow);
            }
        }
        Ok(x)
    }

    /// DPM-Solver-2 with fresh noise; flow models mix it in their own way.
    pub(super) fn dpm_2_ancestral(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            let slope = x.slope(&denoised, sigma);
            if self.sampling.is_flow() {
                let flow = FlowStep::new(sigma, next, self.tuning.eta);
                x = if flow.down == 0.0 {
                    x.step(&slope, flow.down - sigma)
                } else {
                    let moved = self.midpoint(&x, &slope, sigma, flow.down)?;
                    self.renoise(&moved, &mut noise, (sigma, next), &flow)
                };
            } else {
                let (down, up) = ancestral_step(sigma, next, self.tuning.eta);
                x = if down == 0.0 {
                    x.step(&slope, down - sigma)
                } else {
                    let moved = self.midpoint(&x, &slope, sigma, down)?;
                    self.add_noise(moved, &mut noise, (sigma, next), up)
                };
            }
        }
        Ok(x)
    }

    /// DPM-Solver++(2S) with fresh noise.
    pub(super) fn dpmpp_2s_ancestral(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            let (down, up) = ancestral_step(sigma, next, self.tuning.eta);
            self.report(step, &x, &denoised)?;
            x = if down == 0.0 {
                x.step(&x.slope(&denoised, sigma), down - sigma)
            } else {
                let (t, end) = (-sigma.ln(), -down.ln());
                let h = end - t;
                let middle = t + 0.5 * h;
                let half = (-h * 0.5).exp_m1();
                let ahead = x.blend((-middle).exp() / (-t).exp(), &denoised, -half);
                let second = self.denoise(&ahead, (-middle).exp())?;
                x.blend((-end).exp() / (-t).exp(), &second, -(-h).exp_m1())
            };
            if next > 0.0 {
                x = self.add_noise(x, &mut noise, (sigma, next), up);
            }
        }
        Ok(x)
    }

    /// DPM-Solver++(2S) with fresh noise for flow models.
    pub(super) fn dpmpp_2s_ancestral_flow(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        let lambda = |sigma: f32| ((1.0 - sigma) / sigma).ln();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            let flow = FlowStep::new(sigma, next, self.tuning.eta);
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = x.step(&x.slope(&denoised, sigma), flow.down - sigma);
                continue;
            }
            let middle = if sigma == 1.0 {
                0.9999
            } else {
                let (from, to) = (lambda(sigma), lambda(flow.down));
                1.0 / ((from + 0.5 * (to - from)).exp() + 1.0)
            };
            let ratio = middle / sigma;
            let second = self.denoise(&x.blend(ratio, &denoised, 1.0 - ratio), middle)?;
            let ratio = flow.down / sigma;
            x = x.blend(ratio, &second, 1.0 - ratio);
            if self.tuning.eta > 0.0 {
                x = self.renoise(&x, &mut noise, (sigma, next), &flow);
            }
        }
        Ok(x)
    }

    /// Denoising diffusion steps, in the scale in which signal and noise keep unit variance.
    pub(super) fn ddpm(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            let kept = 1.0 / (sigma * sigma + 1.0);
            let kept_next = 1.0 / (next * next + 1.0);
            let alpha = kept / kept_next;
            let (scale, grow) = ((1.0 + sigma * sigma).sqrt(), (1.0 / alpha).sqrt());
            let rest = (1.0 - kept).sqrt();
            x = x.zip(&denoised, |x, clean| {
                let eps = (x - clean) / sigma;
                grow * (x / scale - (1.0 - alpha) * eps / rest)
            });
            if next > 0.0 {
                let deviation = ((1.0 - alpha) * (1.0 - kept_next) / (1.0 - kept)).sqrt();
                let back = (1.0 + next * next).sqrt();
                x = x.zip(&noise.draw(sigma, next), |x, n| (x + deviation * n) * back);
            }
        }
        Ok(x)
    }

    /// Consistency steps: the prediction, lifted to the next level by fresh noise.
    pub(super) fn lcm(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            x = denoised;
            if next > 0.0 {
                x = self.sampling.noise_scaling(next, &noise.draw(sigma, next), &x, false);
            }
        }
        Ok(x)
    }

    /// `x` with `amount` of fresh noise.
    pub(super) fn add_noise(
        &self,
        x: Latent,
        noise: &mut Independent,
        (sigma, next): (f32, f32),
        amount: f32,
    ) -> Latent {
        if amount == 0.0 {
            return x;
        }
        let s_noise = self.tuning.s_noise;
        x.zip(&noise.draw(sigma, next), |x, n| x + n * s_noise * amount)
    }

    fn renoise(
        &self,
        x: &Latent,
        noise: &mut Independent,
        (sigma, next): (f32, f32),
        flow: &FlowStep,
    ) -> Latent {
        let s_noise = self.tuning.s_noise;
        x.zip(&noise.draw(sigma, next), |x, n| flow.keep * x + n * s_noise * flow.renoise)
    }
}
