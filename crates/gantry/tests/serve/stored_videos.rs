//! Video workflows that people published: which of them have all their classes, and some of every family on small rebuilt
//! weights, down to the frames in the file. They are not part of the project: without the folders that have the workflows and
//! the manifests of the weights there is nothing to test here.

use std::path::{Path, PathBuf};
use std::process::Command;

use golden::{GoldenFolder, ModelsFolder};
use media::{Source, VideoReader};
use serde_json::{Map, Value, json};
use testkit::ScratchDir;

use crate::server::{Ended, Server};
use crate::stored_workflows::checked;

const DEVICES: [&str; 4] = ["--sim-device", "1gb@100gbps", "--sim-device", "1gb@100gbps"];
const FAMILIES: [&str; 4] = ["WAN", "HunyuanVideo", "LTX", "Mochi"];

/// Workflows whose classes are not all here, by a part of their names, and why.
const LEFT_OUT: [(&str, &str); 9] = [
    ("WanVideoWrapper", "the classes of WanVideoWrapper, which has models of its own"),
    ("bernini", "Bernini's conditioning"),
    ("causal_forcing", "causal forcing"),
    ("scail2", "SCAIL 2 and SAM 3"),
    ("wan_dancer", "Dancer"),
    ("wan_vace_inpainting", "SAM 3, which finds what is to be painted over"),
    ("14B_animate", "SAM 2 and poses of other packs"),
    ("ltx2_", "LTX 2, which makes sound with its frames"),
    ("video_ltx2", "LTX 2, which makes sound with its frames"),
];

/// A folder beside the checkout.
fn beside(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name)
}

#[test]
fn published_video_workflows_have_their_classes() {
    let collection = beside("workflows");
    if !collection.is_dir() {
        println!("there is no collection of workflows");
        return;
    }
    let (mut whole, mut left_out) = (0, 0);
    for family in FAMILIES {
        for (file, missing) in checked(&collection.join(family)) {
            let reason = LEFT_OUT.iter().find(|(part, _)| file.contains(part));
            match (reason, missing.is_empty()) {
                (None, true) => whole += 1,
                (Some((_, reason)), false) => {
                    println!("{family}/{file}: {reason}: {}", missing.join(", "));
                    left_out += 1;
                }
                (None, false) => panic!("{family}/{file} lacks {missing:?}"),
                (Some(_), true) => panic!("{family}/{file} has all its classes: it need not be left out"),
            }
        }
    }
    println!("{whole} published video workflows have all their classes, {left_out} do not");
    assert!(whole > 0);
}

/// A workflow that runs.
struct Run {
    file: &'static str,
    /// What is changed of it before it runs.
    change: fn(&mut Value),
    /// Frames that come out.
    frames: usize,
}

const RUNS: [Run; 9] = [
    // Two experts, one behind the other.
    Run { file: "WAN/templates/video_wan2_2_14B_t2v.json", change: as_it_is, frames: FRAMES },
    Run { file: "WAN/templates/video_wan2_2_5B_ti2v.json", change: as_it_is, frames: FRAMES },
    Run { file: "WAN/templates/video_wan_vace_14B_ref2v.json", change: as_it_is, frames: FRAMES },
    Run {
        file: "WAN/comfyui_examples/wan__image_to_video_wan_example.webp.prompt.json",
        change: as_it_is,
        frames: FRAMES,
    },
    Run {
        file: "WAN/comfyui_examples/wan__image_to_video_wan_example.webp.prompt.json",
        change: inpainted_on_two_devices,
        frames: FRAMES,
    },
    Run {
        file: "HunyuanVideo/templates/hunyuan_video_text_to_video.json",
        change: encoders_on_a_device,
        frames: FRAMES,
    },
    Run { file: "LTX/templates/ltxv_text_to_video.json", change: as_it_is, frames: FRAMES },
    // `CheckpointLoaderSimpleDisTorch2MultiGPU`.
    Run {
        file: "LTX/multigpu/ci__example_workflows_api__ltxvideo_checkpointloadersimple_distorch2_api.json",
        change: as_it_is,
        frames: FRAMES,
    },
    Run {
        file: "Mochi/comfyui_examples/mochi__mochi_simple_checkpoint.webp.prompt.json",
        change: in_three_files,
        frames: MOCHI_FRAMES,
    },
];

/// Frames of a video, and of one by Mochi, whose latents have one for six.
const FRAMES: usize = 9;
const MOCHI_FRAMES: usize = 7;
const SIDE: usize = 64;

/// Small models by what the published ones' names have in them; the first that fits.
const MODELS: [(&str, &str); 17] = [
    ("high_noise", "diffusion_models/wan2.2_t2v_high_noise_tiny"),
    ("low_noise", "diffusion_models/wan2.2_t2v_low_noise_tiny"),
    ("ti2v_5B", "diffusion_models/wan2.2_ti2v_5B_tiny"),
    ("wan2.1_i2v", "diffusion_models/wan2.1_i2v_tiny"),
    ("wan2.1_vace", "diffusion_models/wan2.1_vace_tiny"),
    ("hunyuan_video_t2v", "diffusion_models/hunyuan_video_tiny"),
    ("mochi_preview", "diffusion_models/mochi_micro"),
    ("wan_2.1_vae", "vae/wan_2.1_vae_tiny"),
    ("wan2.2_vae", "vae/wan2.2_vae_tiny"),
    ("hunyuan_video_vae", "vae/hunyuan_video_vae"),
    ("mochi_vae", "vae/mochi_vae"),
    ("umt5", "text_encoders/umt5xxl_tiny"),
    ("t5xxl", "text_encoders/t5xxl_tiny"),
    ("clip_l", "text_encoders/clip_l_tiny"),
    ("llava_llama3", "text_encoders/llava_llama3_tiny"),
    ("clip_vision_h", "clip_vision/clip_vision_h_tiny"),
    ("ltx", "checkpoints/ltxv_tiny"),
];
/// The one in the place of every LoRA.
const LORA: &str = "loras/wan21_t2v_tiny_lora_kohya";

#[test]
#[ignore = "rebuilds 2.2 GB of weights; continuous integration runs it"]
fn published_video_workflows_run() {
    let (collection, reference) = (beside("workflows"), beside("golden"));
    if !collection.is_dir() || !reference.is_dir() {
        println!("there are no workflows, or no manifests of weights");
        return;
    }
    let folder = ScratchDir::new().unwrap();
    let golden = GoldenFolder::open(&reference).unwrap();
    let files = MODELS.iter().map(|(_, file)| *file).chain([LORA]);
    let files: Vec<String> = files.map(|file| format!("{file}.safetensors")).collect();
    let models = ModelsFolder::at(&folder.join("models")).unwrap();
    models.ensure(&golden, files.iter().map(String::as_str)).unwrap();
    std::fs::create_dir_all(folder.join("input")).unwrap();
    std::fs::copy(reference.join("inputs/image.png"), folder.join("input/picture.png")).unwrap();
    let server = Server::start(folder.path(), &DEVICES);
    for Run { file, change, frames } in RUNS {
        let mut prompt = converted(&collection.join(file), folder.path());
        change(&mut prompt);
        make_small(&mut prompt, frames);
        let ended = server.run(&prompt);
        assert_eq!(saved(&ended), (SIDE, SIDE, frames), "{file}");
        println!("{file}: {frames} frames of {SIDE}x{SIDE}");
    }
}

fn as_it_is(_prompt: &mut Value) {}

/// A picture is the first frame that is painted over, the text encoder is on a device of its own, the autoencoder's weights
/// are on the other.
fn inpainted_on_two_devices(prompt: &mut Value) {
    for node in prompt.as_object_mut().unwrap().values_mut() {
        match node["class_type"].as_str().unwrap() {
            "WanImageToVideo" => node["class_type"] = json!("WanFunInpaintToVideo"),
            "CLIPLoader" => {
                node["class_type"] = json!("CLIPLoaderMultiGPU");
                node["inputs"]["device"] = json!("sim:1");
            }
            "VAELoader" => {
                node["class_type"] = json!("VAELoaderDisTorch2MultiGPU");
                let inputs = node["inputs"].as_object_mut().unwrap();
                inputs.insert("compute_device".to_owned(), json!("sim:0"));
                inputs.insert("virtual_vram_gb".to_owned(), json!(0.1));
                inputs.insert("donor_device".to_owned(), json!("sim:1"));
            }
            _ => {}
        }
    }
}

fn encoders_on_a_device(prompt: &mut Value) {
    for node in prompt.as_object_mut().unwrap().values_mut() {
        if node["class_type"] == "DualCLIPLoader" {
            node["class_type"] = json!("DualCLIPLoaderGGUFMultiGPU");
            node["inputs"]["device"] = json!("cpu");
        }
    }
}

/// Model, text encoder and autoencoder from files of their own, as they are rebuilt.
fn in_three_files(prompt: &mut Value) {
    let loader = |class: &str, inputs: Value| json!({ "class_type": class, "inputs": inputs });
    let nodes = prompt.as_object_mut().unwrap();
    let is_loader = |node: &Value| node["class_type"] == "CheckpointLoaderSimple";
    let checkpoint = nodes.iter().find(|(_, node)| is_loader(node)).unwrap().0.clone();
    let parts = [checkpoint.clone(), "encoder".to_owned(), "autoencoder".to_owned()];
    for input in nodes.values_mut().flat_map(|node| node["inputs"].as_object_mut().unwrap().values_mut()) {
        let slot = input.as_array().filter(|link| link[0] == checkpoint.as_str()).map(|link| link[1].clone());
        if let Some(slot) = slot.and_then(|slot| slot.as_u64()) {
            *input = json!([parts[slot as usize], 0]);
        }
    }
    let model = json!({ "unet_name": "mochi_preview", "weight_dtype": "default" });
    let loaders = [
        loader("UNETLoader", model),
        loader("CLIPLoader", json!({ "clip_name": "t5xxl", "type": "mochi" })),
        loader("VAELoader", json!({ "vae_name": "mochi_vae" })),
    ];
    nodes.extend(parts.into_iter().zip(loaders));
}

/// A workflow in the API's format.
fn converted(file: &Path, base: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(["run", "--cpu", "--convert", "--base-directory"]).arg(base).args(DEVICES).arg(file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Names what is here in the place of what people have, and asks for few small frames in few steps.
fn make_small(prompt: &mut Value, frames: usize) {
    let names: Vec<String> = prompt.as_object().unwrap().keys().cloned().collect();
    for node in names {
        let inputs = prompt[&node]["inputs"].as_object_mut().unwrap();
        let keys: Vec<String> = inputs.keys().cloned().collect();
        for key in keys {
            if let Some(value) = replacement(&key, inputs, frames) {
                inputs.insert(key, value);
            }
        }
    }
}

fn replacement(name: &str, inputs: &Map<String, Value>, frames: usize) -> Option<Value> {
    let value = &inputs[name];
    // Sizes that nodes work out are left to the test as well.
    match name {
        "width" | "height" if value.is_number() || value.is_array() => return Some(json!(SIDE)),
        "length" => return Some(json!(frames)),
        "steps" if value.is_number() => return Some(json!(2)),
        "start_at_step" | "end_at_step" if (1..100).contains(&value.as_u64()?) => return Some(json!(1)),
        _ => {}
    }
    let text = value.as_str()?;
    match name {
        "unet_name" | "clip_name" | "clip_name1" | "clip_name2" | "vae_name" | "ckpt_name" => {
            named(MODELS.iter().find(|(part, _)| text.contains(part))?.1)
        }
        "lora_name" => named(LORA),
        "image" => Some(json!("picture.png")),
        _ => text.strip_prefix("cuda:").map(|number| json!(format!("sim:{number}"))),
    }
}

/// A file as loaders name it.
fn named(file: &str) -> Option<Value> {
    Some(json!(format!("{}.safetensors", file.rsplit_once('/')?.1)))
}

/// Width, height and frames of the video that a job saved.
fn saved(ended: &Ended) -> (usize, usize, usize) {
    let nodes = ended.entry["outputs"].as_object().unwrap();
    let node = nodes.iter().find(|(_, output)| output["animated"][0] == true).unwrap().0;
    let file = ended.files(node, "images").remove(0);
    if file.extension().is_some_and(|ending| ending == "webp") {
        return webp_size(&std::fs::read(&file).unwrap());
    }
    let mut reader = VideoReader::open(&Source::Path(file)).unwrap();
    let mut frames = 0;
    while let Some(frame) = reader.next_frame().unwrap() {
        assert_eq!((frame.width, frame.height), (reader.info.width, reader.info.height));
        frames += 1;
    }
    (reader.info.width, reader.info.height, frames)
}

/// The same of an animated WebP: its chunks say it.
fn webp_size(file: &[u8]) -> (usize, usize, usize) {
    let (mut at, mut frames, mut size) = (12, 0, (0, 0));
    while at + 8 <= file.len() {
        let length = u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap()) as usize;
        let side = |at: usize| usize::from(file[at]) + (usize::from(file[at + 1]) << 8) + 1;
        match &file[at..at + 4] {
            b"VP8X" => size = (side(at + 12), side(at + 15)),
            b"ANMF" => frames += 1,
            _ => {}
        }
        at += 8 + length.next_multiple_of(2);
    }
    (size.0, size.1, frames)
}
