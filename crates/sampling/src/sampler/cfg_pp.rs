//! CFG++ (Chung et al. 2024): the picture comes from the guided prediction, the noise from the negative one.

use super::{Run, Tuning, ancestral_step};
use crate::noise::NoiseSource;
use crate::{Error, Latent};

impl Run<'_> {
    /// Euler steps with CFG++, with fresh noise when `tuning` says so.
    pub(super) fn euler_cfg_pp(&mut self, mut x: Latent, tuning: Tuning) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let (denoised, negative) = self.denoise_both(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let alpha = sigma * self.sampling.half_log_snr(sigma).exp();
            let alpha_next = next * self.sampling.half_log_snr(next).exp();
            let (down, up) = ancestral_step(sigma / alpha, next / alpha_next, tuning.eta);
            let down = alpha_next * down;
            x = x.zip3(&denoised, &negative, |x, yes, no| {
                alpha_next * yes + down * ((x - alpha * no) / sigma)
            });
            if tuning.eta > 0.0 && tuning.s_noise > 0.0 {
                x = x.zip(&noise.draw(sigma, next), |x, n| x + alpha_next * n * tuning.s_noise * up);
            }
        }
        Ok(x)
    }

    /// DPM-Solver++(2S) with fresh noise and CFG++.
    pub(super) fn dpmpp_2s_ancestral_cfg_pp(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let (denoised, negative) = self.denoise_both(&x, sigma)?;
            let (down, up) = ancestral_step(sigma, next, self.tuning.eta);
            self.report(step, &x, &denoised)?;
            x = if down == 0.0 {
                denoised
            } else {
                let (t, end) = (-sigma.ln(), -down.ln());
                let h = end - t;
                let middle = t + 0.5 * h;
                let moved = x.zip3(&denoised, &negative, |x, yes, no| x + (yes - no));
                let half = (-h * 0.5).exp_m1();
                let ahead = moved.blend((-middle).exp() / (-t).exp(), &denoised, -half);
                // The reference forms the second step with the negative prediction of the second call.
                let (second, negative) = self.denoise_both(&ahead, (-middle).exp())?;
                let moved = x.zip3(&denoised, &negative, |x, yes, no| x + (yes - no));
                moved.blend((-end).exp() / (-t).exp(), &second, -(-h).exp_m1())
            };
            if next > 0.0 {
                x = self.add_noise(x, &mut noise, (sigma, next), up);
            }
        }
        Ok(x)
    }

    /// DPM-Solver++(2M) with CFG++.
    pub(super) fn dpmpp_2m_cfg_pp(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut last_negative: Option<Latent> = None;
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let (denoised, negative) = self.denoise_both(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            let (t, end) = (-sigma.ln(), -next.ln());
            let h = end - t;
            let shrink = (-h).exp();
            let moved = x.zip(&negative, |x, no| -shrink * no + shrink * x);
            x = match &last_negative {
                Some(last) if next != 0.0 => {
                    let r = (t + self.sigmas[step - 1].ln()) / h;
                    let weight = (-h).exp_m1() * (1.0 / (2.0 * r));
                    let mixed = denoised.zip(last, |yes, last| -weight * (yes - last));
                    denoised.zip3(&moved, &mixed, |yes, moved, mixed| yes + mixed + moved)
                }
                _ => denoised.zip(&moved, |yes, moved| yes + moved),
            };
            last_negative = Some(negative);
        }
        Ok(x)
    }
}
