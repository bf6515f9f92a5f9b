//! `gantry draw`: a prompt and model files in, a picture out.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use checkpoint::Checkpoint;
use device::Device;
use meta::{DeviceId, DeviceKind};
use models::detect::{Role, detect};
use placement::AllocationText;
use sampling::{Observer, Step};

use super::tell;
use crate::cli::{DrawArgs, PlaceArgs};
use crate::drawing::{Drawing, FluxFiles, FluxPipeline, Picture};
use crate::host;
use crate::machine::Machine;

pub(super) fn run(machine: &Machine, args: &DrawArgs) -> Result<ExitCode> {
    let prompt = prompt(args.prompt.as_deref())?;
    let target = Target::new(args.output.as_deref())?;
    let files = files(args)?;
    let loras = args.lora.iter().map(|text| lora(text)).collect::<Result<Vec<_>>>()?;
    let (compute, allocation) = place(machine, &args.place, first_accelerator)?;
    let pipeline = FluxPipeline::load(
        machine.registry(),
        compute,
        &files,
        allocation,
        (args.size.width, args.size.height),
    )?;
    warn_unmatched(&pipeline.patch(&loras)?);
    let drawing = Drawing {
        prompt,
        width: args.size.width,
        height: args.size.height,
        steps: args.steps,
        seed: args.seed,
        guidance: args.guidance,
    };
    let picture = pipeline.draw(&drawing, &mut Progress::start())?;
    target.write(&picture, &drawing.prompt)?;
    Ok(ExitCode::SUCCESS)
}

/// Names what no weight takes: a LoRA for another model has hundreds of such tensors, so only the first.
fn warn_unmatched(names: &[String]) {
    const NAMED: usize = 3;
    if names.is_empty() {
        return;
    }
    let first = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if names.len() > NAMED { format!(" and {} more", names.len() - NAMED) } else { String::new() };
    tell(&format!(
        "--lora: no weight takes {first}{more}; left out. If the picture does not change, the LoRA is for another model.\n"
    ));
}

/// Where to compute, and where bytes go.
pub(super) fn place(
    machine: &Machine,
    args: &PlaceArgs,
    default: fn(&[DeviceId]) -> DeviceId,
) -> Result<(DeviceId, AllocationText)> {
    let ids: Vec<DeviceId> = machine.registry().iter().map(Device::id).collect();
    let allocation = AllocationText::parse_for(&args.alloc, &ids)?;
    let compute = args.compute.or(allocation.allocation().compute).unwrap_or_else(|| default(&ids));
    Ok((compute, allocation))
}

fn first_accelerator(ids: &[DeviceId]) -> DeviceId {
    ids.iter().copied().find(|id| id.kind != DeviceKind::Cpu).unwrap_or(DeviceId::CPU)
}

/// The prompt, from the arguments or a pipe.
fn prompt(given: Option<&str>) -> Result<String> {
    if let Some(prompt) = given {
        return Ok(prompt.to_owned());
    }
    let mut input = std::io::stdin();
    ensure!(!input.is_terminal(), "there is nothing to draw: give a prompt, or pipe one in");
    let mut prompt = String::new();
    input.read_to_string(&mut prompt).context("reading the prompt")?;
    Ok(prompt.trim().to_owned())
}

/// The model's files; a part that no file has is named, with the flag that gives it.
fn files(args: &DrawArgs) -> Result<FluxFiles> {
    let model = Arc::new(Checkpoint::open(&args.model).context("--model")?);
    let parts = detect(&model).parts;
    let other = |given: &Option<PathBuf>, flag: &str, what: &str, role: Role| -> Result<Arc<Checkpoint>> {
        match given {
            Some(path) => Ok(Arc::new(Checkpoint::open(path).context(flag.to_owned())?)),
            None if parts.iter().any(|part| part.role == role) => Ok(Arc::clone(&model)),
            None => {
                bail!("{} has no {what}: give the file that has it with {flag} FILE", args.model.display())
            }
        }
    };
    Ok(FluxFiles {
        clip_l: other(&args.clip_l, "--clip-l", "CLIP-L text encoder (clip_l.safetensors)", Role::Text)?,
        t5: other(&args.t5, "--t5", "T5 text encoder (t5xxl_fp16.safetensors)", Role::Text)?,
        autoencoder: other(&args.vae, "--vae", "autoencoder (ae.safetensors)", Role::Autoencoder)?,
        diffusion: Arc::clone(&model),
    })
}

/// `FILE:STRENGTH`, or `FILE` at strength 1.
fn lora(text: &str) -> Result<(Arc<Checkpoint>, f64)> {
    let split =
        text.rsplit_once(':').and_then(|(file, strength)| Some((file, strength.parse::<f64>().ok()?)));
    let (file, strength) = split.unwrap_or((text, 1.0));
    let file = Arc::new(Checkpoint::open(file).context("--lora")?);
    let found = detect(&file);
    ensure!(
        found.parts.is_empty() || found.parts.iter().any(|part| part.role == Role::Patch),
        "--lora {}: this is no LoRA but {}",
        file.path().display(),
        found.seems()
    );
    Ok((file, strength))
}

/// Where the picture goes.
pub(super) enum Target {
    File(PathBuf),
    Pipe,
}

impl Target {
    /// A file, or a pipe if there is no name; a terminal is not a place for a picture.
    pub(super) fn new(file: Option<&Path>) -> Result<Target> {
        match file {
            Some(path) => {
                // Nobody should wait for a picture that has no place to go.
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new("."));
                ensure!(
                    folder.is_dir(),
                    "-o {}: there is no folder {}; make it, or name another file",
                    path.display(),
                    folder.display()
                );
                ensure!(!path.is_dir(), "-o {}: this is a folder; name a file in it", path.display());
                // What is no file, such as a pipe, is written to where it is; a file is put there whole.
                let is_special = path.exists() && !path.is_file();
                let refused = host::refuses_writing(folder).filter(|_| !is_special);
                if let Some(why) = refused {
                    bail!(
                        "-o {}: nothing can be written in {}: {why}; name a file in another folder",
                        path.display(),
                        folder.display()
                    );
                }
                Ok(Target::File(path.to_owned()))
            }
            None if std::io::stdout().is_terminal() => {
                bail!("say where the picture goes: -o FILE, or a pipe")
            }
            None => Ok(Target::Pipe),
        }
    }

    pub(super) fn write(&self, picture: &Picture, prompt: &str) -> Result<()> {
        let mut bytes = Vec::new();
        picture.write_png(&mut bytes, prompt)?;
        match self {
            Target::File(path) => {
                disk::write(path, &bytes).with_context(|| format!("{} cannot be written", path.display()))
            }
            Target::Pipe => Ok(std::io::stdout().lock().write_all(&bytes)?),
        }
    }
}

/// Steps as they are done, on a terminal only.
pub(super) struct Progress {
    start: Instant,
    shown: bool,
}

impl Progress {
    pub(super) fn start() -> Progress {
        Progress { start: Instant::now(), shown: std::io::stderr().is_terminal() }
    }
}

impl Observer for Progress {
    fn step(&mut self, step: &Step<'_>) {
        if self.shown {
            let done = step.index + 1;
            let seconds = self.start.elapsed().as_secs_f64();
            let end = if done == step.count { "\n" } else { "" };
            tell(&format!("\rstep {done} of {}, {seconds:.1} s{end}", step.count));
        }
    }
}
