//! One run of a sampler, from a guider and a latent to a latent, with progress and previews.

use std::sync::Arc;

use graph::{Call, Failure, Literal, Picture};
use image::imageops::FilterType;
use models::conditioning::Scene;
use models::diffusion::{Kept, Recording};
use sampling::{
    Conditioning, Latent, LatentShape, LatentSpec, Observer, Request, Sampler, Step, Tuning, noise,
    resize_mask, sample,
};

use super::controls::{ControlRuns, Controls};
use super::entries::ready;
use super::guided::Steering;
use super::guider::Guider;
use super::patches::Patches;
use super::predicting::{Evaluator, Question, RunsBeside, conditioned, have_equal_rows};
use super::step_shape::largest_step;
use super::work_units::{Split, Start, Units};
use crate::value::LatentImage;
use crate::{Error, Result};
use runtime::{Caller, Model, PreviewMethod, Runtime, Wanted};

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
pub(crate) fn run(
    runtime: &Runtime,
    call: &Call,
    guider: &Guider,
    run: &Run<'_>,
) -> Result<Sampled, Failure> {
    let spec = guider.model.latent()?;
    // The sampler works on copies of the latent: noise, what a step takes and gives, what was predicted.
    let _working = runtime.host.room(&[WORKING_COPIES, run.latent.samples.values().len()])?;
    let latent = spec.fit_empty(Latent::clone(&run.latent.samples));
    let latent = if spec.frames_per_value.is_none() { as_picture(latent)? } else { as_video(latent)? };
    let shape = latent.shape().to_vec();
    let noise = match run.noise {
        None => Latent::zeros(&shape),
        Some(seed) => {
            let indices = run.latent.batch_index.as_deref();
            noise::prepare_noise_while(seed, &shape, indices, || call.check().is_ok()).map_err(Error::from)?
        }
    };
    let mask = match &run.latent.noise_mask {
        None => None,
        Some(mask) => Some(resize_mask(&mask.planes()?, &shape).map_err(Error::from)?),
    };
    let work = Work { runtime, call, guider, run, latent, noise, mask };
    let (samples, denoised) = if run.sigmas.is_empty() { (work.latent, None) } else { work.sample()? };
    let with = |samples: Latent| run.latent.with_samples(samples);
    let denoised = match denoised {
        Some(denoised) => spec.to_autoencoder(&denoised).map_err(Error::from)?,
        None => samples.clone(),
    };
    Ok(Sampled { latent: with(samples)?, denoised: with(denoised)? })
}

/// A latent of a family that makes pictures: one frame is a picture.
fn as_picture(latent: Latent) -> Result<Latent> {
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(&latent)?;
    if latent.shape().len() == 4 {
        return Ok(latent);
    }
    if frames != 1 {
        return Err(Error::Told(format!(
            "the latent has {frames} frames, but the model makes pictures; give it an empty latent image instead"
        )));
    }
    Ok(Latent::new(vec![batch, channels, height, width], latent.into_values())?)
}

/// A latent of a family that makes videos: a picture is one frame.
fn as_video(latent: Latent) -> Result<Latent> {
    match *latent.shape() {
        [batch, channels, height, width] => {
            Ok(Latent::new(vec![batch, channels, 1, height, width], latent.into_values())?)
        }
        _ => Ok(latent),
    }
}

/// A run with all it needs.
struct Work<'a> {
    runtime: &'a Runtime,
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
        let shape = LatentShape::of(&self.latent).map_err(Error::from)?;
        let mut conditionings = ready(&self.guider.conditionings(), shape, &model.sampling)?;
        if let Some(empty) = self.guider.empty_prompt() {
            conditionings.extend(ready(&[&empty], shape, &model.sampling)?);
        }
        if let Some(tokens) = &model.in_front {
            let entries = conditionings.iter_mut().flatten();
            entries
                .for_each(|ready| Arc::make_mut(&mut ready.entry).cond.in_front = Some(Arc::clone(tokens)));
        }
        let needs_negative = self.run.sampler.needs_negative();
        let questions = self.guider.questions(needs_negative, &Recording::default(), |_| true);
        let questions =
            questions.into_iter().map(|question| question.in_force(model)).collect::<Result<Vec<_>>>()?;
        let work = largest_step(&conditionings, &questions, &self.run.sigmas, shape);
        let controls = Controls::prepare(self.runtime, self.call, model, &conditionings, shape)?;
        let evaluated: Vec<usize> = questions.iter().map(|question| question.side).collect();
        let control_works = controls.works(&conditionings, &evaluated, &self.run.sigmas, shape);
        let patches = Patches::prepare(self.runtime, self.call, model, &conditionings, (shape, &work))?;
        let caller = Caller::of(&self.call.job);
        let (conds, sides) = conditioned(self.guider, &conditionings);
        let split = match controls.is_empty() && patches.is_empty() {
            true => {
                let has_equal_rows = self.mask.is_none() && have_equal_rows(&conds);
                Split::of(self.runtime, &caller, model, &work, has_equal_rows)?
            }
            false => None,
        };
        let work = split.as_ref().map_or(&work, |split| &split.own);
        let wanted = Wanted { source: &model.source, beside: &[], loras: &model.loras, work };
        let mut watching = Watching::new(self.runtime, self.call, model.latent()?);
        let image = match self.mask {
            Some(_) if !self.latent.is_zero() => {
                Some(model.latent()?.to_model(&self.latent).map_err(Error::from)?)
            }
            _ => None,
        };
        let mut others = controls.wanted(model, &control_works);
        others.extend(patches.wanted());
        others.extend(split.iter().flat_map(|split| split.wanted(model)));
        let times: Vec<f32> = self.run.sigmas.iter().map(|sigma| model.sampling.timestep(*sigma)).collect();
        let latent = self.runtime.with_sessions(wanted, &others, &caller, |opened, others| {
            let (mask, image) = (self.mask.as_ref(), image.as_ref());
            let scene = Scene { shape, mask, image, seed: self.run.seed, times: &times };
            let helping = split.as_ref().map_or(0, Split::others);
            let (others, helpers) = others.split_at(others.len() - helping);
            let (for_controls, for_patches) = others.split_at(control_works.len());
            let controls = ControlRuns::new(self.runtime, &controls, for_controls, &scene)?;
            let patches = patches.start(for_patches)?;
            let start =
                Start { runtime: self.runtime, diffusion: model.diffusion()?, conds: &conds, scene: &scene };
            std::thread::scope(|scope| {
                let units = split.as_ref().map(|split| Units::start(scope, split, helpers, start));
                let (said, beside) = ((&*conds, &*sides), RunsBeside { controls, patches, units });
                let own = split.as_ref().map_or(scene, |split| split.scene(0, &scene));
                let evaluator = Evaluator::new(self.runtime, opened, model, said, beside, &own)?;
                self.through(&evaluator, &mut watching)
            })
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
            format: self.guider.model.latent()?,
            sampler: self.run.sampler,
            tuning: self.run.tuning,
            sigmas: self.run.sigmas.clone(),
            noise: self.noise.clone(),
            latent: self.latent.clone(),
            mask: self.mask.clone(),
            keeps_clean: self.guider.model.diffusion()?.kept() == Kept::Clean,
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
        let guides_itself = thresholds.is_some() || !self.guider.is_usual();
        if guides_itself {
            request.cfg = 1.0;
        }
        let mut steering = Steering::new(self.guider, evaluator);
        let mut predict = |x: &Latent, sigma: f32, wanted: &[Conditioning]| {
            let mut plain = |x: &Latent| -> Result<Vec<Latent>> {
                if !guides_itself {
                    let questions: Vec<Question> = wanted.iter().map(place).map(Question::from).collect();
                    return evaluator.predict(&questions, x, sigma);
                }
                let guided = steering.predict(x, sigma, wanted.contains(&Conditioning::Negative))?;
                let asked = wanted.iter().map(|conditioning| match conditioning {
                    Conditioning::Positive => guided.denoised.clone(),
                    Conditioning::Negative => guided.negative.clone(),
                });
                Ok(asked.collect())
            };
            let answer = match &thresholds {
                None => plain(x),
                Some(thresholds) => thresholds.keep(x, sigma, wanted, plain),
            };
            Ok(answer?)
        };
        let sampled = sample(&request, &mut predict, watching)?;
        let (skipped, steps) = (evaluator.skipped() + steering.skipped(), self.run.sigmas.len() - 1);
        if self.guider.model.guidance.reuse.is_some() {
            tracing::info!("{skipped} of {steps} steps were guessed from those before");
        }
        Ok(sampled)
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
            model.latent()?.to_model(&work.latent)?
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
        predict: impl FnOnce(&Latent) -> Result<Vec<Latent>>,
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
    format: &'static LatentSpec,
    preview: Option<usize>,
    denoised: Option<Latent>,
    failure: Option<Failure>,
}

impl<'a> Watching<'a> {
    fn new(runtime: &Runtime, call: &'a Call, format: &'static LatentSpec) -> Watching<'a> {
        // A client may choose for its own prompt.
        let chosen = call.job.extra.get("preview_method").and_then(Literal::as_text);
        let method = match chosen {
            Some("none") => PreviewMethod::None,
            Some("auto" | "latent2rgb" | "taesd") => PreviewMethod::LatentToRgb,
            _ => runtime.settings.preview,
        };
        let size = runtime.settings.preview_size.unwrap_or(PREVIEW_SIZE);
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
