//! ER-SDE-Solver-3 (Cui et al. 2023): the extended reverse-time SDE in three stages.

use super::Run;
use crate::noise::NoiseSource;
use crate::{Error, Latent};

/// How finely a step is cut to integrate the noise scale over it.
const POINTS: u8 = 200;

/// How much noise is added at a noise-to-signal ratio.
fn noise_scale(ratio: f32) -> f32 {
    ratio * (ratio.powf(0.3).exp() + 10.0)
}

impl Run<'_> {
    /// Up to three stages per step, from the changes of the last predictions.
    pub(super) fn er_sde(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let mut noise = self.independent_noise();
        self.offset_first_sigma();
        let ratios: Vec<f32> = self.sigmas.iter().map(|s| (-self.sampling.half_log_snr(*s)).exp()).collect();
        let s_noise = self.tuning.s_noise;
        let (mut last, mut last_change): (Option<Latent>, Option<Latent>) = (None, None);
        for step in 0..self.steps() {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&x, sigma)?;
            self.report(step, &x, &denoised)?;
            if next == 0.0 {
                x = denoised;
                continue;
            }
            let (from, to) = (ratios[step], ratios[step + 1]);
            let (alpha, alpha_next) = (sigma / from, next / to);
            let r = noise_scale(to) / noise_scale(from);
            x = x.blend(alpha_next / alpha * r, &denoised, alpha_next * (1.0 - r));
            if let Some(last) = &last {
                let (first, second) = integrals(from, to);
                let span = from - ratios[step - 1];
                let change = denoised.zip(last, |now, before| (now - before) / span);
                let weight = alpha_next * (to - from + first * noise_scale(to));
                x = x.step(&change, weight);
                if let Some(before) = &last_change {
                    let span = (from - ratios[step - 2]) / 2.0;
                    let weight = alpha_next * ((to - from) * (to - from) / 2.0 + second * noise_scale(to));
                    x = x.zip3(&change, before, |x, now, before| x + weight * ((now - before) / span));
                }
                last_change = Some(change);
            }
            if s_noise > 0.0 {
                let variance = (to * to - from * from * (r * r)).sqrt();
                let deviation = if variance.is_nan() { 0.0 } else { variance };
                x = x.zip(&noise.draw(sigma, next), |x, n| x + alpha_next * n * s_noise * deviation);
            }
            last = Some(denoised);
        }
        Ok(x)
    }
}

/// The integrals over a step of one, and of the way from its start, over the noise scale.
fn integrals(from: f32, to: f32) -> (f32, f32) {
    let piece = -(to - from) / f32::from(POINTS);
    let (mut plain, mut moment) = (0.0f64, 0.0f64);
    for i in 0..POINTS {
        let at = to + f32::from(i) * piece;
        plain += f64::from(1.0 / noise_scale(at));
        moment += f64::from((at - from) / noise_scale(at));
    }
    (plain as f32 * piece, moment as f32 * piece)
}
