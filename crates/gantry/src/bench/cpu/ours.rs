//! Our side of the comparison: a process that loads a model and answers with the time of its steps.

use std::fs::{self, File};
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use checkpoint::Checkpoint;
use meta::DeviceId;
use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::detect::detect;
use models::diffusion::flux::{Flux, FluxInputs};
use models::diffusion::{Diffusion, Evaluation};
use models::vae::kl::Kl;
use models::{Module, Probe};
use residency::{Cancel, LoadOptions, Manifest, Products, Residency, Session};
use runtime::PlanQuestion;
use sampling::LatentShape;
use serde_json::{Value, json};
use tensor::Tensor;

use super::PIXELS;
use crate::bench::step::read_model;
use crate::machine::Machine;
use crate::planning::plan_file;

/// Ticks of a process's time in a second, on every Linux that Rust knows.
const TICKS: f64 = 100.0;
/// The time of a UNet's step, among a thousand.
const UNET_TIME: f32 = 500.0;
/// The time of Z-Image's step. It and what is left of one are exact in 32 bits, so both sides have the same waves.
const Z_IMAGE_TIME: f32 = 0.75;

/// Answers questions on standard input until it ends.
pub(crate) fn answer(machine: &Machine) -> Result<ExitCode> {
    let mut out = std::io::stdout();
    let mut say = |value: &Value| -> Result<()> {
        writeln!(out, "{value}")?;
        Ok(out.flush()?)
    };
    say(&json!({"gantry": env!("CARGO_PKG_VERSION")}))?;
    let mut loaded: Option<Loaded> = None;
    for line in std::io::stdin().lock().lines() {
        let question: Value = serde_json::from_str(&line?)?;
        let answer = match (question["do"].as_str(), &mut loaded) {
            (Some("load"), loaded) => Loaded::read(machine, &question).map(|it| {
                *loaded = Some(it);
                json!({})
            }),
            (Some("warm"), Some(loaded)) => loaded.warm(machine),
            (Some("step"), Some(loaded)) => loaded.step(),
            (Some("finish"), Some(loaded)) => loaded.finish(&question),
            _ => bail!("the question {question} is not known"),
        };
        say(&answer.unwrap_or_else(|error| json!({"error": format!("{error:#}")})))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A model.
enum Network {
    Flux(Flux),
    Decoder(Kl),
    /// Any diffusion model, in steps at this time of one evaluation for each text.
    Sampled(Box<dyn Diffusion>, f32),
}

/// A model in a session, its inputs, and what it computed last.
struct Loaded {
    network: Network,
    session: Session,
    inputs: Vec<Tensor>,
    output: Option<Tensor>,
}

impl Loaded {
    fn read(machine: &Machine, question: &Value) -> Result<Loaded> {
        let path = |key: &str| question[key].as_str().with_context(|| format!("no {key} is named"));
        let checkpoint = Arc::new(Checkpoint::open(path("model")?)?);
        let found = detect(&checkpoint);
        let (network, manifest) = match path("network")? {
            "flux" => {
                let flux = Flux::read(&checkpoint, &found)?;
                let manifest = flux.manifest(&checkpoint)?;
                (Network::Flux(flux), manifest)
            }
            name @ ("unet" | "z_image") => {
                let model = read_model(&checkpoint)?;
                let manifest = model.manifest(&checkpoint)?;
                let time = if name == "unet" { UNET_TIME } else { Z_IMAGE_TIME };
                (Network::Sampled(model, time), manifest)
            }
            _ => {
                let kl = Kl::read(&checkpoint, &found)?;
                let manifest = kl.manifest(&checkpoint)?;
                (Network::Decoder(kl), manifest)
            }
        };
        let session = open(machine, &checkpoint, manifest)?;
        let inputs = Checkpoint::open(path("inputs")?)?;
        let lane = session.lane()?;
        let read = |name: &str| -> Result<Tensor> {
            let entry = inputs.entry(name).with_context(|| format!("no input {name}"))?;
            let values = testkit::decode(entry.encoding(), inputs.bytes(entry))?;
            Ok(lane.tensor(*entry.shape(), &values)?)
        };
        let names: &[&str] = match network {
            Network::Flux(_) => &["latent", "context", "pooled"],
            Network::Decoder(_) => &["latent"],
            Network::Sampled(..) => &["latent", "context"],
        };
        let inputs = names.iter().map(|name| read(name)).collect::<Result<_>>()?;
        Ok(Loaded { network, session, inputs, output: None })
    }

    fn run(&self) -> Result<Tensor> {
        match &self.network {
            Network::Flux(flux) => {
                let [latent, context, pooled] = &self.inputs[..] else { bail!("three inputs are needed") };
                let inputs =
                    FluxInputs { guidance: Some(3.5), ..FluxInputs::new(latent, 0.8, context, pooled) };
                Ok(flux.forward(&self.session, &inputs)?)
            }
            Network::Decoder(kl) => {
                Ok(kl.decode_whole(&self.session, &self.inputs[0], &mut Probe::none())?)
            }
            Network::Sampled(model, time) => {
                let [latent, context] = &self.inputs[..] else { bail!("two inputs are needed") };
                self.evaluate_texts(&**model, *time, (latent, context))
            }
        }
    }

    /// One step: an evaluation for each text, all of one latent, as a sampler asks for them.
    fn evaluate_texts(
        &self,
        model: &dyn Diffusion,
        time: f32,
        (latent, context): (&Tensor, &Tensor),
    ) -> Result<Tensor> {
        let (texts, tokens, width) = (context.dim(0), context.dim(1), context.dim(2));
        let values = context.to_vec()?;
        let cond = |text: usize| {
            let values = values[text * tokens * width..][..tokens * width].to_vec();
            Cond::text(Array { shape: vec![1, tokens, width], values }, None)
        };
        let conds: Vec<Cond> = (0..texts).map(cond).collect();
        let conditioned: Vec<Conditioned<'_>> = conds.iter().map(Conditioned::whole).collect();
        let &[batch, channels, height, width] = latent.dims() else { bail!("the latent is no picture") };
        let shape = LatentShape { batch, channels, frames: 1, height, width };
        let run = model.start(&self.session, &conditioned, &Scene::empty(shape))?;
        let evaluation = |text: usize| Evaluation::new(text, latent, time);
        let outputs = run.forward(&(0..texts).map(evaluation).collect::<Vec<_>>())?;
        Ok(Tensor::concat(&outputs.iter().collect::<Vec<_>>(), 0)?)
    }

    /// One step, so that all is in memory; then memory starts to count.
    fn warm(&mut self, machine: &Machine) -> Result<Value> {
        self.run()?;
        machine.cpu().trim()?;
        // Forgets the peak so far; a system without this tells no memory either.
        let forgotten = File::options().write(true).open("/proc/self/clear_refs");
        let forgotten = forgotten.is_ok_and(|mut file| file.write_all(b"5").is_ok());
        Ok(json!({"resident_bytes": memory("VmRSS:").filter(|_| forgotten)}))
    }

    fn step(&mut self) -> Result<Value> {
        self.output = None;
        let (start, start_cpu) = (Instant::now(), processor_seconds());
        let output = self.run()?;
        output.lane().stream().synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = processor_seconds().zip(start_cpu).map(|(end, start)| end - start);
        self.output = Some(output);
        Ok(json!({"seconds": seconds, "cpu_seconds": cpu}))
    }

    fn finish(&self, question: &Value) -> Result<Value> {
        let peak = memory("VmHWM:");
        let path = question["output"].as_str().context("no output is named")?;
        let output = self.output.as_ref().context("no step has been made")?;
        let bytes: Vec<u8> = output.to_vec()?.iter().flat_map(|v| v.to_le_bytes()).collect();
        disk::write(Path::new(path), &bytes).with_context(|| format!("writing {path}"))?;
        Ok(json!({"peak_bytes": peak}))
    }
}

/// A session with all of a model on the CPU.
fn open(machine: &Machine, file: &Arc<Checkpoint>, manifest: Manifest) -> Result<Session> {
    let devices = machine.registry();
    let question = PlanQuestion { size: (PIXELS, PIXELS), ..PlanQuestion::default() };
    let plan = plan_file((devices, DeviceId::CPU), file, Products::Exact, &question)?;
    let residency = Residency::new(devices.clone());
    let id = residency.load(manifest, plan, LoadOptions::default())?;
    Ok(residency.open(id, &Cancel::default())?)
}

/// A figure of this process's memory, where the system tells it.
fn memory(field: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Processor time of this process, all threads, in user and system.
fn processor_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name in brackets may hold anything; the fields after it are numbers.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}
