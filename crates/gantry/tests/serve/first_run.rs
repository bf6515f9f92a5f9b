//! A server on a folder without models: it says what goes where, and the demo model works in every loader.

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::prompts::{AUTOENCODER, CLIP_L, FLUX, T5, text_to_image};
use crate::server::Server;

const FLUX_Q8_0: &str = "demo-flux-Q8_0.gguf";
const OUTLINE: &str = "demo-outline-lora.safetensors";

#[test]
fn a_server_without_models_helps_and_draws() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.until("the advice", |server| server.log().contains("there are no models"));
    let log = server.log();
    println!("{log}");
    let models = folder.path().join("models");
    for (file, kind) in [
        ("flux1-dev.safetensors", "diffusion_models"),
        ("clip_l.safetensors", "text_encoders"),
        ("t5xxl_fp16.safetensors", "text_encoders"),
        ("ae.safetensors", "vae"),
    ] {
        let place = models.join(kind).display().to_string();
        assert!(log.lines().any(|line| line.contains(file) && line.ends_with(&place)), "{file}: {log}");
    }
    assert!(log.contains(&format!("http://{}/gantry/", server.address())), "{log}");

    for (class, input, names) in [
        ("UNETLoader", "unet_name", [FLUX].as_slice()),
        ("UNETLoaderMultiGPU", "unet_name", &[FLUX]),
        ("UNETLoaderDisTorch2MultiGPU", "unet_name", &[FLUX]),
        ("UnetLoaderGGUF", "unet_name", &[FLUX_Q8_0]),
        ("UnetLoaderGGUFDisTorch2MultiGPU", "unet_name", &[FLUX_Q8_0]),
        ("DualCLIPLoader", "clip_name1", &[CLIP_L, T5]),
        ("DualCLIPLoader", "clip_name2", &[CLIP_L, T5]),
        ("DualCLIPLoaderMultiGPU", "clip_name1", &[CLIP_L, T5]),
        ("VAELoader", "vae_name", &[AUTOENCODER]),
        ("LoraLoader", "lora_name", &[OUTLINE]),
        ("LoraLoaderModelOnly", "lora_name", &[OUTLINE]),
    ] {
        let offered = offered(&server, class, input);
        for name in names {
            assert!(offered.iter().any(|offer| offer == name), "{class} does not offer {name}: {offered:?}");
        }
    }

    let plain = server.run(&text_to_image(64, 2)).picture("8");
    let packed = server.run(&with_packed_model(text_to_image(64, 2))).picture("8");
    assert_ne!(plain.2, server.run(&with_outlines(text_to_image(64, 2))).picture("8").2, "the LoRA shows");
    let difference: u64 = plain.2.iter().zip(&packed.2).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    assert!(difference < 4 * plain.2.len() as u64, "the packed model draws nearly the same: {difference}");
}

/// The files that an input of a class offers.
fn offered(server: &Server, class: &str, input: &str) -> Vec<Value> {
    let info = server.get(&format!("/object_info/{class}"));
    let choices = &info[class]["input"]["required"][input][0];
    choices.as_array().unwrap_or_else(|| panic!("{class}.{input}: {info}")).clone()
}

fn with_packed_model(mut prompt: Value) -> Value {
    prompt["1"] = json!({ "class_type": "UnetLoaderGGUF", "inputs": { "unet_name": FLUX_Q8_0 } });
    prompt
}

/// The LoRA between loaders and everything that uses them.
fn with_outlines(mut prompt: Value) -> Value {
    prompt["10"] = json!({ "class_type": "LoraLoader", "inputs": {
        "lora_name": OUTLINE, "strength_model": 1.0, "strength_clip": 1.0, "model": ["1", 0], "clip": ["2", 0] } });
    prompt["6"]["inputs"]["model"] = json!(["10", 0]);
    prompt["4"]["inputs"]["clip"] = json!(["10", 1]);
    prompt
}
