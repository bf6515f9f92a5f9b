//! One sampling run: noise in, sampler through the levels, latent out.

use crate::guidance::{Guided, Inpainting, Predictor};
use crate::sampler::Run;
use crate::{Error, Latent, LatentSpec, ModelSampling, Sampler, Tuning, noise, resize_mask};

/// All that a run needs besides the model.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// How the model reads noise.
    pub sampling: &'a ModelSampling,
    /// The scale between the autoencoder's latents and the model's.
    pub format: &'static LatentSpec,
    /// The way through the levels.
    pub sampler: Sampler,
    /// The sampler's numbers.
    pub tuning: Tuning,
    /// The levels, falling; with none the latent comes back as it is.
    pub sigmas: Vec<f32>,
    /// The starting noise ([`noise::prepare_noise`]); zeros to continue a run that left noise over.
    pub noise: Latent,
    /// The latent to start from, in the autoencoder's scale; zeros for a new picture.
    pub latent: Latent,
    /// 1 where the picture is made new, 0 where it stays, at any picture size.
    pub mask: Option<Latent>,
    /// Whether the model is shown the part that stays as it is, not at the level of the rest.
    pub keeps_clean: bool,
    /// The scale of classifier-free guidance; at one the negative conditioning is not computed.
    pub cfg: f64,
    /// The seed of the noise that stochastic samplers add.
    pub seed: u64,
}

/// One finished step.
pub struct Step<'a> {
    /// Its number, from zero.
    pub index: usize,
    /// How many there are (an adaptive sampler may take more or fewer).
    pub count: usize,
    /// The latent that the step started from, in the model's scale.
    pub x: &'a Latent,
    /// The clean latent predicted in it, in the model's scale: what previews show.
    pub denoised: &'a Latent,
}

/// Whoever watches a run.
pub trait Observer {
    /// Called once per step.
    fn step(&mut self, step: &Step<'_>) {
        let _ = step;
    }

    /// Asked before each call of the model and after each step; true ends the run with [`Error::Cancelled`].
    fn cancelled(&self) -> bool {
        false
    }
}

/// An observer that looks away.
pub struct Silent;

impl Observer for Silent {}

/// Runs the sampler and returns the latent in the autoencoder's scale.
///
/// ```
/// use sampling::{
///     Conditioning, Latent, LatentSpec, ModelSampling, Request, Sampler, Scaling, Scheduler, Silent, StepPlan,
///     Tuning, noise, sample,
/// };
///
/// static LATENT: LatentSpec = LatentSpec {
///     name: "a family's",
///     channels: 16,
///     scaling: Scaling::Uniform { scale: 0.3611, shift: 0.1159 },
///     pixels_per_value: 8,
///     frames_per_value: None,
///     colours: &[],
///     background: [0.0; 3],
/// };
/// let sampling = ModelSampling::exponential_flow(1.15);
/// let sampler = Sampler::Euler;
/// let shape = [1, 16, 8, 8];
/// let request = Request {
///     sigmas: StepPlan::new(4, 1.0).sigmas(&sampling, Scheduler::Simple, sampler)?,
///     sampling: &sampling,
///     format: &LATENT,
///     sampler,
///     tuning: Tuning::default(),
///     noise: noise::prepare_noise(42, &shape, None)?,
///     latent: Latent::zeros(&shape),
///     mask: None,
///     keeps_clean: false,
///     cfg: 1.0,
///     seed: 42,
/// };
/// // A model that always sees the same grey picture.
/// let mut model = |x: &Latent, _sigma: f32, wanted: &[Conditioning]| {
///     Ok(wanted.iter().map(|_| Latent::zeros(x.shape())).collect())
/// };
/// let latent = sample(&request, &mut model, &mut Silent)?;
/// assert!(latent.values().iter().all(|v| (v - 0.1159).abs() < 1e-6));
/// # Ok::<(), sampling::Error>(())
/// ```
pub fn sample(
    request: &Request<'_>,
    model: &mut dyn Predictor,
    observer: &mut dyn Observer,
) -> Result<Latent, Error> {
    let sigmas = &request.sigmas;
    let (Some(&first), Some(&end)) = (sigmas.first(), sigmas.last()) else {
        return Ok(request.latent.clone());
    };
    if let Some(index) = sigmas.iter().position(|s| !s.is_finite() || *s < 0.0) {
        return Err(Error::BadSigma { index, sigma: sigmas[index] });
    }
    request.latent.check_like("the noise", &request.noise)?;
    // An empty latent stands for no picture and is not shifted.
    let image = if request.latent.is_zero() {
        request.latent.clone()
    } else {
        request.format.to_model(&request.latent)?
    };
    let start =
        request.sampling.noise_scaling(first, &request.noise, &image, starts_from_noise(request, first));
    let guided = Guided {
        model,
        sampling: request.sampling,
        cfg: request.cfg,
        inpainting: inpainting(request, &image)?,
    };
    let mut run = Run::new(guided, request, observer);
    let x = run.run(request.sampler, start)?;
    let end = if end == 0.0 { request.sampler.final_sigma() } else { end };
    request.format.to_autoencoder(&request.sampling.inverse_noise_scaling(end, x))
}

/// Whether the first level is the model's highest, so that the noise stands for the whole latent.
fn starts_from_noise(request: &Request<'_>, first: f32) -> bool {
    let (top, first) = (f64::from(request.sampling.sigma_max()), f64::from(first));
    first > top || (top - first).abs() <= 1e-5 * top.abs().max(first.abs())
}

fn inpainting<'a>(request: &Request<'_>, image: &'a Latent) -> Result<Option<Inpainting<'a>>, Error> {
    let Some(mask) = &request.mask else { return Ok(None) };
    let mask = resize_mask(mask, image.shape())?;
    let noise = if request.sampler == Sampler::Ddim {
        noise::prepare_noise(request.seed.wrapping_add(1), image.shape(), None)?
    } else {
        request.noise.clone()
    };
    Ok(Some(Inpainting { mask, image, noise, keeps_clean: request.keeps_clean }))
}
