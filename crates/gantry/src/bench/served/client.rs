//! A client of the measured server: posts jobs, waits for them, and reads what the server says of them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use checkpoint::Checkpoint;
use serde::Serialize;
use serde_json::{Value, json};

use super::files::MODEL;
use super::workflow::{LOADER, SAMPLER, SAVER};
use crate::bench::server::program::Running;
use crate::host::ProcessMemory;
use crate::http;

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one job may take.
const LONGEST_JOB: Duration = Duration::from_secs(240);
/// How long is waited between two questions whether a job has ended.
const PAUSE: Duration = Duration::from_millis(25);

/// A running server and the folder that it works in.
pub(super) struct Client<'a> {
    pub(super) server: &'a Running,
    base: PathBuf,
}

/// One job, as the server tells it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Job {
    pub(super) seconds: f64,
    /// Before the first step: the loader, and what the sampler waited for.
    pub(super) load_s: f64,
    /// The median of all steps but the first.
    pub(super) step_s: f64,
    /// What the server had predicted for a step of the kind that it measured, and measured itself; none where it says that it does
    /// not know.
    pub(super) predicted_s: Option<f64>,
    pub(super) measured_s: Option<f64>,
    /// Steps that ran with losslessly coded blocks, of all that the model made.
    pub(super) coded_steps: u64,
    pub(super) steps: u64,
    /// What was decoded, counted decoded, and what part of a step that took.
    pub(super) decoded_bytes: u64,
    pub(super) decoding_share: f64,
    pub(super) streamed_bytes: u64,
    pub(super) stalls: u64,
    pub(super) stalled_s: f64,
    /// The most memory of its own that the process had while the job ran, where the system tells it.
    pub(super) peak_private_bytes: Option<u64>,
    /// The values that it saved.
    #[serde(skip)]
    pub(super) latent: Vec<u8>,
    /// How many weights of the model had products of 8 bits.
    pub(super) fp8_products: u64,
}

impl<'a> Client<'a> {
    pub(super) fn new(server: &'a Running, base: &Path) -> Client<'a> {
        Client { server, base: base.to_owned() }
    }

    /// What is at a path.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let answer = http::get(&self.server.address, path, PATIENCE).with_context(|| self.told(path))?;
        ensure!(answer.status == 200, "GET {path} answered {}: {}", answer.status, answer.body.trim());
        serde_json::from_str(&answer.body).with_context(|| format!("reading the answer to {path}"))
    }

    fn told(&self, path: &str) -> String {
        format!("asking the server for {path}; the end of its log:\n{}\n", self.server.end_of_log())
    }

    fn post(&self, path: &str, body: &Value) -> Result<http::Answer> {
        let answer = http::post(&self.server.address, path, None, &body.to_string());
        let answer = answer.with_context(|| self.told(path))?;
        ensure!(answer.status == 200, "POST {path} answered {}: {}", answer.status, answer.body.trim());
        Ok(answer)
    }

    /// Runs a job to its end.
    pub(super) fn run(&self, prompt: &Value) -> Result<Job> {
        self.end_of(&self.queue(prompt)?)
    }

    /// Posts a job; its id.
    pub(super) fn queue(&self, prompt: &Value) -> Result<String> {
        let answer = self.post("/prompt", &json!({ "prompt": prompt, "client_id": "bench" }))?;
        let accepted: Value = serde_json::from_str(&answer.body).context("reading the answer to a prompt")?;
        Ok(accepted["prompt_id"].as_str().context("the prompt got no id")?.to_owned())
    }

    /// Waits for the end of a job.
    pub(super) fn end_of(&self, id: &str) -> Result<Job> {
        let (entry, peak_private_bytes) = self.wait(id)?;
        if entry["status"]["status_str"] != "success" {
            bail!("{}", failure(&entry));
        }
        let latent = self.latent(&entry)?;
        Job::read(&self.stats(id)?, peak_private_bytes, latent)
    }

    /// Waits for a job's entry in the history; the most memory that the process had meanwhile.
    fn wait(&self, id: &str) -> Result<(Value, Option<u64>)> {
        let begun = Instant::now();
        let mut peak = None;
        loop {
            let memory = self.server.memory().map(|memory| memory.private_bytes);
            peak = peak.max(memory);
            let mut history = self.get(&format!("/history/{id}"))?;
            if let Some(entry) = history.get_mut(id) {
                return Ok((entry.take(), peak));
            }
            ensure!(begun.elapsed() < LONGEST_JOB, "a job takes longer than {} s", LONGEST_JOB.as_secs());
            std::thread::sleep(PAUSE);
        }
    }

    /// What the server measured of a job. The history has it a moment before the statistics do.
    fn stats(&self, id: &str) -> Result<Value> {
        for _ in 0..200 {
            let mut stats = self.get("/gantry/stats?jobs=4")?;
            let jobs = stats["jobs"].as_array_mut().context("the statistics list no jobs")?;
            if let Some(job) = jobs.iter_mut().find(|job| job["prompt_id"] == id) {
                return Ok(job.take());
            }
            std::thread::sleep(PAUSE);
        }
        bail!("the statistics do not have a job that has ended")
    }

    /// The file of the picture that a node of a job saved.
    pub(super) fn picture(&self, id: &str, node: &str) -> Result<Vec<u8>> {
        let history = self.get(&format!("/history/{id}"))?;
        let path = self.saved(&history[id]["outputs"][node]["images"][0])?;
        let bytes = std::fs::read(&path)?;
        Ok(std::fs::remove_file(&path).map(|()| bytes)?)
    }

    /// Where a file is that a job saved.
    fn saved(&self, file: &Value) -> Result<PathBuf> {
        let part = |key: &str| file[key].as_str().context("the job saved no file");
        Ok(self.base.join("output").join(part("subfolder")?).join(part("filename")?))
    }

    /// The values that a job saved.
    fn latent(&self, entry: &Value) -> Result<Vec<u8>> {
        let path = self.saved(&entry["outputs"][SAVER]["latents"][0])?;
        let saved = Checkpoint::open(&path)?;
        let values = saved.entry("latent_tensor").context("the saved file has no latent")?;
        let values = saved.bytes(values).to_vec();
        drop(saved);
        Ok(std::fs::remove_file(&path).map(|()| values)?)
    }

    /// Unloads everything, kept or not, forgets all outputs, and waits until that is done.
    pub(super) fn free_all(&self) -> Result<()> {
        let before = self.last_snapshot()?.0;
        self.post("/free", &json!({ "unload_models": true, "free_memory": true, "force": true }))?;
        let begun = Instant::now();
        loop {
            let (number, label) = self.last_snapshot()?;
            if number > before && label == "free: caches emptied" {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "models do not leave; the last snapshot is {label:?}");
            std::thread::sleep(PAUSE);
        }
    }

    fn last_snapshot(&self) -> Result<(u64, String)> {
        let snapshots = self.get("/gantry/snapshots")?;
        let last = snapshots["snapshots"].as_array().and_then(|all| all.last());
        let Some(last) = last else { return Ok((0, String::new())) };
        Ok((last["number"].as_u64().unwrap_or(0), last["label"].as_str().unwrap_or_default().to_owned()))
    }

    /// The diffusion model among the loaded ones. Of several registrations the latest counts.
    pub(super) fn model(&self) -> Result<Value> {
        let models = self.get("/gantry/models")?;
        let found = models["models"].as_array().into_iter().flatten().filter(|model| model["name"] == MODEL);
        found.max_by_key(|model| model["id"].as_u64()).cloned().context("the diffusion model is not loaded")
    }

    /// What a device says.
    pub(super) fn device(&self, id: &str) -> Result<Value> {
        let devices = self.get("/gantry/devices")?;
        let mut all = devices["devices"].as_array().into_iter().flatten();
        all.find(|device| device["id"] == id)
            .cloned()
            .with_context(|| format!("the server has no device {id}"))
    }

    /// The memory of the host that the process has, and what its ledger says of it.
    pub(super) fn host_memory(&self) -> Result<HostMemory> {
        let ledger_bytes = whole(&self.device("cpu")?["used_bytes"]);
        Ok(HostMemory { process: self.server.memory(), ledger_bytes })
    }
}

/// Memory of the host.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct HostMemory {
    /// As the system sees the process; none where it does not tell.
    #[serde(flatten)]
    pub(super) process: Option<ProcessMemory>,
    /// What the host's ledger has: pinned copies and all that is staged there.
    pub(super) ledger_bytes: u64,
}

/// A number that is there.
pub(super) fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// What a job that failed says.
fn failure(entry: &Value) -> String {
    let messages = entry["status"]["messages"].as_array().into_iter().flatten();
    let mut errors = messages.filter(|message| message[0] == "execution_error");
    let told = errors.find_map(|message| message[1]["exception_message"].as_str());
    told.unwrap_or("the job did not end well").trim().to_owned()
}

impl Job {
    /// Reads what the server measured.
    fn read(stats: &Value, peak_private_bytes: Option<u64>, latent: Vec<u8>) -> Result<Job> {
        let nodes = || stats["nodes"].as_array().into_iter().flatten();
        let node = |id: &str| nodes().find(|node| node["node"] == id);
        let sampler = node(SAMPLER).context("the sampler did not run")?;
        // A job of one step has nothing between two ticks.
        let first = number(&sampler["first_step_seconds"]);
        let step_s = sampler["median_seconds_per_step"].as_f64().unwrap_or(first);
        let loader = node(LOADER).map_or(0.0, |node| number(&node["seconds"]));
        let mut models = stats["models"].as_array().into_iter().flatten();
        let model = models.find(|model| model["name"] == MODEL).context("the model did not compute")?;
        // Where a step is more than one evaluation, the prediction is of each of them.
        let evaluations = whole(&model["steps"]) as f64 / number(&sampler["steps"]).max(1.0);
        Ok(Job {
            seconds: number(&stats["seconds"]),
            load_s: loader + (first - step_s).max(0.0),
            step_s,
            predicted_s: model["predicted_seconds_per_step"].as_f64().map(|seconds| seconds * evaluations),
            measured_s: model["measured_seconds_per_step"].as_f64().map(|seconds| seconds * evaluations),
            coded_steps: whole(&model["coded_steps"]),
            steps: whole(&model["steps"]),
            decoded_bytes: whole(&model["decoded_bytes"]),
            decoding_share: number(&model["decoding_share"]),
            streamed_bytes: whole(&stats["streamed_bytes"]),
            stalls: whole(&stats["stalls"]),
            stalled_s: number(&stats["stalled_seconds"]),
            peak_private_bytes,
            latent,
            fp8_products: whole(&model["fp8_products"]),
        })
    }

    /// How far its latent, in f32, is from another's.
    pub(super) fn error_against(&self, other: &Job) -> Option<f64> {
        let (own, theirs) = (self.latent.as_chunks::<4>().0, other.latent.as_chunks::<4>().0);
        let values = own.iter().zip(theirs).map(|pair| {
            let [own, theirs] =
                <[&[u8; 4]; 2]>::from(pair).map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
            ((own - theirs).powi(2), theirs * theirs)
        });
        let (difference, norm) =
            values.fold((0.0, 0.0), |(all, norms), (square, norm)| (all + square, norms + norm));
        (own.len() == theirs.len() && norm > 0.0).then(|| (difference / norm).sqrt())
    }

    /// The prediction over what was measured: of steps of one kind, where plain and coded ones were made.
    pub(super) fn predicted_over_measured(&self) -> Option<f64> {
        let is_mixed = self.coded_steps > 0 && self.coded_steps < self.steps;
        let measured = self.measured_s.filter(|seconds| is_mixed && *seconds > 0.0).unwrap_or(self.step_s);
        self.predicted_s.map(|predicted| predicted / measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_from_what_the_server_tells() {
        let stats = json!({
            "seconds": 9.0, "streamed_bytes": 500, "stalls": 2, "stalled_seconds": 0.5,
            "nodes": [
                { "node": LOADER, "seconds": 0.25 },
                { "node": SAMPLER, "steps": 4, "seconds_per_step": 1.5, "median_seconds_per_step": 1.0,
                  "first_step_seconds": 3.0 },
            ],
            "models": [
                { "name": "other", "steps": 1, "predicted_seconds_per_step": 7.0 },
                { "name": MODEL, "steps": 8, "predicted_seconds_per_step": 0.4,
                  "measured_seconds_per_step": 0.25, "coded_steps": 8, "decoded_bytes": 70, "decoding_share": 0.1 },
            ],
        });
        let job = Job::read(&stats, Some(3), vec![1]).unwrap();
        // What the sampler waited for before its first step, and the loader.
        assert_eq!((job.load_s, job.step_s), (2.25, 1.0));
        // Two evaluations make a step here.
        assert_eq!((job.predicted_s, job.predicted_over_measured()), (Some(0.8), Some(0.8)));
        assert_eq!((job.coded_steps, job.decoded_bytes, job.decoding_share), (8, 70, 0.1));
        // Where some steps were plain, the median of all is of no kind.
        let mut mixed = stats.clone();
        mixed["models"][1]["coded_steps"] = 3.into();
        assert_eq!(Job::read(&mixed, None, Vec::new()).unwrap().predicted_over_measured(), Some(1.6));
        let mut unknown = stats.clone();
        unknown["models"][1]["predicted_seconds_per_step"] = Value::Null;
        assert_eq!(Job::read(&unknown, None, Vec::new()).unwrap().predicted_s, None);
        assert!(Job::read(&json!({ "nodes": [] }), None, Vec::new()).is_err());
    }

    #[test]
    fn latents_are_compared_by_their_values() {
        let job = |values: [f32; 2]| {
            let latent = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let stats =
                json!({ "nodes": [{ "node": SAMPLER }], "models": [{ "name": MODEL, "fp8_products": 3 }] });
            Job::read(&stats, None, latent).unwrap()
        };
        assert_eq!(job([3.0, 4.5]).error_against(&job([3.0, 4.0])), Some(0.1));
        assert_eq!(job([0.0; 2]).error_against(&job([0.0; 2])), None);
        assert_eq!(job([0.0; 2]).fp8_products, 3);
    }

    #[test]
    fn a_failure_says_what_the_node_said() {
        let entry = json!({ "status": { "messages": [
            ["execution_start", {}],
            ["execution_error", { "exception_message": "no room\n" }],
        ] } });
        assert_eq!(failure(&entry), "no room");
        assert_eq!(failure(&json!({})), "the job did not end well");
    }
}
