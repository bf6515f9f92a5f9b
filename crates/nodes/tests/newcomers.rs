//! Families that came after the reference implementation, as their workflows run them, against what diffusers gave.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::path::{Path, PathBuf};

use golden_support::{Bench, host};
use graph::Literal;
use meta::DeviceId;
use nodes::value::{Image, LatentImage};
use serde_json::{Value, json};
use testkit::{Golden, Report};

/// Twice what the README of the values expects.
const TOLERANCE: f64 = 2e-5;

/// The whole of a family's values if it lies beside the checkout, else the part that comes with the models' tests.
fn values(family: &str, kind: &str) -> Golden {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let whole = root.join("../../../shared/golden/newer").join(family);
    let folder: PathBuf =
        if whole.is_dir() { whole } else { root.join("../models/tests/data/newer").join(family) };
    Golden::open(folder.join(format!("{kind}.safetensors"))).unwrap()
}

/// Compares, if there is something of the name.
fn close(golden: &Golden, name: &str, got: &[f32]) -> bool {
    let has = golden.names().any(|known| known == name);
    if has {
        Report::new(name, got, &golden.tensor(name).unwrap().1).assert(TOLERANCE);
    }
    has
}

/// A node of a workflow.
#[expect(clippy::needless_pass_by_value, reason = "inputs are written where they are used")]
fn node(class: &str, inputs: Value) -> Value {
    json!({"class_type": class, "inputs": inputs})
}

/// The loaders of a family's three files, under the numbers 1 to 3.
fn loaders(model: &str, (encoder, kind): (&str, &str), vae: &str) -> serde_json::Map<String, Value> {
    let file = |name: &str| format!("{name}.safetensors");
    let nodes = [
        ("1", node("UNETLoader", json!({"unet_name": file(model), "weight_dtype": "default"}))),
        ("2", node("CLIPLoader", json!({"clip_name": file(encoder), "type": kind}))),
        ("3", node("VAELoader", json!({"vae_name": file(vae)}))),
    ];
    nodes.into_iter().map(|(id, node)| (id.to_owned(), node)).collect()
}

fn literal(nodes: serde_json::Map<String, Value>) -> Literal {
    serde_json::from_value(Value::Object(nodes)).unwrap()
}

#[test]
fn krea2_draws_what_the_reference_draws() {
    let bench = Bench::with(&["krea2_tiny", "qwen3vl_4b_tiny", "wan_2.1_vae_tiny"], host(), DeviceId::CPU);
    let mut nodes = loaders("krea2_tiny", ("qwen3vl_4b_tiny", "krea2"), "wan_2.1_vae_tiny");
    let text = |prompt: &str| node("CLIPTextEncode", json!({"clip": ["2", 0], "text": prompt}));
    nodes.insert("4".into(), text("a fox in the snow"));
    nodes.insert("5".into(), text(""));
    // A latent of four channels becomes one of the model's.
    let size = json!({"width": 64, "height": 48, "batch_size": 1});
    nodes.insert("6".into(), node("EmptyLatentImage", size));
    let sampling = json!({"model": ["1", 0], "positive": ["4", 0], "negative": ["5", 0], "latent_image": ["6", 0],
        "seed": 20_260_623, "steps": 3, "cfg": 3.5, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0});
    nodes.insert("7".into(), node("KSampler", sampling));
    nodes.insert("8".into(), node("VAEDecode", json!({"samples": ["7", 0], "vae": ["3", 0]})));
    let collected = bench.run(&literal(nodes), &[("latent", "7"), ("image", "8")]);
    let golden = values("krea2", "run");
    let latent = collected.object::<LatentImage>("latent");
    let scaled = models::diffusion::krea2::LATENT.to_model(&latent.samples).unwrap();
    assert!(close(&golden, "x_final", scaled.values()));
    let image = collected.object::<Image>("image");
    assert_eq!([image.height, image.width], [48, 64]);
    close(&golden, "image", &image.values);
}

#[test]
fn krea2_looks_at_a_picture_for_its_style() {
    let bench = Bench::with(&["krea2_tiny", "qwen3vl_4b_tiny", "wan_2.1_vae_tiny"], host(), DeviceId::CPU);
    let latent = |method: &str, shows: bool| {
        let mut nodes = loaders("krea2_tiny", ("qwen3vl_4b_tiny", "krea2"), "wan_2.1_vae_tiny");
        nodes.insert("4".into(), node("LoadImage", json!({"image": "image.png"})));
        let small = json!({"image": ["4", 0], "upscale_method": "area", "width": 64, "height": 64, "crop": "disabled"});
        nodes.insert("5".into(), node("ImageScale", small));
        let mut about = json!({"clip": ["2", 0], "prompt": "in its style"});
        if shows {
            about["vae"] = json!(["3", 0]);
            about["image1"] = json!(["5", 0]);
        }
        nodes.insert("6".into(), node("TextEncodeQwenImageEditPlus", about));
        let method = json!({"conditioning": ["6", 0], "reference_latents_method": method});
        nodes.insert("7".into(), node("FluxKontextMultiReferenceLatentMethod", method));
        let nothing = node("ConditioningZeroOut", json!({"conditioning": ["7", 0]}));
        nodes.insert("8".into(), nothing);
        nodes.insert(
            "9".into(),
            node("EmptyLatentImage", json!({"width": 64, "height": 48, "batch_size": 1})),
        );
        let sampling = json!({"model": ["1", 0], "positive": ["7", 0], "negative": ["8", 0], "latent_image": ["9", 0],
            "seed": 5, "steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0});
        nodes.insert("10".into(), node("KSampler", sampling));
        let collected = bench.run(&literal(nodes), &[("latent", "10")]);
        collected.object::<LatentImage>("latent").samples.values().to_vec()
    };
    let timeless = latent("index_timestep_zero", true);
    assert!(timeless.iter().all(|value| value.is_finite()));
    assert_ne!(timeless, latent("index", true));
    assert_ne!(timeless, latent("index_timestep_zero", false));
}

#[test]
fn flux3_draws_what_the_reference_draws() {
    let files = ["flux3_klein_base_tiny", "flux3_klein_tiny", "qwen3vl_4b_tiny", "flux2_vae"];
    let bench = Bench::with(&files, host(), DeviceId::CPU);
    let golden = values("flux3", "run");
    let run = |model: &str, prompts: [&str; 2], latents: Value, last: Value| {
        let mut nodes = loaders(model, ("qwen3vl_4b_tiny", "flux3"), "flux2_vae");
        let text = |prompt: &str| node("CLIPTextEncode", json!({"clip": ["2", 0], "text": prompt}));
        nodes.insert("4".into(), text(prompts[0]));
        nodes.insert("5".into(), text(prompts[1]));
        let size = json!({"width": 96, "height": 64, "batch_size": 1});
        nodes.insert("6".into(), node("EmptyFlux2LatentImage", size));
        for (id, node) in latents.as_object().unwrap().iter().chain(last.as_object().unwrap()) {
            nodes.insert(id.clone(), node.clone());
        }
        nodes.insert("20".into(), node("VAEDecode", json!({"samples": ["10", 0], "vae": ["3", 0]})));
        let collected = bench.run(&literal(nodes), &[("latent", "10"), ("image", "20")]);
        (collected.object::<LatentImage>("latent"), collected.object::<Image>("image"))
    };
    // Two steps divide the thousand levels of the schedule, so the simple scheduler gives the reference's.
    let sampling = json!({"model": ["1", 0], "positive": ["4", 0], "negative": ["5", 0], "latent_image": ["6", 0],
        "seed": 31, "steps": 2, "cfg": 3.5, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0});
    let prompts = ["a lighthouse in a storm, oil painting", ""];
    let (latent, image) =
        run(MODELS_OF_FLUX3[0], prompts, json!({}), json!({"10": node("KSampler", sampling)}));
    assert_eq!([image.height, image.width], [64, 96]);
    close(&golden, "base.x_final", latent.samples.values());
    close(&golden, "base.image", &image.values);
    // Three do not; and each step of the distilled model is told where it lands. The picture to look at goes through the
    // node that people link.
    let sigmas: Vec<String> =
        golden.tensor("distilled_edit.sigmas").unwrap().1.iter().map(f32::to_string).collect();
    let looked_at = reference_latent(&bench, &golden);
    let latents = json!({
        "7": node("LoadLatent", json!({"latent": looked_at})),
        "8": node("ReferenceLatent", json!({"conditioning": ["4", 0], "latent": ["7", 0]})),
    });
    let last = json!({
        "9": node("ManualSigmas", json!({"sigmas": sigmas.join(", ")})),
        "11": node("KSamplerSelect", json!({"sampler_name": "euler"})),
        "12": node("BasicGuider", json!({"model": ["1", 0], "conditioning": ["8", 0]})),
        "13": node("RandomNoise", json!({"noise_seed": 32})),
        "10": node("SamplerCustomAdvanced", json!({"noise": ["13", 0], "guider": ["12", 0], "sampler": ["11", 0],
            "sigmas": ["9", 0], "latent_image": ["6", 0]})),
    });
    let (latent, image) = run(MODELS_OF_FLUX3[1], ["remove the boat", ""], latents, last);
    assert!(close(&golden, "distilled_edit.x_final", latent.samples.values()));
    close(&golden, "distilled_edit.image", &image.values);
}

const MODELS_OF_FLUX3: [&str; 2] = ["flux3_klein_base_tiny", "flux3_klein_tiny"];

/// The latent of the picture to look at as a file among the inputs; its name.
fn reference_latent(bench: &Bench, golden: &Golden) -> &'static str {
    let (shape, values) = golden.tensor("distilled_edit.reference_latent").unwrap();
    let name = "looked_at.latent";
    let plain = meta::Encoding::Plain(meta::DType::F32);
    testkit::SafetensorsWriter::new()
        .values("latent_tensor", plain, shape, &values)
        .unwrap()
        .values("latent_format_version_0", plain, meta::Shape::from([0]), &[])
        .unwrap()
        .write(bench.runtime.folders.input.join(name))
        .unwrap();
    name
}

/// The files of Qwen-Image 2.1.
const QWEN_IMAGE_21: [&str; 3] = ["qwen_image_2.1_tiny", "qwen3vl_8b_tiny", "qwen_image_2.1_vae_tiny"];

/// A run of Qwen-Image 2.1 after its prompts were encoded with these inputs, and the nodes that they need.
fn qwen_image_21(
    bench: &Bench,
    about: Value,
    more: &[(&str, Value)],
    sampling: &Value,
) -> (std::sync::Arc<LatentImage>, std::sync::Arc<Image>) {
    let [model, encoder, vae] = QWEN_IMAGE_21;
    let mut nodes = loaders(model, (encoder, "qwen_image"), vae);
    nodes.insert("4".into(), node("TextEncodeQwenImage21", about));
    nodes.insert(
        "5".into(),
        node("QwenImage21Cache", json!({"model": ["1", 0], "device": "auto", "dtype": "default"})),
    );
    nodes.extend(more.iter().map(|(id, node)| ((*id).to_owned(), node.clone())));
    let mut inputs = json!({"model": ["5", 0], "positive": ["4", 0], "negative": ["4", 1], "sampler_name": "euler",
        "scheduler": "simple", "denoise": 1.0});
    inputs.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
    nodes.insert("10".into(), node("KSampler", inputs));
    nodes.insert("11".into(), node("VAEDecode", json!({"samples": ["10", 0], "vae": ["3", 0]})));
    let collected = bench.run(&literal(nodes), &[("latent", "10"), ("image", "11")]);
    (collected.object("latent"), collected.object("image"))
}

#[test]
fn qwen_image_21_draws_what_the_reference_draws() {
    let bench = Bench::with(&QWEN_IMAGE_21, host(), DeviceId::CPU);
    let golden = values("qwen_image21", "run");
    let about = json!({"clip": ["2", 0], "prompt": "a red bicycle leaning against a wall", "negative_prompt": "",
        "resolution": 1024});
    // An empty latent of four channels and eight pixels becomes one of the model's.
    let empty = node("EmptyLatentImage", json!({"width": 96, "height": 64, "batch_size": 1}));
    let sampling = json!({"latent_image": ["6", 0], "seed": 2109, "steps": 3, "cfg": 4.0});
    let (latent, image) = qwen_image_21(&bench, about, &[("6", empty)], &sampling);
    let scaled = models::diffusion::qwen_image21::LATENT.to_model(&latent.samples).unwrap();
    assert!(close(&golden, "t2i.x_final", scaled.values()));
    assert_eq!([image.height, image.width, image.channels], [64, 96, 4]);
    close(&golden, "t2i.image", &image.values);
}

#[test]
fn qwen_image_21_edits_a_picture() {
    let bench = Bench::with(&QWEN_IMAGE_21, host(), DeviceId::CPU);
    let edited = |prompt: &str, has_vae: bool, pictures: usize| {
        let mut about = json!({"clip": ["2", 0], "prompt": prompt, "negative_prompt": "", "resolution": 64});
        if has_vae {
            about["vae"] = json!(["3", 0]);
        }
        for number in 1..=pictures {
            about[format!("images.image_{number}")] = json!(["6", 0]);
        }
        let image = node("LoadImage", json!({"image": "image.png"}));
        let sampling = json!({"latent_image": ["4", 2], "seed": 7, "steps": 1, "cfg": 1.0});
        let (latent, image) = qwen_image_21(&bench, about, &[("6", image)], &sampling);
        assert_eq!([image.height % 32, image.width % 32, image.channels], [0, 0, 4]);
        latent.samples.values().to_vec()
    };
    let plain = edited("replace the sky", true, 1);
    assert!(plain.iter().all(|value| value.is_finite()));
    assert_ne!(plain, edited("replace the sea", true, 1));
    assert_ne!(plain, edited("replace the sky", false, 1));
    assert_ne!(plain, edited("replace the sky", true, 2));
}
