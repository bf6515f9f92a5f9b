//! Sampling: noise, schedules, samplers and guiders, and the nodes that run them.

mod add_noise;
mod choices;
mod coverage;
mod entries;
mod guider;
mod model_options;
pub(crate) mod planes;
mod predicting;
mod run;
mod schedules;
mod step_shape;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema, Value};
use sampling::{Sampler, Scheduler, StepPlan, Tuning};

use crate::studio::{Model, class};
use crate::value::{Conditioning, LatentImage, Sigmas};
use crate::{Error, Studio};
use choices::{NoiseChoice, SamplerChoice};
use guider::{Guider, Guiding};
use run::{Run, run};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, studio: &Arc<Studio>) {
    catalogue.add(KSampler(Arc::clone(studio)));
    catalogue.add(KSamplerAdvanced(Arc::clone(studio)));
    catalogue.add(SamplerCustom(Arc::clone(studio)));
    catalogue.add(SamplerCustomAdvanced(Arc::clone(studio)));
    add_noise::add(catalogue, studio);
    choices::add(catalogue, studio);
    schedules::add(catalogue, studio);
    model_options::add(catalogue, studio);
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
    |studio, call| {
        let plan = StepPlan::new(call.size("steps")?, call.float("denoise")?);
        let seed = call.seed("seed")?;
        sample_steps(studio, call, plan, seed, true)
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
    |studio, call| {
        let plan = StepPlan {
            start: Some(call.size("start_at_step")?),
            end: Some(call.size("end_at_step")?),
            force_full_denoise: call.text("return_with_leftover_noise")? != "enable",
            ..StepPlan::new(call.size("steps")?, 1.0)
        };
        let seed = call.seed("noise_seed")?;
        sample_steps(studio, call, plan, seed, call.text("add_noise")? != "disable")
    }
}

/// Samples by the names of a sampler and a scheduler.
fn sample_steps(
    studio: &Studio,
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
    Ok(Outcome::object(run(studio, call, &guider, &asked)?.latent))
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
    |studio, call| {
        let guider = cfg_guider(call, call.object("model")?, call.float("cfg")?)?;
        let seed = call.seed("noise_seed")?;
        let noise = NoiseChoice(call.boolean("add_noise")?.then_some(seed));
        sample_levels(studio, call, &guider, noise, seed)
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
    |studio, call| {
        let guider = call.object::<Guider>("guider")?;
        let noise = *call.object::<NoiseChoice>("noise")?;
        sample_levels(studio, call, &guider, noise, noise.0.unwrap_or(0))
    }
}

/// Samples through levels from another node; both latents.
fn sample_levels(
    studio: &Studio,
    call: &Call,
    guider: &Guider,
    noise: NoiseChoice,
    seed: u64,
) -> Result<Outcome, Failure> {
    let SamplerChoice { sampler, tuning } = *call.object::<SamplerChoice>("sampler")?;
    let sigmas = call.object::<Sigmas>("sigmas")?.0.clone();
    let latent = call.object::<LatentImage>("latent_image")?;
    let asked = Run { sampler, tuning, sigmas, noise: noise.0, seed, latent: &latent };
    let sampled = run(studio, call, guider, &asked)?;
    Ok(Outcome::values([Value::object(sampled.latent), Value::object(sampled.denoised)]))
}
