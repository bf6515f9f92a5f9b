//! DPM-Solver (Lu et al. 2022) in log-noise time: a fixed number of model calls, or adaptive steps.

use super::Run;
use crate::schedule::linspace;
use crate::{Error, Latent};

/// The noise found in `x` at a time, and at the points between it and the step's end.
struct Slopes {
    at_start: Latent,
    at_first: Option<Latent>,
}

impl Run<'_> {
    /// About as many model calls as the schedule has steps, in steps of order three, two and one.
    pub(super) fn dpm_fast(&mut self, mut x: Latent) -> Result<Latent, Error> {
        let Some((start, end)) = self.log_bounds("dpm_fast")? else { return Ok(x) };
        let calls = self.steps();
        let blocks = calls / 3 + 1;
        let times = linspace(start, end, blocks + 1);
        let mut orders = vec![3; blocks - 1];
        match calls % 3 {
            0 => {
                orders.pop();
                orders.extend([2, 1]);
            }
            rest => orders.push(rest),
        }
        for (i, order) in orders.into_iter().enumerate() {
            let (t, next) = (times[i], times[i + 1]);
            let mut slopes = self.slopes(&x, t)?;
            let denoised = x.step(&slopes.at_start, -(-t).exp());
            self.report(i, &x, &denoised)?;
            x = match order {
                1 => first_order(&x, t, next, &slopes),
                2 => self.second_order(&x, (t, next), 0.5, &mut slopes)?,
                _ => self.third_order(&x, (t, next), &mut slopes)?,
            };
        }
        Ok(x)
    }

    /// Steps of order three, as long as their difference from order two allows.
    pub(super) fn dpm_adaptive(&mut self, mut x: Latent) -> Result<Latent, Error> {
        const RELATIVE: f32 = 0.05;
        const ABSOLUTE: f32 = 0.0078;
        /// A step that the error would shrink below this share is taken again.
        const ACCEPT: f64 = 0.81;
        let Some((mut t, end)) = self.log_bounds("dpm_adaptive")? else { return Ok(x) };
        // Rising levels are walked backwards.
        let forward = end > t;
        let mut length = if forward { 0.05f64 } else { -0.05 };
        let mut last = x.clone();
        let mut step = 0;
        while if forward { t < end - 1e-5 } else { t > end + 1e-5 } {
            let reach = t + length as f32;
            let next = if forward { end.min(reach) } else { end.max(reach) };
            if next == t {
                return Err(Error::Diverged { sampler: "dpm_adaptive", step });
            }
            let mut slopes = self.slopes(&x, t)?;
            let denoised = x.step(&slopes.at_start, -(-t).exp());
            let low = self.second_order(&x, (t, next), 1.0 / 3.0, &mut slopes)?;
            let high = self.third_order(&x, (t, next), &mut slopes)?;
            let scaled = low.zip3(&high, &last, |low, high, last| {
                (low - high) / ABSOLUTE.max(RELATIVE * low.abs().max(last.abs()))
            });
            let squares: f64 = scaled.values().iter().map(|v| f64::from(*v).powi(2)).sum();
            let error = squares.sqrt() as f32 / (scaled.values().len() as f64).sqrt() as f32;
            let wanted = (1.0 / (f64::from(error) + 1e-8)).powf(1.0 / 3.0);
            let factor = 1.0 + (wanted - 1.0).atan();
            if !factor.is_finite() {
                return Err(Error::Diverged { sampler: "dpm_adaptive", step });
            }
            length *= factor;
            if factor >= ACCEPT {
                (last, x, t) = (low, high, next);
            }
            self.report(step, &x, &denoised)?;
            step += 1;
        }
        Ok(x)
    }

    /// The times of the first level and of the last above zero.
    fn log_bounds(&self, sampler: &'static str) -> Result<Option<(f32, f32)>, Error> {
        if self.sigmas.len() <= 1 {
            return Ok(None);
        }
        let steps = self.steps();
        let low = if self.sigmas[steps] == 0.0 { self.sigmas[steps - 1] } else { self.sigmas[steps] };
        if low <= 0.0 || self.sigmas[0] <= 0.0 {
            return Err(Error::ZeroSigma { sampler, sigmas: self.sigmas.clone() });
        }
        Ok(Some((-self.sigmas[0].ln(), -low.ln())))
    }

    fn slopes(&mut self, x: &Latent, t: f32) -> Result<Slopes, Error> {
        Ok(Slopes { at_start: self.slope_at(x, (-t).exp())?, at_first: None })
    }

    /// The slope at the point `share` of the way, computed once per step.
    fn first_point(
        &mut self,
        x: &Latent,
        (t, next): (f32, f32),
        share: f32,
        slopes: &mut Slopes,
    ) -> Result<Latent, Error> {
        if let Some(slope) = &slopes.at_first {
            return Ok(slope.clone());
        }
        let h = next - t;
        let at = t + share * h;
        let ahead = x.step(&slopes.at_start, -((-at).exp() * (share * h).exp_m1()));
        let slope = self.slope_at(&ahead, (-at).exp())?;
        slopes.at_first = Some(slope.clone());
        Ok(slope)
    }

    fn second_order(
        &mut self,
        x: &Latent,
        (t, next): (f32, f32),
        share: f32,
        slopes: &mut Slopes,
    ) -> Result<Latent, Error> {
        let first = self.first_point(x, (t, next), share, slopes)?;
        let (level, grow) = ((-next).exp(), (next - t).exp_m1());
        let (w0, w1) = (level * grow, level / (2.0 * share) * grow);
        Ok(x.zip3(&slopes.at_start, &first, |x, e, e1| x - w0 * e - w1 * (e1 - e)))
    }

    fn third_order(
        &mut self,
        x: &Latent,
        (t, next): (f32, f32),
        slopes: &mut Slopes,
    ) -> Result<Latent, Error> {
        let (r1, r2) = (1.0f32 / 3.0, 2.0f32 / 3.0);
        let first = self.first_point(x, (t, next), r1, slopes)?;
        let h = next - t;
        let at = t + r2 * h;
        let (level, grow) = ((-at).exp(), (r2 * h).exp_m1());
        let (w0, w1) = (level * grow, level * 2.0 * (grow / (r2 * h) - 1.0));
        let ahead = x.zip3(&slopes.at_start, &first, |x, e, e1| x - w0 * e - w1 * (e1 - e));
        let second = self.slope_at(&ahead, level)?;
        let (level, grow) = ((-next).exp(), h.exp_m1());
        let (w0, w2) = (level * grow, level / r2 * (grow / h - 1.0));
        Ok(x.zip3(&slopes.at_start, &second, |x, e, e2| x - w0 * e - w2 * (e2 - e)))
    }
}

fn first_order(x: &Latent, t: f32, next: f32, slopes: &Slopes) -> Latent {
    x.step(&slopes.at_start, -((-next).exp() * (next - t).exp_m1()))
}
