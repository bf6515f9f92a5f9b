//! How a model reads noise, changed by nodes.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome, Schema};
use sampling::{ModelSampling, Parameterization};

use crate::Studio;
use crate::studio::{Model, class};

const MODULE: &str = "comfy_extras.nodes_model_advanced";
/// The longest side of a picture.
const MAX_SIDE: u64 = 16384;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, studio: &Arc<Studio>) {
    let studio = || Arc::clone(studio);
    catalogue.add(ModelSamplingFlux(studio()));
    catalogue.add(ModelSamplingSD3(studio()));
    catalogue.add(ModelSamplingAuraFlow(studio()));
    catalogue.add(ModelSamplingDiscrete(studio()));
    catalogue.add(ModelSamplingContinuousEDM(studio()));
    catalogue.add(ModelSamplingContinuousV(studio()));
    catalogue.add(DifferentialDiffusion(studio()));
}

fn give(model: &Model, sampling: ModelSampling) -> Outcome {
    Outcome::object(model.with_sampling(sampling))
}

class! {
    /// A flow shifted by the size of the picture.
    ModelSamplingFlux in "advanced/model";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::float("max_shift", 1.15, 0.0, 100.0, 0.01))
        .input(Input::float("base_shift", 0.5, 0.0, 100.0, 0.01))
        .input(Input::int("width", 1024, 16, MAX_SIDE).with("step", 8))
        .input(Input::int("height", 1024, 16, MAX_SIDE).with("step", 8))
        .output("MODEL")
        .module(MODULE);
    |studio, call| {
        let model = call.object::<Model>("model")?;
        let (base, max) = (call.float("base_shift")?, call.float("max_shift")?);
        let shift = ModelSampling::flux_shift(base, max, call.size("width")?, call.size("height")?);
        Ok(give(&model, ModelSampling::flux(shift)))
    }
}

class! {
    /// A shifted flow whose times count to a thousand.
    ModelSamplingSD3 in "advanced/model";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::float("shift", 3.0, 0.0, 100.0, 0.01))
        .output("MODEL")
        .module(MODULE);
    |studio, call| {
        let model = call.object::<Model>("model")?;
        Ok(give(&model, ModelSampling::flow(call.float("shift")?, 1000.0)))
    }
}

class! {
    /// A shifted flow whose times count to one.
    ModelSamplingAuraFlow in "advanced/model";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::float("shift", 1.73, 0.0, 100.0, 0.01))
        .output("MODEL")
        .module(MODULE);
    |studio, call| {
        let model = call.object::<Model>("model")?;
        Ok(give(&model, ModelSampling::flow(call.float("shift")?, 1.0)))
    }
}

class! {
    /// A thousand levels, with what the model's answer means.
    ModelSamplingDiscrete in "advanced/model";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::choice("sampling", ["eps", "v_prediction", "lcm", "x0", "img_to_img"]))
        .input(Input::boolean("zsnr", false))
        .output("MODEL")
        .module(MODULE);
    |studio, call| {
        let model = call.object::<Model>("model")?;
        let meaning = match call.text("sampling")? {
            "eps" => Parameterization::Eps,
            "v_prediction" => Parameterization::V,
            "x0" => Parameterization::Clean,
            other => {
                let text = format!("the sampling \"{other}\" cannot be run yet; choose eps, v_prediction or x0");
                return Err(Failure::value(text));
            }
        };
        Ok(give(&model, ModelSampling::discrete(meaning, call.boolean("zsnr")?)))
    }
}

/// The bounds of a continuous schedule.
fn bounds(schema: Schema, high: f64, low: f64) -> Schema {
    schema
        .input(Input::float("sigma_max", high, 0.0, 1000.0, 0.001).with("round", false))
        .input(Input::float("sigma_min", low, 0.0, 1000.0, 0.001).with("round", false))
        .output("MODEL")
        .module(MODULE)
}

class! {
    /// Continuous levels between two bounds.
    ModelSamplingContinuousEDM in "advanced/model";
    |schema| {
        let kinds = ["v_prediction", "edm", "edm_playground_v2.5", "eps", "cosmos_rflow"];
        let schema = schema.input(Input::socket("model", "MODEL")).input(Input::choice("sampling", kinds));
        bounds(schema, 120.0, 0.002)
    };
    |studio, call| {
        let model = call.object::<Model>("model")?;
        let (meaning, data) = match call.text("sampling")? {
            "eps" => (Parameterization::Eps, 1.0),
            "v_prediction" => (Parameterization::V, 1.0),
            "edm" => (Parameterization::Edm, 0.5),
            other => {
                let text = format!("the sampling \"{other}\" cannot be run yet; choose eps, v_prediction or edm");
                return Err(Failure::value(text));
            }
        };
        let range = (call.float("sigma_min")?, call.float("sigma_max")?);
        Ok(give(&model, ModelSampling::continuous_edm(meaning, range, data)))
    }
}

class! {
    /// Continuous levels between two bounds, whose times are angles.
    ModelSamplingContinuousV in "advanced/model";
    |schema| {
        let schema = schema
            .input(Input::socket("model", "MODEL"))
            .input(Input::choice("sampling", ["v_prediction"]));
        bounds(schema, 500.0, 0.03)
    };
    |studio, call| {
        let model = call.object::<Model>("model")?;
        let range = (call.float("sigma_min")?, call.float("sigma_max")?);
        Ok(give(&model, ModelSampling::continuous_v(Parameterization::V, range, 1.0)))
    }
}

class! {
    /// Masks say from which step on a place is made new.
    DifferentialDiffusion in "_for_testing";
    |schema| Schema {
        is_experimental: true,
        ..schema
            .input(Input::socket("model", "MODEL"))
            .input(Input::float("strength", 1.0, 0.0, 1.0, 0.01).optional())
            .output("MODEL")
            .title("Differential Diffusion")
            .module("comfy_extras.nodes_differential_diffusion")
    };
    |studio, call| {
        let model = call.object::<Model>("model")?;
        let given = call.inputs.first("strength").is_some();
        let strength = if given { call.float("strength")? } else { 1.0 };
        Ok(Outcome::object(Model { differential: Some(strength), ..Model::clone(&model) }))
    }
}
