//! TextGenerate through loaders and nodes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::sync::Arc;

use golden_support::{Bench, host};
use graph::{Call, Inputs, Literal};
use meta::DeviceId;
use runtime::Clip;
use serde_json::json;

/// What the model writes, with or without sampling.
fn written(bench: &Bench, clip: &Arc<Clip>, mode: &str, seed: i64) -> String {
    let class = bench.catalogue.get("TextGenerate").unwrap();
    let mut inputs = Inputs::default()
        .with("clip", graph::Value::Object(clip.clone()))
        .with("prompt", "a cat (very:1.3) small")
        .with("max_length", 6)
        .with("sampling_mode", mode);
    for (name, value) in [("temperature", 1.0), ("top_p", 1.0), ("min_p", 0.0), ("repetition_penalty", 5.0)] {
        inputs = inputs.with(&format!("sampling_mode.{name}"), value);
    }
    let inputs = inputs.with("sampling_mode.top_k", 0).with("sampling_mode.seed", seed);
    let outcome = class.run(&Call::alone("TextGenerate", inputs)).unwrap();
    format!("{outcome:?}")
}

#[test]
fn the_same_seed_writes_the_same_text() {
    let bench = Bench::with(&["gemma_2_2b_tiny"], host(), DeviceId::CPU);
    let loader = json!({"2": {"class_type": "CLIPLoader",
        "inputs": {"clip_name": "gemma_2_2b_tiny.safetensors", "type": "lumina2"}}});
    let workflow: Literal = serde_json::from_value(loader).unwrap();
    let clip: Arc<Clip> = bench.run(&workflow, &[("clip", "2")]).object("clip");
    assert_eq!(written(&bench, &clip, "off", 1), written(&bench, &clip, "off", 2));
    assert_eq!(written(&bench, &clip, "on", 1), written(&bench, &clip, "on", 1));
    assert!(written(&bench, &clip, "off", 1).contains("llllll"), "the likeliest token of this model");
    assert_ne!(written(&bench, &clip, "on", 1), written(&bench, &clip, "off", 1), "repetition costs");
}
