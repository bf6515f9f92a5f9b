//! `gantry demo`: a picture by the small model that comes with the binary.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use meta::DeviceId;

use super::draw::place;
use super::{note, print, print_json};
use crate::cli::{DemoArgs, PictureSize};
use crate::demo_model;
use crate::drawing::{Drawing, ModelFiles, Target};
use crate::machine::Machine;

/// The size that the demo model was trained for.
const SIZE: PictureSize = PictureSize { width: 128, height: 128 };
/// The shapes that the demo model knows.
const SHAPES: [&str; 7] = ["circle", "square", "triangle", "star", "cross", "ring", "diamond"];
/// What is said of other words.
const HINT: &str =
    "The demo model knows coloured shapes only; `gantry pull --list` names models that draw the rest.\n";
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
        guidance: None,
        cfg: None,
        negative: String::new(),
        files: files(args),
        // Its steps are so small that a GPU would only cost its start.
        place: place(machine, &args.place, DeviceId::CPU)?,
    };
    target.write(&drawing.draw(machine)?)?;
    let seconds = start.elapsed().as_secs_f64();
    if args.report.json {
        print_json(&drawing.told(&args.output, seconds))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!("\"{}\" drawn in {seconds:.1} s: {}\n", drawing.prompt, args.output.display()))?;
    if let Some(hint) = hint(&drawing.prompt) {
        note(hint);
    }
    // Advice is for people: scripts that read the output, or run without a terminal, do not get it.
    if std::io::stderr().is_terminal() {
        note(NEXT);
    }
    Ok(ExitCode::SUCCESS)
}

/// What to say of words that the demo model does not know; nothing if it knows what is to be drawn.
fn hint(prompt: &str) -> Option<&'static str> {
    let words: Vec<String> = prompt.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase).collect();
    let is_known = SHAPES.iter().any(|shape| {
        words.iter().any(|word| word.strip_suffix('s').unwrap_or(word) == *shape || word == shape)
    });
    (!is_known).then_some(HINT)
}

/// The files of the demo model, which loaders list by themselves.
fn files(args: &DemoArgs) -> ModelFiles {
    let model = if args.quantised { demo_model::DIFFUSION_Q8_0_NAME } else { demo_model::DIFFUSION_NAME };
    let lora = |strength| (demo_model::OUTLINE_LORA_NAME.to_owned(), strength);
    ModelFiles {
        family: demo_model::FAMILY,
        model: model.to_owned(),
        encoders: Some([demo_model::CLIP_L_NAME, demo_model::T5_NAME].map(str::to_owned).to_vec()),
        autoencoder: Some(demo_model::AUTOENCODER_NAME.to_owned()),
        loras: args.outline.map(lora).into_iter().collect(),
        takes_guidance: false,
        offers: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_the_model_does_not_know_are_told() {
        assert_eq!(hint("two Crosses? a red CROSS."), None);
        assert_eq!(hint("circles"), None);
        assert!(hint("a purple dinosaur").is_some());
        let card = include_str!("../../../../assets/demo/MODEL_CARD.md");
        let listed = card.lines().find_map(|line| line.strip_prefix("- Shapes: ")).unwrap();
        assert_eq!(listed.trim_end_matches('.').split(", ").collect::<Vec<_>>(), SHAPES);
    }
}
