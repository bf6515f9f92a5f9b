//! Which models stay when memory is asked for, with models that loader nodes loaded.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::prompts::{AUTOENCODER, CLIP_L, FLUX, T5, keep_loaded, text_to_image};
use crate::server::Server;

const DEVICE: [&str; 2] = ["--sim-device", "1gb@100gbps"];
const TWO_WORKERS: [&str; 6] =
    ["--sim-device", "1gb@100gbps", "--sim-device", "1gb@100gbps", "--workers", "sim:0,sim:1"];

/// Only models that are marked to go.
fn unload() -> Value {
    json!({ "unload_models": true })
}

/// And everything that nodes computed.
fn both() -> Value {
    json!({ "unload_models": true, "free_memory": true })
}

fn force() -> Value {
    json!({ "force": true })
}

/// The names of what is loaded.
fn left(server: &Server) -> BTreeSet<String> {
    server.models().into_keys().collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Runs a small picture whose loaders say this of their models: diffusion model, text encoders, autoencoder.
fn load(server: &Server, keep: [Option<bool>; 3]) {
    server.free(&json!({ "force": true, "free_memory": true }));
    assert_eq!(left(server), names(&[]));
    server.run(&keep_loaded(text_to_image(64, 1), keep));
    let models = server.models();
    let files = [(FLUX, keep[0]), (CLIP_L, keep[1]), (T5, keep[1]), (AUTOENCODER, keep[2])];
    for (name, keep) in files {
        let expected = match keep {
            None => "default",
            Some(true) => "keep",
            Some(false) => "eject",
        };
        assert_eq!(models.get(name).map(String::as_str), Some(expected), "{name} of {models:?}");
    }
    assert_eq!(models.len(), files.len());
}

/// Bytes in use on a device.
fn used(server: &Server, id: &str) -> u64 {
    let devices = server.get("/gantry/devices");
    let mut devices = devices["devices"].as_array().unwrap().iter();
    devices.find(|device| device["id"] == id).unwrap()["used_bytes"].as_u64().unwrap()
}

#[test]
fn the_retention_table_holds() {
    the_table_holds_with(&DEVICE);
}

#[test]
fn the_retention_table_holds_with_two_workers() {
    the_table_holds_with(&TWO_WORKERS);
}

fn the_table_holds_with(devices: &[&str]) {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), devices);
    marked_models_leave_and_kept_ones_stay(&server);
    kept_models_are_not_touched(&server);
    for press in [unload(), both()] {
        a_first_and_a_second_press(&server, &press);
    }
    force_takes_all(&server);
    one_model_can_be_changed(&server);
    others_leave_the_device_when_a_loader_says_so(&server);
    let stats = server.get("/gantry/stats");
    assert_eq!(stats["kept_models_missing"], 0, "{stats}");
}

/// A eject, B keep, C keep; both flags: B and C are left.
fn marked_models_leave_and_kept_ones_stay(server: &Server) {
    load(server, [Some(false), Some(true), Some(true)]);
    server.free(&both());
    assert_eq!(left(server), names(&[CLIP_L, T5, AUTOENCODER]));
}

/// D keep, E keep; both flags: nothing is touched but caches. The models are those of the test before.
fn kept_models_are_not_touched(server: &Server) {
    let (before, bytes) = (server.get("/gantry/models"), used(server, "sim:0"));
    assert!(bytes > 0, "the kept models are on the device");
    server.free(&both());
    assert_eq!(server.get("/gantry/models"), before);
    assert_eq!(used(server, "sim:0"), bytes);
    let devices = server.get("/gantry/devices");
    for device in devices["devices"].as_array().unwrap() {
        assert_eq!(device["cached_bytes"], 0, "{device}");
    }
    let snapshots = server.get("/gantry/snapshots");
    let labels: Vec<&str> = snapshots["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .take(4)
        .map(|snapshot| snapshot["label"].as_str().unwrap())
        .collect();
    let order = ["free: caches emptied", "free: executor reset", "free: models unloaded", "free: before"];
    assert_eq!(labels, order);
}

/// Diffusion model eject, autoencoder and text encoders default: the first press leaves those, the second nothing.
fn a_first_and_a_second_press(server: &Server, press: &Value) {
    load(server, [Some(false), None, None]);
    server.free(press);
    assert_eq!(left(server), names(&[CLIP_L, T5, AUTOENCODER]));
    server.free(press);
    assert_eq!(left(server), names(&[]));
    assert_eq!(used(server, "sim:0"), 0);
    // What nodes computed is forgotten only when it is asked for.
    let mut prompt = keep_loaded(text_to_image(64, 1), [Some(false), None, None]);
    prompt["9"]["inputs"]["filename_prefix"] = json!("again");
    let cached = server.run(&prompt);
    let cached = cached.message("execution_cached")["nodes"].as_array().unwrap().clone();
    let is_reset = press.get("free_memory").is_some();
    assert_eq!(cached.contains(&json!("6")), !is_reset, "{press}: {cached:?}");
}

/// B keep; force: nothing is left.
fn force_takes_all(server: &Server) {
    load(server, [Some(true), Some(true), Some(true)]);
    server.free(&both());
    assert_eq!(left(server).len(), 4);
    server.free(&force());
    assert_eq!(left(server), names(&[]));
    assert_eq!(used(server, "sim:0"), 0);
}

/// The retention of a loaded model is changed, and one model is unloaded.
fn one_model_can_be_changed(server: &Server) {
    load(server, [Some(true), Some(true), Some(true)]);
    let path = |name: &str| format!("/gantry/models/{}", server.model(name)["id"]);
    let patch = |path: &str, retention: &str| {
        server.ask("PATCH", path, json!({ "retention": retention }).to_string().as_bytes())
    };
    let vae = path(AUTOENCODER);
    let answer = patch(&vae, "eject");
    assert_eq!((answer.status, &answer.json()["retention"]), (200, &json!("eject")));
    server.free(&unload());
    assert_eq!(left(server), names(&[FLUX, CLIP_L, T5]));
    assert_eq!(patch(&vae, "keep").status, 404);
    assert_eq!(patch(&path(FLUX), "forever").status, 400);
    assert_eq!(patch(&path(FLUX), "default").status, 200);
    assert_eq!(server.models()[FLUX], "default");
    server.free(&unload());
    assert_eq!(left(server), names(&[CLIP_L, T5]));
    let t5 = path(T5);
    assert_eq!(server.ask("DELETE", &t5, b"").status, 204);
    assert_eq!(left(server), names(&[CLIP_L]));
    assert_eq!(server.ask("DELETE", &t5, b"").status, 404);
    // The loaders' outputs are cached; what they loaded comes back when it is needed.
    let mut prompt = keep_loaded(text_to_image(64, 1), [Some(true); 3]);
    prompt["4"]["inputs"]["text"] = json!("a green triangle");
    server.run(&prompt);
    assert_eq!(left(server), names(&[FLUX, CLIP_L, T5, AUTOENCODER]));
}

/// `eject_models`: kept models lose their copies on the device, and stay registered.
fn others_leave_the_device_when_a_loader_says_so(server: &Server) {
    load(server, [Some(true); 3]);
    assert_eq!(server.model(AUTOENCODER)["staged"], true);
    let mut prompt = keep_loaded(text_to_image(64, 1), [Some(true); 3]);
    prompt["1"]["inputs"]["eject_models"] = json!(true);
    // Nothing decodes, so the autoencoder does not come back.
    for node in ["3", "7", "8"] {
        prompt.as_object_mut().unwrap().remove(node);
    }
    server.run(&prompt);
    assert_eq!(left(server), names(&[FLUX, CLIP_L, T5, AUTOENCODER]));
    let vae = server.model(AUTOENCODER);
    assert_eq!((&vae["staged"], &vae["retention"]), (&json!(false), &json!("keep")));
    assert_eq!(server.model(FLUX)["staged"], true);
}
