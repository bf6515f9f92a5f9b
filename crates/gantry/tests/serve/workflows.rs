//! Workflows of the kinds that people have, on the demo model.

use serde_json::{Value, json};
use testkit::{Report, ScratchDir};

use crate::model_files::write_demo_checkpoint;
use crate::prompts::{AUTOENCODER, FLUX, set_loader, text_to_image};
use crate::server::{Ended, Server};

const SIDE: u32 = 64;

/// Checks that a job saved a picture of the size asked for, with something in it; its latent.
#[track_caller]
fn picture_and_latent(ended: &Ended) -> (Vec<u8>, Vec<f32>) {
    let (width, height, pixels) = ended.picture("8");
    assert_eq!((width, height), (SIDE, SIDE));
    assert!(pixels.iter().any(|value| value.abs_diff(pixels[0]) > 32), "the picture is of one colour");
    let latent = ended.latent("9");
    assert!(latent.iter().all(|value| value.is_finite()));
    (pixels, latent)
}

#[test]
fn all_kinds_of_workflows_draw() {
    let folder = ScratchDir::new().unwrap();
    write_demo_checkpoint(&folder.join("models"));
    let devices = ["--sim-device", "1gb@100gbps", "--sim-device", "1gb@100gbps"];
    let server = Server::start(folder.path(), &devices);
    let plain = text_to_image(SIDE, 4);
    let ended = server.run(&plain);
    let saved = std::fs::read(&ended.files("8", "images")[0]).unwrap();
    let (_, wanted) = picture_and_latent(&ended);
    let name = ended.entry["outputs"]["8"]["images"][0]["filename"].as_str().unwrap().to_owned();
    let shown = server.ask("GET", &format!("/view?filename={name}&type=output"), b"");
    assert!(shown.status == 200 && shown.body == saved);

    assert!(
        picture_and_latent(&server.run(&checkpoint(&plain))).1 == wanted,
        "a checkpoint has the same weights"
    );
    let quantised = picture_and_latent(&server.run(&gguf(&plain))).1;
    let report = Report::new("Q8_0", &quantised, &wanted);
    assert!(report.norm < 0.1 && quantised != wanted, "{report}");
    let outlined = picture_and_latent(&server.run(&with_lora(&plain))).1;
    assert!(outlined != wanted, "the LoRA draws something else");

    server.upload("drawn.png", &saved);
    let from_picture = picture_and_latent(&server.run(&image_to_image(&plain))).1;
    assert!(from_picture != wanted);

    server.free(&json!({ "force": true }));
    let spread = picture_and_latent(&server.run(&spread(&plain))).1;
    assert!(spread == wanted, "it is the same picture wherever the weights are");
    let bytes = server.model(FLUX)["bytes"].clone();
    for device in ["cpu", "sim:0", "sim:1"] {
        assert!(bytes[device].as_u64() > Some(100_000), "{device} of {bytes}");
    }
    assert!(server.model(AUTOENCODER)["bytes"]["sim:1"].as_u64() > Some(1_000_000));
    nothing_is_written_elsewhere(&folder);
}

/// Besides what the test itself put there, a server writes into folders that are for it.
fn nothing_is_written_elsewhere(folder: &ScratchDir) {
    let entries = std::fs::read_dir(folder.path()).unwrap();
    for entry in entries {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let known = ["input", "log", "models", "output", "temp", "user"];
        assert!(known.contains(&name.as_str()), "{name}");
    }
    let written = std::fs::read_dir(folder.join("models")).unwrap();
    assert_eq!(written.count(), 1, "only the folder of checkpoints");
}

fn checkpoint(plain: &Value) -> Value {
    let mut prompt = plain.clone();
    let inputs = json!({ "ckpt_name": "demo-checkpoint.safetensors" });
    prompt["1"] = json!({ "class_type": "CheckpointLoaderSimple", "inputs": inputs });
    prompt["4"]["inputs"]["clip"] = json!(["1", 1]);
    prompt["7"]["inputs"]["vae"] = json!(["1", 2]);
    for node in ["2", "3"] {
        prompt.as_object_mut().unwrap().remove(node);
    }
    prompt
}

fn gguf(plain: &Value) -> Value {
    let mut prompt = plain.clone();
    prompt["1"] = json!({ "class_type": "UnetLoaderGGUF", "inputs": { "unet_name": "demo-flux-Q8_0.gguf" } });
    prompt
}

fn with_lora(plain: &Value) -> Value {
    let mut prompt = plain.clone();
    let inputs = json!({
        "lora_name": "demo-outline-lora.safetensors", "strength_model": 1.0, "strength_clip": 1.0,
        "model": ["1", 0], "clip": ["2", 0],
    });
    prompt["10"] = json!({ "class_type": "LoraLoader", "inputs": inputs });
    prompt["6"]["inputs"]["model"] = json!(["10", 0]);
    prompt["4"]["inputs"]["clip"] = json!(["10", 1]);
    prompt
}

fn image_to_image(plain: &Value) -> Value {
    let mut prompt = plain.clone();
    prompt["5"] = json!({ "class_type": "VAEEncode", "inputs": { "pixels": ["10", 0], "vae": ["3", 0] } });
    prompt["10"] = json!({ "class_type": "LoadImage", "inputs": { "image": "drawn.png" } });
    prompt["6"]["inputs"]["denoise"] = json!(0.5);
    prompt
}

/// The diffusion model over three devices, everything else where it is told.
fn spread(plain: &Value) -> Value {
    let mut prompt = plain.clone();
    let allocation = json!({
        "compute_device": "sim:0", "virtual_vram_gb": 0.0, "donor_device": "cpu",
        "expert_mode_allocations": "sim:0,1.5mb;sim:1,1.5mb;cpu,*",
        "eject_models": false, "keep_loaded": true,
    });
    set_loader(&mut prompt, "1", "UNETLoaderDisTorch2MultiGPU", &allocation);
    set_loader(&mut prompt, "2", "DualCLIPLoaderMultiGPU", &json!({ "device": "cpu" }));
    set_loader(&mut prompt, "3", "VAELoaderMultiGPU", &json!({ "device": "sim:1" }));
    prompt
}
