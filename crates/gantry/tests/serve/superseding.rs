//! Kept models do not pile up: what a loader asks for again supersedes what it asked for before.

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::model_files::demo;
use crate::prompts::{FLUX, set_loader, text_to_image};
use crate::server::Server;

const DEVICES: [&str; 4] = ["--sim-device", "256mb@20gbps", "--sim-device", "256mb@20gbps"];

/// A server with one worker, and one with two.
fn servers(test: impl Fn(&Server)) {
    for workers in [&[][..], &["--workers", "auto"]] {
        let folder = ScratchDir::new().unwrap();
        let server = Server::start(folder.path(), &[&DEVICES[..], workers].concat());
        test(&server);
    }
}

/// A small picture whose diffusion model is loaded so.
fn prompt(loader: &Value, seed: u32) -> Value {
    let mut prompt = text_to_image(64, 1);
    prompt["6"]["inputs"]["seed"] = json!(seed);
    set_loader(&mut prompt, "1", "UNETLoaderDisTorch2MultiGPU", loader);
    prompt
}

fn loader(device: &str, expert: &str, keep: bool) -> Value {
    json!({
        "compute_device": device, "virtual_vram_gb": 0.0, "donor_device": "cpu",
        "expert_mode_allocations": expert, "keep_loaded": keep,
    })
}

/// The registrations of the diffusion model.
fn registered(server: &Server) -> Vec<Value> {
    let models = server.get("/gantry/models");
    models["models"].as_array().unwrap().iter().filter(|model| model["name"] == FLUX).cloned().collect()
}

/// Bytes of the diffusion model on accelerators, by its plan and by what the registry says it holds.
fn on_accelerators(model: &Value) -> u64 {
    let devices = model["bytes"].as_object().unwrap().iter();
    devices.filter(|(id, _)| *id != "cpu").map(|(_, bytes)| bytes.as_u64().unwrap()).sum()
}

#[test]
fn ten_allocations_in_turn_are_one_registration() {
    servers(|server| {
        let allocations = [
            ("sim:0", ""),
            ("sim:0", "sim:0,50%;cpu,50%"),
            ("sim:0", "sim:0,30%;cpu,70%"),
            ("sim:0", "sim:0,1mb;cpu,*"),
            ("sim:0", "sim:0,50%;sim:1,50%"),
            ("sim:1", ""),
            ("sim:1", "sim:1,40%;sim:0,60%"),
            ("cpu", ""),
            ("sim:0", "sim:0,20%;cpu,80%"),
            ("sim:0", "sim:0,60%;cpu,40%"),
        ];
        for (seed, (device, expert)) in (0..).zip(allocations) {
            server.run(&prompt(&loader(device, expert, true), seed));
            let models = registered(server);
            assert_eq!(models.len(), 1, "{device} {expert}: {models:?}");
            assert_eq!(models[0]["retention"], "keep");
            assert_eq!(models[0]["plan"]["compute"], device);
        }
        // Its bytes are there once: those of the last allocation and nothing of the nine before.
        server.free(&json!({ "unload_models": true, "free_memory": true }));
        let models = registered(server);
        assert_eq!(models.len(), 1);
        let devices = server.get("/gantry/devices");
        let used: u64 = devices["devices"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|device| device["id"] != "cpu")
            .map(|device| device["used_bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(used, on_accelerators(&models[0]), "{devices}");
    });
}

#[test]
fn a_replaced_file_takes_the_place_of_the_old_one() {
    let folder = ScratchDir::new().unwrap();
    let place = folder.path().join("models/diffusion_models");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::copy(demo(FLUX), place.join(FLUX)).unwrap();
    let server = Server::start(folder.path(), &DEVICES);
    server.run(&prompt(&loader("sim:0", "", true), 1));
    let before = registered(&server);
    assert_eq!(before.len(), 1);
    // A new file under the same name, as a download makes it.
    std::fs::copy(demo(FLUX), place.join("new")).unwrap();
    std::fs::rename(place.join("new"), place.join(FLUX)).unwrap();
    server.run(&prompt(&loader("sim:0", "", true), 2));
    let after = registered(&server);
    assert_eq!(after.len(), 1, "the old file's weights are gone: {after:?}");
    assert_ne!(after[0]["id"], before[0]["id"], "the new file is loaded");
    assert_eq!(after[0]["retention"], "keep");
}

#[test]
fn two_loaders_of_one_file_are_two_until_the_workflow_changes() {
    servers(|server| {
        let mut both = prompt(&loader("sim:0", "", true), 1);
        both["11"] = both["1"].clone();
        both["11"]["inputs"]["compute_device"] = json!("sim:1");
        both["16"] = both["6"].clone();
        both["16"]["inputs"]["model"] = json!(["11", 0]);
        both["19"] = json!({ "class_type": "SaveLatent",
            "inputs": { "samples": ["16", 0], "filename_prefix": "other" } });
        let ended = server.run(&both);
        assert_eq!(ended.latent("9"), ended.latent("19"), "the same model, on two devices");
        assert_eq!(registered(server).len(), 2);
        // Again, with both loaders cached: nothing is superseded behind their backs.
        both["6"]["inputs"]["seed"] = json!(2);
        both["16"]["inputs"]["seed"] = json!(2);
        server.run(&both);
        assert_eq!(registered(server).len(), 2);
        server.run(&prompt(&loader("sim:0", "", true), 3));
        let left = registered(server);
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0]["plan"]["compute"], "sim:0");
    });
}

#[test]
fn what_a_loader_does_not_say_passes_on() {
    servers(|server| {
        server.run(&prompt(&loader("sim:0", "", true), 1));
        // A plain loader has no keep_loaded, and another device: the model is kept on.
        server.run(&{
            let mut prompt = text_to_image(64, 1);
            set_loader(&mut prompt, "1", "UNETLoaderMultiGPU", &json!({ "device": "sim:1" }));
            prompt
        });
        let models = registered(server);
        assert_eq!(models.len(), 1, "{models:?}");
        assert_eq!(
            (&models[0]["retention"], &models[0]["plan"]["compute"]),
            (&json!("keep"), &json!("sim:1"))
        );
        server.run(&prompt(&loader("sim:0", "", false), 2));
        let models = registered(server);
        assert_eq!((models.len(), &models[0]["retention"]), (1, &json!("eject")));
    });
}
