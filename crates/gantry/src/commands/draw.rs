//! `gantry draw`: a prompt and model files in, a picture out.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use device::Device;
use meta::DeviceId;
use placement::AllocationText;

use crate::cli::{DrawArgs, PlaceArgs};
use crate::drawing::{Drawing, ModelFiles, Place, Target};
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
        files: ModelFiles::given(args)?,
        place: place(machine, &args.place, serving::first_accelerator(machine))?,
    };
    target.write(&drawing.draw(machine)?)?;
    Ok(ExitCode::SUCCESS)
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
