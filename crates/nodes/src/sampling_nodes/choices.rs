//! Samplers, guiders and noise as values that other nodes are given.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Object, Outcome, Schema};
use sampling::{Sampler, Tuning};

use super::guider::{Guider, Guiding};
use crate::class::class;
use crate::value::Sigmas;
use crate::{Error, Runtime};

/// A sampler with its numbers: `SAMPLER`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SamplerChoice {
    pub(crate) sampler: Sampler,
    pub(crate) tuning: Tuning,
}

/// The seed of the starting noise, or none: `NOISE`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoiseChoice(pub(crate) Option<u64>);

impl Object for SamplerChoice {
    fn describe(&self) -> String {
        format!("sampler {}", self.sampler)
    }
}

impl Object for NoiseChoice {
    fn describe(&self) -> String {
        self.0.map_or_else(|| "no noise".to_owned(), |seed| format!("noise of seed {seed}"))
    }
}

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(KSamplerSelect(runtime()));
    catalogue.add(SamplerEulerAncestral(runtime()));
    catalogue.add(SamplerEulerAncestralCFGPP(runtime()));
    catalogue.add(SamplerDPMPP_2S_Ancestral(runtime()));
    catalogue.add(SamplerDPMPP_2M_SDE(runtime()));
    catalogue.add(SamplerDPMPP_3M_SDE(runtime()));
    catalogue.add(BasicGuider(runtime()));
    catalogue.add(CFGGuider(runtime()));
    catalogue.add(DualCFGGuider(runtime()));
    catalogue.add(RandomNoise(runtime()));
    catalogue.add(DisableNoise(runtime()));
}

const MODULE: &str = "comfy_extras.nodes_custom_sampler";

/// The two numbers of a stochastic sampler.
fn tuning_inputs(schema: Schema, (most_eta, most_noise): (f64, f64)) -> Schema {
    schema
        .input(Input::float("eta", 1.0, 0.0, most_eta, 0.01).with("round", false))
        .input(Input::float("s_noise", 1.0, 0.0, most_noise, 0.01).with("round", false))
        .module(MODULE)
}

fn tuned(call: &Call, sampler: Sampler) -> Result<Outcome, Failure> {
    let tuning = Tuning { eta: call.float("eta")? as f32, s_noise: call.float("s_noise")? as f32 };
    Ok(Outcome::object(SamplerChoice { sampler, tuning }))
}

class! {
    /// A sampler by name.
    KSamplerSelect in "sampling/custom_sampling/samplers";
    |schema| schema
        .input(Input::choice("sampler_name", Sampler::ALL.iter().map(|sampler| sampler.name())))
        .output("SAMPLER")
        .module(MODULE);
    |runtime, call| {
        let sampler: Sampler = call.text("sampler_name")?.parse().map_err(Error::from)?;
        Ok(Outcome::object(SamplerChoice { sampler, tuning: Tuning::default() }))
    }
}

class! {
    /// Euler steps with fresh noise.
    SamplerEulerAncestral in "sampling/custom_sampling/samplers";
    |schema| tuning_inputs(schema, (100.0, 100.0)).output("SAMPLER");
    |runtime, call| tuned(call, Sampler::EulerAncestral)
}

class! {
    /// Euler steps with fresh noise and CFG++.
    SamplerEulerAncestralCFGPP in "sampling/custom_sampling/samplers";
    |schema| tuning_inputs(schema, (1.0, 10.0)).title("SamplerEulerAncestralCFG++").output("SAMPLER");
    |runtime, call| tuned(call, Sampler::EulerAncestralCfgPp)
}

class! {
    /// DPM-Solver++(2S) with fresh noise.
    SamplerDPMPP_2S_Ancestral in "sampling/custom_sampling/samplers";
    |schema| tuning_inputs(schema, (100.0, 100.0)).output("SAMPLER");
    |runtime, call| tuned(call, Sampler::DpmPp2sAncestral)
}

class! {
    /// DPM-Solver++(2M), stochastic.
    SamplerDPMPP_2M_SDE in "sampling/custom_sampling/samplers";
    |schema| {
        let schema = schema.input(Input::choice("solver_type", ["midpoint", "heun"]));
        tuning_inputs(schema, (100.0, 100.0)).input(Input::choice("noise_device", ["gpu", "cpu"])).output("SAMPLER")
    };
    |runtime, call| {
        let heun = call.text("solver_type")? == "heun";
        tuned(call, if heun { Sampler::DpmPp2mSdeHeun } else { Sampler::DpmPp2mSde })
    }
}

class! {
    /// DPM-Solver++(3M), stochastic.
    SamplerDPMPP_3M_SDE in "sampling/custom_sampling/samplers";
    |schema| tuning_inputs(schema, (100.0, 100.0))
        .input(Input::choice("noise_device", ["gpu", "cpu"]))
        .output("SAMPLER");
    |runtime, call| tuned(call, Sampler::DpmPp3mSde)
}

class! {
    /// One conditioning alone.
    BasicGuider in "sampling/custom_sampling/guiders";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::socket("conditioning", "CONDITIONING"))
        .output("GUIDER")
        .module(MODULE);
    |runtime, call| {
        let guiding = Guiding::Basic { positive: call.object("conditioning")? };
        Ok(Outcome::object(Guider { model: call.object("model")?, guiding }))
    }
}

class! {
    /// Toward one conditioning and away from another.
    CFGGuider in "sampling/custom_sampling/guiders";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::socket("positive", "CONDITIONING"))
        .input(Input::socket("negative", "CONDITIONING"))
        .input(Input::float("cfg", 8.0, 0.0, 100.0, 0.1).with("round", 0.01))
        .output("GUIDER")
        .module(MODULE);
    |runtime, call| {
        let (positive, negative) = (call.object("positive")?, call.object("negative")?);
        let guiding = Guiding::Cfg { positive, negative, cfg: call.float("cfg")? };
        Ok(Outcome::object(Guider { model: call.object("model")?, guiding }))
    }
}

class! {
    /// Between two conditionings and away from a third.
    DualCFGGuider in "sampling/custom_sampling/guiders";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::socket("cond1", "CONDITIONING"))
        .input(Input::socket("cond2", "CONDITIONING"))
        .input(Input::socket("negative", "CONDITIONING"))
        .input(Input::float("cfg_conds", 8.0, 0.0, 100.0, 0.1).with("round", 0.01))
        .input(Input::float("cfg_cond2_negative", 8.0, 0.0, 100.0, 0.1).with("round", 0.01))
        // Prompts that were saved before it came have no style.
        .input(Input::choice("style", ["regular", "nested"]).optional())
        .output("GUIDER")
        .module(MODULE);
    |runtime, call| {
        let guiding = Guiding::Dual {
            first: call.object("cond1")?,
            second: call.object("cond2")?,
            negative: call.object("negative")?,
            cfg_conds: call.float("cfg_conds")?,
            cfg_negative: call.float("cfg_cond2_negative")?,
            nested: call.inputs.first("style").is_some() && call.text("style")? == "nested",
        };
        Ok(Outcome::object(Guider { model: call.object("model")?, guiding }))
    }
}

class! {
    /// Noise of a seed.
    RandomNoise in "sampling/custom_sampling/noise";
    |schema| schema.input(Input::seed("noise_seed")).output("NOISE").module(MODULE);
    |runtime, call| Ok(Outcome::object(NoiseChoice(Some(call.seed("noise_seed")?))))
}

class! {
    /// No noise, to go on with a latent that has some.
    DisableNoise in "sampling/custom_sampling/noise";
    |schema| schema.output("NOISE").module(MODULE);
    |runtime, _call| Ok(Outcome::object(NoiseChoice(None)))
}

/// The levels that a node is given.
pub(super) fn levels(call: &Call) -> Result<Vec<f32>, Failure> {
    Ok(call.object::<Sigmas>("sigmas")?.0.clone())
}
