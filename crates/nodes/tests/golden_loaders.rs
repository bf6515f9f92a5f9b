//! Loaders and their variants: what stored workflows say, where models then are, and whether they stay.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::sync::Arc;

use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use golden_support::Bench;
use graph::{Kind, Literal, Prompt, PromptNode, Schema};
use meta::DeviceId;
use nodes::value::LatentImage;
use residency::{ModelReport, Retention};

/// A machine with the host and two simulated accelerators.
fn machine() -> Registry {
    let host = Arc::new(CpuBackend::new());
    let mut devices = vec![Device::new(Arc::clone(&host) as Arc<dyn Backend>, 4 << 30)];
    for ordinal in 0..2 {
        let spec: SimSpec = "1gb@100gbps".parse().unwrap();
        let base = Arc::clone(&host) as Arc<dyn Backend>;
        let backend = SimBackend::new(ordinal, spec, base, host.executor());
        devices.push(Device::new(Arc::new(backend), spec.memory));
    }
    Registry::new(devices)
}

struct Shop(Bench);

fn shop() -> Shop {
    let files = ["flux_dev_micro", "flux_schnell_micro", "flux_dev_micro-Q8_0"];
    Shop(Bench::with(&files, machine(), DeviceId::sim(0)))
}

impl Shop {
    fn schema(&self, class: &str) -> Schema {
        self.0.catalogue.get(class).unwrap_or_else(|| panic!("there is no {class}")).schema()
    }

    /// The names of a class's inputs, optional ones with a question mark.
    fn inputs(&self, class: &str) -> Vec<String> {
        let name =
            |input: &graph::Input| format!("{}{}", input.name, if input.is_optional { "?" } else { "" });
        self.schema(class).inputs.iter().map(name).collect()
    }

    /// Runs one loader.
    fn load(&self, class: &str, inputs: &[(&str, Literal)]) -> Result<(), String> {
        self.0.call(class, inputs)
    }

    fn models(&self) -> Vec<ModelReport> {
        self.0.runtime.residency.models()
    }
}

#[test]
fn variants_have_the_inputs_of_stored_workflows_in_their_order() {
    let shop = shop();
    assert_eq!(shop.inputs("UNETLoader"), ["unet_name", "weight_dtype"]);
    assert_eq!(shop.inputs("UNETLoaderMultiGPU"), ["unet_name", "weight_dtype", "device?"]);
    let spread =
        ["virtual_vram_gb?", "donor_device?", "expert_mode_allocations?", "eject_models?", "keep_loaded?"];
    let with = |first: &[&'static str]| [first, &spread[..]].concat();
    assert_eq!(
        shop.inputs("UNETLoaderDisTorch2MultiGPU"),
        with(&["unet_name", "weight_dtype", "compute_device?"])
    );
    assert_eq!(
        shop.inputs("DualCLIPLoaderDisTorch2MultiGPU"),
        with(&["clip_name1", "clip_name2", "type", "device?"])
    );
    assert_eq!(
        shop.inputs("UnetLoaderGGUFDisTorchMultiGPU"),
        ["unet_name", "device?", "virtual_vram_gb?", "use_other_vram?", "expert_mode_allocations?"]
    );
    assert_eq!(shop.inputs("DualCLIPLoader"), ["clip_name1", "clip_name2", "type", "device?"]);
    assert!(shop.0.catalogue.get("UNETLoaderDisTorchMultiGPU").is_none(), "only GGUF loaders are that old");
    for class in [
        "CheckpointLoaderSimple",
        "VAELoader",
        "CLIPLoader",
        "TripleCLIPLoader",
        "QuadrupleCLIPLoader",
        "UnetLoaderGGUF",
        "UnetLoaderGGUFAdvanced",
        "CLIPLoaderGGUF",
        "DualCLIPLoaderGGUF",
        "TripleCLIPLoaderGGUF",
        "QuadrupleCLIPLoaderGGUF",
    ] {
        for ending in ["", "MultiGPU", "DisTorch2MultiGPU"] {
            shop.schema(&format!("{class}{ending}"));
        }
    }
    let eject = |class: &str| shop.schema(class).find("eject_models").unwrap().is_set("default");
    assert!(eject("UNETLoaderDisTorch2MultiGPU") && !eject("CLIPLoaderDisTorch2MultiGPU"));
}

#[test]
fn device_lists_are_the_machines_own() {
    let shop = shop();
    let schema = shop.schema("UNETLoaderMultiGPU");
    let device = schema.find("device").unwrap();
    let names: Vec<Literal> = ["cpu", "sim:0", "sim:1"].map(Literal::from).to_vec();
    assert_eq!(device.kind, Kind::Choice(names));
    assert_eq!(device.options.get("default"), Some(&Literal::from("sim:0")));
    // A device of another machine is no value of the list.
    let mut prompt = Prompt::default();
    let inputs = graph::map([
        ("unet_name", "flux_dev_micro.safetensors".into()),
        ("weight_dtype", "default".into()),
        ("device", "cuda:1".into()),
    ]);
    prompt.nodes.insert("1".into(), PromptNode::new("UNETLoaderMultiGPU", inputs));
    let show = graph::map([("source", Literal::List(vec!["1".into(), 0.into()]))]);
    prompt.nodes.insert("2".into(), PromptNode::new("PreviewAny", show));
    let rejected = graph::validate(&shop.0.catalogue, &mut prompt, None).unwrap_err();
    let problems = &rejected.node_errors["1"];
    assert_eq!(problems.errors[0].kind, "value_not_in_list", "{problems:?}");
}

#[test]
fn a_model_is_loaded_once_and_stays_as_its_loader_says() {
    let shop = shop();
    let file: (&str, Literal) = ("unet_name", "flux_dev_micro.safetensors".into());
    let dtype: (&str, Literal) = ("weight_dtype", "default".into());
    let spread = |more: &[(&'static str, Literal)]| {
        let base = [
            file.clone(),
            dtype.clone(),
            ("compute_device", "sim:0".into()),
            ("virtual_vram_gb", 0.0.into()),
            ("expert_mode_allocations", "sim:0,2mb;cpu,*".into()),
        ];
        shop.load("UNETLoaderDisTorch2MultiGPU", &[&base[..], more].concat())
    };
    spread(&[]).unwrap();
    assert_eq!(shop.models().len(), 1);
    assert_eq!(shop.models()[0].retention, Retention::Default);
    // The same again is the same model; only what is said of its staying changes.
    for (keep, retention) in [(true, Retention::Keep), (false, Retention::Eject)] {
        spread(&[("keep_loaded", keep.into())]).unwrap();
        assert_eq!(shop.models().len(), 1);
        assert_eq!(shop.models()[0].retention, retention);
    }
    // Elsewhere it takes the place of the earlier one, whose handle nobody holds; what was said of staying passes on.
    let elsewhere = [file.clone(), dtype.clone(), ("device", "sim:1".into())];
    shop.load("UNETLoaderMultiGPU", &elsewhere).unwrap();
    assert_eq!(shop.models().len(), 1);
    assert_eq!(
        (shop.models()[0].plan.compute, shop.models()[0].retention),
        (DeviceId::sim(1), Retention::Eject)
    );
    // So does another precision.
    shop.load("UNETLoader", &[file.clone(), ("weight_dtype", "fp8_e4m3fn".into())]).unwrap();
    assert_eq!(shop.models().len(), 1);
    // Ten gigabytes of a small model are all of it.
    let inputs = [
        ("unet_name", "flux_dev_micro-Q8_0.gguf".into()),
        ("device", "sim:0".into()),
        ("virtual_vram_gb", 10.0.into()),
        ("use_other_vram", true.into()),
    ];
    shop.load("UnetLoaderGGUFDisTorchMultiGPU", &inputs).unwrap();
    assert_eq!(shop.models().len(), 2);
}

#[test]
fn what_cannot_be_done_is_told() {
    let shop = shop();
    let load = |allocation: &str| {
        let inputs = [
            ("unet_name", "flux_dev_micro.safetensors".into()),
            ("weight_dtype", "default".into()),
            ("compute_device", "sim:0".into()),
            ("virtual_vram_gb", 0.0.into()),
            ("expert_mode_allocations", allocation.into()),
        ];
        shop.load("UNETLoaderDisTorch2MultiGPU", &inputs)
    };
    // A text that has the normal mode in it says all of it, several donors included.
    load("#sim:0;0.001;sim:1,cpu").unwrap();
    let elsewhere = load("#sim:1;0.001;cpu").unwrap_err();
    assert!(elsewhere.contains("computes on sim:1, and the model is to compute on sim:0"), "{elsewhere}");
    let load = |allocation: &str| load(allocation).unwrap_err();
    let unknown = load("cuda:7,50%;cpu,*");
    assert!(unknown.contains("cuda:7") && unknown.contains("sim:1"), "{unknown}");
    let text = load("sim:0,much");
    assert!(text.contains("much"), "{text}");
}

/// The classes of FLUX workflows that people have, but for those of packs that are not ours.
#[test]
fn flux_workflows_find_their_classes() {
    let shop = shop();
    for class in [
        "BasicGuider",
        "BasicScheduler",
        "CLIPTextEncode",
        "CLIPTextEncodeFlux",
        "CheckpointLoaderSimple",
        "ConditioningZeroOut",
        "DifferentialDiffusion",
        "DisableNoise",
        "DualCLIPLoader",
        "DualCLIPLoaderMultiGPU",
        "EmptySD3LatentImage",
        "FluxGuidance",
        "FluxKontextImageScale",
        "ImageInvert",
        "ImagePadForOutpaint",
        "ImageScaleToTotalPixels",
        "ImageStitch",
        "InpaintModelConditioning",
        "InstructPixToPixConditioning",
        "KSampler",
        "KSamplerSelect",
        "LoadImage",
        "LoraLoaderModelOnly",
        "ModelSamplingFlux",
        "PreviewImage",
        "RandomNoise",
        "ReferenceLatent",
        "SamplerCustomAdvanced",
        "SaveImage",
        "SetFirstSigma",
        "UNETLoader",
        "UNETLoaderMultiGPU",
        "VAEDecode",
        "VAEEncode",
        "VAELoader",
        "VAELoaderMultiGPU",
    ] {
        shop.schema(class);
    }
}

/// A sampler over a loader and conditionings that need no text encoder; its latent.
fn sample(shop: &Shop, loader: &str, positive: &str, more: &str) -> Vec<f32> {
    let text = format!(
        r#"{{"1": {loader},
            "2": {{"class_type": "Tell", "inputs": {{"seed": 1, "beside": true}}}},
            "3": {{"class_type": "Tell", "inputs": {{"seed": 9, "beside": false}}}},
            "4": {{"class_type": "EmptySD3LatentImage", "inputs": {{"width": 64, "height": 64, "batch_size": 1}}}},
            {more}
            "8": {{"class_type": "KSampler", "inputs": {{"model": ["1", 0], "positive": ["{positive}", 0],
                "negative": ["3", 0], "latent_image": ["4", 0], "seed": 1, "steps": 2, "cfg": 2.0,
                "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}}}}}}"#
    );
    let workflow: Literal = serde_json::from_str(&text).unwrap();
    let got = shop.0.run(&workflow, &[("latent", "8")]);
    got.object::<LatentImage>("latent").samples.values().to_vec()
}

fn loader(class: &str, file: &str, more: &str) -> String {
    format!(
        r#"{{"class_type": "{class}", "inputs": {{"unet_name": "{file}.safetensors", "weight_dtype": "default"{more}}}}}"#
    )
}

#[test]
fn spread_models_give_the_same_bits() {
    let shop = shop();
    let resident = loader("UNETLoaderMultiGPU", "flux_dev_micro", r#", "device": "sim:0""#);
    let resident = sample(&shop, &resident, "2", "");
    assert!(resident.iter().all(|value| value.is_finite()));
    for allocation in ["sim:0,1mb;cpu,*", "sim:0,1mb;sim:1,1mb;cpu,*", "sim:0,20%;sim:1,80%"] {
        let more = format!(
            r#", "compute_device": "sim:0", "virtual_vram_gb": 0, "expert_mode_allocations": "{allocation}""#
        );
        let spread = loader("UNETLoaderDisTorch2MultiGPU", "flux_dev_micro", &more);
        assert!(sample(&shop, &spread, "2", "") == resident, "{allocation}");
    }
    let stats = shop.0.runtime.stats();
    assert!(stats.iter().any(|stats| stats.bytes_streamed > 0), "{stats:?}");
}

#[test]
fn areas_references_and_masks_reach_the_model() {
    let shop = shop();
    let dev = loader("UNETLoader", "flux_dev_micro", "");
    let plain = sample(&shop, &dev, "2", "");
    // A conditioning for the whole picture counts alike wherever it is cut.
    let area = r#""5": {"class_type": "ConditioningSetAreaPercentage", "inputs": {"conditioning": ["2", 0],
        "width": 1.0, "height": 1.0, "x": 0.0, "y": 0.0, "strength": 0.5}},"#;
    let whole = sample(&shop, &dev, "5", area);
    assert!(testkit::Report::new("the whole area", &whole, &plain).passes(1e-6));
    let half = sample(&shop, &dev, "5", &area.replace(r#""width": 1.0"#, r#""width": 0.5"#));
    assert!(half.iter().all(|value| value.is_finite()) && half != plain);
    let reference = r#""6": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["2", 0], "latent": ["4", 0]}},"#;
    let seen = sample(&shop, &dev, "6", reference);
    assert!(seen.iter().all(|value| value.is_finite()) && seen != plain);
    // A model that fills masks looks at the picture and the mask; without them at nothing.
    let fill = loader("UNETLoader", "flux_fill_micro", "");
    let (with, without) = (sample(&shop, &fill, "2", ""), sample(&shop, &fill, "3", ""));
    assert!(with.iter().chain(&without).all(|value| value.is_finite()) && with != without);
}
