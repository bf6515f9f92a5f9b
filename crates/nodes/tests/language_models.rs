//! Texts of families that language models read, through loaders and nodes, against what the reference's nodes gave.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_support;

use std::fs;
use std::path::{Path, PathBuf};

use golden::{GoldenFolder, ModelsFolder};
use golden_support::{Bench, host};
use graph::Literal;
use meta::{DeviceId, Shape};
use nodes::value::{Array, Conditioning};
use serde_json::{Map, Value, json};
use testkit::Golden;

/// What the reference's own repetitions stay well below.
const TOLERANCE: f64 = 1e-4;

/// The part of a workflow that a node needs, without autoencoders: what is made of pictures for the diffusion model is
/// not about its text.
fn needed(workflow: &Value, node: &str, part: &mut Map<String, Value>) {
    let mut about = workflow[node].clone();
    let inputs = about["inputs"].as_object_mut().unwrap();
    inputs.remove("vae");
    let links: Vec<String> =
        inputs.values().filter_map(|input| Some(input.get(0)?.as_str()?.to_owned())).collect();
    part.insert(node.to_owned(), about);
    links.iter().for_each(|link| needed(workflow, link, part));
}

fn reference() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    if !folder.is_dir() {
        eprintln!("\n==> NO REFERENCE VALUES: there is no folder shared/golden beside the checkout\n");
        return None;
    }
    Some(folder)
}

fn run(bench: &Bench, workflow: Value) -> std::sync::Arc<Conditioning> {
    let workflow: Literal = serde_json::from_value(workflow).unwrap();
    bench.run(&workflow, &[("text", "4")]).object("text")
}

/// Runs node 4 of each case, which encodes the prompt, and compares all that the reference kept of it.
fn check(cases: &[&str]) {
    let Some(folder) = reference() else { return };
    let golden = GoldenFolder::open(&folder).unwrap();
    let bench = Bench::with(&[], host(), DeviceId::CPU);
    let models = bench.runtime.folders.places("text_encoders")[0].parent().unwrap().to_owned();
    let models = ModelsFolder::at(&models).unwrap();
    fs::copy(golden.inputs().join("image.png"), bench.runtime.folders.input.join("image.png")).unwrap();
    for name in cases {
        let case = golden.case(name).unwrap();
        let files = case
            .files
            .iter()
            .map(String::as_str)
            .filter(|file| file.starts_with("text_encoders/") || file.starts_with("clip_vision/"));
        models.ensure(&golden, files).unwrap();
        let run_folder = folder.join("runs").join(name);
        let text = fs::read_to_string(run_folder.join("workflow_api.json")).unwrap();
        let mut part = Map::new();
        needed(&serde_json::from_str(&text).unwrap(), "4", &mut part);
        let conditioning = run(&bench, Value::Object(part));
        let tensors = Golden::open(run_folder.join("tensors.safetensors")).unwrap();
        let cond = &conditioning.entries[0].cond;
        let mut compared = 0;
        let mut close = |stored: &str, array: &Array| {
            let shape = Shape::new(&array.shape).unwrap();
            tensors.assert_close(stored, &shape, &array.values, TOLERANCE);
            compared += 1;
        };
        close("cond.4", &cond.text);
        let has = |wanted: &str| tensors.names().any(|known| known.starts_with(wanted));
        if has("pooled.4") {
            close("pooled.4", cond.pooled.as_ref().unwrap());
        }
        for second in ["conditioning_llama3.4", "conditioning_byt5small.4"] {
            if has(second) {
                close(second, cond.second_text.as_ref().unwrap());
            }
        }
        assert_eq!(cond.attention_mask.is_some(), has("attention_mask.4"), "{name}");
        assert!(compared > 0);
    }
}

#[test]
fn texts_of_image_families() {
    check(&["qwen_image_tiny", "z_image_tiny", "lumina2_tiny", "flux2_tiny", "hidream_tiny"]);
}

#[test]
fn texts_of_video_families() {
    check(&["hunyuan_video_tiny", "kandinsky5_t2v_tiny", "cosmos_predict2_t2i_tiny", "wan21_t2v_tiny"]);
    // Letters in quotation marks are read by an encoder of bytes, whose weights are rounded to the type of the other one's.
    check(&["hunyuan_video_15_t2v_tiny"]);
}

#[test]
fn texts_about_pictures() {
    check(&["qwen_image_edit_tiny", "qwen_image_edit_plus_tiny", "hunyuan_video_i2v_concat_tiny"]);
}

#[test]
fn every_encoder_can_be_told_something_else_and_types_that_do_not_fit_are_named() {
    let bench = Bench::with(&["clip_l_tiny", "t5xxl_tiny", "gemma_2_2b_tiny"], host(), DeviceId::CPU);
    let loader = |kind: &str| {
        json!({"class_type": "DualCLIPLoader", "inputs": {"clip_name1": "clip_l_tiny.safetensors",
               "clip_name2": "t5xxl_tiny.safetensors", "type": kind}})
    };
    let told = |t5: &str| {
        let inputs = json!({"clip": ["2", 0], "clip_l": "a", "clip_g": "b", "t5xxl": t5, "llama": "c"});
        let workflow =
            json!({"2": loader("hidream"), "4": {"class_type": "CLIPTextEncodeHiDream", "inputs": inputs}});
        let conditioning = run(&bench, workflow);
        let cond = &conditioning.entries[0].cond;
        assert_eq!(cond.text.shape, [1, 128, 4096]);
        assert_eq!(cond.pooled.as_ref().unwrap().shape, [1, 2048]);
        // Llama is not there, so its states are empty.
        assert_eq!(cond.second_text.as_ref().unwrap().shape, [1, 32, 1, 4096]);
        cond.text.values.clone()
    };
    assert_ne!(told("a cat"), told("a dog"));
    let error = bench
        .call(
            "DualCLIPLoader",
            &[
                ("clip_name1", "clip_l_tiny.safetensors".into()),
                ("clip_name2", "gemma_2_2b_tiny.safetensors".into()),
                ("type", "flux".into()),
            ],
        )
        .unwrap_err();
    assert!(error.contains("Gemma 2") && error.contains("cannot be used for flux"), "{error}");
    // A picture without a tower to look at it.
    let lumina = json!({"class_type": "CLIPLoader", "inputs": {"clip_name": "gemma_2_2b_tiny.safetensors", "type": "qwen_image"}});
    let text = json!({"class_type": "CLIPTextEncodeLumina2",
        "inputs": {"clip": ["2", 0], "system_prompt": "alignment", "user_prompt": "a cat"}});
    let conditioning = run(&bench, json!({"2": lumina, "4": text}));
    assert_eq!(conditioning.entries[0].cond.text.shape[2], 192);
}
