//! What the standard workflows of UNets that make pictures from text share.

use crate::detect::{Part, Role};
use crate::text::TextRecipe;
use crate::workflow::{StandardWorkflow, WorkflowFile};

/// The workflow of a family with these files and texts.
pub(in crate::diffusion) const fn workflow(
    files: &'static [WorkflowFile],
    text: &'static TextRecipe,
) -> StandardWorkflow {
    StandardWorkflow {
        files,
        text,
        guidance: None,
        latent: "EmptyLatentImage",
        cfg: 7.0,
        sampler: "euler",
        scheduler: "normal",
        multiple: 8,
    }
}

/// The CLIP-L text encoder, under the names that people know.
pub(in crate::diffusion) const fn clip_l(names: &'static str) -> WorkflowFile {
    const fn is_it() -> fn(&Part) -> bool {
        |part| part.role == Role::Text && part.name == "CLIP-L"
    }
    WorkflowFile::text("the CLIP-L text encoder", "--clip-l", is_it(), names)
}

/// An autoencoder of latents with four channels, under the names that people know.
pub(in crate::diffusion) const fn autoencoder(names: &'static str) -> WorkflowFile {
    const fn is_it() -> fn(&Part) -> bool {
        |part| part.role == Role::Autoencoder && part.name == "KL, 4 channels"
    }
    WorkflowFile::autoencoder(is_it(), names)
}
