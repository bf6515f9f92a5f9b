//! Guidance: from a model's predictions for two conditionings to the one that a sampler steps with.

use crate::{Error, Latent, ModelSampling};

/// What a model predicts at one noise level: the clean latent, per conditioning.
pub struct Prediction {
    /// For the positive conditioning.
    pub positive: Latent,
    /// For the negative conditioning, where it was asked for.
    pub negative: Option<Latent>,
}

/// A model as samplers see it.
pub trait Predictor {
    /// The clean latent that `x` at level `sigma` seems to hold (after [`ModelSampling::calculate_denoised`]),
    /// for the positive conditioning and, when `want_negative`, the negative one.
    fn predict(
        &mut self,
        x: &Latent,
        sigma: f32,
        want_negative: bool,
    ) -> Result<Prediction, Box<dyn std::error::Error + Send + Sync>>;
}

impl<F> Predictor for F
where
    F: FnMut(&Latent, f32, bool) -> Result<Prediction, Box<dyn std::error::Error + Send + Sync>>,
{
    fn predict(
        &mut self,
        x: &Latent,
        sigma: f32,
        want_negative: bool,
    ) -> Result<Prediction, Box<dyn std::error::Error + Send + Sync>> {
        self(x, sigma, want_negative)
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
            let kept = self.sampling.noise_scaling(sigma, &inpainting.noise, inpainting.image, false);
            x.zip3(&kept, &inpainting.mask, |x, kept, mask| x * mask + kept * (1.0 - mask))
        });
        let is_one = (self.cfg - 1.0).abs() <= 1e-9 * self.cfg.abs().max(1.0);
        let want_negative = needs_negative || !is_one;
        let prediction = self
            .model
            .predict(blended.as_ref().unwrap_or(x), sigma, want_negative)
            .map_err(|source| Error::Model { sigma, source })?;
        x.check_like("the model's prediction", &prediction.positive)?;
        let (mut denoised, negative) = if want_negative {
            let negative = prediction.negative.ok_or(Error::NoNegative { sigma })?;
            x.check_like("the model's negative prediction", &negative)?;
            let scale = self.cfg as f32;
            (negative.zip(&prediction.positive, |no, yes| no + (yes - no) * scale), Some(negative))
        } else {
            (prediction.positive, None)
        };
        if let Some(inpainting) = &self.inpainting {
            denoised = denoised
                .zip3(inpainting.image, &inpainting.mask, |new, old, mask| new * mask + old * (1.0 - mask));
        }
        Ok((denoised, negative))
    }
}
