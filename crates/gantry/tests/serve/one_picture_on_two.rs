//! One picture on several accelerators: the conditionings of a step at the same time, and parts put where they are wanted.

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::prompts::{FLUX, text_to_image};
use crate::server::{Ended, Server};

/// A picture with two conditionings in every step.
fn guided(seed: u32, steps: u32) -> Value {
    let mut prompt = text_to_image(128, steps);
    prompt["10"] =
        json!({ "class_type": "CLIPTextEncode", "inputs": { "text": "a green triangle", "clip": ["2", 0] } });
    let sampler = &mut prompt["6"]["inputs"];
    (sampler["negative"], sampler["cfg"], sampler["seed"]) = (json!(["10", 0]), json!(3.0), json!(seed));
    prompt
}

/// Eight pictures at once, with one conditioning.
fn eight(seed: u32, steps: u32) -> Value {
    let mut prompt = text_to_image(64, steps);
    prompt["5"]["inputs"]["batch_size"] = json!(8);
    prompt["6"]["inputs"]["seed"] = json!(seed);
    prompt
}

/// The same with its evaluations on so many accelerators.
fn split(mut prompt: Value, most: u32) -> Value {
    prompt["11"] =
        json!({ "class_type": "MultiGPU_WorkUnits", "inputs": { "model": ["1", 0], "max_gpus": most } });
    prompt["6"]["inputs"]["model"] = json!(["11", 0]);
    prompt
}

/// Runs a prompt; how it ended, and what a step of its sampler took.
fn timed(server: &Server, prompt: &Value) -> (Ended, f64) {
    let ended = server.run(prompt);
    let stats = server.get("/gantry/stats?jobs=1");
    let nodes = stats["jobs"][0]["nodes"].as_array().unwrap();
    let sampler = nodes.iter().find(|node| node["node"] == "6").unwrap();
    let seconds = sampler["median_seconds_per_step"].as_f64().unwrap();
    (ended, seconds)
}

/// How many times faster a step is on two accelerators of these speeds than on the first, the best of some tries: others
/// use this machine, too. The pictures are the same to the bit.
fn gain(picture: fn(u32, u32) -> Value, speeds: [&str; 2], enough: f64) -> f64 {
    let folder = ScratchDir::new().unwrap();
    let devices = speeds.map(|speed| format!("256mb@20gbps@{speed}"));
    let server = Server::start(folder.path(), &["--sim-device", &devices[0], "--sim-device", &devices[1]]);
    let mut best = 0.0_f64;
    for seed in 1..=6 {
        let (alone, one) = timed(&server, &picture(seed, 3));
        let (together, two) = timed(&server, &split(picture(seed, 3), 2));
        assert_eq!(alone.latent("9"), together.latent("9"), "the same bits");
        println!("{speeds:?}: a step takes {one:.3} s on one, {two:.3} s on two: {:.2} times", one / two);
        best = best.max(one / two);
        if best >= enough {
            break;
        }
    }
    best
}

#[test]
fn a_pair_of_conditionings_is_nearly_twice_as_fast_on_two_equal_accelerators() {
    let gain = gain(guided, ["2gflops", "2gflops"], 1.8);
    assert!(gain >= 1.8, "{gain:.2}");
}

#[test]
fn a_slower_accelerator_helps_as_much_as_it_can() {
    // The bound is 1.2: the slower one takes 1 / 0.6 of the time that the faster one takes for its half.
    let gain = gain(guided, ["2gflops", "1.2gflops"], 1.15);
    assert!(gain >= 1.15, "{gain:.2}");
}

#[test]
fn one_that_would_only_hold_it_up_does_not_help() {
    let gain = gain(guided, ["4gflops", "0.6gflops"], 0.97);
    assert!(gain >= 0.9, "{gain:.2}");
}

#[test]
fn a_batch_of_eight_is_nearly_twice_as_fast_on_two_equal_accelerators() {
    let gain = gain(eight, ["6gflops", "6gflops"], 1.8);
    assert!(gain >= 1.8, "{gain:.2}");
}

#[test]
fn a_batch_of_eight_is_shared_by_speed() {
    // The bound is 1.6: the faster one has five of the eight, the slower one three.
    let gain = gain(eight, ["6gflops", "3.6gflops"], 1.4);
    assert!(gain >= 1.4, "{gain:.2}");
}

/// Where the diffusion model is registered.
fn registered(server: &Server) -> Vec<String> {
    let models = server.get("/gantry/models");
    let own = models["models"].as_array().unwrap().iter().filter(|model| model["name"] == FLUX);
    let mut devices: Vec<String> =
        own.map(|model| model["plan"]["compute"].as_str().unwrap().to_owned()).collect();
    devices.sort();
    devices
}

#[test]
fn parts_go_where_they_are_selected() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(
        folder.path(),
        &["--sim-device", "256mb@20gbps", "--sim-device", "256mb@20gbps", "--cache-none"],
    );
    let expected = server.run(&guided(1, 2)).latent("9");
    let placed = |server: &Server, name: &str| server.model(name)["plan"]["compute"].clone();
    let select = |device: &str| {
        let mut prompt = guided(1, 2);
        let nodes = [
            ("21", "SelectModelDevice", "model", "1"),
            ("22", "SelectCLIPDevice", "clip", "2"),
            ("23", "SelectVAEDevice", "vae", "3"),
        ];
        for (node, class, input, from) in nodes {
            prompt[node] = json!({ "class_type": class, "inputs": { input: [from, 0], "device": device } });
        }
        prompt["6"]["inputs"]["model"] = json!(["21", 0]);
        for text in ["4", "10"] {
            prompt[text]["inputs"]["clip"] = json!(["22", 0]);
        }
        prompt["7"]["inputs"]["vae"] = json!(["23", 0]);
        prompt
    };
    server.free(&json!({ "force": true, "free_memory": true }));
    assert_eq!(server.run(&select("gpu:1")).latent("9"), expected);
    for file in [FLUX, "demo-clip-l.safetensors", "demo-ae.safetensors"] {
        assert_eq!(placed(&server, file), "sim:1", "{file}");
    }
    // What is not here stays where it is; `default` is where the loader put it.
    for device in ["gpu:7", "default"] {
        server.free(&json!({ "force": true, "free_memory": true }));
        assert_eq!(server.run(&select(device)).latent("9"), expected);
        assert_eq!(registered(&server), ["sim:0"], "{device}");
    }
    server.free(&json!({ "force": true, "free_memory": true }));
    assert_eq!(server.run(&select("cpu")).latent("9"), expected);
    assert_eq!(placed(&server, FLUX), "cpu");
    assert_eq!(placed(&server, "demo-ae.safetensors"), "sim:0", "an autoencoder does not go to the host");
    let info = server.get("/object_info");
    assert_eq!(
        info["SelectModelDevice"]["input"]["required"]["device"][0],
        json!(["default", "cpu", "gpu:0", "gpu:1"])
    );
    assert_eq!(
        info["SelectVAEDevice"]["input"]["required"]["device"][0],
        json!(["default", "gpu:0", "gpu:1"])
    );
}
