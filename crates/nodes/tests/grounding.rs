//! Texts with boxes in workflows: told to both sides of guidance, wherever the network is, and what does not fit is told.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::sync::Arc;

use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use golden_support::Bench;
use graph::{Literal, RunEnd};
use meta::DeviceId;
use nodes::value::LatentImage;

const FILES: [&str; 5] =
    ["sd15_micro", "clip_l_tiny", "gligen_sd15_micro", "flux_dev_micro", "flux_instantx_union_micro"];

const LOADER: &str =
    r#"{"class_type": "GLIGENLoader", "inputs": {"gligen_name": "gligen_sd15_micro.safetensors"}}"#;

fn bench() -> Bench {
    let host = Arc::new(CpuBackend::new());
    let mut devices = vec![Device::new(Arc::clone(&host) as Arc<dyn Backend>, 4 << 30)];
    let spec: SimSpec = "1gb@100gbps".parse().unwrap();
    let backend = SimBackend::new(0, spec, Arc::clone(&host) as Arc<dyn Backend>, host.executor());
    devices.push(Device::new(Arc::new(backend), spec.memory));
    Bench::with(&FILES, Registry::new(devices), DeviceId::sim(0))
}

/// A workflow that samples with these conditionings; node 4 says nothing of places, 6 of one and 7 of two.
fn workflow(loader: &str, unet: &str, [positive, negative]: [u32; 2]) -> Literal {
    let boxed = |to: u32, text: &str, place: &str| {
        format!(
            r#"{{"class_type": "GLIGENTextBoxApply", "inputs": {{"conditioning_to": ["{to}", 0], "clip": ["2", 0],
                "gligen_textbox_model": ["3", 0], "text": "{text}", {place}}}}}"#
        )
    };
    let first = r#""width": 64, "height": 32, "x": 0, "y": 0"#;
    let second = r#""width": 32, "height": 40, "x": 40, "y": 16"#;
    let text = format!(
        r#"{{"1": {{"class_type": "UNETLoader", "inputs": {{"unet_name": "{unet}.safetensors", "weight_dtype": "default"}}}},
            "2": {{"class_type": "CLIPLoader", "inputs": {{"clip_name": "clip_l_tiny.safetensors", "type": "stable_diffusion"}}}},
            "3": {loader},
            "4": {{"class_type": "CLIPTextEncode", "inputs": {{"clip": ["2", 0], "text": "a garden"}}}},
            "5": {{"class_type": "CLIPTextEncode", "inputs": {{"clip": ["2", 0], "text": "blurry"}}}},
            "6": {},
            "7": {},
            "8": {},
            "9": {{"class_type": "EmptyLatentImage", "inputs": {{"width": 128, "height": 64, "batch_size": 2}}}},
            "10": {{"class_type": "KSampler", "inputs": {{"model": ["1", 0], "positive": ["{positive}", 0],
                "negative": ["{negative}", 0], "latent_image": ["9", 0], "seed": 1, "steps": 2, "cfg": 4.0,
                "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}}}}}}"#,
        boxed(4, "a red bench", first),
        boxed(6, "a white cat", second),
        boxed(5, "a red bench", first),
    );
    serde_json::from_str(&text).unwrap()
}

fn sampled(bench: &Bench, loader: &str, conditionings: [u32; 2]) -> Vec<f32> {
    let got = bench.run(&workflow(loader, "sd15_micro", conditionings), &[("latent", "10")]);
    got.object::<LatentImage>("latent").samples.values().to_vec()
}

fn failure(bench: &Bench, loader: &str, unet: &str) -> String {
    let job = bench.job(&workflow(loader, unet, [6, 5]), &[("latent", "10")]);
    match bench.executor().run(job.request).end {
        RunEnd::Failed(failure) => failure.message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn boxes_count_on_both_sides_wherever_the_network_is() {
    let bench = bench();
    let plain = sampled(&bench, LOADER, [4, 5]);
    let one = sampled(&bench, LOADER, [6, 5]);
    let two = sampled(&bench, LOADER, [7, 5]);
    assert!(two.iter().all(|value| value.is_finite()) && plain != one && one != two);
    // What the positive conditioning is told the negative one is told, too; unless it is told something itself.
    assert!(sampled(&bench, LOADER, [6, 8]) == one);
    assert!(sampled(&bench, LOADER, [7, 8]) != two);
    let file = r#""gligen_name": "gligen_sd15_micro.safetensors""#;
    for loader in [
        format!(r#"{{"class_type": "GLIGENLoaderMultiGPU", "inputs": {{{file}, "device": "cpu"}}}}"#),
        format!(
            r#"{{"class_type": "GLIGENLoaderDisTorch2MultiGPU", "inputs": {{{file}, "compute_device": "sim:0",
                "virtual_vram_gb": 0, "expert_mode_allocations": "sim:0,1%;cpu,*"}}}}"#
        ),
    ] {
        assert!(sampled(&bench, &loader, [7, 5]) == two, "{loader}");
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let bench = bench();
    let told = failure(&bench, LOADER, "flux_dev_micro");
    assert!(told.contains("GLIGEN for Stable Diffusion 1.5") && told.contains("FLUX"), "{told}");
    let models = bench.runtime.find("controlnet", "flux_instantx_union_micro.safetensors").unwrap();
    let folder = bench.runtime.find("gligen", "gligen_sd15_micro.safetensors").unwrap();
    std::fs::copy(models, folder.with_file_name("other.safetensors")).unwrap();
    let other = r#"{"class_type": "GLIGENLoader", "inputs": {"gligen_name": "other.safetensors"}}"#;
    let told = failure(&bench, other, "sd15_micro");
    assert!(told.contains("other.safetensors"), "{told}");
}
