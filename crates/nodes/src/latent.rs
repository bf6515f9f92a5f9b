//! Latents: made, scaled, cut, joined, masked, saved and loaded.

mod arithmetic;
mod axes;
mod batch;
mod empty;
mod files;
mod transform;

pub(crate) use empty::{EmptyLatent, sized};

use std::sync::Arc;

use graph::Catalogue;
use sampling::Latent;

use crate::image::{Method, Target, scale_latent};
use crate::value::LatentImage;
use crate::{Error, Result, Runtime};
use runtime::host::Samples;

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    empty::add(catalogue, runtime);
    transform::add(catalogue, runtime);
    batch::add(catalogue, runtime);
    arithmetic::add(catalogue, runtime);
    files::add(catalogue, runtime);
}

impl LatentImage {
    /// Values of this shape that `made` makes, and all the rest the same. There is room for them before they are made.
    fn with(&self, shape: &[usize], made: impl FnOnce() -> Result<Latent>) -> Result<LatentImage> {
        let room = self.samples.host().room(shape)?;
        Ok(LatentImage { samples: room.latent(made()?), ..self.clone() })
    }

    /// Values of the same shape.
    fn with_equal(&self, made: impl FnOnce() -> Result<Latent>) -> Result<LatentImage> {
        self.with(self.samples.shape(), made)
    }

    /// Values that were made already, no more than before, and all the rest the same.
    pub(crate) fn with_samples(&self, samples: Latent) -> Result<LatentImage> {
        Ok(LatentImage { samples: Samples::new(self.samples.host(), samples)?, ..self.clone() })
    }

    /// How many pictures or videos there are.
    fn batch(&self) -> usize {
        self.samples.shape().first().copied().unwrap_or(0)
    }

    /// The noise that each item gets: as it is said, or one after the other from 0.
    fn batch_indices(&self) -> Vec<usize> {
        self.batch_index.clone().unwrap_or_else(|| (0..self.batch()).collect())
    }
}

/// A latent in the size of another, which must have as many channels: scaled, and cut where the proportions differ.
fn fit_size(latent: &Latent, shape: &[usize]) -> Result<Latent> {
    if latent.shape().get(1..) == shape.get(1..) {
        return Ok(latent.clone());
    }
    let fitted = match shape {
        [.., height, width] => scale_latent(latent, Target::cropped(*width, *height), Method::Bilinear)?,
        _ => latent.clone(),
    };
    if fitted.shape().get(1..) == shape.get(1..) {
        return Ok(fitted);
    }
    let text = format!(
        "latents of {:?} and {shape:?} values do not go together; they come from models that differ",
        latent.shape()
    );
    Err(Error::Told(text))
}

/// A latent in the size and batch of another.
fn fit(latent: &Latent, shape: &[usize]) -> Result<Latent> {
    let fitted = fit_size(latent, shape)?;
    axes::repeated_to(&fitted, shape.first().copied().unwrap_or(0))
}
