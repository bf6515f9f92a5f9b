//! Control networks in workflows: planned beside the model, streamed, kept and evicted like any other, with the same bits
//! wherever they are; and what does not fit is told.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::sync::Arc;

use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use golden_support::Bench;
use graph::{Literal, RunEnd};
use meta::DeviceId;
use nodes::value::LatentImage;
use residency::{ModelReport, Retention};

const FILES: [&str; 5] = [
    "flux_dev_micro",
    "flux_dev_micro-Q8_0",
    "flux_xlabs_micro",
    "flux_instantx_union_micro",
    "sd35_micro_stability",
];

/// Conditionings, pictures and networks that the cases choose from; the network under test is node 20.
const COMMON: &str = r#"
    "2": {"class_type": "Tell", "inputs": {"seed": 1, "beside": false, "tokens": 20}},
    "3": {"class_type": "Tell", "inputs": {"seed": 9, "beside": false, "tokens": 20}},
    "4": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 128, "height": 96, "batch_size": 1}},
    "5": {"class_type": "LoadImage", "inputs": {"image": "image.png"}},
    "7": {"class_type": "ConditioningSetArea", "inputs": {"conditioning": ["3", 0], "width": 64, "height": 64, "x": 64, "y": 0, "strength": 0.7}},
    "8": {"class_type": "ConditioningCombine", "inputs": {"conditioning_1": ["2", 0], "conditioning_2": ["7", 0]}},
    "21": {"class_type": "ControlNetLoader", "inputs": {"control_net_name": "flux_instantx_union_micro.safetensors"}},
    "22": {"class_type": "ControlNetLoader", "inputs": {"control_net_name": "sd35_micro_stability.safetensors"}},
    "23": {"class_type": "SetUnionControlNetType", "inputs": {"control_net": ["21", 0], "type": "depth"}},
    "24": {"class_type": "SetUnionControlNetType", "inputs": {"control_net": ["21", 0], "type": "repaint"}},
    "30": {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["2", 0], "negative": ["3", 0], "control_net": ["20", 0], "image": ["5", 0], "strength": 0.8, "start_percent": 0.0, "end_percent": 1.0}},
    "31": {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["30", 0], "negative": ["30", 1], "control_net": ["20", 0], "image": ["5", 0], "strength": 0.5, "start_percent": 0.0, "end_percent": 1.0}},
    "32": {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["2", 0], "negative": ["3", 0], "control_net": ["20", 0], "image": ["5", 0], "strength": 0.8, "start_percent": 0.0, "end_percent": 0.4}},
    "33": {"class_type": "ControlNetApply", "inputs": {"conditioning": ["2", 0], "control_net": ["20", 0], "image": ["5", 0], "strength": 0.8}},
    "34": {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["8", 0], "negative": ["3", 0], "control_net": ["20", 0], "image": ["5", 0], "strength": 0.8, "start_percent": 0.0, "end_percent": 1.0}},
    "35": {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["2", 0], "negative": ["3", 0], "control_net": ["22", 0], "image": ["5", 0], "strength": 0.8, "start_percent": 0.0, "end_percent": 1.0}},
    "36": {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["2", 0], "negative": ["3", 0], "control_net": ["23", 0], "image": ["5", 0], "strength": 0.8, "start_percent": 0.0, "end_percent": 1.0}},
    "37": {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["2", 0], "negative": ["3", 0], "control_net": ["24", 0], "image": ["5", 0], "strength": 0.8, "start_percent": 0.0, "end_percent": 1.0}},
    "38": {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["2", 0], "negative": ["3", 0], "control_net": ["20", 0], "image": ["5", 0], "strength": 0.0, "start_percent": 0.0, "end_percent": 1.0}},
    "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "flux_dev_micro.safetensors", "weight_dtype": "default"}}"#;

/// A machine with the host and two simulated accelerators of this much memory.
fn bench(memory: &str) -> Bench {
    let host = Arc::new(CpuBackend::new());
    let mut devices = vec![Device::new(Arc::clone(&host) as Arc<dyn Backend>, 4 << 30)];
    for ordinal in 0..2 {
        let spec: SimSpec = format!("{memory}@100gbps").parse().unwrap();
        let base = Arc::clone(&host) as Arc<dyn Backend>;
        let backend = SimBackend::new(ordinal, spec, base, host.executor());
        devices.push(Device::new(Arc::new(backend), spec.memory));
    }
    Bench::with(&FILES, Registry::new(devices), DeviceId::sim(0))
}

/// The loader of the network under test, on a device or over several.
fn loader(placing: &str) -> String {
    let file = r#""control_net_name": "flux_xlabs_micro.safetensors""#;
    match placing {
        "" => format!(r#"{{"class_type": "ControlNetLoader", "inputs": {{{file}}}}}"#),
        device if !device.contains(',') => {
            format!(
                r#"{{"class_type": "ControlNetLoaderMultiGPU", "inputs": {{{file}, "device": "{device}"}}}}"#
            )
        }
        allocation => format!(
            r#"{{"class_type": "ControlNetLoaderDisTorch2MultiGPU", "inputs": {{{file}, "compute_device": "sim:0",
                "virtual_vram_gb": 0, "expert_mode_allocations": "{allocation}", "keep_loaded": true}}}}"#
        ),
    }
}

/// A workflow that samples with the conditionings of a node.
fn workflow(loader: &str, conditionings: [(u32, u32); 2], cfg: f64) -> Literal {
    let [(positive, at), (negative, other)] = conditionings;
    let text = format!(
        r#"{{"20": {loader}, {COMMON}, "9": {{"class_type": "KSampler", "inputs": {{"model": ["1", 0],
            "positive": ["{positive}", {at}], "negative": ["{negative}", {other}], "latent_image": ["4", 0], "seed": 1,
            "steps": 3, "cfg": {cfg:?}, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}}}}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn run(bench: &Bench, loader: &str, conditionings: [(u32, u32); 2], cfg: f64) -> Vec<f32> {
    let got = bench.run(&workflow(loader, conditionings, cfg), &[("latent", "9")]);
    got.object::<LatentImage>("latent").samples.values().to_vec()
}

/// Why a workflow fails.
fn failure(bench: &Bench, conditionings: [(u32, u32); 2]) -> String {
    let job = bench.job(&workflow(&loader(""), conditionings, 1.0), &[("latent", "9")]);
    match bench.executor().run(job.request).end {
        RunEnd::Failed(failure) => failure.message,
        other => panic!("{other:?}"),
    }
}

fn network(bench: &Bench) -> ModelReport {
    let models = bench.runtime.residency.models();
    models.into_iter().find(|model| model.name.starts_with("flux_xlabs")).unwrap()
}

const BOTH: [(u32, u32); 2] = [(30, 0), (30, 1)];

#[test]
fn every_way_to_control_gives_the_same_bits_wherever_the_network_is() {
    let bench = bench("1gb");
    let cases = [
        ("one conditioning", BOTH, 1.0),
        ("guidance", BOTH, 3.5),
        ("one upon the other", [(31, 0), (31, 1)], 3.5),
        ("the first steps", [(32, 0), (32, 1)], 3.5),
        ("both sides by the old node", [(33, 0), (3, 0)], 3.5),
        ("areas", [(34, 0), (34, 1)], 3.5),
    ];
    let plain = run(&bench, &loader(""), [(2, 0), (3, 0)], 3.5);
    let mut all = vec![plain.clone()];
    for (case, conditionings, cfg) in cases {
        let expected = run(&bench, &loader(""), conditionings, cfg);
        assert!(expected.iter().all(|value| value.is_finite()), "{case}");
        assert!(!all.contains(&expected) || case.contains("old node"), "{case} changes nothing");
        for placing in ["sim:0,1%;cpu,*", "sim:0,50%;sim:1,50%", "sim:1", "cpu"] {
            assert!(run(&bench, &loader(placing), conditionings, cfg) == expected, "{case}, {placing}");
        }
        all.push(expected);
    }
    // The old node lets the negative conditioning follow, as the new one does.
    assert!(all[2] == all[5]);
    // At no strength there is nothing.
    assert!(run(&bench, &loader(""), [(38, 0), (38, 1)], 3.5) == plain);
}

#[test]
fn a_network_stays_leaves_and_comes_back_like_any_other() {
    let bench = bench("1gb");
    let expected = run(&bench, &loader("sim:0,100%"), BOTH, 1.0);
    let report = network(&bench);
    assert_eq!(report.retention, Retention::Keep);
    assert!(bench.runtime.residency.is_staged(report.id));
    // Evicted, it is staged again; unloaded, it is loaded again.
    bench.runtime.residency.evict_from(DeviceId::sim(0), None);
    assert!(!bench.runtime.residency.is_staged(report.id));
    assert!(run(&bench, &loader("sim:0,100%"), BOTH, 1.0) == expected);
    bench.runtime.residency.unload(network(&bench).id).unwrap();
    assert!(run(&bench, &loader("sim:0,100%"), BOTH, 1.0) == expected);
}

#[test]
fn what_does_not_fit_says_what_it_is_and_what_fits() {
    let bench = bench("1gb");
    let other = failure(&bench, [(35, 0), (35, 1)]);
    assert!(other.contains("sd35_micro_stability") && other.contains("FLUX.1"), "{other}");
    let no_vae = failure(&bench, [(36, 0), (36, 1)]);
    assert!(no_vae.contains("VAE") && no_vae.contains("flux_instantx_union_micro"), "{no_vae}");
    let kind = failure(&bench, [(37, 0), (37, 1)]);
    assert!(kind.contains("repaint") && kind.contains("7 types") && kind.contains("openpose"), "{kind}");
    let models = bench.runtime.folders.places("controlnet")[0].clone();
    let model = models.join("../diffusion_models/flux_dev_micro.safetensors");
    std::fs::copy(model, models.join("no_control.safetensors")).unwrap();
    let named = [("control_net_name", "no_control.safetensors".into())];
    let wrong = bench.call("ControlNetLoader", &named).unwrap_err();
    assert!(
        wrong.contains("a control network") && wrong.contains("a diffusion model (FLUX.1 dev)"),
        "{wrong}"
    );
}
