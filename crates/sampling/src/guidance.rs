//! Guidance: from a model's predictions for two conditionings to the one that a sampler steps with.

use std::fmt;

use crate::{Error, Latent, ModelSampling};

/// Which of the conditionings that guidance weighs against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditioning {
    /// What the picture is to be.
    Positive,
    /// What it is not to be.
    Negative,
}

impl fmt::Display for Conditioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Conditioning::Positive => "positive",
            Conditioning::Negative => "negative",
        })
    }
}

/// A model as samplers see it.
pub trait Predictor {
    /// The clean latents that `x` at level `sigma` seems to hold (after [`ModelSampling::calculate_denoised`]),
    /// one for each wanted conditioning, in their order.
    ///
    /// All conditionings of a step are wanted at once, so that a model can pass over its weights once.
    fn predict(
        &mut self,
        x: &Latent,
        sigma: f32,
        wanted: &[Conditioning],
    ) -> Result<Vec<Latent>, Box<dyn std::error::Error + Send + Sync>>;
}

impl<F> Predictor for F
where
    F: FnMut(&Latent, f32, &[Conditioning]) -> Result<Vec<Latent>, Box<dyn std::error::Error + Send + Sync>>,
{
    fn predict(
        &mut self,
        x: &Latent,
        sigma: f32,
        wanted: &[Conditioning],
    ) -> Result<Vec<Latent>, Box<dyn std::error::Error + Send + Sync>> {
        self(x, sigma, wanted)
    }
}

/// A latent to keep where its mask is zero.
pub(crate) struct Inpainting<'a> {
    /// 1 where the picture is made new, 0 where it stays.
    pub(crate) mask: Latent,
    /// The picture, in the model's scale.
    pub(crate) image: &'a Latent,
    /// The noise that lifts the kept part to the current level.
    pub(crate) noise: Latent,
    /// Whether the kept part is not lifted at all.
    pub(crate) keeps_clean: bool,
}

/// The model with guidance and mask applied.
pub(crate) struct Guided<'a> {
    pub(crate) model: &'a mut dyn Predictor,
    pub(crate) sampling: &'a ModelSampling,
    pub(crate) cfg: f64,
    pub(crate) inpainting: Option<Inpainting<'a>>,
}

impl Guided<'_> {
    /// The guided prediction, and the negative one where guidance computed it.
    ///
    /// A scale of one needs no negative prediction, so the model is asked for it only when the sampler does.
    pub(crate) fn denoise(
        &mut self,
        x: &Latent,
        sigma: f32,
        needs_negative: bool,
    ) -> Result<(Latent, Option<Latent>), Error> {
        let blended = self.inpainting.as_ref().map(|inpainting| {
            let keep = |kept: &Latent| {
                x.zip3(kept, &inpainting.mask, |x, kept, mask| x * mask + kept * (1.0 - mask))
            };
            if inpainting.keeps_clean {
                keep(&self.sampling.inverse_input(sigma, inpainting.image))
            } else {
                keep(&self.sampling.noise_scaling(sigma, &inpainting.noise, inpainting.image, false))
            }
        });
        let wanted: &[Conditioning] = if needs_negative || !is_one(self.cfg) {
            &[Conditioning::Positive, Conditioning::Negative]
        } else {
            &[Conditioning::Positive]
        };
        let predictions = self
            .model
            .predict(blended.as_ref().unwrap_or(x), sigma, wanted)
            .map_err(|source| Error::Model { sigma, source })?;
        let (positive, negative) = checked(x, sigma, wanted, predictions)?;
        let scale = self.cfg as f32;
        let mut denoised = match &negative {
            Some(negative) => negative.zip(&positive, |no, yes| no + (yes - no) * scale),
            None => positive,
        };
        if let Some(inpainting) = &self.inpainting {
            denoised = denoised
                .zip3(inpainting.image, &inpainting.mask, |new, old, mask| new * mask + old * (1.0 - mask));
        }
        Ok((denoised, negative))
    }
}

/// The predictions for the positive and, if it was wanted, the negative conditioning, which must be like the latent.
fn checked(
    x: &Latent,
    sigma: f32,
    wanted: &[Conditioning],
    predictions: Vec<Latent>,
) -> Result<(Latent, Option<Latent>), Error> {
    let mut predictions = predictions.into_iter();
    let mut next = |conditioning: Conditioning, what: &'static str| {
        let prediction = predictions.next().ok_or(Error::NoPrediction { conditioning, sigma })?;
        x.check_like(what, &prediction)?;
        Ok::<_, Error>(prediction)
    };
    let positive = next(Conditioning::Positive, "the model's prediction")?;
    let negative = match wanted.get(1) {
        Some(_) => Some(next(Conditioning::Negative, "the model's negative prediction")?),
        None => None,
    };
    Ok((positive, negative))
}

/// Whether a scale is one, at which guidance gives what it started from.
fn is_one(scale: f64) -> bool {
    (scale - 1.0).abs() <= 1e-9 * scale.abs().max(1.0)
}
