//! The model as samplers see it: every entry of every conditioning evaluated, and their answers joined.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use models::diffusion::flux::{Flux, FluxInputs, ReferencePlaces};
use sampling::{Latent, LatentFormat, ModelSampling};
use tensor::{Lane, Tensor};

use super::coverage::{Coverage, Window, weighted_mean};
use super::entries::{Counting, ReadyEntry, counting_at};
use super::planes::{crop, dims, join_channels, mask_planes, resize_and_centre, to_batch};
use crate::studio::{Model, Network, Opened, Studio};
use crate::value::{Array, Entry};
use crate::{Error, Result};

/// The guidance of an entry that says none: what dev was published with.
const USUAL_GUIDANCE: f32 = 3.5;
/// Pixels along one side of a latent value, which the mask of an inpainting model keeps as channels.
const PIXELS: usize = 8;

/// What an entry tells the model, on the device.
struct Prepared {
    context: Tensor,
    pooled: Tensor,
    /// What a distilled model is told, unless that is nothing.
    guidance: Option<f32>,
    concat: Option<Tensor>,
    references: Vec<Tensor>,
    places: ReferencePlaces,
}

/// A conditioning: its entries, and what each tells.
struct Conditioned<'a> {
    entries: &'a [ReadyEntry],
    prepared: Vec<Prepared>,
}

/// What an entry tells at a level, and where it counts there: one evaluation of the model.
struct Evaluation<'a> {
    prepared: &'a Prepared,
    coverage: Arc<Coverage>,
}

/// A part of the latent.
struct View<'a> {
    window: Window,
    part: Cow<'a, Latent>,
    /// What the model is given for it, on the device.
    input: Tensor,
}

/// A diffusion model with its conditionings, at a latent size.
pub(crate) struct Evaluator<'a> {
    studio: &'a Studio,
    opened: &'a Opened,
    flux: &'a Flux,
    sampling: &'a ModelSampling,
    conditionings: Vec<Conditioned<'a>>,
}

/// What conditionings are prepared with.
pub(crate) struct Scene<'a> {
    /// The latent's shape.
    pub(crate) shape: [usize; 4],
    /// The denoise mask at latent size, which inpainting models look at.
    pub(crate) mask: Option<&'a Latent>,
}

impl<'a> Evaluator<'a> {
    /// Brings what the entries tell to the device.
    pub(crate) fn new(
        studio: &'a Studio,
        opened: &'a Opened,
        model: &'a Model,
        conditionings: &'a [Vec<ReadyEntry>],
        scene: &Scene<'_>,
    ) -> Result<Evaluator<'a>> {
        let Network::Flux(flux, _) = &model.source.network else {
            return Err(Error::Told(format!("{} is no diffusion model", model.source.name())));
        };
        let lane = opened.session.lane()?;
        let prepare = |entry: &ReadyEntry| Prepared::new(entry, flux, model.format(), lane, scene);
        let conditioned = |entries: &'a Vec<ReadyEntry>| -> Result<Conditioned<'a>> {
            Ok(Conditioned { entries, prepared: entries.iter().map(prepare).collect::<Result<_>>()? })
        };
        let conditionings = conditionings.iter().map(conditioned).collect::<Result<_>>()?;
        Ok(Evaluator { studio, opened, flux, sampling: &model.sampling, conditionings })
    }

    /// The clean latents that conditionings see in `x`, by their places, in one pass over the model: each the mean of
    /// its entries, weighted by place. One that has no entry at this level sees nothing.
    pub(crate) fn predict(&self, wanted: &[usize], x: &Latent, sigma: f32) -> Result<Vec<Latent>> {
        let shape = dims(x)?;
        let evaluations: Vec<Vec<Evaluation<'_>>> =
            wanted.iter().map(|which| self.evaluations(*which, sigma, shape)).collect();
        let all: Vec<&Evaluation<'_>> = evaluations.iter().flatten().collect();
        let mut answers = self.evaluate(&all, x, sigma)?.into_iter();
        let joined = |evaluations: &Vec<Evaluation<'_>>| {
            let coverages = evaluations.iter().map(|evaluation| evaluation.coverage.as_ref());
            weighted_mean(coverages.zip(answers.by_ref()).collect(), shape)
        };
        evaluations.iter().map(joined).collect()
    }

    /// What a conditioning asks of the model at a level.
    fn evaluations(&self, which: usize, sigma: f32, shape: [usize; 4]) -> Vec<Evaluation<'_>> {
        let Some(Conditioned { entries, prepared }) = self.conditionings.get(which) else {
            return Vec::new();
        };
        let evaluation = |Counting { index, coverage }| Evaluation { prepared: &prepared[index], coverage };
        counting_at(entries, sigma, shape).into_iter().map(evaluation).collect()
    }

    /// The clean latents that the model sees: all evaluations of a step.
    fn evaluate(&self, evaluations: &[&Evaluation<'_>], x: &Latent, sigma: f32) -> Result<Vec<Latent>> {
        if evaluations.is_empty() {
            return Ok(Vec::new());
        }
        let started = Instant::now();
        // Evaluations of the same part of the latent share it on the device.
        let mut views: Vec<View<'_>> = Vec::new();
        let mut places = Vec::with_capacity(evaluations.len());
        for evaluation in evaluations {
            let window = evaluation.coverage.window();
            let known = views.iter().position(|view| view.window == window);
            places.push(known.unwrap_or(views.len()));
            if known.is_none() {
                views.push(self.view(window, x, sigma)?);
            }
        }
        let time = self.sampling.timestep(sigma);
        let inputs: Vec<FluxInputs<'_>> = evaluations
            .iter()
            .zip(&places)
            .map(|(evaluation, place)| evaluation.prepared.inputs(self.flux, &views[*place].input, time))
            .collect();
        let outputs = self.flux.forward_all(&self.opened.session, &inputs)?;
        let outputs = outputs.iter().map(Tensor::to_vec).collect::<std::result::Result<Vec<_>, _>>()?;
        self.studio.note_evaluation(self.opened, started);
        let denoised = |(place, output): (usize, Vec<f32>)| {
            let part = &views[place].part;
            let output = Latent::new(part.shape().to_vec(), output)?;
            Ok(self.sampling.calculate_denoised(sigma, &output, part))
        };
        places.into_iter().zip(outputs).map(denoised).collect()
    }

    /// Brings a part of the latent to the device.
    fn view<'x>(&self, window: Window, x: &'x Latent, sigma: f32) -> Result<View<'x>> {
        let [_, _, height, width] = dims(x)?;
        let part =
            if window == [height, width, 0, 0] { Cow::Borrowed(x) } else { Cow::Owned(crop(x, window)?) };
        let input = self.sampling.calculate_input(sigma, &part);
        let input = self.opened.session.lane()?.tensor(dims(&input)?, input.values())?;
        Ok(View { window, part, input })
    }
}

impl Prepared {
    fn new(
        entry: &ReadyEntry,
        flux: &Flux,
        format: LatentFormat,
        lane: &Lane,
        scene: &Scene<'_>,
    ) -> Result<Prepared> {
        let told = &entry.told;
        let concat = match beside(flux, format, told, scene)? {
            None => None,
            // A default entry looks at the whole latent.
            Some(latent) if told.is_default => Some(lane.tensor(dims(&latent)?, latent.values())?),
            Some(latent) => {
                let part = crop(&latent, entry.coverage.window())?;
                Some(lane.tensor(dims(&part)?, part.values())?)
            }
        };
        let reference = |latent: &Arc<Latent>| -> Result<Tensor> {
            let latent = format.to_model(latent)?;
            let latent = if latent.shape()[0] > 1 { to_batch(&latent, scene.shape[0])? } else { latent };
            Ok(lane.tensor(dims(&latent)?, latent.values())?)
        };
        let nothing = Array { shape: vec![1, flux.config().pooled_width], values: Vec::new() };
        let pooled = match &told.pooled {
            Some(pooled) => lane.tensor(axes(pooled)?, &pooled.values)?,
            None => lane.tensor(axes(&nothing)?, &vec![0.0; flux.config().pooled_width])?,
        };
        let [batch, tokens, width] = *told.tokens.shape.as_slice() else {
            return Err(Error::Told(format!(
                "a conditioning has the shape {:?}; it must be batch, tokens and width",
                told.tokens.shape
            )));
        };
        Ok(Prepared {
            context: lane.tensor([batch, tokens, width], &told.tokens.values)?,
            pooled,
            guidance: (!told.guidance_off).then(|| told.guidance.unwrap_or(USUAL_GUIDANCE)),
            concat,
            references: told.reference_latents.iter().map(reference).collect::<Result<_>>()?,
            places: places(told.reference_method.as_deref())?,
        })
    }

    /// What the model is given with a latent at a time.
    fn inputs<'a>(&'a self, flux: &Flux, latent: &'a Tensor, time: f32) -> FluxInputs<'a> {
        FluxInputs {
            concat: self.concat.as_ref(),
            guidance: self.guidance.filter(|_| flux.config().guidance),
            references: &self.references,
            reference_places: self.places,
            ..FluxInputs::new(latent, time, &self.context, &self.pooled)
        }
    }
}

fn axes(array: &Array) -> Result<[usize; 2]> {
    <[usize; 2]>::try_from(array.shape.as_slice()).map_err(|_| {
        Error::Told(format!("the pooled text has the shape {:?}; it must be batch and width", array.shape))
    })
}

fn places(method: Option<&str>) -> Result<ReferencePlaces> {
    match method {
        None | Some("offset") => Ok(ReferencePlaces::Offset),
        Some("index") => Ok(ReferencePlaces::Index),
        Some("uxo") => Ok(ReferencePlaces::Diagonal),
        Some(other) => Err(Error::Told(format!(
            "FLUX.1 cannot place reference latents by \"{other}\"; choose offset, index or uxo/uno"
        ))),
    }
}

/// What stands beside the latent for a model that has more channels than it gives back: a picture, and for an
/// inpainting model its mask, with the pixels of a latent value as channels.
fn beside(flux: &Flux, format: LatentFormat, told: &Entry, scene: &Scene<'_>) -> Result<Option<Latent>> {
    let (taken, given) = (flux.config().in_channels, flux.config().out_channels);
    let [batch, channels, height, width] = scene.shape;
    if taken <= given {
        return Ok(None);
    }
    let picture = match &told.concat_latent {
        Some(latent) => to_batch(&resize_and_centre(latent, height, width)?, batch)?,
        None => Latent::zeros(&[batch, channels, height, width]),
    };
    let picture = format.to_model(&picture)?;
    if taken <= 2 * given {
        return Ok(Some(picture));
    }
    let mask = match (&told.concat_mask, scene.mask) {
        (Some(mask), _) => {
            let planes = mask_planes(mask)?;
            Latent::new(vec![mask.batch, 1, mask.height, mask.width], planes.into_values())?
        }
        (None, Some(mask)) => channel_mean(mask)?,
        (None, None) => {
            let mut ones = Latent::zeros(&[batch, 1, height, width]);
            ones.values_mut().fill(1.0);
            ones
        }
    };
    let mask = resize_and_centre(&mask, height * PIXELS, width * PIXELS)?;
    Ok(Some(join_channels(&picture, &to_batch(&pixels_as_channels(&mask)?, batch)?)?))
}

fn channel_mean(latent: &Latent) -> Result<Latent> {
    let [batch, channels, height, width] = dims(latent)?;
    let plane = height * width;
    let mut mean = Latent::zeros(&[batch, 1, height, width]);
    for (at, value) in mean.values_mut().iter_mut().enumerate() {
        let (item, place) = (at / plane, at % plane);
        let sum: f32 = (0..channels).map(|c| latent.values()[(item * channels + c) * plane + place]).sum();
        *value = sum / channels as f32;
    }
    Ok(mean)
}

/// `[batch, 1, 8 h, 8 w]` to `[batch, 64, h, w]`.
fn pixels_as_channels(mask: &Latent) -> Result<Latent> {
    let [batch, _, rows, columns] = dims(mask)?;
    let (height, width) = (rows / PIXELS, columns / PIXELS);
    let mut values = Vec::with_capacity(mask.values().len());
    for item in mask.values().chunks_exact(rows * columns) {
        for (dy, dx) in (0..PIXELS).flat_map(|dy| (0..PIXELS).map(move |dx| (dy, dx))) {
            for y in 0..height {
                values.extend((0..width).map(|x| item[(y * PIXELS + dy) * columns + x * PIXELS + dx]));
            }
        }
    }
    Ok(Latent::new(vec![batch, PIXELS * PIXELS, height, width], values)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_of_a_latent_value_become_its_channels() {
        let values: Vec<f32> = (0..8 * 16).map(|i| i as f32).collect();
        let mask = Latent::new(vec![1, 1, 8, 16], values).unwrap();
        let channels = pixels_as_channels(&mask).unwrap();
        assert_eq!(channels.shape(), [1, 64, 1, 2]);
        // Channel 1 is the second pixel of the first row of each value.
        assert_eq!(&channels.values()[..4], &[0.0, 8.0, 1.0, 9.0]);
    }

    #[test]
    fn unknown_ways_to_place_references_are_told() {
        assert_eq!(places(Some("uxo")).unwrap(), ReferencePlaces::Diagonal);
        assert!(places(Some("index_timestep_zero")).unwrap_err().to_string().contains("index_timestep_zero"));
    }
}
