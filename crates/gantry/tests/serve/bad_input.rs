//! What cannot work is refused or fails with a reason, and the server goes on.

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::model_files::demo;
use crate::prompts::{set_loader, text_to_image};
use crate::server::Server;

#[test]
fn the_server_goes_on_after_bad_input() {
    let folder = ScratchDir::new().unwrap();
    let models = folder.join("models/diffusion_models");
    std::fs::create_dir_all(&models).unwrap();
    std::fs::copy(demo("demo-t5.safetensors"), models.join("text-encoder.safetensors")).unwrap();
    std::fs::write(models.join("page.safetensors"), "<!DOCTYPE html> you are not logged in").unwrap();
    // The second device has room for no model.
    let devices = ["--sim-device", "1gb@100gbps", "--sim-device", "1mb@100gbps"];
    let server = Server::start(folder.path(), &devices);
    prompts_that_are_none(&server);
    files_that_are_something_else(&server);
    more_than_a_device_has(&server);
    server.run(&text_to_image(64, 1));
    assert_eq!(server.jobs(), (Vec::new(), Vec::new()));
}

fn prompts_that_are_none(server: &Server) {
    for body in ["", "garbage", "[]", "{}", "{\"prompt\": 5}", "{\"prompt\": {}}", "\u{0}\u{1}"] {
        let answer = server.ask("POST", "/prompt", body.as_bytes());
        assert_eq!(answer.status, 400, "{body:?}: {}", answer.text());
        assert!(answer.json().get("error").is_some(), "{body:?}: {}", answer.text());
    }
    let refused = |prompt: &Value| {
        let answer = server.post("/prompt", &json!({ "prompt": prompt }));
        assert_eq!(answer.status, 400, "{}", answer.text());
        answer.json()
    };
    let unknown = refused(&json!({ "1": { "class_type": "NoSuchClass", "inputs": {} } }));
    assert!(unknown["error"]["message"].as_str().unwrap().contains("NoSuchClass"), "{unknown}");
    let mut prompt = text_to_image(64, 1);
    prompt["1"]["inputs"]["unet_name"] = json!("../../etc/passwd");
    let outside = refused(&prompt);
    assert_eq!(outside["node_errors"]["1"]["errors"][0]["type"], "value_not_in_list", "{outside}");
    prompt["1"]["inputs"].as_object_mut().unwrap().remove("unet_name");
    let absent = refused(&prompt);
    assert_eq!(absent["node_errors"]["1"]["errors"][0]["type"], "required_input_missing", "{absent}");
    let circle = json!({
        "1": { "class_type": "LatentFlip", "inputs": { "samples": ["2", 0], "flip_method": "x-axis: vertically" } },
        "2": { "class_type": "LatentFlip", "inputs": { "samples": ["1", 0], "flip_method": "x-axis: vertically" } },
        "3": { "class_type": "SaveLatent", "inputs": { "samples": ["1", 0], "filename_prefix": "no" } },
    });
    refused(&circle);
}

fn files_that_are_something_else(server: &Server) {
    let mut prompt = text_to_image(64, 1);
    prompt["1"]["inputs"]["unet_name"] = json!("text-encoder.safetensors");
    let text = server.run_badly(&prompt);
    println!("{text}");
    assert!(text.contains("text-encoder.safetensors") && text.to_lowercase().contains("t5"), "{text}");
    prompt["1"]["inputs"]["unet_name"] = json!("page.safetensors");
    let text = server.run_badly(&prompt);
    println!("{text}");
    assert!(text.contains("page.safetensors"), "{text}");
}

fn more_than_a_device_has(server: &Server) {
    let placed = |device: &str, allocation: &str| {
        let mut prompt = text_to_image(64, 1);
        let more = json!({
            "compute_device": device, "virtual_vram_gb": 0.0, "expert_mode_allocations": allocation,
        });
        set_loader(&mut prompt, "1", "UNETLoaderDisTorch2MultiGPU", &more);
        prompt
    };
    for (device, allocation) in [("sim:0", "sim:1,900gb"), ("sim:0", "sim:1,100%"), ("sim:1", "sim:1,900gb")]
    {
        let text = server.run_badly(&placed(device, allocation));
        println!("{device} {allocation:?}: {text}");
        assert!(text.contains("sim:1"), "{text}");
    }
    // A mark stands below what is wrong.
    for allocation in ["sim:9,*", "sim:0,-5gb", "sim:0,much", ";;;#"] {
        let text = server.run_badly(&placed("sim:0", allocation));
        assert!(text.starts_with(allocation) && text.contains('^'), "{text}");
    }
    // The autoencoder computes where nothing fits.
    let mut prompt = text_to_image(64, 1);
    set_loader(&mut prompt, "3", "VAELoaderMultiGPU", &json!({ "device": "sim:1" }));
    let ended = server.wait(&server.queue(&prompt));
    let error = ended.message("execution_error");
    assert_eq!(error["exception_type"], "OOMError", "{error}");
    assert!(error["exception_message"].as_str().unwrap().contains("sim:1"), "{error}");
    assert!(server.models().keys().all(|name| !name.contains("flux")), "what failed is not left behind");
}
