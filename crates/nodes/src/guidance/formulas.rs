//! Stages of guidance that are formulas of what was predicted.

use std::sync::Arc;

use graph::{Catalogue, Input, Schema};
use runtime::{After, Instead};
use sampling::{AfterCfg, BeforeCfg, InsteadOfCfg};

use super::{changed, of_model};
use crate::Runtime;
use crate::class::class;
use crate::sampling_nodes::MODEL_MODULE;

/// The smallest number that predicted noise is divided by.
const SMALLEST_DIVISOR: f64 = 1e-9;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(Apg(runtime()));
    catalogue.add(FreSca(runtime()));
    catalogue.add(Tcfg(runtime()));
    catalogue.add(RescaleCFG(runtime()));
    catalogue.add(RenormCFG(runtime()));
    catalogue.add(VideoLinearCFGGuidance(runtime()));
    catalogue.add(VideoTriangleCFGGuidance(runtime()));
    catalogue.add(CFGZeroStar(runtime()));
    catalogue.add(CFGNorm(runtime()));
    catalogue.add(Mahiro(runtime()));
    catalogue.add(EpsilonScaling(runtime()));
    catalogue.add(TemporalScoreRescaling(runtime()));
}

/// An experimental class.
fn experimental(schema: Schema) -> Schema {
    Schema { is_experimental: true, ..schema }
}

class! {
    /// Guidance of which the part along the positive prediction is weighed apart.
    Apg called "APG" in "sampling/custom_sampling";
    |schema| of_model(schema)
        .input(Input::float("eta", 1.0, -10.0, 10.0, 0.01))
        .input(Input::float("norm_threshold", 5.0, 0.0, 50.0, 0.1))
        .input(Input::float("momentum", 0.0, -5.0, 1.0, 0.01))
        .title("Adaptive Projected Guidance")
        .output("MODEL")
        .module("comfy_extras.nodes_apg");
    |runtime, call| {
        let (eta, longest) = (call.float("eta")?, call.float("norm_threshold")?);
        let stage = BeforeCfg::Projected { eta, longest, momentum: call.float("momentum")? };
        changed(call, |guidance| guidance.before.push(stage))
    }
}

class! {
    /// Guidance whose slow and fast changes over the picture are scaled apart.
    FreSca in "_for_testing";
    |schema| experimental(of_model(schema)
        .input(Input::float("scale_low", 1.0, 0.0, 10.0, 0.01))
        .input(Input::float("scale_high", 1.25, 0.0, 10.0, 0.01))
        .input(Input::int("freq_cutoff", 20, 1, 10_000))
        .title("FreSca")
        .about("Scales slow and fast changes of the guidance by numbers of their own.")
        .output("MODEL")
        .module("comfy_extras.nodes_fresca"));
    |runtime, call| {
        let (low, high) = (call.float("scale_low")?, call.float("scale_high")?);
        let stage = BeforeCfg::Frequencies { low, high, cutoff: call.size("freq_cutoff")? };
        changed(call, |guidance| guidance.before.push(stage))
    }
}

class! {
    /// Of the negative prediction only what goes along the positive.
    Tcfg called "TCFG" in "advanced/guidance";
    |schema| of_model(schema)
        .title("Tangential Damping CFG")
        .about("Keeps of the negative prediction what goes along the positive one.")
        .named_output("MODEL", "patched_model")
        .module("comfy_extras.nodes_tcfg");
    |runtime, call| changed(call, |guidance| guidance.before.push(BeforeCfg::Tangential))
}

class! {
    /// Guidance brought back to the spread of the positive prediction.
    RescaleCFG in "advanced/model";
    |schema| of_model(schema)
        .input(Input::float("multiplier", 0.7, 0.0, 1.0, 0.01))
        .output("MODEL")
        .module(MODEL_MODULE);
    |runtime, call| {
        let formula = InsteadOfCfg::Rescaled { share: call.float("multiplier")? };
        changed(call, |guidance| guidance.instead = Some(Instead::Formula(formula)))
    }
}

class! {
    /// Guidance that does not make predictions longer.
    RenormCFG in "advanced/model";
    |schema| of_model(schema)
        .input(Input::float("cfg_trunc", 100.0, 0.0, 100.0, 0.01))
        .input(Input::float("renorm_cfg", 1.0, 0.0, 100.0, 0.01))
        .output("MODEL")
        .module("comfy_extras.nodes_lumina2");
    |runtime, call| {
        let (below, longest) = (call.float("cfg_trunc")?, call.float("renorm_cfg")?);
        let formula = InsteadOfCfg::Renormed { below, longest };
        changed(call, |guidance| guidance.instead = Some(Instead::Formula(formula)))
    }
}

/// The scale that frames begin with.
fn frames(schema: Schema) -> Schema {
    of_model(schema)
        .input(Input::float("min_cfg", 1.0, 0.0, 100.0, 0.5).with("round", 0.01))
        .output("MODEL")
        .module("comfy_extras.nodes_video_model")
}

class! {
    /// Guidance that rises from frame to frame.
    VideoLinearCFGGuidance in "sampling/video_models";
    |schema| frames(schema);
    |runtime, call| {
        let formula = InsteadOfCfg::Rising { first: call.float("min_cfg")? };
        changed(call, |guidance| guidance.instead = Some(Instead::Formula(formula)))
    }
}

class! {
    /// Guidance that rises to the frame in the middle and falls again.
    VideoTriangleCFGGuidance in "sampling/video_models";
    |schema| frames(schema);
    |runtime, call| {
        let formula = InsteadOfCfg::Triangle { lowest: call.float("min_cfg")? };
        changed(call, |guidance| guidance.instead = Some(Instead::Formula(formula)))
    }
}

class! {
    /// The negative prediction scaled by how much of the positive it explains.
    CFGZeroStar in "advanced/guidance";
    |schema| of_model(schema)
        .named_output("MODEL", "patched_model")
        .module("comfy_extras.nodes_cfg");
    |runtime, call| changed(call, |guidance| guidance.after.push(After::Formula(AfterCfg::ZeroStar)))
}

class! {
    /// No place gets longer than the positive prediction has it.
    CFGNorm in "advanced/guidance";
    |schema| experimental(of_model(schema)
        .input(Input::float("strength", 1.0, 0.0, 100.0, 0.01))
        .named_output("MODEL", "patched_model")
        .module("comfy_extras.nodes_cfg"));
    |runtime, call| {
        let stage = AfterCfg::Normed { strength: call.float("strength")? };
        changed(call, |guidance| guidance.after.push(After::Formula(stage)))
    }
}

class! {
    /// Guidance that goes more along the positive prediction.
    Mahiro in "_for_testing";
    |schema| experimental(of_model(schema)
        .title("Mahiro CFG")
        .about("Goes more along the positive prediction than away from the negative one.")
        .named_output("MODEL", "patched_model")
        .module("comfy_extras.nodes_mahiro"));
    |runtime, call| changed(call, |guidance| guidance.after.push(After::Formula(AfterCfg::Directed)))
}

class! {
    /// Predicted noise made smaller.
    EpsilonScaling called "Epsilon Scaling" in "model_patches/unet";
    |schema| of_model(schema)
        .input(Input::float("scaling_factor", 1.005, 0.5, 1.5, 0.001).with("display", "number"))
        .output("MODEL")
        .module("comfy_extras.nodes_eps");
    |runtime, call| {
        let factor = call.float("scaling_factor")?;
        let stage = AfterCfg::ScaledNoise { by: if factor == 0.0 { SMALLEST_DIVISOR } else { factor } };
        changed(call, |guidance| guidance.after.push(After::Formula(stage)))
    }
}

class! {
    /// Predicted noise rescaled by how much of the latent is noise.
    TemporalScoreRescaling in "model_patches/unet";
    |schema| of_model(schema)
        .input(Input::float("tsr_k", 0.95, 0.01, 100.0, 0.001).with("display", "number"))
        .input(Input::float("tsr_sigma", 1.0, 0.01, 100.0, 0.001).with("display", "number"))
        .title("TSR - Temporal Score Rescaling")
        .about("Rescales the predicted noise by how much of the latent is noise.")
        .named_output("MODEL", "patched_model")
        .module("comfy_extras.nodes_eps");
    |runtime, call| {
        let (ratio, deviation) = (call.float("tsr_k")?, call.float("tsr_sigma")?);
        let stage = AfterCfg::RescaledScore { ratio, deviation };
        changed(call, |guidance| guidance.after.push(After::Formula(stage)))
    }
}
