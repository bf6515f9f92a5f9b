//! Drawing without a workflow: the standard one of the model's family is filled in, and runs as any other does.

mod files;
mod target;
mod workflow;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use graph::RunEnd;
use meta::DeviceId;
use runtime::Folders;
use runtime::Settings;

use crate::cli::PictureSize;
use crate::machine::Machine;
use crate::running::{self, Job, Progress};
use crate::{environment, serving};

pub(crate) use files::{ModelFiles, Pulled, STRENGTHS, goes_to};
pub(crate) use target::Target;

/// What is to be drawn, by which model, and where.
pub(crate) struct Drawing {
    pub(crate) prompt: String,
    pub(crate) size: PictureSize,
    pub(crate) steps: usize,
    pub(crate) seed: u64,
    /// What a model is told that was distilled with guidance; what is usual without it.
    pub(crate) guidance: Option<f64>,
    /// The factor of guidance away from the negative prompt; what is usual without it.
    pub(crate) cfg: Option<f64>,
    /// What the picture is not to be.
    pub(crate) negative: String,
    pub(crate) files: ModelFiles,
    pub(crate) place: Place,
}

/// Where a model computes, and where its bytes go.
pub(crate) struct Place {
    pub(crate) compute: DeviceId,
    /// The allocation as it was written, empty for an automatic one; none if nobody said a word on devices.
    pub(crate) said: Option<String>,
}

impl Drawing {
    /// What was drawn, for programs.
    pub(crate) fn told(&self, file: &Path, seconds: f64) -> serde_json::Value {
        serde_json::json!({
            "file": file,
            "seconds": seconds,
            "prompt": self.prompt,
            "width": self.size.width,
            "height": self.size.height,
            "steps": self.steps,
            "seed": self.seed,
            "model": self.files.model,
        })
    }

    /// Draws: the picture as a PNG file that carries its workflow.
    pub(crate) fn draw(&self, machine: &Machine) -> Result<Vec<u8>> {
        workflow::check_size(self.files.family, self.size)?;
        let compute = Some(self.place.compute);
        // Its files are those that were given, wherever they are: no folder is searched.
        let settings = Settings { profile_file: environment::profile_file(), ..Settings::default() };
        let mut runtime = serving::open_runtime(machine, Folders::default(), compute, settings)?;
        for file in &self.files.offers {
            runtime.offer(file.key, &file.name, &file.path);
        }
        let saved = runtime.keep_pictures();
        let catalogue = Arc::new(nodes::catalogue(&Arc::new(runtime)));
        let (prompt, sampler) = workflow::fill_in(self);
        let progress = Progress::of_steps(sampler);
        let job = Job {
            name: "the drawing".to_owned(),
            prompt,
            workflow: None,
            progress,
            if_interrupted: "no picture was written",
        };
        match running::run(&catalogue, job)?.end {
            RunEnd::Succeeded => saved.take().into_iter().next().context("the workflow saved no picture"),
            RunEnd::Failed(failure) => bail!("{}", failure.message.trim_end()),
            RunEnd::Interrupted { .. } => Err(running::Interrupted.into()),
        }
    }
}
