//! Noise levels: the schedulers of the sampling node, and the steps taken of them.

mod beta;
pub mod nodes;

use std::fmt;
use std::str::FromStr;

use crate::{Error, ModelSampling, Sampler};

/// A scheduler by name: how levels are spread between a model's highest and lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheduler {
    /// Every n-th entry of the model's table, from the top.
    Simple,
    /// Evenly spaced timesteps, the last before the lowest.
    SgmUniform,
    /// Karras et al. 2022, rho 7.
    Karras,
    /// Evenly spaced logarithms.
    Exponential,
    /// Every n-th entry of the model's table, from the bottom.
    DdimUniform,
    /// Timesteps by the quantiles of a beta distribution (0.6, 0.6).
    Beta,
    /// Evenly spaced timesteps down to the lowest.
    Normal,
    /// Linear at first, then quadratic (Mochi).
    LinearQuadratic,
    /// Evenly spaced angles (Align Your Steps, KL-optimal).
    KlOptimal,
}

impl Scheduler {
    /// All of them, in the order in which user interfaces list them.
    pub const ALL: [Scheduler; 9] = [
        Scheduler::Simple,
        Scheduler::SgmUniform,
        Scheduler::Karras,
        Scheduler::Exponential,
        Scheduler::DdimUniform,
        Scheduler::Beta,
        Scheduler::Normal,
        Scheduler::LinearQuadratic,
        Scheduler::KlOptimal,
    ];

    /// The name that workflows use.
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::Simple => "simple",
            Scheduler::SgmUniform => "sgm_uniform",
            Scheduler::Karras => "karras",
            Scheduler::Exponential => "exponential",
            Scheduler::DdimUniform => "ddim_uniform",
            Scheduler::Beta => "beta",
            Scheduler::Normal => "normal",
            Scheduler::LinearQuadratic => "linear_quadratic",
            Scheduler::KlOptimal => "kl_optimal",
        }
    }

    /// The levels of `steps` steps, falling, with the final zero.
    pub fn sigmas(self, sampling: &ModelSampling, steps: usize) -> Result<Vec<f32>, Error> {
        check_steps(self.name(), steps)?;
        let (low, high) = (f64::from(sampling.sigma_min()), f64::from(sampling.sigma_max()));
        Ok(match self {
            Scheduler::Simple => simple(sampling.sigmas(), steps),
            Scheduler::SgmUniform => uniform(sampling, steps, true),
            Scheduler::Normal => uniform(sampling, steps, false),
            Scheduler::Karras => nodes::karras(steps, high, low, 7.0)?,
            Scheduler::Exponential => nodes::exponential(steps, high, low)?,
            Scheduler::DdimUniform => ddim_uniform(sampling.sigmas(), steps),
            Scheduler::Beta => nodes::beta(sampling, steps, 0.6, 0.6)?,
            Scheduler::LinearQuadratic => linear_quadratic(sampling.sigma_max(), steps),
            Scheduler::KlOptimal => kl_optimal(steps, low, high),
        })
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheduler {
    type Err = Error;

    fn from_str(name: &str) -> Result<Scheduler, Error> {
        Scheduler::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| Error::UnknownName {
            what: "scheduler",
            name: name.to_owned(),
            known: Scheduler::ALL.map(Scheduler::name).join(", "),
        })
    }
}

/// What a sampling node asks for: how many steps, of which strength, and which of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepPlan {
    /// Steps to run (before `start` and `end` cut some off).
    pub steps: usize,
    /// How much of the image is made new: 1 all of it, 0 nothing.
    pub denoise: f64,
    /// First step, for a run that continues another's.
    pub start: Option<usize>,
    /// The step to stop before, for a run that another continues.
    pub end: Option<usize>,
    /// Whether a run that stops early still removes all noise in its last step.
    pub force_full_denoise: bool,
}

impl StepPlan {
    /// All of `steps` steps at a denoise strength.
    pub fn new(steps: usize, denoise: f64) -> StepPlan {
        StepPlan { steps, denoise, start: None, end: None, force_full_denoise: false }
    }

    /// The levels to sample through; none when nothing is left to do, and the latent stays as it is.
    pub fn sigmas(
        &self,
        sampling: &ModelSampling,
        scheduler: Scheduler,
        sampler: Sampler,
    ) -> Result<Vec<f32>, Error> {
        let mut sigmas = self.whole(sampling, scheduler, sampler)?;
        if let Some(end) = self.end.filter(|end| end + 1 < sigmas.len()) {
            sigmas.truncate(end + 1);
            if self.force_full_denoise {
                sigmas[end] = 0.0;
            }
        }
        match self.start {
            Some(start) if start + 1 < sigmas.len() => Ok(sigmas.split_off(start)),
            Some(_) => Ok(Vec::new()),
            None => Ok(sigmas),
        }
    }

    fn whole(
        &self,
        sampling: &ModelSampling,
        scheduler: Scheduler,
        sampler: Sampler,
    ) -> Result<Vec<f32>, Error> {
        if self.denoise > 0.9999 {
            return ksampler_sigmas(sampling, scheduler, sampler, self.steps);
        }
        if self.denoise.is_nan() || self.denoise <= 0.0 {
            return Ok(Vec::new());
        }
        let total = (self.steps as f64 / self.denoise) as usize;
        Ok(last(ksampler_sigmas(sampling, scheduler, sampler, total)?, self.steps + 1))
    }
}

/// The levels, without the last but one for the samplers that look half a step ahead.
fn ksampler_sigmas(
    sampling: &ModelSampling,
    scheduler: Scheduler,
    sampler: Sampler,
    steps: usize,
) -> Result<Vec<f32>, Error> {
    if !sampler.discards_penultimate_sigma() {
        return scheduler.sigmas(sampling, steps);
    }
    let mut sigmas = scheduler.sigmas(sampling, steps + 1)?;
    if sigmas.len() >= 2 {
        sigmas.remove(sigmas.len() - 2);
    }
    Ok(sigmas)
}

/// The last `count` of the levels.
fn last(mut sigmas: Vec<f32>, count: usize) -> Vec<f32> {
    sigmas.split_off(sigmas.len().saturating_sub(count))
}

/// A limit that no schedule needs to pass, so that a wrong number is an answer and not an exhausted machine.
const MAX_STEPS: usize = 10_000_000;

fn check_steps(schedule: &'static str, steps: usize) -> Result<(), Error> {
    if (1..=MAX_STEPS).contains(&steps) {
        return Ok(());
    }
    let expected = "1 to 10,000,000";
    Err(Error::ScheduleInput { schedule, input: "steps", got: steps.to_string(), expected })
}

/// `count` values from `start` to `end`, both exact, filled from both ends as PyTorch does.
pub(crate) fn linspace(start: f32, end: f32, count: usize) -> Vec<f32> {
    if count == 1 {
        return vec![start];
    }
    let step = (end - start) / (count.saturating_sub(1)) as f32;
    (0..count)
        .map(|i| if i < count / 2 { start + step * i as f32 } else { end - step * (count - i - 1) as f32 })
        .collect()
}

fn simple(table: &[f32], steps: usize) -> Vec<f32> {
    let stride = table.len() as f64 / steps as f64;
    let levels = (0..steps).map(|i| table[table.len() - 1 - (i as f64 * stride) as usize]);
    levels.chain([0.0]).collect()
}

fn ddim_uniform(table: &[f32], steps: usize) -> Vec<f32> {
    let starts_at_zero = table[1].abs() <= 0.00001;
    let stride = (table.len() / (steps + usize::from(starts_at_zero))).max(1);
    let mut sigmas: Vec<f32> = if starts_at_zero { Vec::new() } else { vec![0.0] };
    sigmas.extend(table.iter().skip(1).step_by(stride));
    sigmas.reverse();
    sigmas
}

fn uniform(sampling: &ModelSampling, steps: usize, leave_out_last: bool) -> Vec<f32> {
    let (start, end) = (sampling.timestep(sampling.sigma_max()), sampling.timestep(sampling.sigma_min()));
    let ends_at_zero = !leave_out_last && sampling.sigma(end).abs() <= 0.00001;
    let mut timesteps = linspace(start, end, steps + usize::from(leave_out_last || ends_at_zero));
    if leave_out_last {
        timesteps.truncate(steps);
    }
    let mut sigmas: Vec<f32> = timesteps.into_iter().map(|t| sampling.sigma(t)).collect();
    if !ends_at_zero {
        sigmas.push(0.0);
    }
    sigmas
}

fn linear_quadratic(sigma_max: f32, steps: usize) -> Vec<f32> {
    const THRESHOLD: f64 = 0.025;
    let linear = (steps / 2) as f64;
    let done: Vec<f64> = if steps == 1 {
        vec![0.0, 1.0]
    } else {
        let quadratic = steps as f64 - linear;
        let gap = linear - THRESHOLD * steps as f64;
        let second = gap / (linear * quadratic * quadratic);
        let first = THRESHOLD / linear - 2.0 * gap / (quadratic * quadratic);
        let offset = second * (linear * linear);
        let level = |i: usize| {
            let i = i as f64;
            if i < linear { i * THRESHOLD / linear } else { second * (i * i) + first * i + offset }
        };
        (0..steps).map(level).chain([1.0]).collect()
    };
    done.into_iter().map(|share| (1.0 - share) as f32 * sigma_max).collect()
}

/// With one step the spacing is undefined (the reference divides zero by zero): the highest level is used.
fn kl_optimal(steps: usize, low: f64, high: f64) -> Vec<f32> {
    let (low, high) = (low.atan() as f32, high.atan() as f32);
    let divisor = steps.saturating_sub(1).max(1) as f32;
    let levels = (0..steps).map(|i| {
        let share = i as f32 / divisor;
        (share * low + (1.0 - share) * high).tan()
    });
    levels.chain([0.0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameterization;

    #[test]
    fn start_and_end_cut_the_plan() {
        let sampling = ModelSampling::discrete(Parameterization::Eps, false);
        let whole = StepPlan::new(6, 1.0);
        let get = |plan: StepPlan| plan.sigmas(&sampling, Scheduler::Normal, Sampler::Euler).unwrap();
        let all = get(whole);
        assert_eq!(get(StepPlan { end: Some(3), ..whole }), all[..4]);
        assert_eq!(get(StepPlan { start: Some(3), end: Some(10_000), ..whole }), all[3..]);
        let forced = get(StepPlan { end: Some(3), force_full_denoise: true, ..whole });
        assert_eq!(forced, [all[0], all[1], all[2], 0.0]);
        assert!(get(StepPlan { start: Some(6), ..whole }).is_empty());
        assert!(get(StepPlan::new(6, 0.0)).is_empty());
    }

    #[test]
    fn names_parse_and_wrong_ones_are_told() {
        for scheduler in Scheduler::ALL {
            assert_eq!(scheduler.name().parse::<Scheduler>().unwrap(), scheduler);
        }
        let message = "sigmoid".parse::<Scheduler>().unwrap_err().to_string();
        assert!(message.contains("sigmoid") && message.contains("kl_optimal"), "{message}");
    }

    #[test]
    fn no_steps_is_an_error() {
        let sampling = ModelSampling::exponential_flow(1.15);
        assert!(Scheduler::Simple.sigmas(&sampling, 0).is_err());
    }
}
