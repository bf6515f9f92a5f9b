//! Pictures to look at: their tokens.

use std::sync::Arc;

use meta::Shape;
use residency::Lease;
use sampling::{Latent, LatentShape};
use tensor::Tensor;

use super::LATENT;
use crate::conditioning::{Cond, Scene};
use crate::diffusion::patches::values_as_tokens;
use crate::diffusion::references::unknown_places;
use crate::{Error, Result};

/// The pictures of one conditioning. Each has an index of its own, below the picture that is made, and all are read as at
/// the end of time.
pub(super) struct References {
    /// The shapes of their latents, `[batch or 1, channels, height, width]`.
    pub(super) shapes: Vec<Shape>,
    /// The tokens of each, `[batch or 1, tokens, channels]`.
    pub(super) tokens: Vec<Tensor>,
}

impl References {
    pub(super) fn new(
        channels: usize,
        lease: &Lease<'_>,
        cond: &Cond,
        scene: &Scene<'_>,
    ) -> Result<References> {
        if let Some(other) = cond.reference_method.as_deref().filter(|way| !way.starts_with("index")) {
            return unknown_places(other, "index or index_timestep_zero, which are the same here");
        }
        let (mut shapes, mut tokens) = (Vec::new(), Vec::new());
        for latent in &cond.reference_latents {
            let latent = read(channels, lease, latent, scene.shape.batch)?;
            shapes.push(*latent.shape());
            tokens.push(values_as_tokens(&latent)?);
        }
        Ok(References { shapes, tokens })
    }

    /// How many tokens they have together.
    pub(super) fn count(&self) -> usize {
        self.tokens.iter().map(|tokens| tokens.dim(1)).sum()
    }
}

/// A latent picture on the device.
fn read(wanted: usize, lease: &Lease<'_>, latent: &Arc<Latent>, batch: usize) -> Result<Tensor> {
    let latent = LATENT.to_model(latent)?;
    let latent = if latent.shape().first() == Some(&1) { latent } else { latent.with_items(batch)? };
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(&latent)?;
    if frames != 1 || channels != wanted {
        return Err(Error::Input {
            what: "a reference latent",
            expected: format!("a picture of {wanted} channels"),
            got: format!("{frames} frames of {channels} channels"),
        });
    }
    Ok(lease.lane().tensor([batch, channels, height, width], latent.values())?)
}
