//! Nodes on small models with procedural weights: Florence-2, whose words are nonsense but come the whole way, and what
//! else a model is told: the empty prompt, noise, no guidance, and entries that count where no other does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use checkpoint::Checkpoint;
use device::{Backend, Device, Registry};
use device_cpu::CpuBackend;
use graph::{Call, Catalogue, Failure, Inputs, Literal, Outcome, Outputs, Slot, Value};
use meta::{DeviceId, Encoding, Shape};
use nodes::value::{Conditioning, Guidance, Image, Mask};
use residency::{Cancel, LoadOptions, Residency};
use runtime::Settings;
use runtime::host::{Host, Samples};
use runtime::{Folders, Runtime};
use serde_json::json;
use testkit::{Manifest, Procedural, SafetensorsWriter, ScratchDir};

const NAME: &str = "Florence-2-base";

struct Bench {
    folder: ScratchDir,
    runtime: Arc<Runtime>,
    catalogue: Catalogue,
}

impl Bench {
    fn new() -> Bench {
        let folder = ScratchDir::new().unwrap();
        let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new());
        let devices = Registry::new([Device::new(backend, 8 << 30)]);
        let runtime = Runtime::new(Folders::at(folder.path()), devices, DeviceId::CPU, Settings::default());
        let runtime = Arc::new(runtime);
        let catalogue = nodes::catalogue(&runtime);
        Bench { folder, runtime, catalogue }
    }

    fn models(&self) -> std::path::PathBuf {
        self.folder.join("models")
    }

    /// Runs a class; inputs that are not given are left out.
    fn run(&self, class: &str, inputs: Inputs) -> Result<Vec<Value>, Failure> {
        Ok(slots(self.outcome(class, inputs)?))
    }

    fn outcome(&self, class: &str, inputs: Inputs) -> Result<Outcome, Failure> {
        self.catalogue.get(class).unwrap().run(&Call::alone(class, inputs))
    }

    fn load(&self) -> Result<Value, Failure> {
        let inputs = Inputs::default().with("model", format!("microsoft/{NAME}"));
        Ok(self.run("DownloadAndLoadFlorence2Model", inputs)?.remove(0))
    }

    fn loaded(&self) -> usize {
        self.runtime.residency.models().len()
    }
}

fn slots(outcome: Outcome) -> Vec<Value> {
    let Outputs::Slots(slots) = outcome.outputs else { panic!("it gives values") };
    let value = |slot: Slot| match slot {
        Slot::One(value) => value,
        other => panic!("{other:?} is not one value"),
    };
    slots.into_iter().map(value).collect()
}

/// A folder with the small model, as the published ones are.
fn write_model(models: &Path) {
    let folder = models.join("LLM").join(NAME);
    fs::create_dir_all(&folder).unwrap();
    let manifest = Manifest::bundled("florence2_tiny").unwrap();
    fs::write(folder.join("model.safetensors"), manifest.bytes().unwrap()).unwrap();
    fs::write(folder.join("config.json"), manifest.config.to_string()).unwrap();
    for name in ["vocab.json", "merges.txt", "preprocessor_config.json"] {
        fs::copy(testkit::data_path(&format!("florence2_tiny/{name}")), folder.join(name)).unwrap();
    }
}

fn picture(batch: usize) -> Image {
    let shape = [batch, 40, 56, 3];
    let values = Procedural::new("picture", 0.5, 0.5).values(shape.iter().product());
    Image::collect(&Host::with_budget(1 << 30), shape, values).unwrap()
}

fn asked(model: &Value, image: Image, task: &str) -> Inputs {
    Inputs::default()
        .with("image", Value::object(image))
        .with("florence2_model", model.clone())
        .with("text_input", "")
        .with("task", task)
        .with("fill_mask", true)
        .with("keep_model_loaded", true)
        .with("max_new_tokens", 20)
        .with("num_beams", 3)
        .with("do_sample", false)
}

fn text(value: &Value) -> String {
    value.literal().unwrap().as_text().unwrap().to_owned()
}

#[test]
fn a_picture_is_described() {
    let bench = Bench::new();
    write_model(&bench.models());
    let model = bench.load().unwrap();
    let run = |inputs: Inputs| bench.run("Florence2Run", inputs).unwrap();
    let out = run(asked(&model, picture(1), "detailed_caption"));
    let caption = text(&out[2]);
    assert!(!caption.is_empty() && !caption.contains("<s>") && !caption.contains("</s>"), "{caption}");
    // A task without a picture of its own gives a black one.
    let image = out[0].downcast::<Image>().unwrap();
    assert_eq!((image.batch, image.height, image.width), (1, 64, 64));
    assert_eq!(out[3].literal(), Some(&Literal::List(Vec::new())));
    // The same words again, and others by chance, which depend on the seed alone.
    assert_eq!(text(&run(asked(&model, picture(1), "detailed_caption"))[2]), caption);
    let drawn = |seed: u64| {
        let inputs = asked(&model, picture(1), "detailed_caption").with("do_sample", true).with("seed", seed);
        text(&run(inputs)[2])
    };
    assert_eq!(drawn(5), drawn(5));
    assert_ne!(drawn(5), drawn(6));
    // Several pictures give a list of texts.
    let out = run(asked(&model, picture(2), "caption"));
    assert!(matches!(out[2].literal(), Some(Literal::List(texts)) if texts.len() == 2));
}

#[test]
fn places_are_drawn_and_given_as_numbers() {
    let bench = Bench::new();
    write_model(&bench.models());
    let model = bench.load().unwrap();
    for task in ["region_caption", "region_proposal", "ocr_with_region", "referring_expression_segmentation"]
    {
        let out = bench.run("Florence2Run", asked(&model, picture(1), task)).unwrap();
        let (image, mask) = (out[0].downcast::<Image>().unwrap(), out[1].downcast::<Mask>().unwrap());
        assert_eq!((image.height, image.width, image.channels), (40, 56, 3), "{task}");
        assert_eq!((mask.height, mask.width), (40, 56), "{task}");
    }
    let no_text = asked(&model, picture(1), "caption").with("text_input", "what");
    let error = bench.run("Florence2Run", no_text).unwrap_err().to_string();
    assert!(error.contains("takes no text"), "{error}");
    let no_question = asked(&model, picture(1), "docvqa");
    assert!(bench.run("Florence2Run", no_question).unwrap_err().to_string().contains("question"));
    let question = asked(&model, picture(1), "docvqa").with("text_input", "How much?");
    let out = bench.run("Florence2Run", question).unwrap();
    assert_eq!(out[0].downcast::<Image>().unwrap().values, picture(1).values);
}

#[test]
fn the_model_goes_and_comes_back_as_it_is_told() {
    let bench = Bench::new();
    write_model(&bench.models());
    let model = bench.load().unwrap();
    assert_eq!(bench.loaded(), 1);
    let kept = bench.run("Florence2Run", asked(&model, picture(1), "caption")).unwrap();
    assert_eq!(bench.loaded(), 1);
    let inputs = asked(&model, picture(1), "caption").with("keep_model_loaded", false);
    let gone = bench.run("Florence2Run", inputs).unwrap();
    assert_eq!(bench.loaded(), 0);
    assert_eq!(text(&kept[2]), text(&gone[2]));
    let again = bench.run("Florence2Run", asked(&model, picture(1), "caption")).unwrap();
    assert_eq!((bench.loaded(), text(&again[2])), (1, text(&kept[2])));
    // One that its loader keeps stays, whatever the node that runs it says.
    let inputs = Inputs::default().with("model", NAME).with("keep_loaded", true).with("virtual_vram_gb", 0.0);
    let model = bench.run("Florence2ModelLoaderDisTorch2MultiGPU", inputs).unwrap().remove(0);
    let inputs = asked(&model, picture(1), "caption").with("keep_model_loaded", false);
    bench.run("Florence2Run", inputs).unwrap();
    assert_eq!(bench.loaded(), 1);
}

#[test]
fn what_is_missing_is_named() {
    let bench = Bench::new();
    let error = bench.load().unwrap_err().to_string();
    for part in ["Nothing is downloaded", "LLM/Florence-2-base", "config.json", "microsoft/Florence-2-base"] {
        assert!(error.contains(part), "{error}");
    }
    let folder = bench.models().join("LLM").join(NAME);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("pytorch_model.bin"), b"PK").unwrap();
    let error = bench.load().unwrap_err().to_string();
    assert!(error.contains("pytorch_model.bin"), "{error}");
    write_model(&bench.models());
    fs::remove_file(folder.join("merges.txt")).unwrap();
    let error = bench.load().unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
}

#[test]
fn loaders_list_what_is_there_and_declare_what_workflows_store() {
    let bench = Bench::new();
    write_model(&bench.models());
    let names = |class: &str| {
        let schema = bench.catalogue.get(class).unwrap().schema();
        schema.inputs.iter().map(|input| input.name.clone()).collect::<Vec<_>>()
    };
    let plain = ["model", "precision", "attention", "lora", "convert_to_safetensors"];
    assert_eq!(names("DownloadAndLoadFlorence2Model"), plain);
    let on_a_device = names("DownloadAndLoadFlorence2ModelMultiGPU");
    assert_eq!(on_a_device[..5], plain);
    assert_eq!(on_a_device[5..], ["device", "offload_device"]);
    let schema = bench.catalogue.get("Florence2ModelLoader").unwrap().schema();
    assert_eq!(schema.inputs[0].kind, graph::Kind::Choice(vec![Literal::from(NAME)]));
    assert_eq!(
        (schema.outputs[0].kind.as_str(), schema.outputs[0].name.as_str()),
        ("FL2MODEL", "florence2_model")
    );
}

#[test]
fn text_is_shown_and_passed_on() {
    let bench = Bench::new();
    let mut inputs = Inputs::default();
    inputs.values.insert("text".into(), vec![Value::from("one"), Value::from("two")]);
    let outcome = bench.outcome("ShowText|pysssss", inputs).unwrap();
    let shown = Literal::List(vec!["one".into(), "two".into()]);
    assert_eq!(outcome.ui.as_ref().unwrap()["text"], shown);
    let Outputs::Slots(slots) = outcome.outputs else { panic!("it gives values") };
    assert!(matches!(&slots[0], Slot::Many(texts) if texts.len() == 2));
}

/// A text encoder as wide as that of Stable Diffusion 2, with two layers and few words.
fn write_encoder(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let alphabet: Vec<String> = (0..256u32)
        .map(|i| {
            char::from_u32(if matches!(i, 33..=126 | 0xA1..=0xAC | 0xAE..=0xFF) { i } else { 0 }).unwrap()
        })
        .filter(|c| *c != '\0')
        .chain((0..68).map(|i| char::from_u32(0x100 + i).unwrap()))
        .map(String::from)
        .collect();
    let ending = alphabet.iter().map(|c| format!("{c}</w>"));
    let words = alphabet.iter().cloned().chain(ending);
    let words = words.chain(["<|startoftext|>".to_owned(), "<|endoftext|>".to_owned()]);
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        words.enumerate().map(|(id, word)| (word, json!(id))).collect();
    let entries = vocabulary.len();
    let tokenizer = json!({ "model": { "type": "BPE", "vocab": vocabulary, "merges": [] } });
    fs::write(folder.join("sd2.tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut tensors = vec![
        ("text_model.embeddings.token_embedding.weight".to_owned(), vec![entries, 1024]),
        ("text_model.embeddings.position_embedding.weight".to_owned(), vec![77, 1024]),
        ("text_model.final_layer_norm.weight".to_owned(), vec![1024]),
        ("text_model.final_layer_norm.bias".to_owned(), vec![1024]),
    ];
    for layer in 0..2 {
        let mut module = |name: &str, shape: Vec<usize>| {
            let name = format!("text_model.encoder.layers.{layer}.{name}");
            tensors.push((format!("{name}.bias"), shape[..1].to_vec()));
            tensors.push((format!("{name}.weight"), shape));
        };
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            module(&format!("self_attn.{part}"), vec![1024, 1024]);
        }
        module("layer_norm1", vec![1024]);
        module("layer_norm2", vec![1024]);
        module("mlp.fc1", vec![64, 1024]);
        module("mlp.fc2", vec![1024, 64]);
    }
    let mut file = SafetensorsWriter::new();
    for (name, shape) in tensors {
        let shape = Shape::new(&shape).unwrap();
        let values = Procedural::new(&name, 0.05, 0.0).values(shape.count());
        file = file.values(name, Encoding::F16, shape, &values).unwrap();
    }
    file.write(folder.join("sd2.safetensors")).unwrap();
}

#[test]
fn lotus_is_told_the_empty_prompt() {
    let bench = Bench::new();
    let error = bench.run("LotusConditioning", Inputs::default()).unwrap_err().to_string();
    assert!(error.contains("OpenCLIP ViT-H") && error.contains("text_encoders"), "{error}");
    let folder = bench.models().join("text_encoders");
    write_encoder(&folder);
    let out = bench.run("LotusConditioning", Inputs::default()).unwrap();
    let conditioning = out[0].downcast::<Conditioning>().unwrap();
    let entry = &conditioning.entries[0];
    assert_eq!(
        (entry.cond.text.shape.as_slice(), entry.cond.pooled.is_none()),
        ([1, 2, 1024].as_slice(), true)
    );
    // The same by hand, with the empty prompt as it is, without filling.
    let file = Checkpoint::open(folder.join("sd2.safetensors")).unwrap();
    let model = models::text::TextModel::read_all(&file, &models::detect(&file)).unwrap().remove(0);
    let (encoder, tokenizer) = (model.encoder, model.tokenizer);
    let mut tokens = tokenizer.tokenize("", models::text::PromptOptions::default(), 0);
    tokens.chunks[0].truncate(2);
    let residency = Residency::new(bench.runtime.devices.clone());
    let manifest = encoder.manifest(&file).unwrap();
    let spec = placement::DeviceSpec {
        id: DeviceId::CPU,
        total_bytes: 8 << 30,
        available_bytes: 8 << 30,
        link_bytes_per_s: 1e9,
        compute_factor: 1.0,
        reaches: Vec::new(),
    };
    let request = Residency::plan_request(&manifest, DeviceId::CPU, vec![spec]);
    let plan = placement::plan(&request).unwrap();
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    let session = residency.open(id, &Cancel::default()).unwrap();
    let encoded = encoder.encode(&session, &tokens, models::text::EncodeOptions::default()).unwrap();
    testkit::assert_close("tokens", &entry.cond.text.values, &encoded.cond.to_vec().unwrap(), 1e-5);
}

#[test]
fn noise_is_added_and_guidance_is_switched_off() {
    let bench = Bench::new();
    for (class, inputs, output) in [
        ("FluxDisableGuidance", vec!["conditioning"], "CONDITIONING"),
        ("AddNoise", vec!["model", "noise", "sigmas", "latent_image"], "LATENT"),
    ] {
        let schema = bench.catalogue.get(class).unwrap().schema();
        assert_eq!(schema.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), inputs);
        assert_eq!(schema.outputs[0].kind, output);
    }
    let array = nodes::value::Array { shape: vec![1, 1, 1], values: vec![0.0] };
    let told = |off: bool| {
        let mut entry = nodes::value::Entry::text(array.clone(), None);
        entry.cond.guidance = if off { Guidance::Off } else { Guidance::Usual };
        Inputs::default().with("conditioning", Value::object(Conditioning { entries: vec![entry] }))
    };
    let off = bench.run("FluxDisableGuidance", told(false)).unwrap();
    assert_eq!(off[0].downcast::<Conditioning>().unwrap().entries[0].cond.guidance, Guidance::Off);
    let on = bench.run("FluxGuidance", told(true).with("guidance", 2.0)).unwrap();
    let on = on[0].downcast::<Conditioning>().unwrap();
    assert_eq!(on.entries[0].cond.guidance, Guidance::Scale(2.0));

    Manifest::bundled("flux_schnell_micro").unwrap().write_to(bench.models()).unwrap();
    let inputs = Inputs::default().with("unet_name", "flux_schnell_micro.safetensors");
    let model = bench.run("UNETLoader", inputs.with("weight_dtype", "default")).unwrap().remove(0);
    let noise = bench.run("RandomNoise", Inputs::default().with("noise_seed", 3)).unwrap().remove(0);
    let shape = [1, 16, 4, 4];
    let values = Procedural::new("latent", 1.0, 0.0).values(256);
    let latent = sampling::Latent::new(shape.to_vec(), values.clone()).unwrap();
    let latent = Samples::new(&Host::with_budget(1 << 30), latent).unwrap();
    let latent = nodes::value::LatentImage::new(latent);
    let add = |sigmas: Vec<f32>| {
        let inputs = Inputs::default()
            .with("model", model.clone())
            .with("noise", noise.clone())
            .with("sigmas", Value::object(nodes::value::Sigmas(sigmas)))
            .with("latent_image", Value::object(latent.clone()));
        let out = bench.run("AddNoise", inputs).unwrap().remove(0);
        out.downcast::<nodes::value::LatentImage>().unwrap().samples.values().to_vec()
    };
    assert_eq!(add(Vec::new()), values);
    // A level of 0 adds nothing, and one of 1 leaves nothing but noise, in the autoencoder's scale.
    testkit::assert_close("nothing", &add(vec![0.0]), &values, 1e-5);
    let random = sampling::noise::prepare_noise(3, &shape, None).unwrap();
    let random: Vec<f32> = random.values().iter().map(|value| value / 0.3611 + 0.1159).collect();
    testkit::assert_close("noise", &add(vec![1.0, 0.5, 0.0]), &random, 1e-5);
    let half: Vec<f32> = values.iter().zip(&random).map(|(value, noise)| 0.5 * (value + noise)).collect();
    testkit::assert_close("half", &add(vec![0.75, 0.25]), &half, 1e-5);
}

#[test]
fn pictures_are_saved_as_one_that_moves() {
    let bench = Bench::new();
    let inputs = Inputs::default()
        .with("images", Value::object(picture(3)))
        .with("filename_prefix", "moving")
        .with("fps", 8.0)
        .with("lossless", false)
        .with("quality", 80)
        .with("method", "default");
    let outcome = bench.outcome("SaveAnimatedWEBP", inputs).unwrap();
    let ui = outcome.ui.unwrap();
    assert_eq!(ui["animated"], Literal::List(vec![true.into()]));
    let file = fs::read(bench.folder.join("output/moving_00001_.webp")).unwrap();
    assert_eq!((&file[..4], &file[8..16]), (b"RIFF".as_slice(), b"WEBPVP8X".as_slice()));
}

#[test]
fn default_entries_count_where_no_other_does() {
    let bench = Bench::new();
    Manifest::bundled("flux_schnell_micro").unwrap().write_to(bench.models()).unwrap();
    let inputs = Inputs::default().with("unet_name", "flux_schnell_micro.safetensors");
    let model = bench.run("UNETLoader", inputs.with("weight_dtype", "default")).unwrap().remove(0);
    let text = |name: &str| {
        let array = |shape: Vec<usize>| {
            let values = Procedural::new(name, 1.0, 0.0).values(shape.iter().product());
            nodes::value::Array { shape, values }
        };
        nodes::value::Entry::text(array(vec![1, 4, 4096]), Some(array(vec![1, 768])))
    };
    // The left half, in latent values; the right half is what is missing to it.
    let half = |text: &nodes::value::Entry, is_left: bool| {
        let values = (0..64).map(|at| f32::from((at % 8 < 4) == is_left));
        let mask = Some(Arc::new(Mask::collect(&Host::with_budget(1 << 30), [1, 8, 8], values).unwrap()));
        nodes::value::Entry { mask, ..text.clone() }
    };
    let conditioning = |entries: Vec<nodes::value::Entry>| Value::object(Conditioning { entries });
    let with_default = |first: nodes::value::Entry, default: nodes::value::Entry| {
        let inputs = Inputs::default()
            .with("cond", conditioning(vec![first]))
            .with("cond_DEFAULT", conditioning(vec![default]));
        bench.run("ConditioningSetDefaultCombine", inputs).unwrap().remove(0)
    };
    let sampled = |positive: Value| {
        let latent = sampling::Latent::zeros(&[1, 16, 8, 8]);
        let latent = Samples::new(&Host::with_budget(1 << 30), latent).unwrap();
        let latent = nodes::value::LatentImage::new(latent);
        let inputs = Inputs::default()
            .with("model", model.clone())
            .with("seed", 1)
            .with("steps", 2)
            .with("cfg", 1.0)
            .with("sampler_name", "euler")
            .with("scheduler", "simple")
            .with("positive", positive)
            .with("negative", conditioning(vec![text("nothing")]))
            .with("latent_image", Value::object(latent))
            .with("denoise", 1.0);
        let out = bench.run("KSampler", inputs).unwrap().remove(0);
        out.downcast::<nodes::value::LatentImage>().unwrap().samples.values().to_vec()
    };
    let (one, other) = (text("one"), text("other"));
    let both = sampled(conditioning(vec![half(&one, true), half(&other, false)]));
    assert_eq!(sampled(with_default(half(&one, true), other.clone())), both);
    // Where another counts everywhere, the default is not asked.
    let alone = sampled(conditioning(vec![one.clone()]));
    assert_eq!(sampled(with_default(one, other)), alone);
    assert_ne!(alone, both);
}
