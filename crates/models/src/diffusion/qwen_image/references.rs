//! Pictures to look at: their patches, where they stand, and at which time they are read.

use meta::Shape;
use residency::Lease;
use tensor::Tensor;

use super::LATENT;
use super::config::Config;
use crate::Result;
use crate::conditioning::{Cond, Scene};
use crate::diffusion::patches::Grid;
use crate::diffusion::references::{ReferenceLayout, ReferencePlaces, frames_as_patches, unknown_places};

/// The pictures of one conditioning.
pub(super) struct References {
    /// The shapes of their latents, `[batch or 1, channels, frames, height, width]`.
    pub(super) shapes: Vec<Shape>,
    /// Where they stand.
    pub(super) places: ReferencePlaces,
    /// Whether they are read as at the end of time, whatever the time is.
    pub(super) timeless: bool,
    patches: Vec<Tensor>,
}

impl References {
    pub(super) fn new(
        config: &Config,
        lease: &Lease<'_>,
        cond: &Cond,
        scene: &Scene<'_>,
    ) -> Result<References> {
        let (places, timeless) = method(config, cond.reference_method.as_deref())?;
        let (mut shapes, mut patches) = (Vec::new(), Vec::new());
        for latent in &cond.reference_latents {
            let (shape, tokens) = frames_as_patches(lease, &LATENT, latent, scene.shape.batch)?;
            shapes.push(shape);
            patches.push(tokens);
        }
        Ok(References { timeless: timeless && !shapes.is_empty(), shapes, places, patches })
    }

    /// The patches of each, `[batch or 1, tokens, channels · 2 · 2]`.
    pub(super) fn patches(&self) -> &[Tensor] {
        &self.patches
    }

    /// The shape of each, and the index, the row and the column that its place begins at.
    pub(super) fn placed(&self, latent: &Grid) -> Vec<(&Shape, [f64; 3])> {
        let mut layout = ReferenceLayout::new(self.places);
        self.shapes.iter().map(|shape| (shape, layout.next(&Grid::of_frame(shape), latent))).collect()
    }
}

/// Where references stand and whether time is none of their business, by the name of the way.
fn method(config: &Config, name: Option<&str>) -> Result<(ReferencePlaces, bool)> {
    match name {
        None if config.is_layered => Ok((ReferencePlaces::IndexDown, false)),
        None => Ok((ReferencePlaces::Index, config.has_timeless_references)),
        Some("index") => Ok((ReferencePlaces::Index, false)),
        Some("index_timestep_zero") => Ok((ReferencePlaces::Index, true)),
        Some("negative_index") => Ok((ReferencePlaces::IndexDown, false)),
        // The reference has no other way for these.
        Some("offset" | "uxo") => Ok((ReferencePlaces::Offset, false)),
        Some(other) => unknown_places(other, "index, index_timestep_zero, negative_index or offset"),
    }
}
