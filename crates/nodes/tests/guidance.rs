//! What nodes change about a model between loader and sampler, on a small model: stages of guidance, guessed steps, merged
//! and saved weights. That the formulas are ComfyUI's is checked by the reference cases `guidance_*`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::sync::Arc;

use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use golden_support::Bench;
use graph::{Literal, RunEnd};
use meta::DeviceId;
use nodes::value::LatentImage;

const COMMON: &str = r#"
    "2": {"class_type": "Tell", "inputs": {"seed": 1, "beside": false, "tokens": 20}},
    "3": {"class_type": "Tell", "inputs": {"seed": 9, "beside": false, "tokens": 20}},
    "4": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 96, "height": 64, "batch_size": 2}},
    "5": {"class_type": "RandomNoise", "inputs": {"noise_seed": 5}},
    "6": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
    "7": {"class_type": "BasicScheduler", "inputs": {"model": ["1", 0], "scheduler": "simple", "steps": 4, "denoise": 1.0}}"#;

/// A machine with the host and a simulated accelerator.
fn bench() -> Bench {
    let host = Arc::new(CpuBackend::new());
    let spec: SimSpec = "1gb@100gbps".parse().unwrap();
    let simulated = SimBackend::new(0, spec, Arc::clone(&host) as Arc<dyn Backend>, host.executor());
    let devices = [Device::new(host, 4 << 30), Device::new(Arc::new(simulated), spec.memory)];
    Bench::with(
        &["flux_dev_micro", "flux_dev_micro-Q8_0", "flux_dev_micro_fp8", "flux_dev_micro_lora_kohya"],
        Registry::new(devices),
        DeviceId::sim(0),
    )
}

fn loader(file: &str, allocation: &str) -> String {
    format!(
        r#"{{"class_type": "UNETLoaderDisTorch2MultiGPU", "inputs": {{"unet_name": "{file}.safetensors",
            "weight_dtype": "default", "compute_device": "sim:0", "virtual_vram_gb": 0,
            "expert_mode_allocations": "{allocation}"}}}}"#
    )
}

const RESIDENT: &str = "sim:0,100%";
const STREAMED: &str = "sim:0,1mb;cpu,*";

/// A node that is given the model, in the form of a prompt.
fn of_model(class: &str, inputs: &str) -> String {
    format!(r#"{{"class_type": "{class}", "inputs": {{"model": ["1", 0]{inputs}}}}}"#)
}

fn workflow(model: &str, node: &str, more: &str) -> Literal {
    let sampler = r#"{"class_type": "KSampler", "inputs": {"model": ["8", 0], "positive": ["2", 0], "negative": ["3", 0],
        "latent_image": ["4", 0], "seed": 1, "steps": 4, "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple",
        "denoise": 1.0}}"#;
    let text = format!(r#"{{"1": {model}, "8": {node}, "9": {sampler}, {more} {COMMON}}}"#);
    serde_json::from_str(&text).unwrap()
}

fn latent(bench: &Bench, workflow: &Literal) -> Vec<f32> {
    let got = bench.run(workflow, &[("latent", "9")]);
    got.object::<LatentImage>("latent").samples.values().to_vec()
}

fn with(bench: &Bench, placing: &str, node: &str) -> Vec<f32> {
    latent(bench, &workflow(&loader("flux_dev_micro", placing), node, ""))
}

/// The model as it is.
fn plain() -> String {
    of_model("ModelSamplingFlux", r#", "max_shift": 1.15, "base_shift": 0.5, "width": 1024, "height": 1024"#)
}

#[test]
fn every_stage_of_guidance_changes_the_result_and_gives_the_same_bits_streamed() {
    let bench = bench();
    let mut all = vec![with(&bench, RESIDENT, &plain())];
    let cases = [
        ("APG", r#", "eta": 0.5, "norm_threshold": 2.0, "momentum": 0.3"#),
        ("FreSca", r#", "scale_low": 1.0, "scale_high": 1.5, "freq_cutoff": 2"#),
        ("TCFG", ""),
        ("RescaleCFG", r#", "multiplier": 0.7"#),
        ("RenormCFG", r#", "cfg_trunc": 100.0, "renorm_cfg": 0.5"#),
        ("VideoLinearCFGGuidance", r#", "min_cfg": 1.0"#),
        ("VideoTriangleCFGGuidance", r#", "min_cfg": 1.5"#),
        ("CFGZeroStar", ""),
        ("CFGNorm", r#", "strength": 0.9"#),
        ("Mahiro", ""),
        ("Epsilon Scaling", r#", "scaling_factor": 1.05"#),
        ("TemporalScoreRescaling", r#", "tsr_k": 0.9, "tsr_sigma": 1.0"#),
        (
            "SkipLayerGuidanceDiT",
            r#", "double_layers": "0", "single_layers": "", "scale": 2.0, "start_percent": 0.0, "end_percent": 1.0,
                "rescaling_scale": 0.5"#,
        ),
        (
            "SkipLayerGuidanceDiTSimple",
            r#", "double_layers": "0", "single_layers": "0", "start_percent": 0.0, "end_percent": 1.0"#,
        ),
    ];
    for (class, inputs) in cases {
        let node = of_model(class, inputs);
        let resident = with(&bench, RESIDENT, &node);
        assert!(resident.iter().all(|value| value.is_finite()), "{class}");
        assert!(resident == with(&bench, STREAMED, &node), "{class}");
        assert!(!all.contains(&resident), "{class} changes nothing");
        all.push(resident);
    }
}

#[test]
fn a_perpendicular_guider_weighs_three_conditionings() {
    let bench = bench();
    let run = |scale: f64| {
        let guider = format!(
            r#""10": {{"class_type": "PerpNegGuider", "inputs": {{"model": ["1", 0], "positive": ["2", 0],
                "negative": ["3", 0], "empty_conditioning": ["3", 0], "cfg": 3.0, "neg_scale": {scale:?}}}}},
            "11": {{"class_type": "SamplerCustomAdvanced", "inputs": {{"noise": ["5", 0], "guider": ["10", 0],
                "sampler": ["6", 0], "sigmas": ["7", 0], "latent_image": ["4", 0]}}}},"#
        );
        let workflow = workflow(&loader("flux_dev_micro", RESIDENT), &plain(), &guider);
        let got = bench.run(&workflow, &[("latent", "11")]);
        got.object::<LatentImage>("latent").samples.values().to_vec()
    };
    // Nothing of the negative is left once what it has in common with the empty prompt goes.
    let (all, none) = (run(1.0), run(0.0));
    let largest = all.iter().zip(&none).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(largest < 1e-5, "{largest}");
}

#[test]
fn a_guessed_step_streams_nothing() {
    let bench = bench();
    let rule = r#", "reuse_threshold": 3.0, "start_percent": 0.0, "end_percent": 1.0, "verbose": false"#;
    let stats = || bench.runtime.stats().into_iter().max_by_key(|stats| stats.id).unwrap();
    with(&bench, STREAMED, &plain());
    with(&bench, STREAMED, &plain());
    let usual = stats();
    for class in ["EasyCache", "LazyCache"] {
        let node = of_model(class, rule);
        // The first run after the model was placed anew fills the ring, too.
        with(&bench, STREAMED, &node);
        let streamed = with(&bench, STREAMED, &node);
        let guessed = stats();
        assert_eq!(guessed.evaluations, 2, "{class}: the last two of four steps are guessed");
        assert_eq!(guessed.bytes_streamed * 2, usual.bytes_streamed, "{class}");
        assert!(streamed == with(&bench, RESIDENT, &node), "{class}");
    }
}

/// A second model, and a node that merges it into the first.
fn merged(bench: &Bench, placing: &str, class: &str, inputs: &str) -> Vec<f32> {
    let other = format!(r#""10": {},"#, loader("flux_dev_micro_fp8", placing));
    let node = format!(
        r#"{{"class_type": "{class}", "inputs": {{"model1": ["1", 0], "model2": ["10", 0]{inputs}}}}}"#
    );
    latent(bench, &workflow(&loader("flux_dev_micro", placing), &node, &other))
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    let largest =
        |values: &mut dyn Iterator<Item = f32>| values.fold(0.0f32, |most, value| most.max(value.abs()));
    largest(&mut a.iter().zip(b).map(|(a, b)| a - b)) / largest(&mut b.iter().copied())
}

#[test]
fn models_are_merged_while_they_are_staged() {
    let bench = bench();
    let of = |file: &str| latent(&bench, &workflow(&loader(file, RESIDENT), &plain(), ""));
    let (first, second) = (of("flux_dev_micro"), of("flux_dev_micro_fp8"));
    assert!(distance(&first, &second) > 1e-3);
    let simple =
        |ratio: f64| merged(&bench, RESIDENT, "ModelMergeSimple", &format!(r#", "ratio": {ratio:?}"#));
    assert!(simple(1.0) == first);
    assert!(distance(&simple(0.0), &second) < 5e-3);
    let half = simple(0.5);
    assert!(half != first && half != second);
    assert!(half == merged(&bench, STREAMED, "ModelMergeSimple", r#", "ratio": 0.5"#));
    let added = merged(&bench, RESIDENT, "ModelMergeAdd", "");
    let doubled = merged(&bench, RESIDENT, "ModelMergeSubtract", r#", "multiplier": -1.0"#);
    assert!(added != first && doubled != first && doubled != added);
    let blocks = r#", "input": 1.0, "middle": 0.0, "out": 0.0"#;
    assert!(merged(&bench, RESIDENT, "ModelMergeBlocks", blocks) == first, "no weight of it begins so");
}

#[test]
fn a_merged_model_is_saved_and_loaded_again() {
    let bench = bench();
    let other = format!(r#""10": {},"#, loader("flux_dev_micro_fp8", RESIDENT));
    let node = r#"{"class_type": "ModelMergeSimple", "inputs": {"model1": ["1", 0], "model2": ["10", 0], "ratio": 0.5}}"#;
    let save = r#""12": {"class_type": "ModelSave", "inputs": {"model": ["8", 0], "filename_prefix": "diffusion_models/mine"}},"#;
    let workflow = workflow(&loader("flux_dev_micro", RESIDENT), node, &format!("{other}{save}"));
    let merged = latent(&bench, &workflow);
    let mut request = bench.job(&workflow, &[("latent", "9")]).request;
    request.outputs = vec!["12".into()];
    assert!(matches!(bench.executor().run(request).end, RunEnd::Succeeded));
    let saved = latent(&bench, &self::workflow(&loader("mine_00001_", RESIDENT), &plain(), ""));
    // The file has the 16 bits of the first model's; what is merged while it computes in 32 bits is not rounded.
    assert!(distance(&saved, &merged) < 1e-2, "{}", distance(&saved, &merged));
}
