//! Stages of guidance that nodes add to a model: before the predictions are weighed against each other, instead of the
//! usual weighing, and after it. Each is a few numbers and a formula; element-wise arithmetic is in f32, sums are in f64.

mod after;
mod before;
mod blur;
mod frequencies;
mod groups;
mod instead;
mod reuse;

pub use after::{AfterCfg, away_from};
pub use before::{BeforeCfg, Momentum};
pub use blur::blurred;
pub use instead::{InsteadOfCfg, perpendicular};
pub use reuse::{Reuse, ReuseRule};

use crate::{Latent, ModelSampling};

/// What guidance has at one step.
#[derive(Clone, Copy, Debug)]
pub struct Weighing<'a> {
    /// The noisy latent.
    pub x: &'a Latent,
    /// Its level of noise.
    pub sigma: f32,
    /// The clean latent that the positive conditioning sees in it.
    pub positive: &'a Latent,
    /// The one that the negative conditioning sees; zeros where it was not evaluated.
    pub negative: &'a Latent,
    /// The scale of guidance.
    pub scale: f64,
    /// How the model reads noise.
    pub sampling: &'a ModelSampling,
}

impl Weighing<'_> {
    /// The usual weighing: away from the negative, by the scale.
    #[must_use]
    pub fn guided(&self) -> Latent {
        let scale = self.scale as f32;
        self.negative.zip(self.positive, |no, yes| no + (yes - no) * scale)
    }
}
