//! The model as samplers see it: every entry of every conditioning evaluated, and their answers joined.

use std::time::Instant;

use models::diffusion::flux::{Flux, FluxInputs, ReferencePlaces};
use sampling::{Latent, LatentFormat, ModelSampling, Prediction};
use tensor::{Lane, Tensor};

use super::entries::ReadyEntry;
use super::planes::{crop, dims, join_channels, mask_planes, resize_and_centre, to_batch};
use crate::studio::{Model, Network, Opened, Studio};
use crate::value::{Array, Entry};
use crate::{Error, Result};

/// The guidance of an entry that says none: what dev was published with.
const USUAL_GUIDANCE: f32 = 3.5;
/// Pixels along one side of a latent value, which the mask of an inpainting model keeps as channels.
const PIXELS: usize = 8;

/// An entry with its inputs on the device.
struct Prepared {
    entry: ReadyEntry,
    window: Option<[usize; 4]>,
    weights: Latent,
    context: Tensor,
    pooled: Tensor,
    /// What a distilled model is told, unless that is nothing.
    guidance: Option<f32>,
    concat: Option<Tensor>,
    references: Vec<Tensor>,
    places: ReferencePlaces,
}

/// A diffusion model with its conditionings, at a latent size.
pub(crate) struct Evaluator<'a> {
    studio: &'a Studio,
    opened: &'a Opened,
    flux: &'a Flux,
    sampling: &'a ModelSampling,
    conditionings: Vec<Vec<Prepared>>,
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
        conditionings: &[Vec<ReadyEntry>],
        scene: &Scene<'_>,
    ) -> Result<Evaluator<'a>> {
        let Network::Flux(flux, _) = &model.source.network else {
            return Err(Error::Told(format!("{} is no diffusion model", model.source.name())));
        };
        let lane = opened.session.lane()?;
        let prepare = |entry: &ReadyEntry| Prepared::new(entry, flux, model.format(), lane, scene);
        let conditionings = conditionings
            .iter()
            .map(|entries| entries.iter().map(prepare).collect::<Result<Vec<_>>>())
            .collect::<Result<Vec<_>>>()?;
        Ok(Evaluator { studio, opened, flux, sampling: &model.sampling, conditionings })
    }

    /// The clean latent that a conditioning sees in `x`: the mean of its entries, weighted by place. One that has
    /// no entry at this level sees nothing.
    pub(crate) fn predict(&self, which: usize, x: &Latent, sigma: f32) -> Result<Latent> {
        let shape = dims(x)?;
        let (mut sum, mut count) = (Latent::zeros(x.shape()), Latent::zeros(x.shape()));
        // The reference divides by this much where nothing counts, so that the answer there is zero.
        count.values_mut().fill(1e-37);
        let entries = self.conditionings.get(which).map_or(&[][..], Vec::as_slice);
        let counting = || entries.iter().filter(|entry| entry.entry.counts_at(sigma));
        for entry in counting().filter(|entry| !entry.entry.told.is_default) {
            let window = entry.window.unwrap_or([shape[2], shape[3], 0, 0]);
            let part = crop(x, window)?;
            let answer =
                self.sampling.denoise_with(&part, sigma, |input, time| self.forward(entry, input, time))?;
            add(&mut sum, &answer, &entry.weights, window, true)?;
            add(&mut count, &answer, &entry.weights, window, false)?;
        }
        let left = uncovered(&count, shape)?;
        let is_covered = left.is_zero();
        for entry in counting().filter(|entry| entry.entry.told.is_default && !is_covered) {
            let window = [shape[2], shape[3], 0, 0];
            let answer =
                self.sampling.denoise_with(x, sigma, |input, time| self.forward(entry, input, time))?;
            add(&mut sum, &answer, &left, window, true)?;
            add(&mut count, &answer, &left, window, false)?;
        }
        sum.values_mut().iter_mut().zip(count.values()).for_each(|(sum, count)| *sum /= count);
        Ok(sum)
    }

    /// Predictions for a positive conditioning and, when asked for, a negative one.
    pub(crate) fn predict_both(&self, x: &Latent, sigma: f32, want_negative: bool) -> Result<Prediction> {
        let positive = self.predict(0, x, sigma)?;
        let negative = if want_negative { Some(self.predict(1, x, sigma)?) } else { None };
        Ok(Prediction { positive, negative })
    }

    fn forward(&self, entry: &Prepared, input: &Latent, time: f32) -> Result<Latent> {
        let started = Instant::now();
        let session = &self.opened.session;
        let latent = session.lane()?.tensor(dims(input)?, input.values())?;
        let inputs = FluxInputs {
            concat: entry.concat.as_ref(),
            guidance: entry.guidance.filter(|_| self.flux.config().guidance),
            references: &entry.references,
            reference_places: entry.places,
            ..FluxInputs::new(&latent, time, &entry.context, &entry.pooled)
        };
        let output = self.flux.forward(session, &inputs)?.to_vec()?;
        self.studio.note_evaluation(self.opened, started);
        Ok(Latent::new(input.shape().to_vec(), output)?)
    }
}

/// What is missing to 1 in the sum of all weights, `[batch, 1, height, width]`: there the default entries count.
fn uncovered(count: &Latent, [batch, channels, height, width]: [usize; 4]) -> Result<Latent> {
    // All channels of a place have the same weight.
    let items = count.values().chunks_exact(channels.max(1) * height * width);
    let first = items.flat_map(|item| &item[..height * width]);
    let left = first.map(|covered| if *covered < 1.0 { 1.0 - covered } else { 0.0 }).collect();
    Ok(Latent::new(vec![batch, 1, height, width], left)?)
}

/// Adds an answer times its weights, or the weights alone, to a part of a latent.
fn add(
    to: &mut Latent,
    answer: &Latent,
    weights: &Latent,
    [height, width, top, left]: [usize; 4],
    weighted: bool,
) -> Result<()> {
    let [_, channels, whole_height, whole_width] = dims(to)?;
    let (plane, whole) = (height * width, whole_height * whole_width);
    let values = to.values_mut();
    for (at, answer) in answer.values().iter().enumerate() {
        let (item, channel, y, x) =
            (at / (plane * channels), at / plane % channels, at / width % height, at % width);
        let weight = weights.values()[item * plane + y * width + x];
        let place = (item * channels + channel) * whole + (top + y) * whole_width + left + x;
        values[place] += if weighted { answer * weight } else { weight };
    }
    Ok(())
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
        let window = entry.window(scene.shape);
        let concat = match beside(flux, format, told, scene)? {
            None => None,
            Some(latent) => {
                let part = crop(&latent, window.unwrap_or([scene.shape[2], scene.shape[3], 0, 0]))?;
                Some(lane.tensor(dims(&part)?, part.values())?)
            }
        };
        let reference = |latent: &std::sync::Arc<Latent>| -> Result<Tensor> {
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
            window,
            weights: entry.weights(scene.shape),
            context: lane.tensor([batch, tokens, width], &told.tokens.values)?,
            pooled,
            guidance: (!told.guidance_off).then(|| told.guidance.unwrap_or(USUAL_GUIDANCE)),
            concat,
            references: told.reference_latents.iter().map(reference).collect::<Result<_>>()?,
            places: places(told.reference_method.as_deref())?,
            entry: entry.clone(),
        })
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
