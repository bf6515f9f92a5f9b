//! All conditionings of a step go through the model in one pass: what is streamed does not depend on how many there
//! are, and neither do bits on where the weights are.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::sync::Arc;

use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use golden_support::Bench;
use graph::Literal;
use meta::DeviceId;
use nodes::value::LatentImage;
use runtime::ModelStats;

const STEPS: u64 = 3;

/// Conditionings, masks and latents that the cases choose from. Texts of more than eight tokens run as one batch.
const COMMON: &str = r#"
    "2": {"class_type": "Tell", "inputs": {"seed": 1, "beside": false, "tokens": 20}},
    "3": {"class_type": "Tell", "inputs": {"seed": 9, "beside": false, "tokens": 20}},
    "4": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 128, "height": 96, "batch_size": 1}},
    "5": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 96, "height": 64, "batch_size": 2}},
    "6": {"class_type": "Tell", "inputs": {"seed": 30, "beside": true, "tokens": 20}},
    "7": {"class_type": "Tell", "inputs": {"seed": 40, "beside": false, "tokens": 6}},
    "10": {"class_type": "SolidMask", "inputs": {"value": 0.8, "width": 128, "height": 96}},
    "11": {"class_type": "FeatherMask", "inputs": {"mask": ["10", 0], "left": 60, "top": 30, "right": 10, "bottom": 0}},
    "12": {"class_type": "ConditioningSetArea", "inputs": {"conditioning": ["3", 0], "width": 64, "height": 64, "x": 64, "y": 0, "strength": 0.7}},
    "13": {"class_type": "ConditioningCombine", "inputs": {"conditioning_1": ["2", 0], "conditioning_2": ["12", 0]}},
    "14": {"class_type": "ConditioningSetMask", "inputs": {"conditioning": ["6", 0], "mask": ["11", 0], "strength": 0.9, "set_cond_area": "default"}},
    "15": {"class_type": "ConditioningCombine", "inputs": {"conditioning_1": ["13", 0], "conditioning_2": ["14", 0]}},
    "16": {"class_type": "ConditioningSetTimestepRange", "inputs": {"conditioning": ["3", 0], "start": 0.0, "end": 0.2}},
    "17": {"class_type": "ConditioningCombine", "inputs": {"conditioning_1": ["2", 0], "conditioning_2": ["16", 0]}},
    "18": {"class_type": "ConditioningSetDefaultCombine", "inputs": {"cond": ["12", 0], "cond_DEFAULT": ["6", 0]}},
    "19": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["2", 0], "latent": ["5", 0]}},
    "20": {"class_type": "SetLatentNoiseMask", "inputs": {"samples": ["4", 0], "mask": ["11", 0]}},
    "21": {"class_type": "DifferentialDiffusion", "inputs": {"model": ["1", 0], "strength": 1.0}},
    "22": {"class_type": "DualCFGGuider", "inputs": {"model": ["1", 0], "cond1": ["2", 0], "cond2": ["3", 0], "negative": ["6", 0], "cfg_conds": 2.5, "cfg_cond2_negative": 1.5, "style": "regular"}},
    "23": {"class_type": "DualCFGGuider", "inputs": {"model": ["1", 0], "cond1": ["13", 0], "cond2": ["3", 0], "negative": ["7", 0], "cfg_conds": 2.5, "cfg_cond2_negative": 1.5, "style": "nested"}},
    "24": {"class_type": "RandomNoise", "inputs": {"noise_seed": 5}},
    "25": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
    "27": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler_cfg_pp"}},
    "28": {"class_type": "DualCFGGuider", "inputs": {"model": ["1", 0], "cond1": ["2", 0], "cond2": ["3", 0], "negative": ["6", 0], "cfg_conds": 1.0, "cfg_cond2_negative": 1.0, "style": "regular"}},
    "26": {"class_type": "BasicScheduler", "inputs": {"model": ["1", 0], "scheduler": "simple", "steps": 3, "denoise": 1.0}}"#;

/// A sampler node: model, positive, negative, latent, cfg and the sampler's name.
fn sampler([model, positive, negative, latent]: [u32; 4], cfg: f64, name: &str) -> String {
    format!(
        r#"{{"class_type": "KSampler", "inputs": {{"model": ["{model}", 0], "positive": ["{positive}", 0],
            "negative": ["{negative}", 0], "latent_image": ["{latent}", 0], "seed": 1, "steps": {STEPS}, "cfg": {cfg:?},
            "sampler_name": "{name}", "scheduler": "simple", "denoise": 1.0}}}}"#
    )
}

fn guided(guider: u32, sampler: u32) -> String {
    format!(
        r#"{{"class_type": "SamplerCustomAdvanced", "inputs": {{"noise": ["24", 0], "guider": ["{guider}", 0],
            "sampler": ["{sampler}", 0], "sigmas": ["26", 0], "latent_image": ["4", 0]}}}}"#
    )
}

/// Every way to have more than one evaluation in a step, by name.
fn cases() -> Vec<(&'static str, String)> {
    vec![
        ("one conditioning", sampler([1, 2, 3, 4], 1.0, "euler")),
        ("guidance", sampler([1, 2, 3, 4], 3.5, "euler")),
        ("guidance, texts of other lengths", sampler([1, 2, 7, 4], 3.5, "euler")),
        ("guidance, few tokens", sampler([1, 7, 7, 4], 3.5, "euler")),
        ("guidance, two pictures", sampler([1, 2, 3, 5], 3.5, "euler")),
        ("areas and masks", sampler([1, 15, 3, 4], 3.5, "euler")),
        ("areas on both sides", sampler([1, 13, 15, 4], 3.5, "euler")),
        ("times", sampler([1, 17, 3, 4], 3.5, "euler")),
        ("the rest by default", sampler([1, 18, 3, 4], 3.5, "euler")),
        ("references", sampler([1, 19, 3, 4], 3.5, "euler")),
        ("inpainting", sampler([1, 2, 3, 20], 3.5, "euler")),
        ("differential", sampler([21, 2, 3, 20], 3.5, "euler")),
        ("cfg++", sampler([1, 2, 3, 4], 1.0, "euler_cfg_pp")),
        ("three conditionings", guided(22, 25)),
        ("three conditionings, nested, areas", guided(23, 25)),
        ("three conditionings, cfg++", guided(28, 27)),
    ]
}

/// A machine with the host and two simulated accelerators.
fn bench() -> Bench {
    let host = Arc::new(CpuBackend::new());
    let mut devices = vec![Device::new(Arc::clone(&host) as Arc<dyn Backend>, 4 << 30)];
    for ordinal in 0..2 {
        let spec: SimSpec = "1gb@100gbps".parse().unwrap();
        let base = Arc::clone(&host) as Arc<dyn Backend>;
        let backend = SimBackend::new(ordinal, spec, base, host.executor());
        devices.push(Device::new(Arc::new(backend), spec.memory));
    }
    Bench::with(&["flux_dev_micro", "flux_dev_micro-Q8_0"], Registry::new(devices), DeviceId::sim(0))
}

fn loader(allocation: &str) -> String {
    format!(
        r#"{{"class_type": "UNETLoaderDisTorch2MultiGPU", "inputs": {{"unet_name": "flux_dev_micro.safetensors",
            "weight_dtype": "default", "compute_device": "sim:0", "virtual_vram_gb": 0,
            "expert_mode_allocations": "{allocation}"}}}}"#
    )
}

/// The latent that a case ends with.
fn run(bench: &Bench, loader: &str, sampler: &str) -> Vec<f32> {
    let text = format!(r#"{{"1": {loader}, "8": {sampler}, {COMMON}}}"#);
    let workflow: Literal = serde_json::from_str(&text).unwrap();
    let got = bench.run(&workflow, &[("latent", "8")]);
    got.object::<LatentImage>("latent").samples.values().to_vec()
}

/// What the last run of the streamed model took.
fn streamed(bench: &Bench) -> ModelStats {
    bench.runtime.stats().into_iter().max_by_key(|stats| stats.id).unwrap()
}

/// What these cases gave when this list was made, by the vector instructions that the host computes with: other instructions
/// sum in another order. A change that is not meant to change what is computed leaves them as they are; where it is meant to,
/// the test prints the new ones.
const PINNED: &[(&str, [u64; 16])] = &[(
    "AVX-512",
    [
        0xb258_ea74_5222_a022,
        0xd4ab_a32b_a345_8c22,
        0x3a0c_bd2c_4864_847f,
        0xed7d_bc67_6371_201f,
        0x5d9a_86e5_c5e5_118e,
        0xf166_9599_05c0_0740,
        0xcda9_d09d_500c_ad47,
        0x0f76_e108_ad41_c73d,
        0x4f99_6f3b_39d2_d5f6,
        0x7c14_0a78_16a9_3c02,
        0x827b_e096_ac96_b41f,
        0x65d8_edaf_65c7_f97d,
        0x3cda_68d1_38ed_5f1e,
        0xa2aa_cea9_e643_43a6,
        0x08c1_0b80_119c_35fb,
        0xe415_e5db_3a27_3c12,
    ],
)];

/// A number that tells values apart.
fn hash(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn every_way_to_guide_gives_the_same_bits_wherever_the_weights_are() {
    let bench = bench();
    let placements = ["sim:0,100%", "sim:0,1mb;cpu,*", "sim:0,1mb;sim:1,1mb;cpu,*", "sim:0,20%;sim:1,80%"];
    let host = &CpuBackend::new().describe().detail;
    let pinned = PINNED.iter().find(|(instructions, _)| host.ends_with(instructions));
    if pinned.is_none() {
        println!("no bits are pinned for {host}: they are only compared with each other");
    }
    let mut all: Vec<Vec<f32>> = Vec::new();
    for (case, sampler) in cases() {
        let [resident, others @ ..] = placements.map(|placement| run(&bench, &loader(placement), &sampler));
        println!("{:016x} {case}", hash(&resident));
        if let Some((instructions, hashes)) = pinned {
            assert_eq!(
                hash(&resident),
                hashes[all.len()],
                "{case}: other bits than before, with {instructions}"
            );
        }
        assert!(resident.iter().all(|value| value.is_finite()), "{case}");
        assert!(others.iter().all(|other| *other == resident), "{case}");
        assert!(!all.contains(&resident), "{case} changes nothing");
        all.push(resident);
    }
}

#[test]
fn weights_are_streamed_once_a_step_however_much_it_evaluates() {
    let bench = bench();
    let loader = loader("sim:0,1mb;cpu,*");
    // The ring is full of the first blocks when a run ends, so that the next begins where it did.
    run(&bench, &loader, &cases()[0].1);
    run(&bench, &loader, &cases()[0].1);
    let once = streamed(&bench);
    assert!(once.bytes_streamed > 0 && once.bytes_streamed.is_multiple_of(STEPS), "{once:?}");
    for (case, sampler) in cases() {
        run(&bench, &loader, &sampler);
        let stats = streamed(&bench);
        assert_eq!(stats.id, once.id, "{case}");
        assert_eq!((stats.bytes_streamed, stats.evaluations), (once.bytes_streamed, STEPS), "{case}");
    }
}
