//! Drawing without a workflow: the standard one of the model's family is filled in, and runs as any other does.

mod files;
mod flux;
mod target;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use graph::RunEnd;
use meta::DeviceId;
use nodes::Folders;
use nodes::studio::Settings;

use crate::cli::PictureSize;
use crate::machine::Machine;
use crate::running::{self, Job, Progress};
use crate::{environment, serving};

pub(crate) use files::{ModelFiles, STRENGTHS};
pub(crate) use target::Target;

/// What is to be drawn, by which model, and where.
pub(crate) struct Drawing {
    pub(crate) prompt: String,
    pub(crate) size: PictureSize,
    pub(crate) steps: usize,
    pub(crate) seed: u64,
    /// What a model is told that was distilled with guidance.
    pub(crate) guidance: f64,
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
    /// Draws: the picture as a PNG file that carries its workflow.
    pub(crate) fn draw(&self, machine: &Machine) -> Result<Vec<u8>> {
        flux::check_size(self.size)?;
        let compute = Some(self.place.compute);
        // Its files are those that were given, wherever they are: no folder is searched.
        let settings = Settings { profile_file: environment::profile_file(), ..Settings::default() };
        let mut studio = serving::open_studio(machine, Folders::default(), compute, settings)?;
        for file in &self.files.offers {
            studio.offer(file.key, &file.name, &file.path);
        }
        let saved = studio.keep_pictures();
        let catalogue = Arc::new(nodes::catalogue(&Arc::new(studio)));
        let (prompt, sampler) = flux::workflow(self);
        let progress = Progress::of_steps(sampler);
        let job = Job { name: "the drawing".to_owned(), prompt, workflow: None, progress };
        match running::run(&catalogue, job)?.end {
            RunEnd::Succeeded => saved.take().into_iter().next().context("the workflow saved no picture"),
            RunEnd::Failed(failure) => bail!("{}", failure.message.trim_end()),
            RunEnd::Interrupted { .. } => bail!("interrupted"),
        }
    }
}
