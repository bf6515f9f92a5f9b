//! Pictures to look at: their patches, and at which time they are read.

use meta::Shape;
use residency::Lease;
use tensor::Tensor;

use super::LATENT;
use crate::conditioning::{Cond, Scene};
use crate::diffusion::references::{frames_as_patches, unknown_places};
use crate::{Error, Result};

/// The pictures of one conditioning. Each has an index of its own, over the picture that is made.
#[derive(Default)]
pub(super) struct References {
    /// The shapes of their latents, `[batch or 1, channels, 1, height, width]`.
    pub(super) shapes: Vec<Shape>,
    /// Whether they are read as at the end of time, whatever the time is.
    pub(super) timeless: bool,
    /// The patches of each, `[batch or 1, tokens, channels · 2 · 2]`.
    pub(super) patches: Vec<Tensor>,
}

impl References {
    pub(super) fn new(lease: &Lease<'_>, cond: &Cond, scene: &Scene<'_>) -> Result<References> {
        let timeless = match cond.reference_method.as_deref() {
            None | Some("index_timestep_zero") => true,
            Some("index") => false,
            Some(other) => return unknown_places(other, "index_timestep_zero or index"),
        };
        let mut references = References::default();
        for latent in &cond.reference_latents {
            let (shape, patches) = frames_as_patches(lease, &LATENT, latent, scene.shape.batch)?;
            if shape.dims()[1..3] != [LATENT.channels, 1] || scene.shape.frames != 1 {
                return Err(Error::Input {
                    what: "a reference latent",
                    expected: format!("a picture of {} channels, for a picture", LATENT.channels),
                    got: format!("of shape {shape}, for {} frames", scene.shape.frames),
                });
            }
            references.shapes.push(shape);
            references.patches.push(patches);
        }
        references.timeless = timeless && !references.shapes.is_empty();
        Ok(references)
    }
}
