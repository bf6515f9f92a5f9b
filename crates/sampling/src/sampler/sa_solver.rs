//! SA-Solver (Xue et al. 2023): stochastic Adams predictor and corrector in the clean prediction.

use super::{Run, linear};
use crate::noise::NoiseSource;
use crate::{Error, Latent};

const PREDICTOR_ORDER: usize = 3;
const CORRECTOR_ORDER: usize = 4;

/// What a predictor step leaves for the corrector that follows it.
struct Predicted {
    h: f32,
    tau: f32,
    noise: Option<Latent>,
}

impl Run<'_> {
    /// Predicts each state from up to three predictions and corrects it with up to four.
    ///
    /// With `evaluate_corrected` the model is asked again at the corrected state.
    pub(super) fn sa_solver(&mut self, mut x: Latent, evaluate_corrected: bool) -> Result<Latent, Error> {
        let mut source = self.independent_noise();
        self.offset_first_sigma();
        let lambdas: Vec<f32> = self.sigmas.iter().map(|s| self.sampling.half_log_snr(*s)).collect();
        let steps = self.steps();
        let ends_at_zero = self.sigmas[steps] == 0.0;
        let mut predicted = x.clone();
        let mut before = Predicted { h: 0.0, tau: 0.0, noise: None };
        let mut predictions: Vec<Latent> = Vec::new();
        for step in 0..steps {
            let (sigma, next) = self.levels(step);
            let denoised = self.denoise(&predicted, sigma)?;
            self.report(step, &predicted, &denoised)?;
            predictions.push(denoised);
            if predictions.len() > CORRECTOR_ORDER {
                predictions.remove(0);
            }
            let mut order = PREDICTOR_ORDER.min(predictions.len());
            let corrects = step > 0 && (next != 0.0 || evaluate_corrected);
            let mut corrector_order = if corrects { CORRECTOR_ORDER.min(predictions.len()) } else { 0 };
            if ends_at_zero {
                order = order.min(steps - 1 - step);
                corrector_order = corrector_order.min(steps - step);
            }
            if corrector_order == 0 {
                x = predicted.clone();
            } else {
                x = self.correct(&x, &predictions, &lambdas, (step, corrector_order), &before)?;
                if evaluate_corrected {
                    let last = predictions.len() - 1;
                    predictions[last] = self.denoise(&x, sigma)?;
                }
            }
            if next == 0.0 {
                predicted = predictions[predictions.len() - 1].clone();
                continue;
            }
            (predicted, before) = self.predict(&x, &predictions, &lambdas, (step, order), &mut source)?;
        }
        Ok(predicted)
    }

    fn correct(
        &self,
        x: &Latent,
        predictions: &[Latent],
        lambdas: &[f32],
        (step, order): (usize, usize),
        before: &Predicted,
    ) -> Result<Latent, Error> {
        let (last, sigma) = self.levels(step - 1);
        let points = &lambdas[step + 1 - order..=step];
        let weights = adams_weights(sigma, points, lambdas[step - 1], lambdas[step], before.tau)
            .ok_or(Error::Diverged { sampler: "sa_solver", step })?;
        let shrink = sigma / last * (-(before.tau * before.tau) * before.h).exp();
        let sum = combine(&weights, predictions);
        let x = x.zip(&sum, |x, sum| shrink * x + sum);
        Ok(match &before.noise {
            Some(noise) => x.zip(noise, |x, n| x + n),
            None => x,
        })
    }

    fn predict(
        &self,
        x: &Latent,
        predictions: &[Latent],
        lambdas: &[f32],
        (step, order): (usize, usize),
        source: &mut dyn NoiseSource,
    ) -> Result<(Latent, Predicted), Error> {
        let (sigma, next) = self.levels(step);
        let tau = self.stochasticity(next);
        let points = &lambdas[step + 1 - order..=step];
        let weights = adams_weights(next, points, lambdas[step], lambdas[step + 1], tau)
            .ok_or(Error::Diverged { sampler: "sa_solver", step })?;
        let h = lambdas[step + 1] - lambdas[step];
        let shrink = next / sigma * (-(tau * tau) * h).exp();
        let sum = combine(&weights, predictions);
        let mut predicted = x.zip(&sum, |x, sum| shrink * x + sum);
        let mut noise = None;
        let s_noise = self.tuning.s_noise;
        if tau > 0.0 && s_noise > 0.0 {
            let deviation = (-(-2.0 * tau * tau * h).exp_m1()).sqrt();
            let fresh = source.draw(sigma, next).map(|n| n * next * deviation * s_noise);
            predicted = predicted.zip(&fresh, |x, n| x + n);
            noise = Some(fresh);
        }
        Ok((predicted, Predicted { h, tau, noise }))
    }

    /// Noise is added in the middle of the run only: from a fifth to four fifths of it.
    fn stochasticity(&self, sigma: f32) -> f32 {
        let (start, end) = (self.sampling.percent_to_sigma(0.2), self.sampling.percent_to_sigma(0.8));
        if self.tuning.eta > 0.0 && (end..=start).contains(&f64::from(sigma)) { self.tuning.eta } else { 0.0 }
    }
}

/// The newest predictions, each times its weight.
fn combine(weights: &[f32], predictions: &[Latent]) -> Latent {
    let newest = &predictions[predictions.len() - weights.len()..];
    let mut sum = newest[0].map(|v| weights[0] * v);
    for (weight, latent) in weights.iter().zip(newest).skip(1) {
        sum = sum.zip(latent, |sum, v| sum + weight * v);
    }
    sum
}

/// The weights of predictions at `points` for the step from `from` to `to`, oldest first.
fn adams_weights(sigma_next: f32, points: &[f32], from: f32, to: f32, tau: f32) -> Option<Vec<f32>> {
    let n = points.len();
    let moments = exponential_moments(from, to, n, tau);
    let powers = (0..n).map(|p| points.iter().map(|lambda| lambda.powi(p as i32)).collect()).collect();
    let alpha = sigma_next * to.exp();
    Some(linear::solve(powers, moments)?.into_iter().map(|w| alpha * w).collect())
}

/// The integrals of `(1 + tau²) exp((1 + tau²)(x - to)) x^p` over the step, for `p` below `count`.
fn exponential_moments(from: f32, to: f32, count: usize, tau: f32) -> Vec<f32> {
    let rate = 1.0 + tau * tau;
    let fade = (-rate * (to - from)).exp();
    let ends: Vec<f32> = (0..count as i32).map(|p| to.powi(p) - from.powi(p) * fade).collect();
    // Integration by parts: each power is its ends less p / rate times the power below.
    (0..count)
        .map(|p| {
            let mut factor = 1.0f32;
            let mut sum = ends[p];
            for below in (0..p).rev() {
                factor *= -((below + 1) as f32) / rate;
                sum += factor * ends[below];
            }
            sum
        })
        .collect()
}
