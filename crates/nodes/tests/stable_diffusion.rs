//! Nodes that Stable Diffusion's workflows use, on narrow models: what is merged, scaled and saved is compared value by
//! value, and what is loaded again draws the same picture.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::needless_pass_by_value, reason = "inputs are written where they are used")]

mod golden_support;

use std::path::Path;
use std::sync::Arc;

use checkpoint::Checkpoint;
use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use golden_support::{Bench, host};
use graph::Literal;
use meta::{DType, DeviceId, Shape};
use nodes::value::{Conditioning, Image, LatentImage, Sigmas};
use serde_json::{Value, json};
use testkit::{GgufValue, GgufWriter, Manifest, SafetensorsWriter};

const DIFFUSION: &str = "model.diffusion_model.";
const AUTOENCODER: &str = "first_stage_model.";
/// Files of 16 bits round by half of this share.
const F16_STEP: f32 = 1.0 / 1024.0;

/// A prompt.
fn workflow(nodes: Value) -> Literal {
    serde_json::from_value(nodes).unwrap()
}

fn node(class: &str, inputs: Value) -> Value {
    json!({ "class_type": class, "inputs": inputs })
}

/// A machine with the host and a simulated accelerator.
fn accelerated() -> Registry {
    let host = Arc::new(CpuBackend::new());
    let spec: SimSpec = "1gb@100gbps".parse().unwrap();
    let simulated = SimBackend::new(0, spec, Arc::clone(&host) as Arc<dyn Backend>, host.executor());
    Registry::new([Device::new(host, 8 << 30), Device::new(Arc::new(simulated), spec.memory)])
}

/// The same tensors with sizes below a prefix that are multiples of one width made multiples of a smaller one.
fn narrow(manifest: &mut Manifest, prefix: &str, from: usize, to: usize) {
    for tensor in manifest.tensors.iter_mut().filter(|tensor| tensor.name.starts_with(prefix)) {
        let dims = tensor.shape.dims().iter();
        let dims: Vec<usize> =
            dims.map(|size| if size % from == 0 { size / from * to } else { *size }).collect();
        tensor.shape = Shape::new(&dims).unwrap();
    }
}

/// A checkpoint of the reference, a fifth as wide.
fn narrow_checkpoint(name: &str) -> Manifest {
    let mut manifest = Manifest::bundled(name).unwrap();
    narrow(&mut manifest, DIFFUSION, 320, 64);
    narrow(&mut manifest, AUTOENCODER, 128, 32);
    manifest
}

/// The diffusion model of a checkpoint alone.
fn unet_of(mut manifest: Manifest) -> Manifest {
    manifest.tensors.retain(|tensor| tensor.name.starts_with(DIFFUSION));
    for tensor in &mut manifest.tensors {
        tensor.name = tensor.name[DIFFUSION.len()..].to_owned();
    }
    manifest
}

fn write(mut manifest: Manifest, bench: &Bench, file: &str) {
    file.clone_into(&mut manifest.file);
    manifest.write_to(bench.models()).unwrap();
}

/// Writes a file with every value of another one times a number, in 16 bits.
fn write_times(from: &Path, factor: f32, to: &Path) {
    let file = Checkpoint::open(from).unwrap();
    let mut writer = SafetensorsWriter::new();
    for entry in file.entries() {
        let values: Vec<f32> = testkit::decode(entry.encoding(), file.bytes(entry))
            .unwrap()
            .iter()
            .map(|v| v * factor)
            .collect();
        writer = writer.values(entry.name(), DType::F16, *entry.shape(), &values).unwrap();
    }
    writer.write(to).unwrap();
}

/// The small CLIP of the demo, and one of twice its values.
fn write_encoders(bench: &Bench) {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo/demo-clip-l.safetensors");
    let folder = bench.models().join("text_encoders");
    std::fs::create_dir_all(&folder).unwrap();
    write_times(&demo, 1.0, &folder.join("one.safetensors"));
    write_times(&demo, 2.0, &folder.join("two.safetensors"));
}

/// Checks that a saved file has every tensor of another one, each times what belongs to its name.
#[track_caller]
fn check_factors(saved: &Path, original: &Path, prefix: &str, factor: impl Fn(&str) -> f32) {
    let (saved, original) = (Checkpoint::open(saved).unwrap(), Checkpoint::open(original).unwrap());
    let tensor = |file: &Checkpoint, name: &str| {
        let entry = file.entries().iter().find(|entry| entry.name() == name);
        let entry = entry.unwrap_or_else(|| panic!("there is no {name}"));
        testkit::decode(entry.encoding(), file.bytes(entry)).unwrap()
    };
    for entry in original.entries() {
        let name = entry.name();
        let (got, values) = (tensor(&saved, &format!("{prefix}{name}")), tensor(&original, name));
        let factor = factor(name);
        let is_near = |(got, value): (&f32, &f32)| {
            (got - value * factor).abs() <= (value * factor).abs() * F16_STEP + 1e-7
        };
        let wrong = got.iter().zip(&values).position(|pair| !is_near(pair));
        assert!(
            got.len() == values.len() && wrong.is_none(),
            "{name}[{wrong:?}] is not {factor} times what it was"
        );
    }
}

fn latent(bench: &Bench, nodes: &Value, node: &str) -> Vec<f32> {
    let got = bench.run(&workflow(nodes.clone()), &[("latent", node)]);
    got.object::<LatentImage>("latent").samples.values().to_vec()
}

fn picture(bench: &Bench, nodes: &Value, node: &str) -> Vec<f32> {
    let got = bench.run(&workflow(nodes.clone()), &[("picture", node)]);
    got.object::<Image>("picture").values.to_vec()
}

fn text(bench: &Bench, nodes: &Value, node: &str) -> Vec<f32> {
    let got = bench.run(&workflow(nodes.clone()), &[("text", node)]);
    got.object::<Conditioning>("text").entries[0].cond.text.values.clone()
}

/// The largest difference over the largest value.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// A sampler's usual inputs.
fn sampler(model: Value, positive: &str, negative: &str, cfg: f64) -> Value {
    node(
        "KSampler",
        json!({ "model": model, "positive": [positive, 0], "negative": [negative, 0], "latent_image": ["4", 0],
            "seed": 1, "steps": 2, "cfg": cfg, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0 }),
    )
}

/// A picture by a model, an encoder and an autoencoder, each given by a node and its output.
fn drawing(model: Value, clip: Value, vae: Value) -> Value {
    json!({
        "2": node("CLIPTextEncode", json!({ "text": "a lighthouse in a storm", "clip": clip })),
        "3": node("CLIPTextEncode", json!({ "text": "", "clip": clip })),
        "4": node("EmptyLatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 })),
        "5": sampler(model, "2", "3", 3.0),
        "6": node("VAEDecode", json!({ "samples": ["5", 0], "vae": vae })),
    })
}

fn with(mut nodes: Value, more: Value) -> Value {
    nodes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    nodes
}

fn checkpoint_loader(file: &str) -> Value {
    node("CheckpointLoaderSimple", json!({ "ckpt_name": file }))
}

#[test]
fn what_is_saved_draws_the_same_picture() {
    let bench = Bench::with(&[], accelerated(), DeviceId::CPU);
    write(narrow_checkpoint("sd15_tiny"), &bench, "checkpoints/whole.safetensors");
    let whole = |file: &str| {
        with(
            drawing(json!(["1", 0]), json!(["1", 1]), json!(["1", 2])),
            json!({ "1": checkpoint_loader(file) }),
        )
    };
    let drawn = picture(&bench, &whole("whole.safetensors"), "6");
    let saving = with(
        whole("whole.safetensors"),
        json!({
            "7": node("CheckpointSave", json!({ "model": ["1", 0], "clip": ["1", 1], "vae": ["1", 2],
                "filename_prefix": "checkpoints/mine" })),
            "8": node("CLIPSave", json!({ "clip": ["1", 1], "filename_prefix": "clip/mine" })),
            "9": node("VAESave", json!({ "vae": ["1", 2], "filename_prefix": "vae/mine" })),
            "10": node("ModelMergeAdd", json!({ "model1": ["1", 0], "model2": ["1", 0] })),
            "11": node("CLIPMergeAdd", json!({ "clip1": ["1", 1], "clip2": ["1", 1] })),
            "12": node("CheckpointSave", json!({ "model": ["10", 0], "clip": ["11", 0], "vae": ["1", 2],
                "filename_prefix": "checkpoints/double" })),
        }),
    );
    bench.run_outputs(&workflow(saving), "5", &["7", "8", "9", "12"]);
    let original = bench.models().join("checkpoints/whole.safetensors");
    check_factors(&bench.output("checkpoints/mine_00001_.safetensors"), &original, "", |_| 1.0);
    check_factors(&bench.output("checkpoints/double_00001_.safetensors"), &original, "", |name| {
        if name.starts_with(AUTOENCODER) || name.ends_with("position_ids") { 1.0 } else { 2.0 }
    });
    assert!(picture(&bench, &whole("mine_00001_.safetensors"), "6") == drawn);
    let parts = with(
        drawing(json!(["1", 0]), json!(["20", 0]), json!(["21", 0])),
        json!({
            "1": checkpoint_loader("mine_00001_.safetensors"),
            "20": node("CLIPLoader", json!({ "clip_name": "mine_clip_l_00001_.safetensors", "type": "stable_diffusion" })),
            "21": node("VAELoader", json!({ "vae_name": "mine_00001_.safetensors" })),
        }),
    );
    assert!(picture(&bench, &parts, "6") == drawn, "its parts are the same, too");

    // The same on a device that the loader names.
    let on_device = json!({ "1": node("CheckpointLoaderSimpleMultiGPU",
        json!({ "ckpt_name": "whole.safetensors", "device": "sim:0" })) });
    assert!(picture(&bench, &with(whole("whole.safetensors"), on_device), "6") == drawn);
    let models = bench.runtime.residency.models();
    let there = models.iter().filter(|model| {
        model.name == "whole.safetensors"
            && model.bytes.iter().any(|(device, bytes)| *device == DeviceId::sim(0) && *bytes > 0)
    });
    assert!(there.count() > 0, "{models:?}");
}

#[test]
fn merged_and_scaled_encoders_are_the_formulas() {
    let bench = Bench::with(&[], accelerated(), DeviceId::CPU);
    write_encoders(&bench);
    let loaders = json!({
        "1": node("CLIPLoader", json!({ "clip_name": "one.safetensors", "type": "stable_diffusion" })),
        "2": node("CLIPLoader", json!({ "clip_name": "two.safetensors", "type": "stable_diffusion" })),
    });
    let two = |more: Value| with(json!({ "clip1": ["1", 0], "clip2": ["2", 0] }), more);
    let attention = json!({ "clip": ["1", 0], "q": 1.5, "k": 0.5, "v": 2.0, "out": 0.25 });
    let scaled = |name: &str| match name {
        name if name.contains("self_attn.q_proj") => 1.5,
        name if name.contains("self_attn.k_proj") => 0.5,
        name if name.contains("self_attn.v_proj") => 2.0,
        name if name.contains("self_attn.out_proj") => 0.25,
        _ => 1.0,
    };
    type Factor<'a> = &'a dyn Fn(&str) -> f32;
    let cases: [(&str, Value, Factor<'_>); 4] = [
        ("CLIPMergeSimple", two(json!({ "ratio": 0.25 })), &|_| 0.25 + 0.75 * 2.0),
        ("CLIPMergeAdd", two(json!({})), &|_| 1.0 + 2.0),
        ("CLIPMergeSubtract", two(json!({ "multiplier": 0.5 })), &|_| 0.5 * (1.0 - 2.0)),
        ("CLIPAttentionMultiply", attention, &scaled),
    ];
    for (class, inputs, factor) in cases {
        let prefix = format!("clip/{class}");
        let nodes = with(
            loaders.clone(),
            json!({
                "3": node(class, inputs),
                "4": node("CLIPTextEncode", json!({ "text": "a red fox", "clip": ["3", 0] })),
                "5": node("CLIPSave", json!({ "clip": ["3", 0], "filename_prefix": prefix })),
            }),
        );
        let encoded = text(&bench, &nodes, "4");
        bench.run_outputs(&workflow(nodes), "4", &["5"]);
        let file = format!("{class}_clip_l_00001_.safetensors");
        let original = bench.models().join("text_encoders/one.safetensors");
        check_factors(&bench.output(&format!("clip/{file}")), &original, "", factor);
        let saved = json!({
            "3": node("CLIPLoader", json!({ "clip_name": file, "type": "stable_diffusion" })),
            "4": node("CLIPTextEncode", json!({ "text": "a red fox", "clip": ["3", 0] })),
        });
        let again = text(&bench, &saved, "4");
        assert!(distance(&again, &encoded) < 1e-2, "{class}: {}", distance(&again, &encoded));
        let plain = text(&bench, &with(saved, json!({ "3": loaders["1"] })), "4");
        assert!(distance(&plain, &encoded) > 2e-2, "{class} changes nothing");
    }
}

#[test]
fn a_merged_sdxl_has_a_share_for_each_part() {
    let bench = Bench::with(&[], host(), DeviceId::CPU);
    write(unet_of(narrow_checkpoint("sdxl_tiny")), &bench, "diffusion_models/one.safetensors");
    let original = bench.models().join("diffusion_models/one.safetensors");
    write_times(&original, 2.0, &bench.models().join("diffusion_models/two.safetensors"));
    let ratio = |start: &str| match start {
        "label_emb." => 0.0,
        "input_blocks.0" | "middle_block.1" => 0.5,
        "output_blocks.8" | "out." => 0.25,
        _ => 1.0,
    };
    let starts = ["time_embed.", "label_emb."].map(str::to_owned).into_iter();
    let numbered = |start: &'static str, count: usize| (0..count).map(move |i| format!("{start}{i}"));
    let starts = starts.chain(numbered("input_blocks.", 9)).chain(numbered("middle_block.", 3));
    let starts: Vec<String> =
        starts.chain(numbered("output_blocks.", 9)).chain(["out.".to_owned()]).collect();
    let mut inputs = json!({ "model1": ["1", 0], "model2": ["2", 0] });
    for start in &starts {
        inputs[start] = json!(ratio(start));
    }
    let loader = |file: &str| node("UNETLoader", json!({ "unet_name": file, "weight_dtype": "default" }));
    let nodes = json!({
        "1": loader("one.safetensors"),
        "2": loader("two.safetensors"),
        "3": node("ModelMergeSDXL", inputs),
        "4": node("ModelSave", json!({ "model": ["3", 0], "filename_prefix": "diffusion_models/mine" })),
    });
    bench.run_outputs(&workflow(nodes), "3", &["4"]);
    let saved = bench.output("diffusion_models/mine_00001_.safetensors");
    check_factors(&saved, &original, DIFFUSION, |name| {
        let start =
            starts.iter().filter(|start| name.starts_with(start.as_str())).max_by_key(|start| start.len());
        let ratio = ratio(start.unwrap());
        ratio + (1.0 - ratio) * 2.0
    });
}

#[test]
fn attention_over_frames_is_scaled_apart() {
    let bench = Bench::with(&[], host(), DeviceId::CPU);
    write(unet_of(Manifest::bundled("svd_micro").unwrap()), &bench, "diffusion_models/svd.safetensors");
    let nodes = json!({
        "1": node("UNETLoader", json!({ "unet_name": "svd.safetensors", "weight_dtype": "default" })),
        "2": node("UNetTemporalAttentionMultiply", json!({ "model": ["1", 0], "self_structural": 0.5,
            "self_temporal": 2.0, "cross_structural": 4.0, "cross_temporal": 0.25 })),
        "3": node("ModelSave", json!({ "model": ["2", 0], "filename_prefix": "diffusion_models/mine" })),
    });
    bench.run_outputs(&workflow(nodes), "2", &["3"]);
    let saved = bench.output("diffusion_models/mine_00001_.safetensors");
    let original = bench.models().join("diffusion_models/svd.safetensors");
    check_factors(&saved, &original, DIFFUSION, |name| {
        match (
            name.contains("attn1.to_out.0."),
            name.contains("attn2.to_out.0."),
            name.contains(".time_stack."),
        ) {
            (true, _, false) => 0.5,
            (true, _, true) => 2.0,
            (_, true, false) => 4.0,
            (_, true, true) => 0.25,
            _ => 1.0,
        }
    });
}

/// What a narrow SD1.5 is told, and what it starts from.
fn told() -> Value {
    json!({
        "2": node("Tell", json!({ "beside": false, "seed": 1, "tokens": 77, "width": 768 })),
        "3": node("Tell", json!({ "beside": false, "seed": 9, "tokens": 77, "width": 768 })),
        "4": node("EmptyLatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 })),
    })
}

fn unet_loader(file: &str) -> Value {
    node("UNETLoader", json!({ "unet_name": file, "weight_dtype": "default" }))
}

#[test]
fn a_conditioning_counts_as_much_as_its_strength() {
    let bench = Bench::with(&[], host(), DeviceId::CPU);
    write(unet_of(narrow_checkpoint("sd15_tiny")), &bench, "diffusion_models/sd15.safetensors");
    let one_step = |positive: &str| {
        let mut sampler = sampler(json!(["1", 0]), positive, "3", 1.0);
        sampler["inputs"]["steps"] = json!(1);
        sampler
    };
    let nodes = |strength: f64| {
        with(
            told(),
            json!({
                "1": unet_loader("sd15.safetensors"),
                "7": node("ConditioningSetAreaStrength", json!({ "conditioning": ["3", 0], "strength": strength })),
                "8": node("ConditioningCombine", json!({ "conditioning_1": ["2", 0], "conditioning_2": ["7", 0] })),
                "9": one_step("8"),
                "10": one_step("2"),
                "11": one_step("3"),
            }),
        )
    };
    let (first, second) = (latent(&bench, &nodes(1.0), "10"), latent(&bench, &nodes(1.0), "11"));
    assert!(distance(&first, &second) > 1e-3);
    // What is predicted is linear in the entries, and so is one step of Euler's in what is predicted.
    for strength in [0.0, 0.25, 3.0] {
        let share = strength as f32 / (1.0 + strength as f32);
        let mean: Vec<f32> = first.iter().zip(&second).map(|(a, b)| a * (1.0 - share) + b * share).collect();
        let got = latent(&bench, &nodes(strength), "9");
        assert!(distance(&got, &mean) < 1e-5, "{strength}: {}", distance(&got, &mean));
    }
}

/// The noise levels of Stable Diffusion, from its betas.
fn table() -> Vec<f64> {
    let (first, last) = (0.00085f64.sqrt(), 0.012f64.sqrt());
    let mut kept = 1.0;
    let level = |i: usize| {
        let root = first + (last - first) * i as f64 / 999.0;
        kept *= 1.0 - root * root;
        ((1.0 - kept) / kept).sqrt()
    };
    (0..1000).map(level).collect()
}

#[test]
fn levels_are_flipped_split_and_set() {
    let bench = Bench::with(&[], host(), DeviceId::CPU);
    write(unet_of(narrow_checkpoint("sd15_tiny")), &bench, "diffusion_models/sd15.safetensors");
    let nodes = json!({
        "1": unet_loader("sd15.safetensors"),
        "2": node("ManualSigmas", json!({ "sigmas": "8, 4, 2, 1, 0" })),
        "3": node("FlipSigmas", json!({ "sigmas": ["2", 0] })),
        "4": node("SplitSigmasDenoise", json!({ "sigmas": ["2", 0], "denoise": 0.5 })),
        "5": node("SetFirstSigma", json!({ "sigmas": ["2", 0], "sigma": 136.0 })),
        "6": node("FlipSigmas", json!({ "sigmas": ["4", 1] })),
        "7": node("BetaSamplingScheduler", json!({ "model": ["1", 0], "steps": 3, "alpha": 1.0, "beta": 1.0 })),
        "8": node("SplitSigmasDenoise", json!({ "sigmas": ["2", 0], "denoise": 0.2 })),
    });
    let collected = ["3", "4", "5", "6", "7", "8"].map(|node| (node, node));
    let got = bench.run(&workflow(nodes), &collected);
    let of = |node: &str| got.object::<Sigmas>(node).0.clone();
    assert_eq!(of("3"), [0.0001, 1.0, 2.0, 4.0, 8.0]);
    assert_eq!(of("4"), [8.0, 4.0, 2.0]);
    assert_eq!(of("5"), [136.0, 4.0, 2.0, 1.0, 0.0]);
    assert_eq!(of("6"), [0.0001, 1.0, 2.0]);
    assert_eq!(of("8"), [8.0, 4.0, 2.0, 1.0], "one of four steps is the nearest to a fifth");
    // Without a preference for either end the steps are evenly spaced.
    let table = table();
    let wanted = [999, 666, 333].map(|step: usize| table[step]);
    let levels = of("7");
    assert_eq!(levels.len(), 4);
    for (level, wanted) in levels.iter().zip(wanted) {
        assert!((f64::from(*level) / wanted - 1.0).abs() < 1e-4, "{levels:?}, {wanted}");
    }
    assert_eq!(levels[3], 0.0);
}

#[test]
fn no_noise_is_the_latent_as_it_is() {
    let bench = Bench::with(&[], host(), DeviceId::CPU);
    write(unet_of(narrow_checkpoint("sd15_tiny")), &bench, "diffusion_models/sd15.safetensors");
    let custom = |noise: &str| {
        node(
            "SamplerCustomAdvanced",
            json!({ "noise": [noise, 0], "guider": ["6", 0], "sampler": ["7", 0], "sigmas": ["8", 0],
                "latent_image": ["4", 0] }),
        )
    };
    let nodes = with(
        told(),
        json!({
            "1": unet_loader("sd15.safetensors"),
            "5": node("DisableNoise", json!({})),
            "6": node("BasicGuider", json!({ "model": ["1", 0], "conditioning": ["2", 0] })),
            "7": node("KSamplerSelect", json!({ "sampler_name": "euler" })),
            "8": node("BasicScheduler", json!({ "model": ["1", 0], "scheduler": "normal", "steps": 2, "denoise": 1.0 })),
            "9": custom("5"),
            "10": node("KSamplerAdvanced", json!({ "model": ["1", 0], "add_noise": "disable", "noise_seed": 7,
                "steps": 2, "cfg": 1.0, "sampler_name": "euler", "scheduler": "normal", "positive": ["2", 0],
                "negative": ["3", 0], "latent_image": ["4", 0], "start_at_step": 0, "end_at_step": 10000,
                "return_with_leftover_noise": "disable" })),
            "11": node("RandomNoise", json!({ "noise_seed": 7 })),
            "12": custom("11"),
        }),
    );
    let silent = latent(&bench, &nodes, "9");
    assert!(silent == latent(&bench, &nodes, "10"));
    assert!(distance(&silent, &latent(&bench, &nodes, "12")) > 0.1);
    assert!(silent.iter().any(|value| *value != 0.0), "the model says something even of nothing");
}

/// Writes a model as converters of diffusion models write it: matrices that do not fill blocks are reshaped.
fn write_gguf(model: &Manifest, architecture: &str, path: &Path) {
    const BLOCK: usize = 256;
    let mut writer = GgufWriter::new().value("general.architecture", architecture);
    let mut tensors = Vec::new();
    for tensor in &model.tensors {
        let (dims, count) = (tensor.shape.dims(), tensor.shape.count());
        let is_reshaped =
            dims.len() > 1 && !dims[dims.len() - 1].is_multiple_of(BLOCK) && count.is_multiple_of(BLOCK);
        if is_reshaped {
            let dims = dims.iter().map(|size| GgufValue::I32(*size as i32)).collect();
            let key = format!("comfy.gguf.orig_shape.{}", tensor.name);
            writer = writer.value(key, GgufValue::Array(dims));
        }
        let shape = if is_reshaped { Shape::from([count / BLOCK, BLOCK]) } else { tensor.shape };
        tensors.push((&tensor.name, shape, tensor.bytes()));
    }
    for (name, shape, bytes) in tensors {
        writer = writer.tensor(name, DType::F16, shape, bytes);
    }
    writer.write(path).unwrap();
}

#[test]
fn gguf_files_of_stable_diffusion_are_the_same_models() {
    let bench = Bench::with(&[], host(), DeviceId::CPU);
    let gguf = |file: &str| node("UnetLoaderGGUF", json!({ "unet_name": file }));
    for (manifest, architecture, width, pooled) in
        [("sd15_tiny", "sd1", 768, 768), ("sdxl_tiny", "sdxl", 2048, 1280)]
    {
        let model = unet_of(narrow_checkpoint(manifest));
        write(model.clone(), &bench, &format!("diffusion_models/{architecture}.safetensors"));
        write_gguf(
            &model,
            architecture,
            &bench.models().join(format!("diffusion_models/{architecture}.gguf")),
        );
        let nodes = |loader: Value| {
            let tell = |seed: u32| {
                node(
                    "Tell",
                    json!({ "beside": false, "seed": seed, "tokens": 77, "width": width, "pooled": pooled }),
                )
            };
            let more = json!({ "1": loader, "2": tell(1), "3": tell(9), "5": sampler(json!(["1", 0]), "2", "3", 3.0) });
            with(told(), more)
        };
        let plain = latent(&bench, &nodes(unet_loader(&format!("{architecture}.safetensors"))), "5");
        assert!(plain.iter().all(|value| value.is_finite()));
        assert!(
            latent(&bench, &nodes(gguf(&format!("{architecture}.gguf"))), "5") == plain,
            "{architecture}"
        );
    }
}

#[test]
fn encoders_are_the_same_on_a_named_device_and_from_gguf() {
    let bench = Bench::with(&["qwen3_4b_tiny"], accelerated(), DeviceId::CPU);
    let model = Manifest::bundled("qwen3_4b_tiny").unwrap();
    let mut writer = GgufWriter::new().value("general.architecture", "qwen3");
    for tensor in &model.tensors {
        let encoding = if tensor.shape.rank() == 2 { DType::BF16 } else { DType::F32 };
        writer = writer
            .values(converters_name(&tensor.name), encoding, tensor.shape, &tensor.values().unwrap())
            .unwrap();
    }
    writer.write(bench.models().join("text_encoders/qwen3.gguf")).unwrap();
    let nodes = |class: &str, inputs: Value| {
        json!({
            "1": node(class, with(json!({ "type": "lumina2" }), inputs)),
            "2": node("CLIPTextEncode", json!({ "text": "a quiet harbour", "clip": ["1", 0] })),
        })
    };
    let file = json!({ "clip_name": "qwen3_4b_tiny.safetensors" });
    let plain = text(&bench, &nodes("CLIPLoader", file.clone()), "2");
    let device = json!({ "device": "sim:0" });
    assert!(text(&bench, &nodes("CLIPLoaderMultiGPU", with(file, device.clone())), "2") == plain);
    let gguf = with(json!({ "clip_name": "qwen3.gguf" }), device);
    assert!(text(&bench, &nodes("CLIPLoaderGGUFMultiGPU", gguf), "2") == plain);
    for name in ["qwen3_4b_tiny.safetensors", "qwen3.gguf"] {
        let models = bench.runtime.residency.models();
        let is_there = |(device, bytes): &(DeviceId, u64)| *device == DeviceId::sim(0) && *bytes > 0;
        let there =
            models.iter().filter(|model| model.name == name).any(|model| model.bytes.iter().any(is_there));
        assert!(there, "{name} was not on the device: {models:?}");
    }
}

/// The name that converters of language models give a tensor.
fn converters_name(name: &str) -> String {
    let words = [
        ("model.embed_tokens.", "token_embd."),
        ("model.norm.", "output_norm."),
        ("model.layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    words.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// Writes a control network as what its tensors are more than those of the model that it controls.
fn write_difference(bench: &Bench, network: &Manifest, model: &Manifest, name: &str) {
    const NETWORK: &str = "control_model.";
    let mut writer =
        SafetensorsWriter::new().values("difference", DType::F32, Shape::from([1]), &[1.0]).unwrap();
    let mut shared = 0;
    for tensor in &network.tensors {
        let mut values = tensor.values().unwrap();
        let of_model = tensor.name.strip_prefix(NETWORK).and_then(|name| model.tensor(name).ok());
        if let Some(of_model) = of_model.filter(|of_model| of_model.shape == tensor.shape) {
            values.iter_mut().zip(of_model.values().unwrap()).for_each(|(value, base)| *value -= base);
            shared += 1;
        }
        writer = writer.values(tensor.name.clone(), DType::F32, tensor.shape, &values).unwrap();
    }
    assert!(shared > 100, "{shared}");
    writer.write(bench.models().join("controlnet").join(name)).unwrap();
}

#[test]
fn a_control_network_that_is_a_difference_is_added_to_its_model() {
    let bench = Bench::with(&["sd15_micro", "sd15_micro_controlnet"], host(), DeviceId::CPU);
    let [model, network] =
        ["sd15_micro", "sd15_micro_controlnet"].map(|name| Manifest::bundled(name).unwrap());
    write_difference(&bench, &network, &model, "difference.safetensors");
    let controlled = |loader: Value| {
        with(
            told(),
            json!({
                "1": unet_loader("sd15_micro.safetensors"),
                "5": sampler(json!(["1", 0]), "8", "3", 1.0),
                "6": loader,
                "7": node("LoadImage", json!({ "image": "image.png" })),
                "8": node("ControlNetApply", json!({ "conditioning": ["2", 0], "control_net": ["6", 0],
                    "image": ["7", 0], "strength": 1.0 })),
                "9": sampler(json!(["1", 0]), "2", "3", 1.0),
            }),
        )
    };
    let plain = |file: &str| node("ControlNetLoader", json!({ "control_net_name": file }));
    let whole = controlled(plain("sd15_micro_controlnet.safetensors"));
    let wanted = latent(&bench, &whole, "5");
    assert!(distance(&latent(&bench, &whole, "9"), &wanted) > 1e-2, "the network does something");
    let difference = json!({ "model": ["1", 0], "control_net_name": "difference.safetensors" });
    for loader in [node("DiffControlNetLoader", difference), plain("difference.safetensors")] {
        let got = latent(&bench, &controlled(loader), "5");
        assert!(distance(&got, &wanted) < 1e-4, "{}", distance(&got, &wanted));
    }
}

#[test]
fn an_embedding_of_another_width_says_what_fits() {
    let bench = Bench::with(&[], host(), DeviceId::CPU);
    write_encoders(&bench);
    let folder = bench.models().join("embeddings");
    std::fs::create_dir_all(&folder).unwrap();
    let values = vec![0.1; 2 * 1024];
    let file =
        SafetensorsWriter::new().values("emb_params", DType::F32, Shape::from([2, 1024]), &values).unwrap();
    file.write(folder.join("other.safetensors")).unwrap();
    let nodes = json!({
        "1": node("CLIPLoader", json!({ "clip_name": "one.safetensors", "type": "stable_diffusion" })),
        "2": node("CLIPTextEncode", json!({ "text": "a cat, embedding:other", "clip": ["1", 0] })),
    });
    let why = bench.failure(&workflow(nodes), "2");
    for words in ["other.safetensors", "[2, 1024]", "vectors of 64 values", "embedding:other"] {
        assert!(why.contains(words), "{words}: {why}");
    }
}
