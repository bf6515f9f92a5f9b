//! `gantry demo`: a picture by the small model that comes with the binary.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use checkpoint::Checkpoint;
use meta::DeviceId;

use super::draw::{Progress, Target, place};
use super::{print, tell};
use crate::cli::DemoArgs;
use crate::demo_model;
use crate::drawing::{Drawing, FluxFiles, FluxPipeline};
use crate::machine::Machine;

/// Width and height that the demo model was trained for.
const SIDE: usize = 128;
/// What to do next.
const NEXT: &str = "\
Next:
  gantry demo \"a green triangle left of a yellow circle\" --seed 7   your own words: one or two coloured shapes
  gantry serve                                                       the web front end, with this model in its loaders
  gantry doctor                                                      what this machine can do, and where models go
";

pub(super) fn run(machine: &Machine, args: &DemoArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let target = Target::new(Some(&args.output))?;
    let file = |name: &str, bytes: &'static [u8]| -> Result<Arc<Checkpoint>> {
        Ok(Arc::new(Checkpoint::from_static(name, bytes)?))
    };
    let diffusion = if args.quantised { demo_model::FLUX_Q8_0 } else { demo_model::FLUX };
    let files = FluxFiles {
        diffusion: file("the demo model", diffusion)?,
        clip_l: file("the demo model's CLIP", demo_model::CLIP_L)?,
        t5: file("the demo model's T5", demo_model::T5)?,
        autoencoder: file("the demo model's autoencoder", demo_model::AUTOENCODER)?,
    };
    let (compute, allocation) = place(machine, &args.place, |_| DeviceId::CPU)?;
    let pipeline = FluxPipeline::load(machine.registry(), compute, &files, allocation, (SIDE, SIDE))?;
    if let Some(strength) = args.outline {
        pipeline.patch(&[(file("the demo model's outline LoRA", demo_model::OUTLINE_LORA)?, strength)])?;
    }
    let drawing = Drawing {
        prompt: args.prompt.clone(),
        width: SIDE,
        height: SIDE,
        steps: args.steps,
        seed: args.seed,
        guidance: 1.0,
    };
    let picture = pipeline.draw(&drawing, &mut Progress::start())?;
    target.write(&picture, &drawing.prompt)?;
    print(&format!(
        "\"{}\" drawn in {:.1} s: {}\n",
        drawing.prompt,
        start.elapsed().as_secs_f64(),
        args.output.display(),
    ))?;
    // Advice is for people: scripts that read the output, or run without a terminal, do not get it.
    if std::io::stderr().is_terminal() {
        tell(NEXT);
    }
    Ok(ExitCode::SUCCESS)
}
