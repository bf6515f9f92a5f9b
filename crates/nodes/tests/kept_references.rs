//! FLUX.2 editing a picture with keys and values of the reference computed once, as the workflow of its KV variant does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use golden_support::{Bench, host};
use graph::Literal;
use meta::DeviceId;
use nodes::value::LatentImage;
use serde_json::{Value, json};

/// What two steps give, with the cache or without it, and with references placed in this way.
fn edited(bench: &Bench, is_kept: bool, method: Option<&str>, steps: usize) -> Vec<f32> {
    let node = |class: &str, inputs: &Value| json!({"class_type": class, "inputs": inputs});
    let model = json!([if is_kept { "4" } else { "1" }, 0]);
    let looking = json!([if method.is_some() { "9" } else { "8" }, 0]);
    let nodes = json!({
        "1": node("UNETLoader", &json!({"unet_name": "flux2_tiny.safetensors", "weight_dtype": "default"})),
        "2": node("CLIPLoader", &json!({"clip_name": "mistral3_24b_tiny.safetensors", "type": "flux2"})),
        "3": node("EmptyFlux2LatentImage", &json!({"width": 64, "height": 64, "batch_size": 1})),
        "4": node("FluxKVCache", &json!({"model": ["1", 0]})),
        "6": node("CLIPTextEncode", &json!({"clip": ["2", 0], "text": "a lighthouse"})),
        "7": node("EmptyFlux2LatentImage", &json!({"width": 48, "height": 64, "batch_size": 1})),
        "8": node("ReferenceLatent", &json!({"conditioning": ["6", 0], "latent": ["7", 0]})),
        "9": node("FluxKontextMultiReferenceLatentMethod",
            &json!({"conditioning": ["8", 0], "reference_latents_method": method.unwrap_or("index")})),
        "10": node("CFGGuider", &json!({"model": model, "positive": looking, "negative": looking, "cfg": 1.0})),
        "11": node("RandomNoise", &json!({"noise_seed": 3})),
        "12": node("KSamplerSelect", &json!({"sampler_name": "euler"})),
        "13": node("Flux2Scheduler", &json!({"steps": steps, "width": 64, "height": 64})),
        "14": node("SamplerCustomAdvanced", &json!({"noise": ["11", 0], "guider": ["10", 0], "sampler": ["12", 0],
            "sigmas": ["13", 0], "latent_image": ["3", 0]})),
    });
    let nodes: Literal = serde_json::from_value(nodes).unwrap();
    let got = bench.run(&nodes, &[("latent", "14")]).object::<LatentImage>("latent");
    assert!(got.samples.values().iter().all(|value| value.is_finite()));
    got.samples.values().to_vec()
}

#[test]
fn references_are_computed_in_the_first_step_of_every_run() {
    let bench = Bench::with(&["flux2_tiny", "mistral3_24b_tiny"], host(), DeviceId::CPU);
    let still = Some("index_timestep_zero");
    // One step is the whole model with references as at the end of time; of two, the second reads what the first computed.
    let one = edited(&bench, true, None, 1);
    assert_eq!(one, edited(&bench, false, still, 1));
    assert_ne!(one, edited(&bench, false, None, 1));
    let two = edited(&bench, true, None, 2);
    assert_ne!(two, edited(&bench, false, still, 2));
    // The next run does not read what this one left.
    assert_eq!(edited(&bench, true, None, 1), one);
    assert_eq!(edited(&bench, true, None, 2), two);
}
