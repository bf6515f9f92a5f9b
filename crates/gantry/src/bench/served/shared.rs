//! `gantry bench shared`: one picture on two devices, as people get it over HTTP: a pair of texts and a batch that are split,
//! and jobs whose parts are on different devices. The bits must be those of one device that does the same parts one after
//! another: texts of two lengths are evaluated so, a batch is sampled in two halves, and jobs wait for each other.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use meta::{ByteSize, DeviceId, Moment};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::Manifest;

use super::client::{Client, Job};
use super::files::{self, MODEL};
use super::workflow::{Drawing, LOADER, SAMPLER, SAVER, prompt};
use super::{Bench, PLAIN, PairFlags, pair_of, room_for};
use crate::bench::server::program::Program;
use crate::bench::{is_wanted, need_rows, show, step};
use crate::cli::BenchArgs;
use crate::commands::tell;
use crate::machine::Machine;
use crate::table::Table;

/// The autoencoder that decodes in jobs of several parts.
const AUTOENCODER: &str = include_str!("../../../../testkit/data/manifests/flux_ae.json");
/// The rows.
const ROWS: [&str; 3] = [TEXTS, PICTURES, "jobs of several parts"];
const TEXTS: &str = "a pair of texts";
const PICTURES: &str = "a batch";
/// Pictures of a batch.
const BATCH: usize = 4;
/// Jobs of several parts.
const JOBS: u64 = 4;
/// The factor of guidance: a step has two evaluations.
const CFG: f64 = 3.5;
/// The seed of the job that counts.
const SECOND: u64 = 2;
/// The nodes that are added to workflows.
const SPLITTER: &str = "split";
const PICTURE: &str = "picture";

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    device_name: String,
    devices: [String; 2],
    model: &'static str,
    pixels: usize,
    steps: usize,
    rows: Vec<Row>,
    /// What was not measured, and why.
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    /// What is timed: a step, or all jobs.
    timed: &'static str,
    one_device_s: f64,
    two_devices_s: f64,
    /// Two devices over one.
    ratio: f64,
    /// Whether all results have the bits of one device that does the same parts one after another.
    same_bits: bool,
    /// How far the result is from that of one device which does a whole batch at once.
    error_against_whole: Option<f64>,
}

pub(in crate::bench) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    let (family, released) = step::released(args)?;
    let (devices, flags) = pair_of(machine, device.id()).with_context(|| {
        format!(
            "bench shared needs two devices: name a card or a simulated device with --device, not {}",
            device.id()
        )
    })?;
    let scratch = room_for(files::bytes(released))?;
    tell(&format!("writing {} to {}\n", ByteSize(files::bytes(released)), scratch.path().display()));
    let models = scratch.join("models");
    files::write_all(&models, released)?;
    let autoencoder = Manifest::parse(AUTOENCODER)?.write_to(&models)?;
    let bench =
        Bench { machine, compute: device.id(), family, released, base: scratch.path(), only: &args.only };
    let shared = Shared { bench, devices, flags, steps: args.steps, autoencoder: file_name(&autoencoder)? };
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        date: Moment::utc(SystemTime::now()).date(),
        device_name: device.description().name.clone(),
        devices: devices.map(|id| id.to_string()),
        model: released.name,
        pixels: released.pixels,
        steps: args.steps,
        rows: Vec::new(),
        left_out: Vec::new(),
    };
    shared.fill(&mut report);
    need_rows(args, !report.rows.is_empty() || !report.left_out.is_empty())?;
    show(args, &report, Report::to_text)
}

fn file_name(path: &Path) -> Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    Ok(name.context("a file has a name")?.to_owned())
}

struct Shared<'a> {
    bench: Bench<'a>,
    devices: [DeviceId; 2],
    flags: Option<PairFlags>,
    steps: usize,
    /// The name of its file.
    autoencoder: String,
}

impl Shared<'_> {
    fn fill(&self, report: &mut Report) {
        for name in ROWS.into_iter().filter(|name| is_wanted(self.bench.only, name)) {
            tell(&format!("{name}\n"));
            let measured = match name {
                TEXTS => self.pair_of_texts(),
                PICTURES => self.batch(),
                _ => self.jobs(),
            };
            match measured {
                Ok(row) => report.rows.push(row),
                Err(error) => report.left_out.push(format!("{name}: {error:#}")),
            }
        }
    }

    /// Works with a server of both devices that computes on these.
    fn with_server<T>(&self, on: [&str; 2], work: impl FnOnce(&Client<'_>) -> Result<T>) -> Result<T> {
        let mut arguments = self.bench.device_arguments(self.flags, PLAIN);
        // Pictures do not say how they were made, so that their files are the same where their pixels are.
        arguments.push("--disable-metadata".to_owned());
        arguments.extend(on.map(str::to_owned));
        let server = Program::serving(self.bench.base, arguments)?.start()?;
        work(&Client::new(&server, self.bench.base))
    }

    /// A picture from text on the first device.
    fn drawn(&self, cfg: f64, seed: u64) -> Value {
        let drawing = Drawing {
            compute: &self.devices[0].to_string(),
            allocation: "",
            virtual_vram_gb: 0.0,
            weight_dtype: "default",
            lora: false,
            cfg,
            steps: self.steps,
            seed,
        };
        prompt(&drawing, self.bench.shapes())
    }

    /// Two conditionings in every step. Their texts differ in length, so that one device evaluates them one after the other.
    fn guided(&self, seed: u64) -> Value {
        let mut prompt = self.drawn(CFG, seed);
        prompt["longer"] = json!({ "class_type": "T5TokenizerOptions", "inputs": {
            "clip": ["2", 0], "min_padding": 0, "min_length": 2 * self.bench.released.tokens } });
        let text = &mut prompt["4"]["inputs"];
        (text["clip"], text["text"]) = (json!(["longer", 0]), json!("a red fox in the snow, ".repeat(20)));
        prompt
    }

    /// Pictures at once, with one conditioning.
    fn pictures(&self, seed: u64) -> Value {
        let mut prompt = self.drawn(1.0, seed);
        prompt["6"]["inputs"]["batch_size"] = json!(BATCH);
        prompt
    }

    fn pair_of_texts(&self) -> Result<Row> {
        self.with_server(["--compute", &self.devices[0].to_string()], |client| {
            let one = twice(client, |seed| self.guided(seed))?;
            let two = twice(client, |seed| split(self.guided(seed)))?;
            self.check_split(client)?;
            Ok(row((TEXTS, "step"), [one.step_s, two.step_s], one.latent == two.latent, None))
        })
    }

    fn batch(&self) -> Result<Row> {
        self.with_server(["--compute", &self.devices[0].to_string()], |client| {
            let one = twice(client, |seed| self.pictures(seed))?;
            let halves = client.run(&in_halves(self.pictures(SECOND)))?;
            let two = twice(client, |seed| split(self.pictures(seed)))?;
            self.check_split(client)?;
            let error = two.error_against(&one);
            Ok(row((PICTURES, "step"), [one.step_s, two.step_s], halves.latent == two.latent, error))
        })
    }

    /// While one job samples on the first device, the next encodes its text and the last is decoded on the second.
    fn jobs(&self) -> Result<Row> {
        let [first, second] = self.devices;
        self.with_server(["--workers", &format!("{first},{second}")], |client| {
            let jobs =
                |other: DeviceId| (1..=JOBS).map(|seed| self.in_stages(other, seed)).collect::<Vec<Value>>();
            // What is loaded, measured and planned first is so from here on.
            client.run(&self.in_stages(first, JOBS + 1))?;
            let begun = Instant::now();
            let given = jobs(first)
                .iter()
                .map(|job| Given::of(client, &client.queue(job)?))
                .collect::<Result<Vec<_>>>()?;
            let one_s = begun.elapsed().as_secs_f64();
            client.run(&self.in_stages(second, JOBS + 1))?;
            let begun = Instant::now();
            let queued = jobs(second).iter().map(|job| client.queue(job)).collect::<Result<Vec<String>>>()?;
            let streamed = queued.iter().map(|id| Given::of(client, id)).collect::<Result<Vec<_>>>()?;
            let two_s = begun.elapsed().as_secs_f64();
            Ok(row((ROWS[2], "all jobs"), [one_s, two_s], given == streamed, None))
        })
    }

    /// A picture whose text is encoded, and whose latent is decoded, on another device than it is sampled on.
    fn in_stages(&self, other: DeviceId, seed: u64) -> Value {
        let mut prompt = self.drawn(1.0, seed);
        let encoders = &mut prompt["2"];
        let class = encoders["class_type"].as_str().unwrap_or_default().to_owned();
        encoders["class_type"] = json!(format!("{class}MultiGPU"));
        encoders["inputs"]["device"] = json!(other.to_string());
        prompt["4"]["inputs"]["text"] = json!(format!("a red fox beside {seed} blue birds"));
        prompt["autoencoder"] = json!({ "class_type": "VAELoaderMultiGPU", "inputs": {
            "vae_name": self.autoencoder, "device": other.to_string() } });
        prompt["decoded"] = json!({ "class_type": "VAEDecode", "inputs": {
            "samples": [SAMPLER, 0], "vae": ["autoencoder", 0] } });
        prompt[PICTURE] = json!({ "class_type": "SaveImage", "inputs": {
            "images": ["decoded", 0], "filename_prefix": "shared" } });
        prompt
    }

    /// An error if the model computed on one device only.
    fn check_split(&self, client: &Client<'_>) -> Result<()> {
        let models = client.get("/gantry/models")?;
        let all = models["models"].as_array().into_iter().flatten();
        let own: Vec<&str> = all
            .filter(|model| model["name"] == MODEL)
            .filter_map(|model| model["plan"]["compute"].as_str())
            .collect();
        for id in self.devices.map(|id| id.to_string()) {
            ensure!(own.contains(&id.as_str()), "nothing of it was computed on {id}");
        }
        Ok(())
    }
}

/// Two jobs, the first of which loads; the second.
fn twice(client: &Client<'_>, prompt: impl Fn(u64) -> Value) -> Result<Job> {
    client.run(&prompt(1))?;
    client.run(&prompt(SECOND))
}

/// The same on two devices.
fn split(mut prompt: Value) -> Value {
    prompt[SPLITTER] =
        json!({ "class_type": "MultiGPU_WorkUnits", "inputs": { "model": [LOADER, 0], "max_gpus": 2 } });
    prompt[SAMPLER]["inputs"]["model"] = json!([SPLITTER, 0]);
    prompt
}

/// A batch in two halves one after the other, each with its own noise.
fn in_halves(mut prompt: Value) -> Value {
    let half = |start: usize| {
        json!({ "class_type": "LatentFromBatch", "inputs": {
            "samples": ["6", 0], "batch_index": start, "length": BATCH / 2 } })
    };
    (prompt["first half"], prompt["second half"]) = (half(0), half(BATCH / 2));
    prompt["second sampler"] = prompt[SAMPLER].clone();
    prompt[SAMPLER]["inputs"]["latent_image"] = json!(["first half", 0]);
    prompt["second sampler"]["inputs"]["latent_image"] = json!(["second half", 0]);
    prompt["joined"] = json!({ "class_type": "LatentBatch", "inputs": {
        "samples1": [SAMPLER, 0], "samples2": ["second sampler", 0] } });
    prompt[SAVER]["inputs"]["samples"] = json!(["joined", 0]);
    prompt
}

/// What a job gave: its latent and its picture.
#[derive(PartialEq)]
struct Given {
    latent: Vec<u8>,
    picture: Vec<u8>,
}

impl Given {
    /// Waits for the end of a job.
    fn of(client: &Client<'_>, id: &str) -> Result<Given> {
        let latent = client.end_of(id)?.latent;
        Ok(Given { latent, picture: client.picture(id, PICTURE)? })
    }
}

fn row(
    (name, timed): (&'static str, &'static str),
    [one, two]: [f64; 2],
    same_bits: bool,
    error_against_whole: Option<f64>,
) -> Row {
    Row {
        name,
        timed,
        one_device_s: one,
        two_devices_s: two,
        ratio: two / one,
        same_bits,
        error_against_whole,
    }
}

impl Report {
    fn to_text(&self) -> String {
        let [first, second] = &self.devices;
        let mut table = Table::new(&[
            "shared",
            "timed",
            first,
            "both s",
            "ratio",
            "same bits",
            "error against a whole batch",
        ]);
        for row in &self.rows {
            table.row(&[
                row.name,
                row.timed,
                &format!("{:.3}", row.one_device_s),
                &format!("{:.3}", row.two_devices_s),
                &format!("{:.3}", row.ratio),
                if row.same_bits { "yes" } else { "NO" },
                &row.error_against_whole.map_or_else(|| "-".to_owned(), |error| format!("{error:.1e}")),
            ]);
        }
        let left_out: String = self.left_out.iter().map(|line| format!("left out: {line}\n")).collect();
        format!(
            "{first} and {second} ({}), a model of the size of {}, {} pixels square, {} steps\n\n{table}\n{left_out}",
            self.device_name, self.model, self.pixels, self.steps
        )
    }
}
