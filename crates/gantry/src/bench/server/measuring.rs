//! What is measured of one server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::program::{Program, Running};
use crate::http;

/// How long a server does nothing before its memory is read.
const IDLE: Duration = Duration::from_secs(1);
/// Nodes of the two chains whose difference is the cost of a node.
const CHAINS: [usize; 2] = [10, 510];
/// How often a chain is queued once its outputs are known.
const REPEATS: usize = 20;
/// How long jobs may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// One server, measured.
#[derive(Serialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) version: Option<String>,
    /// From the start of the process to its first answer, the median of several.
    pub(super) start_s: f64,
    pub(super) starts: usize,
    /// Memory after a second without work.
    pub(super) idle_bytes: Option<u64>,
    /// Memory after all prompts.
    pub(super) after_bytes: Option<u64>,
    /// `POST /prompt` as clients see it, a connection for each.
    pub(super) post_prompt_ms: Spread,
    /// The same as the server says it in `Server-Timing`: reading, validation, storing.
    pub(super) in_server_ms: Option<Spread>,
    /// From the first prompt to the end of the last job.
    pub(super) prompts_per_s: f64,
    /// What a node costs whose output is known: validation, order and lookup.
    pub(super) cached_node_us: f64,
}

/// How times spread.
#[derive(Serialize)]
pub(in crate::bench) struct Spread {
    pub(in crate::bench) p50: f64,
    pub(in crate::bench) p90: f64,
    pub(in crate::bench) p99: f64,
    pub(in crate::bench) max: f64,
}

impl Spread {
    pub(in crate::bench) fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |share: f64| values[((share * last as f64).round() as usize).min(last)];
        Some(Spread { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: values[last] })
    }
}

pub(super) fn measure(program: &Program, clients: usize, prompts: usize) -> Result<Measured> {
    let mut starts = Vec::new();
    for _ in 1..program.starts {
        starts.push(program.start()?.start_s);
    }
    let server = program.start()?;
    starts.push(server.start_s);
    starts.sort_by(f64::total_cmp);
    std::thread::sleep(IDLE);
    let idle_bytes = server.resident_bytes();
    let stats = http::get(&server.address, "/system_stats", PATIENCE)?;
    let stats: Value = serde_json::from_str(&stats.body).context("reading /system_stats")?;
    let version = version(&stats);
    let begun = Instant::now();
    let posted = post_all(&server, clients, prompts)?;
    wait_until_idle(&server)?;
    let prompts_per_s = prompts as f64 / begun.elapsed().as_secs_f64();
    let after_bytes = server.resident_bytes();
    let inside: Vec<f64> = posted.iter().filter_map(|posted| posted.in_server_ms).collect();
    Ok(Measured {
        name: program.name.to_owned(),
        version,
        start_s: starts[starts.len() / 2],
        starts: starts.len(),
        idle_bytes,
        after_bytes,
        post_prompt_ms: Spread::of(posted.iter().map(|posted| posted.ms).collect())
            .context("no prompt was posted")?,
        in_server_ms: Spread::of(inside),
        prompts_per_s,
        cached_node_us: cached_node_us(&server)?,
    })
}

/// Ours stands where ComfyUI has Python's.
fn version(stats: &Value) -> Option<String> {
    let python = stats["system"]["python_version"].as_str()?;
    let ours = python.split_once("(gantry ").map(|(_, version)| version.trim_end_matches(')'));
    ours.or(stats["system"]["comfyui_version"].as_str()).map(str::to_owned)
}

/// A small picture, turned around so often, that is shown. `colour` makes it another one.
fn chain(nodes: usize, colour: usize) -> Value {
    let picture = json!({ "width": 16, "height": 16, "batch_size": 1, "color": colour });
    let mut prompt = serde_json::Map::new();
    prompt.insert("0".to_owned(), json!({ "class_type": "EmptyImage", "inputs": picture }));
    for node in 1..=nodes {
        let before = (node - 1).to_string();
        let invert = json!({ "class_type": "ImageInvert", "inputs": { "image": [before, 0] } });
        prompt.insert(node.to_string(), invert);
    }
    let last = nodes.to_string();
    prompt
        .insert("out".to_owned(), json!({ "class_type": "PreviewImage", "inputs": { "images": [last, 0] } }));
    Value::Object(prompt)
}

/// What came of one prompt.
struct Posted {
    ms: f64,
    in_server_ms: Option<f64>,
}

fn post(server: &Running, prompt: &Value) -> Result<Posted> {
    let body = json!({ "prompt": prompt, "client_id": "bench" }).to_string();
    let begun = Instant::now();
    let answer = http::post(&server.address, "/prompt", None, &body)?;
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    ensure!(answer.status == 200, "POST /prompt answered {}: {}", answer.status, answer.body.trim());
    // prompt;dur=0.123
    let timing = answer.header("server-timing").and_then(|text| text.rsplit_once("dur=")?.1.parse().ok());
    Ok(Posted { ms, in_server_ms: timing })
}

/// Posts all prompts, each another one, from all clients at once.
fn post_all(server: &Running, clients: usize, prompts: usize) -> Result<Vec<Posted>> {
    let clients = clients.min(prompts);
    let results = std::thread::scope(|scope| {
        let client = |client: usize| {
            move || -> Result<Vec<Posted>> {
                (client..prompts).step_by(clients).map(|number| post(server, &chain(2, number))).collect()
            }
        };
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(client(number))).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    let mut posted = Vec::new();
    for result in results {
        match result {
            Ok(result) => posted.extend(result?),
            Err(_) => bail!("a client failed"),
        }
    }
    Ok(posted)
}

/// Waits until nothing runs or waits.
pub(in crate::bench) fn wait_until_idle(server: &Running) -> Result<()> {
    let begun = Instant::now();
    loop {
        let answer = http::get(&server.address, "/prompt", PATIENCE)?;
        let queue: Value = serde_json::from_str(&answer.body).context("reading the length of the queue")?;
        if queue["exec_info"]["queue_remaining"] == 0 {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "the jobs do not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The time of jobs whose outputs are all known, for two lengths of a chain: what they differ by is what nodes cost, and
/// what every job costs goes out.
fn cached_node_us(server: &Running) -> Result<f64> {
    let mut seconds = [0.0; CHAINS.len()];
    for (seconds, nodes) in seconds.iter_mut().zip(CHAINS) {
        let prompt = chain(nodes, 1);
        post(server, &prompt)?;
        wait_until_idle(server)?;
        let begun = Instant::now();
        for _ in 0..REPEATS {
            post(server, &prompt)?;
        }
        wait_until_idle(server)?;
        *seconds = begun.elapsed().as_secs_f64() / REPEATS as f64;
    }
    let nodes = (CHAINS[1] - CHAINS[0]) as f64;
    Ok((seconds[1] - seconds[0]).max(0.0) / nodes * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spread_by_rank() {
        let spread = Spread::of((0..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!([spread.p50, spread.p90, spread.p99, spread.max], [50.0, 90.0, 99.0, 100.0]);
        assert!(Spread::of(Vec::new()).is_none());
    }

    #[test]
    fn a_chain_has_its_nodes_and_ends() {
        let prompt = chain(3, 7);
        assert_eq!(prompt.as_object().unwrap().len(), 5);
        assert_eq!(prompt["out"]["inputs"]["images"], json!(["3", 0]));
        assert_ne!(chain(3, 8), prompt);
    }

    #[test]
    fn versions_are_read() {
        let ours =
            json!({ "system": { "python_version": "none (gantry 0.1.0)", "comfyui_version": "0.7.0" } });
        assert_eq!(version(&ours).as_deref(), Some("0.1.0"));
        let theirs = json!({ "system": { "python_version": "3.12", "comfyui_version": "0.7.0" } });
        assert_eq!(version(&theirs).as_deref(), Some("0.7.0"));
    }
}
