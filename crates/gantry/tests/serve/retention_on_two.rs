//! Which models stay when memory is asked for, with two workers that each have them on their own device.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::prompts::{AUTOENCODER, CLIP_L, FLUX, T5, set_loader, text_to_image};
use crate::server::{Ended, Server};

const TWO: [&str; 6] =
    ["--sim-device", "1gb@100gbps", "--sim-device", "1gb@100gbps", "--workers", "sim:0,sim:1"];
const DEVICES: [&str; 2] = ["sim:0", "sim:1"];
const FILES: [&str; 4] = [AUTOENCODER, CLIP_L, FLUX, T5];

/// A small picture whose models are on the device of the worker that draws it.
fn picture(seed: u32, steps: u32, keep: bool) -> Value {
    let mut prompt = text_to_image(64, steps);
    prompt["4"]["inputs"]["text"] = json!(format!("{seed} red circles"));
    prompt["6"]["inputs"]["seed"] = json!(seed);
    for (node, class) in [("1", "UNETLoader"), ("2", "DualCLIPLoader"), ("3", "VAELoader")] {
        let more = json!({ "virtual_vram_gb": 0.0, "keep_loaded": keep });
        set_loader(&mut prompt, node, &format!("{class}DisTorch2MultiGPU"), &more);
    }
    prompt
}

/// The loaded models, by where they compute and by name.
fn loaded(server: &Server) -> BTreeMap<(String, String), Value> {
    let models = server.get("/gantry/models");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let models = models["models"].as_array().unwrap().iter();
    models.map(|model| ((text(&model["plan"]["compute"]), text(&model["name"])), model.clone())).collect()
}

/// The names of what is loaded on a device, with copies there or without.
fn on(server: &Server, device: &str) -> Vec<String> {
    loaded(server).into_keys().filter(|(there, _)| there == device).map(|(_, name)| name).collect()
}

fn used(server: &Server, id: &str) -> u64 {
    let devices = server.get("/gantry/devices");
    let mut devices = devices["devices"].as_array().unwrap().iter();
    devices.find(|device| device["id"] == id).unwrap()["used_bytes"].as_u64().unwrap()
}

/// Both workers draw at the same time, so that both devices have all models.
fn load_both(server: &Server, keep: bool) {
    for round in 0..50 {
        let ids = [1, 2].map(|job| server.queue(&picture(2 * round + job, 4, keep)));
        ids.iter().map(|id| server.wait(id)).for_each(|end| end.expect_success());
        if DEVICES.iter().all(|device| on(server, device) == FILES) {
            return;
        }
    }
    panic!("one worker draws everything: {:?}", loaded(server).keys());
}

fn unload(server: &Server) {
    server.free(&json!({ "unload_models": true, "free_memory": true }));
}

fn mark(server: &Server, device: &str, name: &str, retention: &str) {
    let id = loaded(server)[&(device.to_owned(), name.to_owned())]["id"].clone();
    let body = json!({ "retention": retention }).to_string();
    let answer = server.ask("PATCH", &format!("/gantry/models/{id}"), body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn kept_models_stay_on_both_devices_and_each_is_marked_for_itself() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &TWO);
    load_both(&server, true);
    unload(&server);
    let bytes = DEVICES.map(|device| used(&server, device));
    assert!(bytes.iter().all(|bytes| *bytes > 0), "{bytes:?}");
    unload(&server);
    assert_eq!(DEVICES.map(|device| used(&server, device)), bytes, "kept on both");
    // Eject on one device: the other's stays, with its copies.
    mark(&server, "sim:0", FLUX, "eject");
    unload(&server);
    assert_eq!(on(&server, "sim:0"), [AUTOENCODER, CLIP_L, T5]);
    assert_eq!(on(&server, "sim:1"), FILES);
    assert!(used(&server, "sim:0") < bytes[0]);
    assert_eq!(used(&server, "sim:1"), bytes[1]);
    // Only what is forced leaves what is kept, on both.
    unload(&server);
    assert_eq!(on(&server, "sim:1"), FILES);
    server.free(&json!({ "force": true, "free_memory": true }));
    assert!(loaded(&server).is_empty());
    assert_eq!(DEVICES.map(|device| used(&server, device)), [0, 0]);
    assert_eq!(server.get("/gantry/stats")["kept_models_missing"], 0);
}

#[test]
fn one_button_reaches_both_devices_once_no_job_runs() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &TWO);
    load_both(&server, false);
    let running = [101, 102].map(|seed| server.queue(&picture(seed, 60, false)));
    server.until("both workers", |server| server.jobs().0.len() == 2);
    unload(&server);
    running.iter().map(|id| server.wait(id)).for_each(|end| end.expect_success());
    assert!(loaded(&server).is_empty(), "{:?}", loaded(&server).keys());
    assert_eq!(DEVICES.map(|device| used(&server, device)), [0, 0]);
}

#[test]
fn a_loader_that_lets_others_go_does_so_on_its_own_device() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &TWO);
    load_both(&server, true);
    let mut prompt = picture(200, 1, true);
    prompt["1"]["inputs"]["eject_models"] = json!(true);
    // Nothing decodes, so the autoencoder does not come back.
    for node in ["3", "7", "8"] {
        prompt.as_object_mut().unwrap().remove(node);
    }
    let ended: Ended = server.run(&prompt);
    let here = ended.entry["worker"].as_str().unwrap();
    for device in DEVICES {
        let models = loaded(&server);
        let autoencoder = &models[&(device.to_owned(), AUTOENCODER.to_owned())];
        assert_eq!(autoencoder["retention"], "keep");
        assert_eq!(autoencoder["staged"], device != here, "{device}, and the job ran on {here}");
    }
}
