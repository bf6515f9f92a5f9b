//! Schedules: nodes that give noise levels, and nodes that change them.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Literal, Outcome, Schema, Value};
use sampling::{Scheduler, nodes};

use super::choices::levels;
use crate::class::class;
use crate::value::Sigmas;
use crate::{Error, Runtime};
use runtime::Model;

const MODULE: &str = "comfy_extras.nodes_custom_sampler";

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(BasicScheduler(runtime()));
    catalogue.add(KarrasScheduler(runtime()));
    catalogue.add(ExponentialScheduler(runtime()));
    catalogue.add(PolyexponentialScheduler(runtime()));
    catalogue.add(LaplaceScheduler(runtime()));
    catalogue.add(VPScheduler(runtime()));
    catalogue.add(BetaSamplingScheduler(runtime()));
    catalogue.add(SDTurboScheduler(runtime()));
    catalogue.add(AlignYourStepsScheduler(runtime()));
    catalogue.add(GITSScheduler(runtime()));
    catalogue.add(OptimalStepsScheduler(runtime()));
    catalogue.add(ManualSigmas(runtime()));
    catalogue.add(SplitSigmas(runtime()));
    catalogue.add(SplitSigmasDenoise(runtime()));
    catalogue.add(FlipSigmas(runtime()));
    catalogue.add(SetFirstSigma(runtime()));
    catalogue.add(ExtendIntermediateSigmas(runtime()));
    catalogue.add(SamplingPercentToSigma(runtime()));
}

pub(crate) fn give_sigmas(sigmas: Result<Vec<f32>, sampling::Error>) -> Result<Outcome, Failure> {
    Ok(Outcome::object(Sigmas(sigmas.map_err(Error::from)?)))
}

/// A number that clients do not round.
fn exact(name: &str, default: f64, min: f64, max: f64, step: f64) -> Input {
    Input::float(name, default, min, max, step).with("round", false)
}

/// Steps and the highest and lowest level.
fn range_inputs(schema: Schema) -> Schema {
    schema
        .input(Input::int("steps", 20, 1, 10_000))
        .input(exact("sigma_max", 14.614642, 0.0, 5000.0, 0.01))
        .input(exact("sigma_min", 0.0291675, 0.0, 5000.0, 0.01))
        .module(MODULE)
}

class! {
    /// The levels of a scheduler by name.
    BasicScheduler in "sampling/custom_sampling/schedulers";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::choice("scheduler", Scheduler::ALL.iter().map(|scheduler| scheduler.name())))
        .input(Input::int("steps", 20, 1, 10_000))
        .input(Input::float("denoise", 1.0, 0.0, 1.0, 0.01))
        .output("SIGMAS")
        .module(MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let scheduler: Scheduler = call.text("scheduler")?.parse().map_err(Error::from)?;
        give_sigmas(nodes::basic(&model.sampling, scheduler, call.size("steps")?, call.float("denoise")?))
    }
}

class! {
    /// Evenly spaced roots.
    KarrasScheduler in "sampling/custom_sampling/schedulers";
    |schema| range_inputs(schema).input(exact("rho", 7.0, 0.0, 100.0, 0.01)).output("SIGMAS");
    |runtime, call| {
        let (high, low) = (call.float("sigma_max")?, call.float("sigma_min")?);
        give_sigmas(nodes::karras(call.size("steps")?, high, low, call.float("rho")?))
    }
}

class! {
    /// Evenly spaced logarithms.
    ExponentialScheduler in "sampling/custom_sampling/schedulers";
    |schema| range_inputs(schema).output("SIGMAS");
    |runtime, call| {
        give_sigmas(nodes::exponential(call.size("steps")?, call.float("sigma_max")?, call.float("sigma_min")?))
    }
}

class! {
    /// Logarithms spaced by a power.
    PolyexponentialScheduler in "sampling/custom_sampling/schedulers";
    |schema| range_inputs(schema).input(exact("rho", 1.0, 0.0, 100.0, 0.01)).output("SIGMAS");
    |runtime, call| {
        let (high, low) = (call.float("sigma_max")?, call.float("sigma_min")?);
        give_sigmas(nodes::polyexponential(call.size("steps")?, high, low, call.float("rho")?))
    }
}

class! {
    /// Logarithms that follow a Laplace distribution.
    LaplaceScheduler in "sampling/custom_sampling/schedulers";
    |schema| range_inputs(schema)
        .input(exact("mu", 0.0, -10.0, 10.0, 0.1))
        .input(exact("beta", 0.5, 0.0, 10.0, 0.1))
        .output("SIGMAS");
    |runtime, call| {
        let bounds = (call.float("sigma_max")?, call.float("sigma_min")?);
        give_sigmas(nodes::laplace(call.size("steps")?, bounds, call.float("mu")?, call.float("beta")?))
    }
}

class! {
    /// The variance-preserving schedule.
    VPScheduler in "sampling/custom_sampling/schedulers";
    |schema| schema
        .input(Input::int("steps", 20, 1, 10_000))
        .input(exact("beta_d", 19.9, 0.0, 5000.0, 0.01))
        .input(exact("beta_min", 0.1, 0.0, 5000.0, 0.01))
        .input(exact("eps_s", 0.001, 0.0, 1.0, 0.0001))
        .output("SIGMAS")
        .module(MODULE);
    |runtime, call| {
        let (beta_d, beta_min) = (call.float("beta_d")?, call.float("beta_min")?);
        give_sigmas(nodes::vp(call.size("steps")?, beta_d, beta_min, call.float("eps_s")?))
    }
}

class! {
    /// Levels at the quantiles of a beta distribution.
    BetaSamplingScheduler in "sampling/custom_sampling/schedulers";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::int("steps", 20, 1, 10_000))
        .input(exact("alpha", 0.6, 0.0, 50.0, 0.01))
        .input(exact("beta", 0.6, 0.0, 50.0, 0.01))
        .output("SIGMAS")
        .module(MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        give_sigmas(nodes::beta(&model.sampling, call.size("steps")?, call.float("alpha")?, call.float("beta")?))
    }
}

class! {
    /// The levels that SD Turbo was trained for.
    SDTurboScheduler in "sampling/custom_sampling/schedulers";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::int("steps", 1, 1, 10))
        // Prompts that were saved before it came have no denoise.
        .input(Input::float("denoise", 1.0, 0.0, 1.0, 0.01).optional())
        .output("SIGMAS")
        .module(MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let given = call.inputs.first("denoise").is_some();
        let denoise = if given { call.float("denoise")? } else { 1.0 };
        give_sigmas(nodes::sd_turbo(&model.sampling, call.size("steps")?, denoise))
    }
}

class! {
    /// Levels that were optimised for a kind of model.
    AlignYourStepsScheduler in "sampling/custom_sampling/schedulers";
    |schema| {
        let schema = schema.input(Input::choice("model_type", ["SD1", "SDXL", "SVD"]));
        let schema = schema.input(Input::int("steps", 10, 1, 10_000));
        let schema = schema.input(Input::float("denoise", 1.0, 0.0, 1.0, 0.01));
        schema.output("SIGMAS").module("comfy_extras.nodes_align_your_steps")
    };
    |runtime, call| {
        give_sigmas(nodes::align_your_steps(call.text("model_type")?, call.size("steps")?, call.float("denoise")?))
    }
}

class! {
    /// Levels that were searched along the trajectory.
    GITSScheduler in "sampling/custom_sampling/schedulers";
    |schema| {
        let schema = schema.input(Input::float("coeff", 1.20, 0.80, 1.50, 0.05));
        let schema = schema.input(Input::int("steps", 10, 2, 1000));
        let schema = schema.input(Input::float("denoise", 1.0, 0.0, 1.0, 0.01));
        schema.output("SIGMAS").module("comfy_extras.nodes_gits")
    };
    |runtime, call| give_sigmas(nodes::gits(call.float("coeff")?, call.size("steps")?, call.float("denoise")?))
}

class! {
    /// Levels that were searched for a flow model.
    OptimalStepsScheduler in "sampling/custom_sampling/schedulers";
    |schema| {
        let schema = schema.input(Input::choice("model_type", ["FLUX", "Wan", "Chroma"]));
        let schema = schema.input(Input::int("steps", 20, 3, 1000));
        let schema = schema.input(Input::float("denoise", 1.0, 0.0, 1.0, 0.01));
        schema.output("SIGMAS").module("comfy_extras.nodes_optimalsteps")
    };
    |runtime, call| {
        give_sigmas(nodes::optimal_steps(call.text("model_type")?, call.size("steps")?, call.float("denoise")?))
    }
}

class! {
    /// Levels as they are written.
    ManualSigmas in "_for_testing/custom_sampling";
    |schema| Schema {
        is_experimental: true,
        ..schema.input(Input::text("sigmas", "1, 0.5").with("multiline", false)).output("SIGMAS").module(MODULE)
    };
    |runtime, call| Ok(Outcome::object(Sigmas(numbers(call.text("sigmas")?))))
}

/// The numbers in a text, whatever is between them.
fn numbers(text: &str) -> Vec<f32> {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+');
    let mut found = Vec::new();
    for word in text.split(|c: char| !is_part(c)) {
        // A sign inside a word begins another number: "1-2" is 1 and -2.
        let mut start = 0;
        let signs = word.char_indices().skip(1).filter(|(_, c)| matches!(c, '-' | '+')).map(|(at, _)| at);
        for end in signs.chain([word.len()]) {
            found.extend(word[start..end].parse::<f32>());
            start = end;
        }
    }
    found
}

class! {
    /// Levels cut in two at a step.
    SplitSigmas in "sampling/custom_sampling/sigmas";
    |schema| schema
        .input(Input::socket("sigmas", "SIGMAS"))
        .input(Input::int("step", 0, 0, 10_000))
        .named_output("SIGMAS", "high_sigmas")
        .named_output("SIGMAS", "low_sigmas")
        .module(MODULE);
    |runtime, call| {
        let (sigmas, step) = (levels(call)?, call.size("step")?);
        Ok(cut(&sigmas, step, step.min(sigmas.len())))
    }
}

/// The levels up to and with one place, and those from another on.
fn cut(sigmas: &[f32], last_high: usize, first_low: usize) -> Outcome {
    let high = sigmas[..last_high.saturating_add(1).min(sigmas.len())].to_vec();
    let low = sigmas[first_low.min(sigmas.len())..].to_vec();
    Outcome::values([Value::object(Sigmas(high)), Value::object(Sigmas(low))])
}

class! {
    /// Levels cut in two by a share of the steps.
    SplitSigmasDenoise in "sampling/custom_sampling/sigmas";
    |schema| schema
        .input(Input::socket("sigmas", "SIGMAS"))
        .input(Input::float("denoise", 1.0, 0.0, 1.0, 0.01))
        .named_output("SIGMAS", "high_sigmas")
        .named_output("SIGMAS", "low_sigmas")
        .module(MODULE);
    |runtime, call| {
        let sigmas = levels(call)?;
        let steps = sigmas.len().saturating_sub(1);
        let low_steps = (steps as f64 * call.float("denoise")?).round_ties_even() as usize;
        let last_high = sigmas.len().saturating_sub(low_steps + 1);
        if low_steps == 0 {
            // As the reference has it: without low steps there are no high ones either.
            let low = sigmas[last_high..].to_vec();
            return Ok(Outcome::values([Value::object(Sigmas(Vec::new())), Value::object(Sigmas(low))]));
        }
        Ok(cut(&sigmas, last_high, last_high))
    }
}

class! {
    /// Levels from low to high, to add noise by steps.
    FlipSigmas in "sampling/custom_sampling/sigmas";
    |schema| schema.input(Input::socket("sigmas", "SIGMAS")).output("SIGMAS").module(MODULE);
    |runtime, call| {
        let mut sigmas = levels(call)?;
        sigmas.reverse();
        if let Some(first) = sigmas.first_mut().filter(|first| **first == 0.0) {
            *first = 0.0001;
        }
        Ok(Outcome::object(Sigmas(sigmas)))
    }
}

class! {
    /// Another first level.
    SetFirstSigma in "sampling/custom_sampling/sigmas";
    |schema| schema
        .input(Input::socket("sigmas", "SIGMAS"))
        .input(exact("sigma", 136.0, 0.0, 20_000.0, 0.001))
        .output("SIGMAS")
        .module(MODULE);
    |runtime, call| {
        let mut sigmas = levels(call)?;
        let first = call.float("sigma")? as f32;
        sigmas.iter_mut().take(1).for_each(|sigma| *sigma = first);
        Ok(Outcome::object(Sigmas(sigmas)))
    }
}

class! {
    /// More levels between those that are there.
    ExtendIntermediateSigmas in "sampling/custom_sampling/sigmas";
    |schema| schema
        .input(Input::socket("sigmas", "SIGMAS"))
        .input(Input::int("steps", 2, 1, 100))
        .input(exact("start_at_sigma", -1.0, -1.0, 20_000.0, 0.01))
        .input(exact("end_at_sigma", 12.0, 0.0, 20_000.0, 0.01))
        .input(Input::choice("spacing", ["linear", "cosine", "sine"]))
        .output("SIGMAS")
        .module(MODULE);
    |runtime, call| {
        let start = match call.float("start_at_sigma")? {
            below if below < 0.0 => f64::INFINITY,
            start => start,
        };
        let range = (start, call.float("end_at_sigma")?);
        let extended = extend(&levels(call)?, call.size("steps")?, range, call.text("spacing")?);
        Ok(Outcome::object(Sigmas(extended)))
    }
}

/// Puts levels between neighbours of which the first is in a range.
fn extend(sigmas: &[f32], steps: usize, (start, end): (f64, f64), spacing: &str) -> Vec<f32> {
    let place = |i: usize| {
        let share = i as f64 / steps as f64;
        let quarter = std::f64::consts::FRAC_PI_2;
        (match spacing {
            "cosine" => (share * quarter).sin(),
            "sine" => 1.0 - (share * quarter).cos(),
            _ => share,
        }) as f32
    };
    let mut extended = Vec::new();
    for pair in sigmas.windows(2) {
        extended.push(pair[0]);
        if f64::from(pair[0]) <= start && f64::from(pair[0]) >= end {
            extended.extend((1..steps).map(|i| pair[0] + (pair[1] - pair[0]) * place(i)));
        }
    }
    extended.extend(sigmas.last());
    extended
}

class! {
    /// The level at a share of a run.
    SamplingPercentToSigma in "sampling/custom_sampling/sigmas";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::float("sampling_percent", 0.0, 0.0, 1.0, 0.0001))
        .input(Input::boolean("return_actual_sigma", false))
        .named_output("FLOAT", "sigma_value")
        .module(MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let percent = call.float("sampling_percent")?;
        let actual = call.boolean("return_actual_sigma")?;
        let sigma = match percent {
            0.0 if actual => f64::from(model.sampling.sigma_max()),
            1.0 if actual => f64::from(model.sampling.sigma_min()),
            percent => model.sampling.percent_to_sigma(percent),
        };
        Ok(Outcome::one(Literal::Float(sigma)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_between_anything() {
        assert_eq!(numbers("1, 0.5;.25 -3 and 1-2"), [1.0, 0.5, 0.25, -3.0, 1.0, -2.0]);
        assert_eq!(numbers("none"), [0f32; 0]);
    }

    #[test]
    fn levels_are_put_between_neighbours_in_the_range() {
        let levels = extend(&[4.0, 2.0, 0.0], 2, (3.0, 1.0), "linear");
        assert_eq!(levels, [4.0, 2.0, 1.0, 0.0]);
        assert_eq!(extend(&[4.0, 2.0, 0.0], 1, (f64::INFINITY, 0.0), "sine"), [4.0, 2.0, 0.0]);
    }
}
