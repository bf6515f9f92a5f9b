//! Drawing without a workflow: the standard way from a prompt to a picture of a model family.

mod flux;
mod picture;

pub(crate) use flux::{Drawing, FluxFiles, FluxPipeline};
pub(crate) use picture::Picture;
