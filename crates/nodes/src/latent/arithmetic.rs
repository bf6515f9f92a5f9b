//! Latents added, mixed and multiplied.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome};
use sampling::Latent;

use super::{axes, fit};
use crate::class::class;
use crate::image::{Method, Target, scale_latent};
use crate::value::LatentImage;
use crate::{Error, Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(LatentAdd(Arc::clone(runtime)));
    catalogue.add(LatentSubtract(Arc::clone(runtime)));
    catalogue.add(LatentMultiply(Arc::clone(runtime)));
    catalogue.add(LatentInterpolate(Arc::clone(runtime)));
    catalogue.add(LatentBlend(Arc::clone(runtime)));
}

/// `f` of each value of `samples1` and the one of `samples2` at its place.
fn zipped(call: &Call, f: impl Fn(f32, f32) -> f32) -> Result<Outcome, Failure> {
    let first = call.object::<LatentImage>("samples1")?;
    let second = fit(&call.object::<LatentImage>("samples2")?.samples, first.samples.shape())?;
    let combined = first.with_equal(|| {
        let values = first.samples.values().iter().zip(second.values()).map(|(a, b)| f(*a, *b)).collect();
        Ok(Latent::new(first.samples.shape().to_vec(), values)?)
    });
    Ok(Outcome::object(combined?))
}

class! {
    LatentAdd in "latent/advanced";
    |schema| schema
        .about("Adds latents.")
        .input(Input::socket("samples1", "LATENT"))
        .input(Input::socket("samples2", "LATENT"))
        .output("LATENT");
    |runtime, call| zipped(call, |a, b| a + b)
}

class! {
    LatentSubtract in "latent/advanced";
    |schema| schema
        .about("Takes the second latents from the first.")
        .input(Input::socket("samples1", "LATENT"))
        .input(Input::socket("samples2", "LATENT"))
        .output("LATENT");
    |runtime, call| zipped(call, |a, b| a - b)
}

class! {
    LatentMultiply in "latent/advanced";
    |schema| schema
        .about("Multiplies latents by a number.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::float("multiplier", 1.0, -10.0, 10.0, 0.01))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let factor = call.float("multiplier")? as f32;
        let multiplied = latent.with_equal(|| {
            let mut samples = Latent::clone(&latent.samples);
            samples.values_mut().iter_mut().for_each(|value| *value *= factor);
            Ok(samples)
        });
        Ok(Outcome::object(multiplied?))
    }
}

class! {
    LatentInterpolate in "latent/advanced";
    |schema| schema
        .about("Mixes the directions and the lengths of latents apart. A ratio of 1 is the first.")
        .input(Input::socket("samples1", "LATENT"))
        .input(Input::socket("samples2", "LATENT"))
        .input(Input::float("ratio", 1.0, 0.0, 1.0, 0.01))
        .output("LATENT");
    |runtime, call| {
        let first = call.object::<LatentImage>("samples1")?;
        let second = fit(&call.object::<LatentImage>("samples2")?.samples, first.samples.shape())?;
        let ratio = call.float("ratio")? as f32;
        Ok(Outcome::object(first.with_equal(|| between(&first.samples, &second, ratio))?))
    }
}

/// Between two latents of one shape: the channels of each place are a direction and a length.
fn between(first: &Latent, second: &Latent, ratio: f32) -> Result<Latent> {
    let [batch, channels, rest @ ..] = first.shape() else {
        return Err(Error::Told("a latent needs a batch and channels".to_owned()));
    };
    let places: usize = rest.iter().product();
    let mut out = first.clone();
    for (item, place) in (0..*batch).flat_map(|item| (0..places).map(move |place| (item, place))) {
        let at = |channel: usize| (item * channels + channel) * places + place;
        let vector =
            |latent: &Latent| (0..*channels).map(|channel| latent.values()[at(channel)]).collect::<Vec<_>>();
        let (first, first_length) = direction(vector(first));
        let (second, second_length) = direction(vector(second));
        let mixed = first.iter().zip(&second).map(|(a, b)| a * ratio + b * (1.0 - ratio)).collect();
        let (mixed, _) = direction(mixed);
        let length = first_length * ratio + second_length * (1.0 - ratio);
        for (channel, value) in mixed.iter().enumerate() {
            out.values_mut()[at(channel)] = value * length;
        }
    }
    Ok(out)
}

/// A vector of length 1 and the length it had; nothing has no direction.
fn direction(vector: Vec<f32>) -> (Vec<f32>, f32) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let unit = vector.into_iter().map(|value| if length == 0.0 { 0.0 } else { value / length }).collect();
    (unit, length)
}

class! {
    LatentBlend in "_for_testing";
    |schema| schema
        .title("Latent Blend")
        .about("Mixes latents. A factor of 1 is the first.")
        .input(Input::socket("samples1", "LATENT"))
        .input(Input::socket("samples2", "LATENT"))
        .input(Input::float("blend_factor", 0.5, 0.0, 1.0, 0.01))
        .output("LATENT");
    |runtime, call| {
        let first = call.object::<LatentImage>("samples1")?;
        let mut second = Latent::clone(&call.object::<LatentImage>("samples2")?.samples);
        let (height, width) = axes::size(&first.samples)?;
        if axes::size(&second)? != (height, width) {
            second = scale_latent(&second, Target::cropped(width, height), Method::Bicubic)?;
        }
        let second = fit(&second, first.samples.shape())?;
        let factor = call.float("blend_factor")? as f32;
        let mixed = first.with_equal(|| {
            let mixed = first.samples.values().iter().zip(second.values());
            let values = mixed.map(|(a, b)| a * factor + b * (1.0 - factor)).collect();
            Ok(Latent::new(first.samples.shape().to_vec(), values)?)
        });
        Ok(Outcome::object(mixed?))
    }
}
