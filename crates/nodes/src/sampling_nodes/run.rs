//! One run of a sampler, from a guider and a latent to a latent, with progress and previews.

use graph::{Call, Failure, Literal, Picture};
use image::imageops::FilterType;
use residency::Cancel;
use sampling::{
    Conditioning, Latent, LatentFormat, Observer, Request, Sampler, Step, Tuning, noise, resize_mask, sample,
};

use super::entries::ready;
use super::guider::{Guider, Guiding};
use super::planes::{dims, mask_planes};
use super::predicting::{Evaluator, Scene};
use super::step_shape::largest_step;
use crate::studio::{Model, PreviewMethod, Studio, Wanted};
use crate::value::LatentImage;
use crate::{Error, Result};

/// Pixels along the longer side of a preview, unless a setting says so.
const PREVIEW_SIZE: usize = 512;

/// Latents that a run holds at one time, beside its results.
const WORKING_COPIES: usize = 8;

/// What is run, besides the guider.
pub(crate) struct Run<'a> {
    pub(crate) sampler: Sampler,
    pub(crate) tuning: Tuning,
    pub(crate) sigmas: Vec<f32>,
    /// The seed of the starting noise, unless there is none.
    pub(crate) noise: Option<u64>,
    /// The seed of the noise that samplers add.
    pub(crate) seed: u64,
    pub(crate) latent: &'a LatentImage,
}

/// What a run gives.
pub(crate) struct Sampled {
    /// The latent at the end.
    pub(crate) latent: LatentImage,
    /// The clean latent that the last step predicted; the same if there was no step.
    pub(crate) denoised: LatentImage,
}

/// Runs a sampler.
pub(crate) fn run(studio: &Studio, call: &Call, guider: &Guider, run: &Run<'_>) -> Result<Sampled, Failure> {
    let model = &guider.model;
    let shape = dims(&run.latent.samples)?;
    // The sampler works on copies of the latent: noise, what a step takes and gives, what was predicted.
    let _working = studio.host.room(&[WORKING_COPIES, shape.iter().product()])?;
    let latent = model.format().fit_empty(Latent::clone(&run.latent.samples));
    let shape = dims(&latent)?;
    let noise = match run.noise {
        None => Latent::zeros(&shape),
        Some(seed) => {
            let indices = run.latent.batch_index.as_deref();
            noise::prepare_noise_while(seed, &shape, indices, || call.check().is_ok()).map_err(Error::from)?
        }
    };
    let mask = match &run.latent.noise_mask {
        None => None,
        Some(mask) => Some(resize_mask(&mask_planes(mask)?, &shape).map_err(Error::from)?),
    };
    let work = Work { studio, call, guider, run, latent, noise, mask };
    let (samples, denoised) = if run.sigmas.is_empty() { (work.latent, None) } else { work.sample()? };
    let with = |samples: Latent| run.latent.with_samples(samples);
    let denoised = match denoised {
        Some(denoised) => model.format().to_autoencoder(&denoised).map_err(Error::from)?,
        None => samples.clone(),
    };
    Ok(Sampled { latent: with(samples)?, denoised: with(denoised)? })
}

/// A run with all it needs.
struct Work<'a> {
    studio: &'a Studio,
    call: &'a Call,
    guider: &'a Guider,
    run: &'a Run<'a>,
    latent: Latent,
    noise: Latent,
    mask: Option<Latent>,
}

impl Work<'_> {
    /// The latent at the end, and what the last step predicted, in the model's scale.
    fn sample(&self) -> Result<(Latent, Option<Latent>), Failure> {
        let model = &self.guider.model;
        let shape = dims(&self.latent)?;
        let conditionings = ready(&self.guider.conditionings(), shape, &model.sampling)?;
        let evaluated = self.guider.guiding.evaluated(self.run.sampler.needs_negative());
        let work = largest_step(&conditionings, &evaluated, &self.run.sigmas, shape);
        let wanted = Wanted { source: &model.source, beside: &[], loras: &model.loras, work: &work };
        let cancel = Cancel::from(std::sync::Arc::clone(&self.call.job.cancel));
        let mut watching = Watching::new(self.studio, self.call, model.format());
        let latent = self.studio.with_session(wanted, &cancel, |opened| {
            let scene = Scene { shape, mask: self.mask.as_ref() };
            let evaluator = Evaluator::new(self.studio, opened, model, &conditionings, &scene)?;
            self.through(&evaluator, &mut watching)
        });
        if let Some(failure) = watching.failure.take() {
            return Err(failure);
        }
        Ok((latent?, watching.denoised.take()))
    }

    fn through(&self, evaluator: &Evaluator<'_>, watching: &mut Watching<'_>) -> Result<Latent> {
        let Model { sampling, differential, .. } = &*self.guider.model;
        let mut request = Request {
            sampling,
            format: self.guider.model.format(),
            sampler: self.run.sampler,
            tuning: self.run.tuning,
            sigmas: self.run.sigmas.clone(),
            noise: self.noise.clone(),
            latent: self.latent.clone(),
            mask: self.mask.clone(),
            cfg: self.guider.cfg(),
            seed: self.run.seed,
        };
        let thresholds = match (differential, &self.mask) {
            (Some(strength), Some(mask)) => {
                request.mask = None;
                Some(Thresholds::new(self, mask, *strength)?)
            }
            _ => None,
        };
        let guides_itself = thresholds.is_some() || matches!(self.guider.guiding, Guiding::Dual { .. });
        if guides_itself {
            request.cfg = 1.0;
        }
        let mut predict = |x: &Latent, sigma: f32, wanted: &[Conditioning]| {
            let plain = |x: &Latent| -> Result<Vec<Latent>> {
                if guides_itself {
                    return self.guider.guided(evaluator, x, sigma, wanted);
                }
                let places: Vec<usize> = wanted.iter().map(place).collect();
                evaluator.predict(&places, x, sigma)
            };
            let answer = match &thresholds {
                None => plain(x),
                Some(thresholds) => thresholds.keep(x, sigma, wanted, plain),
            };
            Ok(answer?)
        };
        Ok(sample(&request, &mut predict, watching)?)
    }
}

/// Where a conditioning stands in the list of a guider that leaves guiding to the sampler.
fn place(conditioning: &Conditioning) -> usize {
    match conditioning {
        Conditioning::Positive => 0,
        Conditioning::Negative => 1,
    }
}

/// A mask whose values say from which step on the picture is made new there.
struct Thresholds<'a> {
    work: &'a Work<'a>,
    mask: &'a Latent,
    image: Latent,
    strength: f64,
    /// The times at which the run starts and ends.
    times: (f32, f32),
}

impl<'a> Thresholds<'a> {
    fn new(work: &'a Work<'a>, mask: &'a Latent, strength: f64) -> Result<Thresholds<'a>> {
        let model = &work.guider.model;
        let image = if work.latent.is_zero() {
            work.latent.clone()
        } else {
            model.format().to_model(&work.latent)?
        };
        let sigmas = &work.run.sigmas;
        let (first, last) = (sigmas.first().copied().unwrap_or(1.0), sigmas.last().copied().unwrap_or(0.0));
        let lowest = model.sampling.sigma_min().max(last);
        let times = (model.sampling.timestep(first), model.sampling.timestep(lowest));
        Ok(Thresholds { work, mask, image, strength, times })
    }

    /// The mask at a level.
    fn at(&self, sigma: f32) -> Vec<f32> {
        let now = self.work.guider.model.sampling.timestep(sigma);
        let threshold = (now - self.times.1) / (self.times.0 - self.times.1);
        let strength = self.strength as f32;
        let blends = self.strength > 0.0 && self.strength < 1.0;
        let value = |mask: &f32| {
            let hard = f32::from(*mask >= threshold);
            if blends { strength * hard + (1.0 - strength) * mask } else { hard }
        };
        self.mask.values().iter().map(value).collect()
    }

    /// Predicts with the kept part of the picture at its level, and puts the picture back there.
    fn keep(
        &self,
        x: &Latent,
        sigma: f32,
        wanted: &[Conditioning],
        predict: impl Fn(&Latent) -> Result<Vec<Latent>>,
    ) -> Result<Vec<Latent>> {
        let mask = self.at(sigma);
        let sampling = &self.work.guider.model.sampling;
        let kept = sampling.noise_scaling(sigma, &self.work.noise, &self.image, false);
        let mut predictions = predict(&blend(x, &kept, &mask))?;
        for (conditioning, prediction) in wanted.iter().zip(&mut predictions) {
            if *conditioning == Conditioning::Positive {
                *prediction = blend(prediction, &self.image, &mask);
            }
        }
        Ok(predictions)
    }
}

/// `new` where the mask is 1, `old` where it is 0.
fn blend(new: &Latent, old: &Latent, mask: &[f32]) -> Latent {
    let mut out = new.clone();
    let values = out.values_mut().iter_mut().zip(old.values()).zip(mask);
    values.for_each(|((new, old), mask)| *new = *new * mask + old * (1.0 - mask));
    out
}

/// Tells the job of steps, and remembers what the last one predicted.
struct Watching<'a> {
    call: &'a Call,
    format: LatentFormat,
    preview: Option<usize>,
    denoised: Option<Latent>,
    failure: Option<Failure>,
}

impl<'a> Watching<'a> {
    fn new(studio: &Studio, call: &'a Call, format: LatentFormat) -> Watching<'a> {
        // A client may choose for its own prompt.
        let chosen = call.job.extra.get("preview_method").and_then(Literal::as_text);
        let method = match chosen {
            Some("none") => PreviewMethod::None,
            Some("auto" | "latent2rgb" | "taesd") => PreviewMethod::LatentToRgb,
            _ => studio.settings.preview,
        };
        let size = studio.settings.preview_size.unwrap_or(PREVIEW_SIZE);
        let preview = (method == PreviewMethod::LatentToRgb).then_some(size);
        Watching { call, format, preview, denoised: None, failure: None }
    }

    fn picture(&self, denoised: &Latent) -> Option<Picture> {
        let size = self.preview.filter(|size| *size > 0)?;
        let preview = self.format.preview(denoised).ok()?;
        let (width, height) = (u32::try_from(preview.width).ok()?, u32::try_from(preview.height).ok()?);
        let small = image::RgbImage::from_raw(width, height, preview.rgb)?;
        let scale = size as f64 / f64::from(width.max(height).max(1));
        let side = |length: u32| ((f64::from(length) * scale).round() as u32).max(1);
        let fitted = image::imageops::resize(&small, side(width), side(height), FilterType::Triangle);
        Some(Picture {
            width: fitted.width() as usize,
            height: fitted.height() as usize,
            rgb: fitted.into_raw(),
            is_result: false,
        })
    }
}

impl Observer for Watching<'_> {
    fn step(&mut self, step: &Step<'_>) {
        let picture = self.picture(step.denoised);
        let (value, max) = ((step.index + 1) as f64, step.count.max(step.index + 1) as f64);
        if let Err(failure) = self.call.progress(value, max, picture) {
            self.failure = Some(failure);
        }
        self.denoised = Some(step.denoised.clone());
    }

    fn cancelled(&self) -> bool {
        self.failure.is_some() || self.call.check().is_err()
    }
}
