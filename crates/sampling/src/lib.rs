//! Noise, schedules, samplers and guidance: everything between a model's prediction and a finished latent.
//!
//! The arithmetic on latents is small beside the model's, so it runs on host values in f32, in the order in
//! which the published reference evaluates it; the model is a [`Predictor`] that may compute anywhere.
//! Start with [`sample`]; [`ModelSampling`] says how a model family reads noise, [`Scheduler`] and
//! [`StepPlan`] give the noise levels, [`Sampler`] the way through them.
#![forbid(unsafe_code)]

mod driver;
mod error;
mod guidance;
mod latent;
mod latent_spec;
mod mask;
mod model_sampling;
pub mod noise;
mod resizing;
mod sampler;
mod schedule;
mod stages;

pub use driver::{Observer, Request, Silent, Step, sample};
pub use error::Error;
pub use guidance::{Conditioning, Predictor};
pub use latent::{Latent, LatentShape};
pub use latent_spec::{LatentSpec, Preview, Scaling};
pub use mask::resize_mask;
pub use model_sampling::{ModelSampling, Parameterization};
pub use resizing::Window;
pub use sampler::{Sampler, Tuning};
pub use schedule::{Scheduler, StepPlan, nodes};
pub use stages::{
    AfterCfg, BeforeCfg, InsteadOfCfg, Momentum, Reuse, ReuseRule, Weighing, away_from, blurred,
    perpendicular,
};
