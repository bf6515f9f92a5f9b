//! `gantry draw`: a prompt and model files in, a picture out.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use device::Device;
use meta::DeviceId;
use placement::AllocationText;

use super::{note, print_json};
use crate::cli::{DrawArgs, FolderArgs, PlaceArgs};
use crate::drawing::{Drawing, ModelFiles, Place, Pulled, Target};
use crate::machine::Machine;
use crate::serving;

pub(super) fn run(machine: &Machine, args: &DrawArgs) -> Result<ExitCode> {
    let prompt = prompt(args.prompt.as_deref())?;
    let target = Target::new(args.output.as_deref())?;
    let drawing = Drawing {
        prompt,
        size: args.size,
        steps: args.steps,
        seed: args.seed,
        guidance: args.guidance,
        cfg: args.cfg,
        negative: args.negative.clone(),
        files: ModelFiles::given(args, pulled(args)?.as_ref())?,
        place: place(machine, &args.place, serving::first_accelerator(machine))?,
    };
    let start = Instant::now();
    target.write(&drawing.draw(machine)?)?;
    let seconds = start.elapsed().as_secs_f64();
    match &args.output {
        Some(file) if args.json => print_json(&drawing.told(file, seconds))?,
        Some(file) => note(&format!("drawn in {seconds:.1} s: {}\n", file.display())),
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The files of a short name, unless there is a file that is called so.
fn pulled(args: &DrawArgs) -> Result<Option<Pulled>> {
    let Some(name) = args.model.to_str().filter(|_| !args.model.exists()) else { return Ok(None) };
    let folders = FolderArgs { base_directory: args.base_directory.clone(), ..FolderArgs::default() };
    Pulled::find(name, &serving::folders(&folders)?)
}

/// Where to compute, and where bytes go.
pub(super) fn place(machine: &Machine, args: &PlaceArgs, usual: DeviceId) -> Result<Place> {
    let ids: Vec<DeviceId> = machine.registry().iter().map(Device::id).collect();
    let allocation = AllocationText::parse_for(&args.alloc, &ids)?;
    let compute = args.compute.or(allocation.allocation().compute).unwrap_or(usual);
    let text = args.alloc.trim();
    let said = (args.compute.is_some() || !text.is_empty()).then(|| text.to_owned());
    Ok(Place { compute, said })
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
