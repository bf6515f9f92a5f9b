//! Predicted steps against measured ones, as served, on simulated devices whose links and speeds are metered; and whether
//! blocks of another device are streamed or computed where they live, whichever is faster. Alone in its program: other
//! tests at the same time would be measured with it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "serve/http.rs"]
mod http;
#[path = "serve/model_files.rs"]
#[allow(dead_code, reason = "shared with the tests of the server")]
mod model_files;
#[path = "serve/prompts.rs"]
#[allow(dead_code, reason = "shared with the tests of the server")]
mod prompts;
#[path = "serve/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the server")]
mod server;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::ScratchDir;

use prompts::{FLUX, set_loader, text_to_image};
use server::Server;

/// Steps of a job; the median counts.
const STEPS: u32 = 5;
/// Jobs after the first; the median of what they say counts, since machines are noisy.
const JOBS: u32 = 3;
/// How often a measurement that fails is made.
const ATTEMPTS: u32 = 4;

/// A small picture whose diffusion model has this allocation.
fn prompt(allocation: &str, seed: u32) -> Value {
    let mut prompt = text_to_image(64, STEPS);
    prompt["6"]["inputs"]["seed"] = json!(seed);
    let more = json!({
        "compute_device": "sim:0", "virtual_vram_gb": 0.0, "donor_device": "cpu",
        "expert_mode_allocations": allocation, "keep_loaded": true,
    });
    set_loader(&mut prompt, "1", "UNETLoaderDisTorch2MultiGPU", &more);
    // Only the steps matter here.
    for node in ["3", "7", "8"] {
        prompt.as_object_mut().unwrap().remove(node);
    }
    prompt
}

/// The diffusion model's last run.
fn last_run(server: &Server) -> Value {
    let stats = server.get("/gantry/stats");
    let jobs = stats["jobs"].as_array().unwrap_or_else(|| panic!("{stats}"));
    let models = jobs.last().unwrap()["models"].as_array().unwrap();
    models.iter().find(|model| model["name"] == FLUX).unwrap().clone()
}

/// Predicted and measured seconds per step of the diffusion model's last run.
fn steps(server: &Server) -> (f64, f64) {
    let model = last_run(server);
    let number = |key: &str| model[key].as_f64().unwrap_or_else(|| panic!("{key} of {model}"));
    (number("predicted_seconds_per_step"), number("measured_seconds_per_step"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs jobs with an allocation: how predictions from the second job on compare, and how long a step is.
fn measured(server: &Server, allocation: &str) -> (f64, f64) {
    server.run(&prompt(allocation, 0));
    let later: Vec<(f64, f64)> = (1..=JOBS)
        .map(|seed| {
            server.run(&prompt(allocation, seed));
            steps(server)
        })
        .collect();
    let ratio = later.iter().map(|(predicted, measured)| predicted / measured).collect();
    (median(ratio), median(later.iter().map(|(_, measured)| *measured).collect()))
}

/// Measures until what was measured is as it should be: other programs of this machine may take a turn of theirs at any
/// time, and a prediction or a choice that is wrong stays so.
fn eventually<T>(mut measure: impl FnMut() -> Result<T, String>) -> T {
    let mut why = String::new();
    for _ in 0..ATTEMPTS {
        match measure() {
            Ok(done) => return done,
            Err(error) => why = error,
        }
        println!("again: {why}");
    }
    panic!("{why}")
}

/// Other tests at the same time would be measured with these.
static ALONE: Mutex<()> = Mutex::new(());

/// How the coding of the diffusion model's blocks is.
fn coding(server: &Server) -> Value {
    let models = server.get("/gantry/models");
    let all = models["models"].as_array().or(models.as_array()).unwrap_or_else(|| panic!("{models}"));
    all.iter().find(|model| model["name"] == FLUX).map_or(Value::Null, |model| model["coding"].clone())
}

/// Runs a job all of whose steps have coded blocks; what was predicted of its steps over what they took.
fn coded_ratio(server: &Server, allocation: &str, seed: u32) -> f64 {
    server.run(&prompt(allocation, seed));
    let run = last_run(server);
    let (predicted, measured) = steps(server);
    println!(
        "{allocation}, job {seed}: {measured:.4} s, predicted {:.3} of it, decoding {}",
        predicted / measured,
        run["decoding_share"]
    );
    assert_eq!(run["coded_steps"], run["steps"], "{allocation}: {run}\n{}", coding(server));
    assert!(run["decoded_bytes"].as_u64() > Some(1 << 20), "{run}");
    assert!((0.0..1.0).contains(&run["decoding_share"].as_f64().unwrap()), "{run}");
    predicted / measured
}

/// On a slow link coding is found to help. The first job's steps run plain, then coded ones take their place; from the second
/// job on predictions are of those.
#[test]
fn predictions_hold_with_coded_blocks() {
    let _alone = ALONE.lock();
    for allocation in ["sim:0,0%;cpu,100%", "sim:0,50%;cpu,50%"] {
        let folder = ScratchDir::new().unwrap();
        let server =
            Server::start(folder.path(), &["--sim-device", "64mb@10mbps@20gflops", "--coded", "auto"]);
        server.run(&prompt(allocation, 0));
        let first = last_run(&server);
        let since = Instant::now();
        while coding(&server)["state"] == "coding" && coding(&server)["done"] != coding(&server)["blocks"] {
            assert!(since.elapsed() < Duration::from_secs(120), "{}", coding(&server));
            std::thread::sleep(Duration::from_millis(20));
        }
        eventually(|| {
            let ratio = median((1..=JOBS).map(|seed| coded_ratio(&server, allocation, seed)).collect());
            let told = || format!("{allocation}: predicted {ratio} of the step; first {first}");
            (0.9..=1.1).contains(&ratio).then_some(()).ok_or_else(told)
        });
    }
}

#[test]
fn predictions_hold_and_the_faster_way_is_chosen() {
    let _alone = ALONE.lock();
    for gbps in [0.05, 0.5, 20.0] {
        let folder = ScratchDir::new().unwrap();
        let first = format!("64mb@{gbps}gbps@20gflops");
        let second = format!("64mb@{gbps}gbps@10gflops");
        // Coded blocks have a test of their own.
        let devices = ["--sim-device", &first, "--sim-device", &second, "--coded", "off"];
        let server = Server::start(folder.path(), &devices);
        for allocation in ["sim:0,100%", "sim:0,50%;cpu,50%", "sim:0,10%;cpu,90%", "sim:0,60%;sim:1,40%"] {
            eventually(|| {
                let (ratio, seconds) = measured(&server, allocation);
                println!("{gbps} GB/s, {allocation}: {seconds:.4} s, predicted {ratio:.3} of it");
                let told = || format!("{gbps} GB/s, {allocation}: predicted {ratio} of {seconds} s");
                (0.85..=1.15).contains(&ratio).then_some(()).ok_or_else(told)
            });
        }
        // Either way is measured when it is forced; what is planned is the faster one, or as good.
        let split = "sim:0,60%;sim:1,40%";
        eventually(|| {
            let (_, streamed) = measured(&server, &format!("{split};remote=stream"));
            let (_, in_place) = measured(&server, &format!("{split};remote=inplace"));
            let (_, chosen) = measured(&server, split);
            println!(
                "{gbps} GB/s: streamed {streamed:.4} s, in place {in_place:.4} s, as planned {chosen:.4} s"
            );
            let told = || format!("{gbps} GB/s: {streamed} {in_place} {chosen}");
            (chosen <= streamed.min(in_place) * 1.1).then_some(()).ok_or_else(told)
        });
    }
}
