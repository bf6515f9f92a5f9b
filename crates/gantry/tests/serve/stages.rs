//! Jobs whose parts are on different accelerators: while one samples, the next encodes its text and the last is decoded.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::prompts::{set_loader, text_to_image};
use crate::server::{Ended, Server};

/// The model samples on the first; the second encodes and decodes. Both are so slow that jobs wait for them and hardly
/// compute.
const TWO: [&str; 6] = [
    "--sim-device",
    "256mb@20gbps@4gflops",
    "--sim-device",
    "256mb@20gbps@3.2gflops",
    "--workers",
    "sim:0,sim:1",
];
/// Jobs in the stream that is measured.
const STREAM: u32 = 4;

/// A picture of its own text, whose parts are on two accelerators.
fn in_stages(number: u32, steps: u32) -> Value {
    let mut prompt = text_to_image(64, steps);
    set_loader(&mut prompt, "1", "UNETLoaderMultiGPU", &json!({ "device": "sim:0" }));
    set_loader(&mut prompt, "2", "DualCLIPLoaderMultiGPU", &json!({ "device": "sim:1" }));
    set_loader(&mut prompt, "3", "VAELoaderMultiGPU", &json!({ "device": "sim:1" }));
    prompt["4"]["inputs"]["text"] = json!(format!("a red circle above {number} blue squares"));
    prompt["6"]["inputs"]["seed"] = json!(number);
    prompt["9"]["inputs"]["filename_prefix"] = json!(format!("seed-{number}"));
    prompt
}

/// What jobs gave: latents and pictures.
type Results = Vec<(Vec<f32>, (u32, u32, Vec<u8>))>;

fn results(ends: &[Ended]) -> Results {
    ends.iter().map(|end| (end.latent("9"), end.picture("8"))).collect()
}

fn prompts() -> Vec<Value> {
    (1..=STREAM).map(|number| in_stages(number, 4)).collect()
}

/// Runs one job after the other; how long they took, and what they gave.
fn in_a_row(server: &Server) -> (Duration, Results) {
    let since = Instant::now();
    let ends: Vec<Ended> = prompts().iter().map(|prompt| server.run(prompt)).collect();
    (since.elapsed(), results(&ends))
}

/// The same with all of them in the queue.
fn in_a_stream(server: &Server) -> (Duration, Results) {
    let since = Instant::now();
    let ids: Vec<String> = prompts().iter().map(|prompt| server.queue(prompt)).collect();
    let ends: Vec<Ended> = ids.iter().map(|id| server.wait(id)).collect();
    let elapsed = since.elapsed();
    ends.iter().for_each(Ended::expect_success);
    let begun = ends.iter().map(|end| end.message("execution_start")["timestamp"].as_u64().unwrap());
    assert!(begun.is_sorted(), "in the order of the queue");
    for end in &ends {
        let messages = end.entry["status"]["messages"].as_array().unwrap().iter();
        let names: Vec<&str> = messages.map(|message| message[0].as_str().unwrap()).collect();
        assert_eq!(names, ["execution_start", "execution_cached", "execution_success"]);
    }
    (elapsed, results(&ends))
}

#[test]
fn a_stream_of_jobs_is_faster_than_one_after_another() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &TWO);
    // What is loaded, measured and planned first is so from here on.
    server.run(&in_stages(99, 4));
    // Others use this machine, too: the quietest of some moments counts.
    let mut ratios = Vec::new();
    for _ in 0..4 {
        let (row, expected) = in_a_row(&server);
        let (stream, given) = in_a_stream(&server);
        assert!(given == expected, "the same bits");
        let ratio = stream.as_secs_f64() / row.as_secs_f64();
        println!(
            "{STREAM} jobs one after another {:.2} s, in a stream {:.2} s: {ratio:.3}",
            row.as_secs_f64(),
            stream.as_secs_f64()
        );
        ratios.push(ratio);
        if ratio <= 0.8 {
            return;
        }
    }
    panic!("a stream of jobs takes more than 0.8 of one after another: {ratios:?}");
}

#[test]
fn what_a_job_evaluated_is_told_of_it_and_of_no_other() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &TWO);
    let ids: Vec<String> = (1..=3).map(|number| server.queue(&in_stages(number, 1 + number))).collect();
    ids.iter().for_each(|id| server.wait(id).expect_success());
    let stats = server.get("/gantry/stats");
    for (id, steps) in ids.iter().zip(2..) {
        let jobs = stats["jobs"].as_array().unwrap();
        let job = jobs.iter().find(|job| job["prompt_id"] == json!(id)).unwrap();
        let models = job["models"].as_array().unwrap();
        let mut told: Vec<(&str, u64)> = models
            .iter()
            .map(|model| (model["compute"].as_str().unwrap(), model["steps"].as_u64().unwrap()))
            .collect();
        told.sort_unstable();
        // The sampler's steps; two text encoders and the autoencoder, once each.
        assert_eq!(told, [("sim:0", steps), ("sim:1", 1), ("sim:1", 1), ("sim:1", 1)], "{job}");
    }
}

#[test]
fn one_that_waits_for_its_turn_can_be_ended_and_one_that_fails_fails_alone() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &TWO);
    let long = server.queue(&in_stages(1, 400));
    let samples = |server: &Server, id: &str| {
        let shown = server.get(&format!("/api/jobs/{id}"));
        shown["status"] == "in_progress"
            && server.get("/gantry/stats")["workers"].as_array().unwrap().iter().any(|worker| {
                let running = &worker["running"];
                running["prompt_id"] == json!(id)
                    && running["nodes"].as_array().unwrap().iter().any(|node| node["class"] == "KSampler")
            })
    };
    server.until("the long job to sample", |server| samples(server, &long));
    // It has encoded its text, and waits for the sampler's device.
    let waiting = server.queue(&in_stages(2, 2));
    server.until("the next to wait with its sampler", |server| samples(server, &waiting));
    assert_eq!(server.jobs().0, [long.as_str(), waiting.as_str()]);
    server.post("/interrupt", &json!({ "prompt_id": waiting }));
    let ended = server.wait(&waiting);
    assert_eq!(ended.message("execution_interrupted")["node_id"], "6");
    // One that fails meanwhile is told as itself, by the node that failed.
    let mut wrong = in_stages(3, 2);
    let more = json!({ "expert_mode_allocations": "sim:1,nonsense" });
    set_loader(&mut wrong, "3", "VAELoaderDisTorch2MultiGPU", &more);
    let id = server.queue(&wrong);
    let ended = server.wait(&id);
    let error = ended.message("execution_error");
    assert_eq!((&error["prompt_id"], &error["node_id"]), (&json!(id), &json!("3")), "{error}");
    assert_eq!(server.jobs().0, [long.as_str()], "the long job still runs");
    server.post("/interrupt", &json!({ "prompt_id": long }));
    server.wait(&long).message("execution_interrupted");
    // Nothing of them stands in the way of the next.
    server.run(&in_stages(4, 1));
}

#[test]
fn kept_models_stay_while_jobs_take_turns() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &TWO);
    let kept = |number: u32| {
        let mut prompt = in_stages(number, 2);
        let loaders = [
            ("1", "UNETLoader", "compute_device", "sim:0"),
            ("2", "DualCLIPLoader", "device", "sim:1"),
            ("3", "VAELoader", "compute_device", "sim:1"),
        ];
        for (node, class, input, device) in loaders {
            prompt[node]["inputs"].as_object_mut().unwrap().remove("device");
            let more = json!({ input: device, "virtual_vram_gb": 0.0, "keep_loaded": true });
            set_loader(&mut prompt, node, &format!("{class}DisTorch2MultiGPU"), &more);
        }
        prompt
    };
    let ids: Vec<String> = (1..=3).map(|number| server.queue(&kept(number))).collect();
    // Pressed while they run: it is done between jobs, and what is kept stays.
    server.free(&json!({ "unload_models": true, "free_memory": true }));
    ids.iter().for_each(|id| server.wait(id).expect_success());
    server.free(&json!({ "unload_models": true, "free_memory": true }));
    let models = server.models();
    assert_eq!(models.len(), 4, "{models:?}");
    assert!(models.values().all(|retention| retention == "keep"), "{models:?}");
    assert_eq!(server.get("/gantry/stats")["kept_models_missing"], 0);
}
