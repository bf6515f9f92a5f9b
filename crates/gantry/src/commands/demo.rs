//! `gantry demo`: a picture by the small model that comes with the binary.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use meta::DeviceId;

use super::draw::place;
use super::{print, tell};
use crate::cli::{DemoArgs, PictureSize};
use crate::demo_model;
use crate::drawing::{Drawing, ModelFiles, Target};
use crate::machine::Machine;

/// The size that the demo model was trained for.
const SIZE: PictureSize = PictureSize { width: 128, height: 128 };
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
    let drawing = Drawing {
        prompt: args.prompt.clone(),
        size: SIZE,
        steps: args.steps,
        seed: args.seed,
        guidance: 1.0,
        files: files(args),
        // Its steps are so small that a GPU would only cost its start.
        place: place(machine, &args.place, DeviceId::CPU)?,
    };
    target.write(&drawing.draw(machine)?)?;
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

/// The files of the demo model, which loaders list by themselves.
fn files(args: &DemoArgs) -> ModelFiles {
    let model = if args.quantised { demo_model::FLUX_Q8_0_NAME } else { demo_model::FLUX_NAME };
    let lora = |strength| (demo_model::OUTLINE_LORA_NAME.to_owned(), strength);
    ModelFiles {
        model: model.to_owned(),
        encoders: Some([demo_model::CLIP_L_NAME, demo_model::T5_NAME].map(str::to_owned)),
        autoencoder: Some(demo_model::AUTOENCODER_NAME.to_owned()),
        loras: args.outline.map(lora).into_iter().collect(),
        takes_guidance: false,
        offers: Vec::new(),
    }
}
