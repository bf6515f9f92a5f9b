//! `gantry demo`: a picture by the small model that comes with the binary.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use checkpoint::Checkpoint;
use meta::DeviceId;

use super::draw::{Progress, Target, place};
use super::print;
use crate::cli::DemoArgs;
use crate::demo_model;
use crate::drawing::{Drawing, FluxFiles, FluxPipeline};
use crate::machine::Machine;

/// Width and height that the demo model was trained for.
const SIDE: usize = 128;

pub(super) fn run(machine: &Machine, args: &DemoArgs) -> Result<ExitCode> {
    let start = Instant::now();
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
    Target::File(args.output.clone()).write(&picture, &drawing.prompt)?;
    print(&format!(
        "\"{}\" drawn in {:.1} s: {}\n\
         Next: gantry demo \"a green triangle left of a yellow circle\" --seed 7, or with a FLUX model of your own:\n\
         gantry draw PROMPT --model flux1-schnell.safetensors --clip-l … --t5 … --vae … -o picture.png\n",
        drawing.prompt,
        start.elapsed().as_secs_f64(),
        args.output.display(),
    ))?;
    Ok(ExitCode::SUCCESS)
}
