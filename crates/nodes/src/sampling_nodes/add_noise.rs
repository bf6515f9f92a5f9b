//! Noise on a latent without sampling.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome, Schema};
use sampling::{Latent, noise};

use super::choices::NoiseChoice;
use crate::class::class;
use crate::value::{LatentImage, Sigmas};
use crate::{Error, Runtime};
use runtime::Model;

/// Adds the class of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(AddNoise(Arc::clone(runtime)));
}

class! {
    /// A latent with noise of as much strength as lies between the first level and the last.
    AddNoise in "_for_testing/custom_sampling/noise";
    |schema| Schema {
        is_experimental: true,
        ..schema
            .input(Input::socket("model", "MODEL"))
            .input(Input::socket("noise", "NOISE"))
            .input(Input::socket("sigmas", "SIGMAS"))
            .input(Input::socket("latent_image", "LATENT"))
            .output("LATENT")
            .module("comfy_extras.nodes_custom_sampler")
    };
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let latent = call.object::<LatentImage>("latent_image")?;
        let strength = match call.object::<Sigmas>("sigmas")?.0.as_slice() {
            [] => return Ok(Outcome::object(LatentImage::clone(&latent))),
            [only] => *only,
            [first, .., last] => (first - last).abs(),
        };
        let shape = latent.samples.shape();
        let noise = match call.object::<NoiseChoice>("noise")?.0 {
            Some(seed) => {
                let indices = latent.batch_index.as_deref();
                noise::prepare_noise_while(seed, shape, indices, || call.check().is_ok()).map_err(Error::from)?
            }
            None => Latent::zeros(shape),
        };
        // An empty latent is empty in either scale.
        let samples = match latent.samples.is_zero() {
            true => Latent::clone(&latent.samples),
            false => model.latent()?.to_model(&latent.samples).map_err(Error::from)?,
        };
        let noisy = model.sampling.noise_scaling(strength, &noise, &samples, false);
        let noisy = model.latent()?.to_autoencoder(&noisy).map_err(Error::from)?;
        let finite = noisy.values().iter().map(|value| if value.is_finite() { *value } else { 0.0 });
        let samples = Latent::new(noisy.shape().to_vec(), finite.collect()).map_err(Error::from)?;
        Ok(Outcome::object(latent.with_samples(samples)?))
    }
}
