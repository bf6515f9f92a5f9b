//! How a model reads noise, changed by nodes.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome, Schema};
use sampling::{ModelSampling, Parameterization};

use crate::Runtime;
use crate::class::class;
use runtime::Model;

pub(crate) const MODEL_MODULE: &str = "comfy_extras.nodes_model_advanced";

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(ModelSamplingAuraFlow(runtime()));
    catalogue.add(ModelSamplingDiscrete(runtime()));
    catalogue.add(ModelSamplingContinuousEDM(runtime()));
    catalogue.add(ModelSamplingContinuousV(runtime()));
    catalogue.add(DifferentialDiffusion(runtime()));
}

pub(crate) fn with_sampling(model: &Model, sampling: ModelSampling) -> Outcome {
    Outcome::object(model.with_sampling(sampling))
}

class! {
    /// A shifted flow whose times count to one.
    ModelSamplingAuraFlow in "advanced/model";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::float("shift", 1.73, 0.0, 100.0, 0.01))
        .output("MODEL")
        .module(MODEL_MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        Ok(with_sampling(&model, ModelSampling::flow(call.float("shift")?, 1.0)))
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
        .module(MODEL_MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let ends_in_noise = call.boolean("zsnr")?;
        let meaning = match call.text("sampling")? {
            "eps" => Parameterization::Eps,
            "v_prediction" => Parameterization::V,
            "x0" => Parameterization::Clean,
            "img_to_img" => Parameterization::ImageToImage,
            "lcm" => return Ok(with_sampling(&model, ModelSampling::consistency(ends_in_noise))),
            other => {
                let text = format!(
                    "the sampling \"{other}\" is not known; choose eps, v_prediction, lcm, x0 or img_to_img"
                );
                return Err(Failure::value(text));
            }
        };
        Ok(with_sampling(&model, ModelSampling::discrete(meaning, ends_in_noise)))
    }
}

/// The bounds of a continuous schedule.
fn bounds(schema: Schema, high: f64, low: f64) -> Schema {
    schema
        .input(Input::float("sigma_max", high, 0.0, 1000.0, 0.001).with("round", false))
        .input(Input::float("sigma_min", low, 0.0, 1000.0, 0.001).with("round", false))
        .output("MODEL")
        .module(MODEL_MODULE)
}

class! {
    /// Continuous levels between two bounds.
    ModelSamplingContinuousEDM in "advanced/model";
    |schema| {
        let kinds = ["v_prediction", "edm", "edm_playground_v2.5", "eps", "cosmos_rflow"];
        let schema = schema.input(Input::socket("model", "MODEL")).input(Input::choice("sampling", kinds));
        bounds(schema, 120.0, 0.002)
    };
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let (meaning, data) = match call.text("sampling")? {
            "eps" => (Parameterization::Eps, 1.0),
            "v_prediction" => (Parameterization::V, 1.0),
            "edm" => (Parameterization::Edm, 0.5),
            "cosmos_rflow" => {
                let range = (call.float("sigma_min")?, call.float("sigma_max")?);
                return Ok(with_sampling(&model, ModelSampling::added_flow(range)));
            }
            other => {
                let text =
                    format!("the sampling \"{other}\" cannot be run yet; choose eps, v_prediction, edm or cosmos_rflow");
                return Err(Failure::value(text));
            }
        };
        let range = (call.float("sigma_min")?, call.float("sigma_max")?);
        Ok(with_sampling(&model, ModelSampling::continuous_edm(meaning, range, data)))
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
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let range = (call.float("sigma_min")?, call.float("sigma_max")?);
        Ok(with_sampling(&model, ModelSampling::continuous_v(Parameterization::V, range, 1.0)))
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
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let given = call.inputs.first("strength").is_some();
        let strength = if given { call.float("strength")? } else { 1.0 };
        Ok(Outcome::object(Model { differential: Some(strength), ..Model::clone(&model) }))
    }
}
