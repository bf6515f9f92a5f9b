//! Sampling: noise, schedules, samplers and guiders, and the nodes that run them.

mod add_noise;
mod choices;
mod controls;
mod coverage;
mod entries;
mod guided;
mod guider;
mod model_options;
mod patches;
mod predicting;
mod reusing;
mod run;
mod schedules;
mod step_shape;
mod work_units;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema, Value};
use sampling::{Sampler, Scheduler, StepPlan, Tuning};

use crate::class::class;
use crate::value::{Conditioning, LatentImage, Sigmas};
use crate::{Error, Runtime};
use choices::{NoiseChoice, SamplerChoice};
use run::{Run, run};
use runtime::Model;

pub(crate) use guider::{Guider, Guiding};
pub(crate) use model_options::{MODEL_MODULE, with_sampling};
pub(crate) use schedules::give_sigmas;

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(KSampler(Arc::clone(runtime)));
    catalogue.add(KSamplerAdvanced(Arc::clone(runtime)));
    catalogue.add(SamplerCustom(Arc::clone(runtime)));
    catalogue.add(SamplerCustomAdvanced(Arc::clone(runtime)));
    add_noise::add(catalogue, runtime);
    choices::add(catalogue, runtime);
    schedules::add(catalogue, runtime);
    model_options::add(catalogue, runtime);
}

/// The inputs that both samplers with a schedule have in common, up to the scheduler.
fn common_inputs(schema: Schema) -> Schema {
    schema
        .input(Input::int("steps", 20, 1, 10_000))
        .input(Input::float("cfg", 8.0, 0.0, 100.0, 0.1).with("round", 0.01))
        .input(Input::choice("sampler_name", Sampler::ALL.iter().map(|sampler| sampler.name())))
        .input(Input::choice("scheduler", Scheduler::ALL.iter().map(|scheduler| scheduler.name())))
        .input(Input::socket("positive", "CONDITIONING"))
        .input(Input::socket("negative", "CONDITIONING"))
        .input(Input::socket("latent_image", "LATENT"))
}

class! {
    /// Samples with a schedule of its own.
    KSampler in "sampling";
    |schema| {
        let schema = schema.input(Input::socket("model", "MODEL")).input(Input::seed("seed"));
        common_inputs(schema).input(Input::float("denoise", 1.0, 0.0, 1.0, 0.01)).output("LATENT")
    };
    |runtime, call| {
        let plan = StepPlan::new(call.size("steps")?, call.float("denoise")?);
        let seed = call.seed("seed")?;
        sample_steps(runtime, call, plan, seed, true)
    }
}

class! {
    /// Samples a part of a schedule, so that another node can go on.
    KSamplerAdvanced in "sampling";
    |schema| {
        let schema = schema
            .input(Input::socket("model", "MODEL"))
            .input(Input::choice("add_noise", ["enable", "disable"]))
            .input(Input::seed("noise_seed"));
        common_inputs(schema)
            .input(Input::int("start_at_step", 0, 0, 10_000))
            .input(Input::int("end_at_step", 10_000, 0, 10_000))
            .input(Input::choice("return_with_leftover_noise", ["disable", "enable"]))
            .title("KSampler (Advanced)")
            .output("LATENT")
    };
    |runtime, call| {
        let plan = StepPlan {
            start: Some(call.size("start_at_step")?),
            end: Some(call.size("end_at_step")?),
            force_full_denoise: call.text("return_with_leftover_noise")? != "enable",
            ..StepPlan::new(call.size("steps")?, 1.0)
        };
        let seed = call.seed("noise_seed")?;
        sample_steps(runtime, call, plan, seed, call.text("add_noise")? != "disable")
    }
}

/// Samples by the names of a sampler and a scheduler.
fn sample_steps(
    runtime: &Runtime,
    call: &Call,
    plan: StepPlan,
    seed: u64,
    add_noise: bool,
) -> Result<Outcome, Failure> {
    let model = call.object::<Model>("model")?;
    let sampler: Sampler = call.text("sampler_name")?.parse().map_err(Error::from)?;
    let scheduler: Scheduler = call.text("scheduler")?.parse().map_err(Error::from)?;
    let sigmas = plan.sigmas(&model.sampling, scheduler, sampler).map_err(Error::from)?;
    let guider = cfg_guider(call, model, call.float("cfg")?)?;
    let latent = call.object::<LatentImage>("latent_image")?;
    let noise = add_noise.then_some(seed);
    let asked = Run { sampler, tuning: Tuning::default(), sigmas, noise, seed, latent: &latent };
    Ok(Outcome::object(run(runtime, call, &guider, &asked)?.latent))
}

fn cfg_guider(call: &Call, model: Arc<Model>, cfg: f64) -> Result<Guider, Failure> {
    let positive = call.object::<Conditioning>("positive")?;
    let negative = call.object::<Conditioning>("negative")?;
    Ok(Guider { model, guiding: Guiding::Cfg { positive, negative, cfg } })
}

class! {
    /// Samples with a sampler and levels from other nodes.
    SamplerCustom in "sampling/custom_sampling";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::boolean("add_noise", true))
        .input(Input::seed("noise_seed"))
        .input(Input::float("cfg", 8.0, 0.0, 100.0, 0.1).with("round", 0.01))
        .input(Input::socket("positive", "CONDITIONING"))
        .input(Input::socket("negative", "CONDITIONING"))
        .input(Input::socket("sampler", "SAMPLER"))
        .input(Input::socket("sigmas", "SIGMAS"))
        .input(Input::socket("latent_image", "LATENT"))
        .named_output("LATENT", "output")
        .named_output("LATENT", "denoised_output")
        .module("comfy_extras.nodes_custom_sampler");
    |runtime, call| {
        let guider = cfg_guider(call, call.object("model")?, call.float("cfg")?)?;
        let seed = call.seed("noise_seed")?;
        let noise = NoiseChoice(call.boolean("add_noise")?.then_some(seed));
        sample_levels(runtime, call, &guider, noise, seed)
    }
}

class! {
    /// Samples with a guider, a sampler, noise and levels from other nodes.
    SamplerCustomAdvanced in "sampling/custom_sampling";
    |schema| schema
        .input(Input::socket("noise", "NOISE"))
        .input(Input::socket("guider", "GUIDER"))
        .input(Input::socket("sampler", "SAMPLER"))
        .input(Input::socket("sigmas", "SIGMAS"))
        .input(Input::socket("latent_image", "LATENT"))
        .named_output("LATENT", "output")
        .named_output("LATENT", "denoised_output")
        .module("comfy_extras.nodes_custom_sampler");
    |runtime, call| {
        let guider = call.object::<Guider>("guider")?;
        let noise = *call.object::<NoiseChoice>("noise")?;
        sample_levels(runtime, call, &guider, noise, noise.0.unwrap_or(0))
    }
}

/// Samples through levels from another node; both latents.
fn sample_levels(
    runtime: &Runtime,
    call: &Call,
    guider: &Guider,
    noise: NoiseChoice,
    seed: u64,
) -> Result<Outcome, Failure> {
    let SamplerChoice { sampler, tuning } = *call.object::<SamplerChoice>("sampler")?;
    let sigmas = call.object::<Sigmas>("sigmas")?.0.clone();
    let latent = call.object::<LatentImage>("latent_image")?;
    let asked = Run { sampler, tuning, sigmas, noise: noise.0, seed, latent: &latent };
    let sampled = run(runtime, call, guider, &asked)?;
    Ok(Outcome::values([Value::object(sampled.latent), Value::object(sampled.denoised)]))
}
