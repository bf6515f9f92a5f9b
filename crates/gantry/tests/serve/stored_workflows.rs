//! FLUX workflows that people published, on the demo model. They are not part of the project: without the folder
//! that has them there is nothing to test here.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};
use testkit::ScratchDir;

use crate::model_files::{write_captioner, write_demo_checkpoint, write_demo_with_channels};
use crate::prompts::{AUTOENCODER, CLIP_L, FLUX, T5, text_to_image};
use crate::server::Server;

const DEVICES: [&str; 4] = ["--sim-device", "1gb@100gbps", "--sim-device", "1gb@100gbps"];

/// A folder beside the checkout.
fn collection() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/workflows/FLUX")
}

#[test]
fn published_workflows_run() {
    let collection = collection();
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
    let server = Server::start(folder.path(), &DEVICES);
    let drawn = server.run(&text_to_image(64, 1));
    server.upload("picture.png", &std::fs::read(&drawn.files("8", "images")[0]).unwrap());
    server.free(&json!({ "unload_models": true, "free_memory": true }));
    let (mut executed, mut validated) = (0, 0);
    for (file, missing) in checked(&collection) {
        assert_eq!(missing, [""; 0], "{file}");
        let path = collection.join(&file);
        let mut prompt = converted(&path, folder.path());
        make_small(&mut prompt);
        let id = server.queue(&prompt);
        validated += 1;
        if has_class(&prompt, "FluxKontextImageScale") {
            // It makes a large picture of any, which takes long here.
            let answer = server.post(&format!("/api/jobs/{id}/cancel"), &json!({}));
            assert_eq!(answer.json()["cancelled"], true, "{file}");
            // One that waits leaves no record when it is cancelled, and one that runs ends soon.
            server.until("its end", |server| server.jobs() == (Vec::new(), Vec::new()));
            continue;
        }
        let ended = server.wait(&id);
        let status = &ended.entry["status"];
        if has_class(&prompt, "LotusConditioning") {
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
fn checked(folder: &Path) -> Vec<(String, Vec<String>)> {
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

/// Names what is here in the place of what people have, and asks for small pictures in few steps.
fn make_small(prompt: &mut Value) {
    for node in prompt.as_object_mut().unwrap().values_mut() {
        let class = node["class_type"].as_str().unwrap().to_owned();
        let inputs = node["inputs"].as_object_mut().unwrap();
        let names: Vec<String> = inputs.keys().cloned().collect();
        for name in names {
            if let Some(value) = replacement(&class, &name, inputs) {
                inputs.insert(name, value);
            }
        }
    }
}

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
