//! The workflow that a family is usually run with: what differs between families. `draw` and the demo fill it in.

use crate::detect::{Detected, Part};
use crate::text::TextRecipe;

/// What a family's standard workflow has.
#[derive(Debug)]
pub struct StandardWorkflow {
    /// The files that it loads, the diffusion model first.
    pub files: &'static [WorkflowFile],
    /// How its texts are encoded.
    pub text: &'static TextRecipe,
    /// The class that tells a distilled model its guidance, with what it is usually told.
    pub guidance: Option<(&'static str, f64)>,
    /// The class that makes an empty latent.
    pub latent: &'static str,
    /// The factor of guidance; at one nothing is evaluated for a negative prompt.
    pub cfg: f64,
    /// The sampler.
    pub sampler: &'static str,
    /// The scheduler.
    pub scheduler: &'static str,
    /// Sides of a picture are multiples of this many pixels.
    pub multiple: usize,
}

/// A file that a workflow loads, or that a checkpoint with everything has inside.
#[derive(Debug)]
pub struct WorkflowFile {
    /// What it is.
    pub what: &'static str,
    /// Whether a part of a file is it.
    pub is_it: fn(&Part) -> bool,
    /// The flag of `draw` that names its file.
    pub flag: &'static str,
    /// The names that people know.
    pub names: &'static str,
    /// The kind of folder that it lies in.
    pub folder: &'static str,
    /// Whether there is no picture without it.
    pub is_needed: bool,
}

impl WorkflowFile {
    /// The diffusion model, in a kind of folder.
    pub(crate) const fn diffusion(
        is_it: fn(&Part) -> bool,
        folder: &'static str,
        names: &'static str,
    ) -> WorkflowFile {
        let what = "the diffusion model";
        WorkflowFile { what, is_it, flag: "--model", names, folder, is_needed: true }
    }

    /// A text encoder that no picture is drawn without, under its flag.
    pub(crate) const fn text(
        what: &'static str,
        flag: &'static str,
        is_it: fn(&Part) -> bool,
        names: &'static str,
    ) -> WorkflowFile {
        WorkflowFile { what, is_it, flag, names, folder: "text_encoders", is_needed: true }
    }

    /// The autoencoder.
    pub(crate) const fn autoencoder(is_it: fn(&Part) -> bool, names: &'static str) -> WorkflowFile {
        WorkflowFile { what: "the autoencoder", is_it, flag: "--vae", names, folder: "vae", is_needed: true }
    }

    /// Whether a file has it.
    #[must_use]
    pub fn is_in(&self, found: &Detected) -> bool {
        found.parts.iter().any(self.is_it)
    }

    /// What it is and the files that people know, without an article.
    #[must_use]
    pub fn described(&self) -> String {
        format!("{} ({})", self.what.trim_start_matches("the "), self.names)
    }
}
