//! Vision towers and style models against values that ComfyUI 0.7.0 computed, and what users can get wrong with them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::Checkpoint;
use device::{Backend, Device, Registry};
use device_cpu::CpuBackend;
use graph::{Call, Catalogue, Failure, Inputs, Outputs, Slot, Value};
use meta::{DType, DeviceId, Shape};
use nodes::value::{Array, ClipVisionOutput, Conditioning, Entry, Features, Image, LatentImage};
use runtime::{Folders, Model, Runtime, Settings};
use testkit::{Golden, Manifest, SafetensorsWriter, ScratchDir};

/// The largest difference over the largest value; the reference repeats itself to 3e-6.
const TOLERANCE: f64 = 1e-5;

struct Bench {
    folder: ScratchDir,
    catalogue: Catalogue,
}

impl Bench {
    /// With the files of these manifests, and the reference's picture.
    fn new(manifests: &[Manifest]) -> Bench {
        let folder = ScratchDir::new().unwrap();
        let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new());
        let devices = Registry::new([Device::new(backend, 8 << 30)]);
        for manifest in manifests {
            manifest.write_to(folder.join("models")).unwrap();
        }
        std::fs::create_dir_all(folder.join("input")).unwrap();
        std::fs::copy(data("image.png"), folder.join("input/image.png")).unwrap();
        let runtime = Runtime::new(Folders::at(folder.path()), devices, DeviceId::CPU, Settings::default());
        let catalogue = nodes::catalogue(&Arc::new(runtime));
        Bench { folder, catalogue }
    }

    fn run(&self, class: &str, inputs: Inputs) -> Result<Value, Failure> {
        let outcome = self.catalogue.get(class).unwrap().run(&Call::alone(class, inputs))?;
        let Outputs::Slots(slots) = outcome.outputs else { panic!("it gives values") };
        match slots.into_iter().next().unwrap() {
            Slot::One(value) => Ok(value),
            other => panic!("{other:?} is not one value"),
        }
    }

    /// The part of the picture that the reference was shown.
    fn picture(&self) -> Value {
        let image = self.run("LoadImage", Inputs::default().with("image", "image.png")).unwrap();
        let width = image.downcast::<Image>().unwrap().width;
        let part = Inputs::default().with("image", image).with("width", width).with("height", 48);
        self.run("ImageCrop", part.with("x", 0).with("y", 0)).unwrap()
    }

    fn tower(&self, file: &str) -> Result<Value, Failure> {
        self.run("CLIPVisionLoader", Inputs::default().with("clip_name", file))
    }

    fn see(&self, tower: &Value, image: &Value, crop: &str) -> Arc<ClipVisionOutput> {
        let inputs = Inputs::default().with("clip_vision", tower.clone()).with("image", image.clone());
        self.run("CLIPVisionEncode", inputs.with("crop", crop)).unwrap().downcast().unwrap()
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The towers of a file of reference values, by their names in it.
fn towers(golden: &Golden) -> BTreeMap<String, String> {
    serde_json::from_str(golden.metadata("towers").unwrap()).unwrap()
}

/// Compares all that towers see with the reference.
fn check(golden: &Golden, manifest: impl Fn(&str) -> Manifest) {
    for (tower, file) in towers(golden) {
        let bench = Bench::new(&[manifest(file.trim_end_matches(".safetensors"))]);
        let (loaded, picture) = (bench.tower(&file).unwrap(), bench.picture());
        for crop in ["center", "none"] {
            let seen = bench.see(&loaded, &picture, crop);
            let close = |output: &str, features: &Features| {
                let shape = Shape::new(&features.shape).unwrap();
                let name = format!("{tower}.{crop}.{output}");
                golden.assert_close(&name, &shape, &features.values, TOLERANCE);
            };
            close("last_hidden_state", &seen.last);
            close("penultimate_hidden_states", &seen.penultimate);
            close("image_embeds", &seen.embeds);
            assert!(seen.projected.is_none());
        }
    }
}

#[test]
fn towers_see_what_the_reference_saw() {
    check(&Golden::open(data("clip_vision.safetensors")).unwrap(), |name| Manifest::bundled(name).unwrap());
}

#[test]
fn every_tower_of_the_reference() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    if !folder.exists() {
        eprintln!("\n==> NO REFERENCE VALUES: there is no folder shared/golden beside the checkout\n");
        return;
    }
    let open = |name: &str| Manifest::open(folder.join(format!("manifests/{name}.json"))).unwrap();
    check(&Golden::open(folder.join("clip_vision.safetensors")).unwrap(), open);
}

#[test]
fn pictures_of_a_batch_are_seen_one_by_one() {
    let bench = Bench::new(&[Manifest::bundled("clip_vision_l_tiny").unwrap()]);
    let (tower, picture) = (bench.tower("clip_vision_l_tiny.safetensors").unwrap(), bench.picture());
    let alone = bench.see(&tower, &picture, "center");
    let twice = Inputs::default().with("image", picture).with("amount", 2);
    let both = bench.see(&tower, &bench.run("RepeatImageBatch", twice).unwrap(), "center");
    assert_eq!(both.embeds.shape, [2, 768]);
    assert_eq!(both.last.shape, [2, 257, 1024]);
    assert!(
        both.embeds.values[..768] == alone.embeds.values[..]
            && both.embeds.values[768..] == alone.embeds.values[..]
    );
}

/// The file of a manifest under OpenCLIP's names, in a folder of models.
fn write_as_open_clip(from: &str, to: &Path) {
    let bytes = Manifest::bundled(from).unwrap().bytes().unwrap();
    let file = Checkpoint::from_memory((from, bytes.into()), Vec::new()).unwrap();
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for entry in file.entries() {
        let (mut dims, mut bytes) = (entry.shape().dims().to_vec(), file.bytes(entry).to_vec());
        let name = entry.name();
        if name == "visual_projection.weight" {
            let (rows, columns) = (dims[0], dims[1]);
            let value = |at: usize| [bytes[2 * at], bytes[2 * at + 1]];
            bytes = (0..rows * columns).flat_map(|at| value(at % rows * columns + at / rows)).collect();
            dims = vec![columns, rows];
        }
        let renames = [
            ("vision_model.embeddings.class_embedding", "class_embedding"),
            ("vision_model.embeddings.patch_embedding", "conv1"),
            ("vision_model.embeddings.position_embedding.weight", "positional_embedding"),
            ("vision_model.pre_layrnorm", "ln_pre"),
            ("vision_model.post_layernorm", "ln_post"),
            ("visual_projection.weight", "proj"),
            ("vision_model.encoder.layers", "transformer.resblocks"),
            ("layer_norm1", "ln_1"),
            ("layer_norm2", "ln_2"),
            ("mlp.fc1", "mlp.c_fc"),
            ("mlp.fc2", "mlp.c_proj"),
            ("self_attn.out_proj", "attn.out_proj"),
        ];
        let name = renames.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs));
        tensors.insert(name, (dims, bytes));
    }
    for layer in 0.. {
        let part =
            |which: &str, end: &str| format!("transformer.resblocks.{layer}.self_attn.{which}_proj.{end}");
        if !tensors.contains_key(&part("q", "weight")) {
            break;
        }
        for end in ["weight", "bias"] {
            let parts = ["q", "k", "v"].map(|which| tensors.remove(&part(which, end)).unwrap());
            let mut dims = parts[0].0.clone();
            dims[0] *= 3;
            let bytes = parts.into_iter().flat_map(|(_, bytes)| bytes).collect();
            tensors.insert(format!("transformer.resblocks.{layer}.attn.in_proj_{end}"), (dims, bytes));
        }
    }
    let mut writer = SafetensorsWriter::new();
    for (name, (dims, bytes)) in tensors {
        writer = writer.tensor(format!("visual.{name}"), DType::F16, Shape::new(&dims).unwrap(), bytes);
    }
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    writer.write(to).unwrap();
}

#[test]
fn a_tower_under_the_names_of_open_clip_sees_the_same() {
    let bench = Bench::new(&[Manifest::bundled("clip_vision_l_tiny").unwrap()]);
    write_as_open_clip("clip_vision_l_tiny", &bench.folder.join("models/clip_vision/open.safetensors"));
    let picture = bench.picture();
    let see = |file: &str| bench.see(&bench.tower(file).unwrap(), &picture, "none");
    let (first, second) = (see("clip_vision_l_tiny.safetensors"), see("open.safetensors"));
    assert!(first.last == second.last && first.penultimate == second.penultimate);
    let golden = Golden::open(data("clip_vision.safetensors")).unwrap();
    let shape = Shape::new(&second.embeds.shape).unwrap();
    golden.assert_close("l.none.image_embeds", &shape, &second.embeds.values, TOLERANCE);
}

#[test]
fn the_tower_of_a_language_model_gives_its_tokens() {
    let bench = Bench::new(&[Manifest::bundled("llava_llama3_vision_tiny").unwrap()]);
    let tower = bench.tower("llava_llama3_vision_tiny.safetensors").unwrap();
    let seen = bench.see(&tower, &bench.picture(), "none");
    let projected = seen.projected.as_ref().unwrap();
    assert_eq!(
        (projected.shape.as_slice(), seen.last.shape.as_slice()),
        (&[1, 576, 256][..], &[1, 577, 1024][..])
    );
    assert!(projected.values.iter().all(|value| value.is_finite()));
}

#[test]
fn files_of_another_kind_are_named() {
    let bench = Bench::new(&[Manifest::bundled("clip_l_tiny").unwrap()]);
    let models = bench.folder.join("models");
    std::fs::create_dir_all(models.join("clip_vision")).unwrap();
    std::fs::create_dir_all(models.join("style_models")).unwrap();
    let text = models.join("text_encoders/clip_l_tiny.safetensors");
    std::fs::copy(&text, models.join("clip_vision/text.safetensors")).unwrap();
    std::fs::copy(&text, models.join("style_models/text.safetensors")).unwrap();
    let told = bench.tower("text.safetensors").unwrap_err().to_string();
    assert!(told.contains("is not a CLIP vision model: it seems to be a text encoder (CLIP-L)"), "{told}");
    let style = Inputs::default().with("style_model_name", "text.safetensors");
    let told = bench.run("StyleModelLoader", style).unwrap_err().to_string();
    assert!(told.contains("is not a style model: it seems to be a text encoder (CLIP-L)"), "{told}");
}

/// A style model for what CLIP-L's tower sees, with tokens of 8 values.
fn write_style_model(to: &Path) {
    let mut writer = SafetensorsWriter::new();
    for (name, dims) in [("up", [16, 1024]), ("down", [8, 16])] {
        let weights = testkit::random_normal(dims[0] as u64, dims[0] * dims[1]);
        let weights: Vec<f32> = weights.iter().map(|value| value * 0.1).collect();
        let (weight, bias) = (format!("redux_{name}.weight"), format!("redux_{name}.bias"));
        writer = writer.values(weight, DType::F32, Shape::from(dims), &weights).unwrap();
        writer = writer.values(bias, DType::F32, Shape::from([dims[0]]), &vec![0.5; dims[0]]).unwrap();
    }
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    writer.write(to).unwrap();
}

#[test]
fn style_models_add_tokens_by_strength_or_by_bias() {
    let bench = Bench::new(&[Manifest::bundled("clip_vision_l_tiny").unwrap()]);
    write_style_model(&bench.folder.join("models/style_models/style.safetensors"));
    let tower = bench.tower("clip_vision_l_tiny.safetensors").unwrap();
    let seen = bench.see(&tower, &bench.picture(), "center");
    let style = Inputs::default().with("style_model_name", "style.safetensors");
    let style = bench.run("StyleModelLoader", style).unwrap();
    let text = |width: usize| {
        let text = Array { shape: vec![1, 3, width], values: vec![0.25; 3 * width] };
        Value::object(Conditioning { entries: vec![Entry::text(text, None)] })
    };
    let apply = |text: Value, strength: f64, kind: &str| {
        let inputs = Inputs::default().with("conditioning", text).with("style_model", style.clone());
        let inputs = inputs.with("clip_vision_output", Value::object(ClipVisionOutput::clone(&seen)));
        bench.run("StyleModelApply", inputs.with("strength", strength).with("strength_type", kind))
    };
    let entry = |value: &Value| value.downcast::<Conditioning>().unwrap().entries[0].cond.clone();
    let plain = entry(&apply(text(8), 1.0, "multiply").unwrap());
    assert_eq!(plain.text.shape, [1, 3 + 257, 8]);
    assert!(plain.attention_bias.is_empty() && plain.text.values[..24].iter().all(|value| *value == 0.25));
    let half = entry(&apply(text(8), 0.5, "multiply").unwrap());
    assert!(
        half.text.values[24..].iter().zip(&plain.text.values[24..]).all(|(half, one)| *half == one * 0.5)
    );
    // Twice: the second stands behind the first, with a bias of its own.
    let biased = apply(text(8), 0.5, "attn_bias").unwrap();
    let twice = entry(&apply(biased, 2.0, "attn_bias").unwrap());
    let spans: Vec<(usize, usize)> =
        twice.attention_bias.iter().map(|span| (span.start, span.tokens)).collect();
    assert_eq!(spans, [(3, 257), (260, 257)]);
    assert_eq!(entry(&apply(text(8), 1.0, "attn_bias").unwrap()), plain);
    let told = apply(text(16), 1.0, "multiply").unwrap_err().to_string();
    assert!(told.contains("tokens of 8 values") && told.contains("16"), "{told}");
}

/// Tokens and values per token of the small SigLIP towers, and what their style projector makes of them.
const GRID: usize = 3;
const WIDTH: usize = 32;
const FEW: usize = 2;

/// A SigLIP tower of so many layers; those of a smaller one are the first of a larger.
fn write_siglip(to: &Path, layers: usize) {
    let mut writer = SafetensorsWriter::new();
    let mut add = |name: String, dims: &[usize], seed: u64, around: f32| {
        let count = dims.iter().product();
        let values = testkit::random_normal(seed, count);
        let values: Vec<f32> = values.iter().map(|value| around + value * 0.15).collect();
        let next = std::mem::take(&mut writer);
        writer = next.values(name, DType::F32, Shape::new(dims).unwrap(), &values).unwrap();
    };
    let outer = "vision_model.embeddings";
    add(format!("{outer}.patch_embedding.weight"), &[WIDTH, 3, 4, 4], 1, 0.0);
    add(format!("{outer}.patch_embedding.bias"), &[WIDTH], 2, 0.0);
    add(format!("{outer}.position_embedding.weight"), &[GRID * GRID, WIDTH], 3, 0.0);
    for layer in 0..layers {
        let inner = |name: &str| format!("vision_model.encoder.layers.{layer}.{name}");
        let parts: [(&str, &[usize]); 6] = [
            ("self_attn.q_proj", &[WIDTH, WIDTH]),
            ("self_attn.k_proj", &[WIDTH, WIDTH]),
            ("self_attn.v_proj", &[WIDTH, WIDTH]),
            ("self_attn.out_proj", &[WIDTH, WIDTH]),
            ("mlp.fc1", &[48, WIDTH]),
            ("mlp.fc2", &[WIDTH, 48]),
        ];
        for (part, (name, dims)) in parts.into_iter().enumerate() {
            let seed = 100 * (1 + layer as u64) + part as u64;
            add(inner(&format!("{name}.weight")), dims, seed, 0.0);
            add(inner(&format!("{name}.bias")), &dims[..1], seed + 10, 0.0);
        }
        for (part, norm) in ["layer_norm1", "layer_norm2"].into_iter().enumerate() {
            let seed = 100 * (1 + layer as u64) + 50 + part as u64;
            add(inner(&format!("{norm}.weight")), &[WIDTH], seed, 1.0);
            add(inner(&format!("{norm}.bias")), &[WIDTH], seed + 10, 0.0);
        }
    }
    add("vision_model.post_layernorm.weight".into(), &[WIDTH], 4, 1.0);
    add("vision_model.post_layernorm.bias".into(), &[WIDTH], 5, 0.0);
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    writer.write(to).unwrap();
}

/// The tensors of a style projector for such towers, and of tokens of so many values.
fn projector(width: usize) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let mut tensors = BTreeMap::new();
    for (index, level) in ["high", "mid", "low"].into_iter().enumerate() {
        let parts: [(&str, Vec<usize>); 6] = [
            ("embedding_linear.0.weight", vec![FEW, GRID * GRID]),
            ("embedding_linear.0.bias", vec![FEW]),
            ("layer_norm.weight", vec![WIDTH]),
            ("layer_norm.bias", vec![WIDTH]),
            ("projection.weight", vec![width, WIDTH]),
            ("projection.bias", vec![width]),
        ];
        for (part, (name, dims)) in parts.into_iter().enumerate() {
            let values =
                testkit::random_normal(9000 + 10 * index as u64 + part as u64, dims.iter().product());
            tensors.insert(format!("{level}_{name}"), (dims, values));
        }
    }
    tensors
}

fn write_projector(to: &Path, width: usize) {
    let mut writer = SafetensorsWriter::new();
    for (name, (dims, values)) in projector(width) {
        let shape = Shape::new(&dims).unwrap();
        writer = writer.values(format!("feature_embedder.{name}"), DType::F32, shape, &values).unwrap();
    }
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    writer.write(to).unwrap();
}

/// What the projector makes of one picture, by its formulas in 64 bits.
fn projected(seen: [&Features; 3], width: usize) -> Vec<f64> {
    let tensors = projector(width);
    let mut tokens = Vec::new();
    for (level, seen) in ["high", "mid", "low"].into_iter().zip(seen) {
        let part = |name: &str, at: usize| f64::from(tensors[&format!("{level}_{name}")].1[at]);
        for few in 0..FEW {
            let mixed = |feature: usize| {
                let sum = |token: usize| {
                    part("embedding_linear.0.weight", few * GRID * GRID + token)
                        * f64::from(seen.values[token * WIDTH + feature])
                };
                let sum = (0..GRID * GRID).map(sum).sum::<f64>() + part("embedding_linear.0.bias", few);
                sum / (1.0 + (-sum).exp())
            };
            let mixed: Vec<f64> = (0..WIDTH).map(mixed).collect();
            let mean = mixed.iter().sum::<f64>() / WIDTH as f64;
            let variance = mixed.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / WIDTH as f64;
            let normed = |(at, value): (usize, &f64)| {
                (value - mean) / (variance + 1e-5).sqrt() * part("layer_norm.weight", at)
                    + part("layer_norm.bias", at)
            };
            let normed: Vec<f64> = mixed.iter().enumerate().map(normed).collect();
            let row = |row: usize| {
                let sum = |at: usize| part("projection.weight", row * WIDTH + at) * normed[at];
                (0..WIDTH).map(sum).sum::<f64>() + part("projection.bias", row)
            };
            tokens.extend((0..width).map(row));
        }
    }
    tokens
}

/// A node that samples is given the model's tokens with each of its conditionings.
fn sampled(bench: &Bench, model: &Value, text_width: usize) -> Vec<f32> {
    let text = |seed: u64| {
        let text =
            Array { shape: vec![1, 5, text_width], values: testkit::random_normal(seed, 5 * text_width) };
        Value::object(Conditioning { entries: vec![Entry::text(text, None)] })
    };
    let size = Inputs::default().with("width", 64).with("height", 64).with("batch_size", 1);
    let latent = bench.run("EmptySD3LatentImage", size).unwrap();
    let inputs =
        Inputs::default().with("model", model.clone()).with("positive", text(1)).with("negative", text(2));
    let inputs = inputs.with("latent_image", latent).with("seed", 3).with("steps", 2).with("cfg", 2.0);
    let inputs = inputs.with("sampler_name", "euler").with("scheduler", "simple").with("denoise", 1.0);
    let sampled = bench.run("KSampler", inputs).unwrap();
    sampled.downcast::<LatentImage>().unwrap().samples.values().to_vec()
}

#[test]
fn the_style_of_pictures_stands_before_every_text() {
    let bench = Bench::new(&[Manifest::bundled("flux_dev_micro").unwrap()]);
    let models = bench.folder.join("models");
    for layers in [22, 13, 4] {
        write_siglip(&models.join(format!("clip_vision/siglip_{layers}.safetensors")), layers);
    }
    let picture = bench.picture();
    let see = |layers: usize| {
        bench.see(&bench.tower(&format!("siglip_{layers}.safetensors")).unwrap(), &picture, "center")
    };
    // The last layer but one of a shorter tower is the one that is looked at in the middle of the longer.
    let (seen, middle, early) = (see(22), see(13), see(4));
    let earlier = seen.earlier.as_ref().unwrap();
    assert!(earlier[0] == middle.penultimate && earlier[1] == early.penultimate);
    assert!(middle.earlier.is_none() && early.earlier.is_none());

    let model =
        Inputs::default().with("unet_name", "flux_dev_micro.safetensors").with("weight_dtype", "default");
    let model = bench.run("UNETLoader", model).unwrap();
    let sizes = |name: &str| {
        let file = Checkpoint::open(models.join("diffusion_models/flux_dev_micro.safetensors")).unwrap();
        file.entry(name).unwrap().shape().dims().to_vec()
    };
    let [hidden, text_width] = *sizes("txt_in.weight") else { panic!("two axes") };
    write_projector(&models.join("model_patches/uso.safetensors"), hidden);
    let load = |name: &str| bench.run("ModelPatchLoader", Inputs::default().with("name", name));
    let patch = load("uso.safetensors").unwrap();
    let style = |model: &Value, patch: &Value, seen: &Arc<ClipVisionOutput>| {
        let inputs = Inputs::default().with("model", model.clone()).with("model_patch", patch.clone());
        bench.run(
            "USOStyleReference",
            inputs.with("clip_vision_output", Value::object(ClipVisionOutput::clone(seen))),
        )
    };
    let styled = style(&model, &patch, &seen).unwrap();
    let tokens = styled.downcast::<Model>().unwrap().in_front.clone().unwrap();
    assert_eq!(tokens.shape, [1, 3 * FEW, hidden]);
    let expected = projected([&seen.penultimate, &earlier[0], &earlier[1]], hidden);
    for (at, (value, expected)) in tokens.values.iter().zip(&expected).enumerate() {
        assert!(
            (f64::from(*value) - expected).abs() <= 1e-4 * expected.abs().max(1.0),
            "{at}: {value}, {expected}"
        );
    }
    // A second style stands before the first.
    let twice = style(&styled, &patch, &seen).unwrap().downcast::<Model>().unwrap().in_front.clone().unwrap();
    assert_eq!(twice.shape, [1, 6 * FEW, hidden]);
    let (first, second) = twice.values.split_at(3 * FEW * hidden);
    assert!(first == &tokens.values[..] && second == &tokens.values[..]);

    let (plain, with) = (sampled(&bench, &model, text_width), sampled(&bench, &styled, text_width));
    assert!(plain.iter().chain(&with).all(|value| value.is_finite()) && plain != with);
    assert_eq!(with, sampled(&bench, &styled, text_width));

    let told = style(&model, &patch, &middle).unwrap_err().to_string();
    assert!(told.contains("sigclip_vision_patch14_384"), "{told}");
}
