//! Workflows that people published, on small models of their families. They are not part of the project: without the
//! folders beside the checkout that have them there is nothing to test here.

mod small_models;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Map, Value, json};
use testkit::ScratchDir;

use crate::model_files::{write_captioner, write_demo_checkpoint, write_demo_with_channels};
use crate::prompts::{AUTOENCODER, CLIP_L, FLUX, T5, text_to_image};
use crate::server::{Ended, Server};
use small_models::Manifests;

const DEVICES: [&str; 4] = ["--sim-device", "4gb@100gbps", "--sim-device", "4gb@100gbps"];
/// What becomes of each workflow.
const EXPECTED: &str = include_str!("../data/published_workflows.txt");
/// Sizes in pixels are this many times smaller than people have them.
const SMALLER: u64 = 8;
/// The same where parts of a picture have prompts of their own, which are 64 pixels wide at least.
const SMALLER_WITH_AREAS: u64 = 4;

/// A family: the folder of its workflows, its template in the program, its small models, and which of them takes the place
/// of a published file.
struct Family {
    folder: &'static str,
    template: Option<&'static str>,
    write_models: fn(&Manifests, &Path),
    file: fn(input: &str, published: &str) -> Option<&'static str>,
}

const CHROMA: Family = Family {
    folder: "Chroma",
    template: None,
    write_models: small_models::write_chroma,
    file: |input, published| match input {
        "unet_name" if published.contains("radiance") => Some("chroma_radiance_tiny.safetensors"),
        "unet_name" => Some("chroma_tiny.safetensors"),
        "clip_name" => Some("t5xxl_tiny.safetensors"),
        "vae_name" if published == "pixel_space" => None,
        "vae_name" => Some("ae.safetensors"),
        _ => None,
    },
};

const FLUX2: Family = Family {
    folder: "Flux2",
    template: None,
    write_models: small_models::write_flux2,
    file: |input, published| match input {
        "unet_name" if published.contains("klein") => Some("klein.safetensors"),
        "unet_name" => Some("flux2_tiny.safetensors"),
        "clip_name" if published.contains("qwen") => Some("qwen3_4b_tiny.safetensors"),
        "clip_name" => Some("mistral3_24b_tiny.safetensors"),
        "vae_name" => Some("flux2_vae.safetensors"),
        "lora_name" => Some("flux2_lora.safetensors"),
        _ => None,
    },
};

const QWEN_IMAGE: Family = Family {
    folder: "QWEN",
    template: Some("gantry-qwen-image"),
    write_models: small_models::write_qwen_image,
    file: |input, published| match input {
        "unet_name" if published.contains("lotus") => Some("lotus.safetensors"),
        "unet_name" if published.contains("2.1") => Some("qwen_image_2.1_tiny.safetensors"),
        "unet_name" if published.contains("2511") => Some("qwen_image_edit_2511_tiny.safetensors"),
        "unet_name" if published.contains("gguf") => Some("qwen.gguf"),
        "unet_name" => Some("qwen_image_tiny.safetensors"),
        "clip_name" if published.contains("gguf") => Some("qwen25_vl.gguf"),
        // The second is the model that writes prompts for the first.
        "clip_name" if published.contains("qwen3vl") || published.contains("qwen3.5") => {
            Some("qwen3vl_8b_tiny.safetensors")
        }
        "clip_name" if published.contains("2.5") => Some("qwen25_vl_7b_tiny.safetensors"),
        "vae_name" if published.contains("2.1") => Some("qwen_image_2.1_vae_tiny.safetensors"),
        "vae_name" if published.contains("ft-mse") => Some("kl.safetensors"),
        "vae_name" => Some("wan_2.1_vae_tiny.safetensors"),
        "lora_name" => Some("qwen_lora.safetensors"),
        "control_net_name" => Some("qwen_image_instantx_tiny.safetensors"),
        "name" => Some("qwen_image_blockwise_tiny.safetensors"),
        _ => None,
    },
};

const SD15: Family = Family {
    folder: "SD1.5",
    template: Some("gantry-sd15"),
    write_models: small_models::write_sd15,
    file: |input, published| match input {
        "ckpt_name" if published.ends_with(".ckpt") => Some("sd15.ckpt"),
        "ckpt_name" => Some("sd15.safetensors"),
        "vae_name" if published.ends_with(".ckpt") => Some("kl.ckpt"),
        "vae_name" => Some("kl.safetensors"),
        "unet_name" => Some("lotus.safetensors"),
        "control_net_name" if published.ends_with(".pth") => Some("adapter.pth"),
        "control_net_name" if published.contains("t2i") => Some("sd15_micro_t2i_adapter.safetensors"),
        "control_net_name" => Some("sd15_micro_controlnet.safetensors"),
        "gligen_name" => Some("gligen_sd15_micro.safetensors"),
        "model_name" => Some("esrgan_x4_new_tiny.safetensors"),
        _ => None,
    },
};

const SD3: Family = Family {
    folder: "SD3",
    template: None,
    write_models: small_models::write_sd3,
    file: |input, published| match input {
        "ckpt_name" if published == "sd3_medium.safetensors" => Some("sd3.safetensors"),
        "ckpt_name" if published == "sd3.5_large.safetensors" => Some("sd35.safetensors"),
        "ckpt_name" if published.contains("3.5") => Some("sd35_with_encoders.safetensors"),
        "ckpt_name" => Some("sd3_with_encoders.safetensors"),
        "clip_name" | "clip_name1" | "clip_name2" | "clip_name3" if published.contains("t5") => {
            Some("t5xxl_tiny.safetensors")
        }
        "clip_name1" | "clip_name2" if published.contains("clip_g") => Some("clip_g_tiny.safetensors"),
        "clip_name1" | "clip_name2" => Some("clip_l_tiny.safetensors"),
        "control_net_name" => Some("sd35_micro_stability.safetensors"),
        "unet_name" => Some("lotus.safetensors"),
        "vae_name" => Some("kl.safetensors"),
        _ => None,
    },
};

const SDXL: Family = Family {
    folder: "SDXL",
    template: Some("gantry-sdxl"),
    write_models: small_models::write_sdxl,
    file: |input, published| match input {
        "ckpt_name" if published.contains("edit") => Some("edit.safetensors"),
        "ckpt_name" if published.contains("refiner") => Some("refiner.safetensors"),
        "ckpt_name" => Some("base.safetensors"),
        _ => None,
    },
};

const Z_IMAGE: Family = Family {
    folder: "Z-Image",
    template: Some("gantry-z-image"),
    write_models: small_models::write_z_image,
    file: |input, _| match input {
        "unet_name" => Some("z_image_tiny.safetensors"),
        "clip_name" => Some("qwen3_4b_tiny.safetensors"),
        "vae_name" => Some("ae.safetensors"),
        "lora_name" => Some("z_image_lora.safetensors"),
        _ => None,
    },
};

/// A folder beside the checkout.
fn collection(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/workflows").join(family)
}

/// Which of the workflows of a family are run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// Those in the API's format.
    Api,
    /// Those that the editor saved.
    Editor,
}

impl Choice {
    fn has(self, file: &str) -> bool {
        let is_api = file.ends_with(".prompt.json") || file.ends_with("_api.json");
        is_api == (self == Choice::Api)
    }
}

/// Runs workflows of families: each becomes what is expected of it.
fn run_families(families: &[&Family], choice: Choice) {
    let found: Vec<String> = families.iter().flat_map(|family| unexpected(family, choice)).collect();
    assert!(found.is_empty(), "not as in tests/data/published_workflows.txt:\n{}", found.join("\n"));
}

/// Runs workflows of a family; what becomes of those of which something else is expected.
fn unexpected(family: &Family, choice: Choice) -> Vec<String> {
    let collection = collection(family.folder);
    let manifests = Manifests::beside_checkout();
    let Some(manifests) = manifests.filter(|_| collection.is_dir()) else {
        eprintln!(
            "\n==> NO WORKFLOW OF {} WAS RUN: shared/workflows and shared/golden are not beside the checkout\n",
            family.folder
        );
        return Vec::new();
    };
    let folder = ScratchDir::new().unwrap();
    (family.write_models)(&manifests, &folder.join("models"));
    let server = Server::start(folder.path(), &DEVICES);
    server.upload("picture.png", include_bytes!("../../../../examples/input/shapes.png"));
    let mut workflows = checked(&collection);
    workflows.extend(family.template.map(|name| (write_template(&server, name, &folder), Vec::new())));
    let mut expected = expected(family.folder, choice);
    let (mut drawn, mut all, mut other) = (0, 0, Vec::new());
    for (file, missing) in workflows.into_iter().filter(|(file, _)| choice.has(file)) {
        let since = Instant::now();
        let became = match missing.as_slice() {
            [] => {
                outcome(&server, &small_prompt(family, &workflow_path(&collection, &file, &folder), &folder))
            }
            missing => format!("no class {}", missing.join(", ")),
        };
        let line = format!("{}/{file}: {became}", family.folder);
        println!("{line} ({:.1} s)", since.elapsed().as_secs_f32());
        all += 1;
        drawn += usize::from(became.starts_with(|first: char| first.is_ascii_digit()));
        if expected.remove(&format!("{}/{file}", family.folder)) != Some(became) {
            other.push(line);
        }
    }
    println!("{}: {drawn} of {all} workflows drew their pictures", family.folder);
    other.extend(expected.into_keys().map(|file| format!("{file} is listed, and not in the folder")));
    other
}

/// Writes a template of the program into a folder; its file's name.
fn write_template(server: &Server, name: &str, folder: &ScratchDir) -> String {
    let file = format!("{name}.json");
    let answer = server.ask("GET", &format!("/templates/{file}"), b"");
    assert_eq!(answer.status, 200, "{file}");
    std::fs::write(folder.join(&file), answer.body).unwrap();
    file
}

/// Where a workflow is: a template of the program beside the server's own folders.
fn workflow_path(collection: &Path, file: &str, folder: &ScratchDir) -> PathBuf {
    let template = folder.join(file);
    if template.is_file() { template } else { collection.join(file) }
}

/// What is expected of the workflows of a family.
fn expected(family: &str, choice: Choice) -> BTreeMap<String, String> {
    let lines = EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once(": ").unwrap());
    let own = pairs.filter(|(file, _)| file.split('/').next() == Some(family) && choice.has(file));
    own.map(|(file, became)| (file.to_owned(), became.to_owned())).collect()
}

/// A workflow in the API's format, with small models and small pictures.
fn small_prompt(family: &Family, path: &Path, folder: &ScratchDir) -> Value {
    let mut prompt = converted(path, folder.path());
    let times = if has_class(&prompt, "ConditioningSetArea") { SMALLER_WITH_AREAS } else { SMALLER };
    change_inputs(&mut prompt, |class, name, inputs| match inputs[name].as_str() {
        Some("cuda:0") => Some(json!("sim:0")),
        Some("cuda:1") => Some(json!("sim:1")),
        Some(_) if class == "LoadImage" && name == "image" => Some(json!("picture.png")),
        Some(text) => (family.file)(name, text).map(|file| json!(file)),
        None => smaller(class, name, inputs[name].as_f64()? as u64, times),
    });
    prompt
}

/// What takes the place of a number, so that a run takes seconds.
fn smaller(class: &str, name: &str, number: u64, times: u64) -> Option<Value> {
    let pixels = |number: u64| (number / times).next_multiple_of(16);
    let to = match (class, name) {
        ("PrimitiveInt", "value") if (256..=4096).contains(&number) => pixels(number),
        ("PrimitiveInt", "value") if (3..=100).contains(&number) => 2,
        (_, "width" | "height" | "largest_size" | "x" | "y") if number >= 64 => pixels(number),
        (_, "left" | "right" | "top" | "bottom") if number > 16 => 16,
        ("ResolutionSelector", "megapixels") => return Some(json!(0.1)),
        (_, "megapixels" | "resize_type.megapixels") => return Some(json!(0.01)),
        (_, "steps") if number > 2 => 2,
        // The second of two samplers goes on where the first ended.
        (_, "start_at_step" | "end_at_step") if (1..=100).contains(&number) => 1,
        (_, "max_length") if number > 8 => 8,
        _ => return None,
    };
    Some(json!(to))
}

/// Runs a prompt: the sizes of its pictures, or why there are none.
fn outcome(server: &Server, prompt: &Value) -> String {
    let answer = server.post("/prompt", &json!({ "prompt": prompt, "client_id": "test" }));
    let accepted = answer.json();
    if answer.status != 200 || accepted["node_errors"] != json!({}) {
        return format!("is refused: {}", accepted["node_errors"]);
    }
    let id = accepted["prompt_id"].as_str().unwrap();
    if is_large(prompt) {
        cancel(server, id);
        return "is accepted, and too large to be drawn here".to_owned();
    }
    let ended = server.wait(id);
    if ended.entry["status"]["status_str"] != "success" {
        let error = ended.message("execution_error");
        return format!("fails in {}: {}", error["node_type"].as_str().unwrap(), error["exception_message"]);
    }
    sizes(server, &ended)
}

/// Whether a workflow draws a million pixels whatever its picture, or looks at as many often, which takes long here.
fn is_large(prompt: &Value) -> bool {
    let classes = prompt.as_object().unwrap().values().map(|node| &node["class_type"]);
    let looks = classes.filter(|class| *class == "TextEncodeQwenImageEditPlus").count();
    has_class(prompt, "FluxKontextImageScale") || looks > 2
}

/// Takes a job out of the queue, or stops it.
fn cancel(server: &Server, id: &str) {
    let answer = server.post(&format!("/api/jobs/{id}/cancel"), &json!({}));
    assert_eq!(answer.json()["cancelled"], true, "{id}");
    // One that waits leaves no record when it is cancelled, and one that runs ends soon.
    server.until("its end", |server| server.jobs() == (Vec::new(), Vec::new()));
}

/// The sizes of all pictures of a job, or which is of one colour.
fn sizes(server: &Server, ended: &Ended) -> String {
    let mut sizes = Vec::new();
    for (node, output) in ended.entry["outputs"].as_object().unwrap() {
        for picture in output["images"].as_array().into_iter().flatten() {
            let [name, subfolder, kind] =
                ["filename", "subfolder", "type"].map(|key| picture[key].as_str().unwrap());
            let path = format!("/view?filename={name}&subfolder={subfolder}&type={kind}");
            let shown = server.ask("GET", &path, b"");
            assert_eq!(shown.status, 200, "{path}");
            let mut reader = png::Decoder::new(std::io::Cursor::new(shown.body)).read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut pixels).unwrap();
            if pixels.iter().all(|value| value.abs_diff(pixels[0]) <= 8) {
                return format!("draws one colour at node {node}");
            }
            sizes.push(format!("{}x{}", info.width, info.height));
        }
    }
    sizes.sort_unstable();
    if sizes.is_empty() { "has no picture".to_owned() } else { sizes.join(" ") }
}

#[test]
fn published_workflows_of_stable_diffusion_1_5_run() {
    run_families(&[&SD15], Choice::Api);
}

#[test]
fn published_workflows_of_sdxl_run() {
    run_families(&[&SDXL], Choice::Api);
}

#[test]
fn published_workflows_of_stable_diffusion_3_run() {
    run_families(&[&SD3], Choice::Api);
}

#[test]
#[ignore = "takes half a minute, and needs the published workflows beside the checkout; .ci/run runs it"]
fn published_workflows_of_qwen_image_run() {
    run_families(&[&QWEN_IMAGE], Choice::Api);
}

#[test]
fn published_workflows_of_chroma_run() {
    run_families(&[&CHROMA], Choice::Api);
}

#[test]
#[ignore = "takes a minute, and needs the published workflows beside the checkout; .ci/run runs it"]
fn published_workflows_of_the_editor_run() {
    let families = [&Z_IMAGE, &FLUX2, &CHROMA, &SD3, &SDXL];
    run_families(&families, Choice::Editor);
}

#[test]
fn published_workflows_run() {
    let collection = collection("FLUX");
    if !collection.is_dir() {
        println!("there is no collection of workflows");
        return;
    }
    let folder = ScratchDir::new().unwrap();
    let models = folder.join("models");
    write_demo_checkpoint(&models);
    write_demo_with_channels(&models, "canny.safetensors", 32);
    write_demo_with_channels(&models, "fill.safetensors", 96);
    write_captioner(&models, "Florence-2-large-PromptGen-v2.0");
    let manifests = Manifests::beside_checkout();
    if let Some(manifests) = &manifests {
        small_models::write_lotus(manifests, &models);
    }
    let server = Server::start(folder.path(), &DEVICES);
    let drawn = server.run(&text_to_image(64, 1));
    server.upload("picture.png", &std::fs::read(&drawn.files("8", "images")[0]).unwrap());
    server.free(&json!({ "unload_models": true, "free_memory": true }));
    let (mut executed, mut validated) = (0, 0);
    for (file, missing) in checked(&collection) {
        assert_eq!(missing, [""; 0], "{file}");
        let path = collection.join(&file);
        let mut prompt = converted(&path, folder.path());
        change_inputs(&mut prompt, |class, name, inputs| {
            let depth = manifests.as_ref().and_then(|_| of_lotus(name, inputs[name].as_str()?));
            depth.or_else(|| replacement(class, name, inputs))
        });
        let id = server.queue(&prompt);
        validated += 1;
        if has_class(&prompt, "FluxKontextImageScale") {
            // It makes a large picture of any, which takes long here.
            cancel(&server, &id);
            continue;
        }
        let ended = server.wait(&id);
        let status = &ended.entry["status"];
        if has_class(&prompt, "LotusConditioning") && manifests.is_none() {
            // It needs the text encoder of another family, and says so.
            assert_eq!(status["status_str"], "error", "{file}: {status}");
            assert!(status.to_string().contains("OpenCLIP ViT-H"), "{file}: {status}");
            continue;
        }
        assert_eq!(status["status_str"], "success", "{file}: {status}");
        executed += 1;
    }
    println!("{validated} published workflows validate, {executed} ran");
    assert!(validated > 0);
}

/// The files below a folder, and the classes that each would need and that are not there.
pub(crate) fn checked(folder: &Path) -> Vec<(String, Vec<String>)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    let output = command.args(["check", "--cpu", "--json"]).arg(folder).output().unwrap();
    let coverage: Value = serde_json::from_slice(&output.stdout).unwrap();
    let families = coverage["families"].as_array().unwrap();
    let files = families.iter().flat_map(|family| family["files"].as_array().unwrap());
    files
        .map(|file| {
            let path = file["path"].as_str().unwrap().to_owned();
            assert_eq!(file["problem"], Value::Null, "{path}");
            let missing = file["missing"].as_array().unwrap().iter();
            (path, missing.map(|missing| missing["class"].as_str().unwrap().to_owned()).collect())
        })
        .collect()
}

/// A workflow in the API's format.
fn converted(file: &Path, base: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(["run", "--cpu", "--convert", "--base-directory"]).arg(base).args(DEVICES).arg(file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn has_class(prompt: &Value, class: &str) -> bool {
    prompt.as_object().unwrap().values().any(|node| node["class_type"] == class)
}

/// Puts other values in the place of inputs.
fn change_inputs(prompt: &mut Value, other: impl Fn(&str, &str, &Map<String, Value>) -> Option<Value>) {
    for node in prompt.as_object_mut().unwrap().values_mut() {
        let class = node["class_type"].as_str().unwrap().to_owned();
        let inputs = node["inputs"].as_object_mut().unwrap();
        let names: Vec<String> = inputs.keys().cloned().collect();
        for name in names {
            if let Some(value) = other(&class, &name, inputs) {
                inputs.insert(name, value);
            }
        }
    }
}

/// What takes the place of a file that sees depth.
fn of_lotus(name: &str, published: &str) -> Option<Value> {
    match name {
        "unet_name" if published.contains("lotus") => Some(json!("lotus.safetensors")),
        "vae_name" if published.contains("ft-mse") => Some(json!("kl.safetensors")),
        _ => None,
    }
}

/// What takes the place of an input of a FLUX workflow: what is here of what people have, and small pictures in few
/// steps.
fn replacement(class: &str, name: &str, inputs: &Map<String, Value>) -> Option<Value> {
    let value = &inputs[name];
    if let Some(text) = value.as_str() {
        let to = match name {
            "unet_name" if text.contains("fill") => "fill.safetensors",
            "unet_name" if text.contains("canny") => "canny.safetensors",
            "unet_name" => FLUX,
            "clip_name1" | "clip_name2" if text.contains("t5") => T5,
            "clip_name1" | "clip_name2" => CLIP_L,
            "vae_name" => AUTOENCODER,
            "ckpt_name" => "demo-checkpoint.safetensors",
            "lora_name" => "demo-outline-lora.safetensors",
            "image" if class == "LoadImage" => "picture.png",
            _ if text == "cuda:0" => "sim:0",
            _ if text == "cuda:1" => "sim:1",
            _ => return None,
        };
        return Some(json!(to));
    }
    let number = value.as_f64()?;
    match name {
        "width" | "height" if number > 64.0 => Some(json!(64)),
        "left" | "right" | "top" | "bottom" if number > 16.0 => Some(json!(16)),
        "megapixels" => Some(json!(0.01)),
        "steps" if number > 2.0 => Some(json!(2)),
        _ => None,
    }
}
