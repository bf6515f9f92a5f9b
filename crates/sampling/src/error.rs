//! What can go wrong while sampling.

use crate::Conditioning;

/// An error of noise, schedule, sampler or guidance.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A latent's values do not fill its shape.
    #[error("a latent of shape {shape:?} has {expected} values, but {got} were given")]
    LatentSize {
        /// The shape.
        shape: Vec<usize>,
        /// Values that the shape holds.
        expected: usize,
        /// Values given.
        got: usize,
    },
    /// Two latents that belong together have different shapes.
    #[error("{what} has shape {got:?}, but the latent has {expected:?}: give both the same shape")]
    Shape {
        /// Which of the inputs it is.
        what: &'static str,
        /// The latent's shape.
        expected: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A name that is not in one of the lists.
    #[error("unknown {what} '{name}': choose one of {known}")]
    UnknownName {
        /// What kind of name it is.
        what: &'static str,
        /// The name given.
        name: String,
        /// All names there are.
        known: String,
    },
    /// A number outside of what a schedule can use.
    #[error("{schedule}: {input} is {got}, but must be {expected}")]
    ScheduleInput {
        /// The scheduler.
        schedule: &'static str,
        /// The input's name.
        input: &'static str,
        /// The value given.
        got: String,
        /// The values that it takes.
        expected: &'static str,
    },
    /// A noise level that is no level.
    #[error("noise level {index} is {sigma}: levels must be finite and not negative")]
    BadSigma {
        /// Its place in the list.
        index: usize,
        /// The value.
        sigma: f32,
    },
    /// Something that is no latent.
    #[error(
        "the latent has shape {shape:?}; a latent picture has batch, channels, height and width, a video frames before \
         the height"
    )]
    Axes {
        /// The shape found.
        shape: Vec<usize>,
    },
    /// A latent with another number of channels than the model's.
    #[error(
        "the latent has shape {shape:?}, but {format} latents have {channels} channels on the second axis"
    )]
    Channels {
        /// The latent format.
        format: &'static str,
        /// Its channels.
        channels: usize,
        /// The shape found.
        shape: Vec<usize>,
    },
    /// A sampler that divides by its last noise levels got zero for them.
    #[error(
        "{sampler}: the noise levels must start and end above zero (a final zero is left out), got {sigmas:?}"
    )]
    ZeroSigma {
        /// The sampler.
        sampler: &'static str,
        /// The levels.
        sigmas: Vec<f32>,
    },
    /// A sampler's equations have no finite solution.
    #[error(
        "{sampler}: step {step} has no finite solution: the noise levels repeat, or the model's predictions are not finite"
    )]
    Diverged {
        /// The sampler.
        sampler: &'static str,
        /// The step, from zero.
        step: usize,
    },
    /// The model gave no prediction for a conditioning that guidance needs.
    #[error(
        "guidance needs a prediction for the {conditioning} conditioning at noise level {sigma}, but the model gave none"
    )]
    NoPrediction {
        /// Which one.
        conditioning: Conditioning,
        /// The noise level of the call.
        sigma: f32,
    },
    /// The observer asked to stop.
    #[error("cancelled after {steps_done} of {steps} steps")]
    Cancelled {
        /// Steps that were reported.
        steps_done: usize,
        /// Steps planned.
        steps: usize,
    },
    /// The model failed.
    #[error("the model failed at noise level {sigma}: {source}")]
    Model {
        /// The noise level of the call.
        sigma: f32,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
