//! UniPC (Zhao et al. 2023): a predictor and corrector of order three, in the variance-preserving scale.

use super::{Run, linear};
use crate::{Error, Latent};

/// The level that stands for zero, where the half-log-SNR would be infinite.
pub(super) const FINAL_SIGMA: f32 = 0.001;

/// The scaling function of the weights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    /// The step itself.
    B1,
    /// The exponential of the step, less one.
    B2,
}

/// Predictions of the last levels, oldest first.
struct Past {
    predictions: Vec<Latent>,
    sigmas: Vec<f32>,
}

impl Past {
    /// Remembers a level and its prediction; the last level has none of its own and repeats the newest.
    fn push(&mut self, sigma: f32, prediction: Option<Latent>, keep: usize) {
        let newest = self.predictions.len() - 1;
        let prediction = prediction.unwrap_or_else(|| self.predictions[newest].clone());
        if self.sigmas.len() >= keep {
            self.sigmas.remove(0);
            self.predictions.remove(0);
        }
        self.sigmas.push(sigma);
        self.predictions.push(prediction);
    }
}

/// What one update needs, beside the latents.
struct Update {
    order: usize,
    corrects: bool,
    variant: Variant,
}

impl Run<'_> {
    /// Predicts and corrects through the levels; the last step only predicts.
    pub(super) fn uni_pc(&mut self, x: &Latent, variant: Variant) -> Result<Latent, Error> {
        let steps = self.steps();
        if self.sigmas[steps] == 0.0 {
            self.sigmas[steps] = FINAL_SIGMA;
        }
        let scale = (1.0 + self.sigmas[0] * self.sigmas[0]).sqrt();
        let mut x = x.map(|v| v / scale);
        let highest = 3.min(steps.saturating_sub(1));
        let mut past = Past { predictions: Vec::new(), sigmas: Vec::new() };
        for step in 0..steps {
            if step == 0 {
                let prediction = self.clean(&x, self.sigmas[0])?;
                past = Past { predictions: vec![prediction], sigmas: vec![self.sigmas[0]] };
            } else if step < highest {
                x = self.update(
                    &x,
                    &mut past,
                    step,
                    highest,
                    &Update { order: step, corrects: true, variant },
                )?;
            } else {
                for at in step..=(if step + 1 == steps { steps } else { step }) {
                    let order = highest.min(steps + 1 - at);
                    x = self.update(
                        &x,
                        &mut past,
                        at,
                        highest,
                        &Update { order, corrects: at < steps, variant },
                    )?;
                }
            }
            let newest = past.predictions[past.predictions.len() - 1].clone();
            self.report(step, &x, &newest)?;
        }
        let alpha = log_mean(self.sigmas[steps]).exp();
        Ok(x.map(|v| v / alpha))
    }

    /// One step to level `at`; remembers the prediction there.
    fn update(
        &mut self,
        x: &Latent,
        past: &mut Past,
        at: usize,
        keep: usize,
        update: &Update,
    ) -> Result<Latent, Error> {
        let Update { order, corrects, variant } = *update;
        let sigma = self.sigmas[at];
        let newest = past.sigmas.len() - 1;
        let (last, last_sigma) = (&past.predictions[newest], past.sigmas[newest]);
        let h = half_log_snr(sigma) - half_log_snr(last_sigma);
        let mut points = Vec::new();
        let mut changes = Vec::new();
        for back in 1..order {
            let r = (half_log_snr(past.sigmas[newest - back]) - half_log_snr(last_sigma)) / h;
            changes.push(past.predictions[newest - back].zip(last, |then, now| (then - now) / r));
            points.push(r);
        }
        points.push(1.0);
        let grow = (-h).exp_m1();
        let scale = if variant == Variant::B1 { -h } else { grow };
        let diverged = Error::Diverged { sampler: "uni_pc", step: at };
        let weights = Weights::new(-h, scale, &points);
        let alpha = log_mean(sigma).exp();
        let (shrink, weight) = (deviation(sigma) / deviation(last_sigma), alpha * grow);
        let base = x.zip(last, |x, d| shrink * x - weight * d);
        let factor = alpha * scale;
        let predictor = weights.predictor().ok_or(diverged)?;
        let mut moved = match sum(&predictor, &changes) {
            Some(sum) => base.step(&sum, -factor),
            None => base.clone(),
        };
        let mut prediction = None;
        if corrects {
            let corrector = weights.corrector().ok_or(Error::Diverged { sampler: "uni_pc", step: at })?;
            let now = self.clean(&moved, sigma)?;
            let own = corrector[order - 1];
            let change = now.zip(last, |now, last| own * (now - last));
            let change = match sum(&corrector[..order - 1], &changes) {
                Some(sum) => sum.zip(&change, |a, b| a + b),
                None => change,
            };
            moved = base.step(&change, -factor);
            prediction = Some(now);
        }
        past.push(sigma, prediction, keep.max(1));
        Ok(moved)
    }

    /// The clean prediction for `x` in the variance-preserving scale.
    fn clean(&mut self, x: &Latent, sigma: f32) -> Result<Latent, Error> {
        let scale = (sigma * sigma + 1.0).sqrt();
        let scaled = x.map(|v| v * scale);
        let noise = self.slope_at(&scaled, sigma)?;
        let (alpha, deviation) = (log_mean(sigma).exp(), deviation(sigma));
        Ok(x.zip(&noise, |x, n| (x - deviation * n) / alpha))
    }
}

/// The system whose solutions weigh the changes of the predictions.
struct Weights {
    matrix: Vec<Vec<f32>>,
    right: Vec<f32>,
}

impl Weights {
    fn new(hh: f32, scale: f32, points: &[f32]) -> Weights {
        let (mut matrix, mut right) = (Vec::new(), Vec::new());
        let mut phi = hh.exp_m1() / hh - 1.0;
        let mut factorial = 1.0f32;
        for power in 0..points.len() {
            matrix.push(points.iter().map(|r| r.powi(power as i32)).collect());
            right.push(phi * factorial / scale);
            factorial *= (power + 2) as f32;
            phi = phi / hh - 1.0 / factorial;
        }
        Weights { matrix, right }
    }

    /// The weights of the past changes alone.
    fn predictor(&self) -> Option<Vec<f32>> {
        let n = self.right.len() - 1;
        match n {
            0 => Some(Vec::new()),
            1 => Some(vec![0.5]),
            _ => linear::solve(
                self.matrix[..n].iter().map(|row| row[..n].to_vec()).collect(),
                self.right[..n].to_vec(),
            ),
        }
    }

    /// The weights of the past changes and of the new one.
    fn corrector(&self) -> Option<Vec<f32>> {
        if self.right.len() == 1 {
            return Some(vec![0.5]);
        }
        linear::solve(self.matrix.clone(), self.right.clone())
    }
}

fn sum(weights: &[f32], latents: &[Latent]) -> Option<Latent> {
    let mut terms = weights.iter().zip(latents).map(|(weight, latent)| latent.map(|v| weight * v));
    let first = terms.next()?;
    Some(terms.fold(first, |sum, term| sum.zip(&term, |a, b| a + b)))
}

/// The logarithm of the signal's share.
fn log_mean(sigma: f32) -> f32 {
    0.5 * (1.0 / (sigma * sigma + 1.0)).ln()
}

fn deviation(sigma: f32) -> f32 {
    (1.0 - (2.0 * log_mean(sigma)).exp()).sqrt()
}

fn half_log_snr(sigma: f32) -> f32 {
    log_mean(sigma) - 0.5 * (1.0 - (2.0 * log_mean(sigma)).exp()).ln()
}
