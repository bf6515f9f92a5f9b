//! Pictures to look at: their tokens, and where they stand.

use std::sync::Arc;

use meta::Shape;
use residency::Lease;
use sampling::{Latent, LatentShape};
use tensor::Tensor;

use super::LATENT;
use super::config::Config;
use crate::conditioning::{Cond, Scene};
use crate::diffusion::patches::{Grid, values_as_tokens};
use crate::diffusion::references::{ReferenceLayout, ReferencePlaces, unknown_places};
use crate::{Error, Result};

/// The way to place references in which they are read as at the end of time.
const STILL: &str = "index_timestep_zero";
/// How far the indices of pictures are apart.
const INDEX_STEP: f64 = 10.0;

/// The pictures of one conditioning.
pub(super) struct References {
    /// The shapes of their latents, `[batch or 1, channels, height, width]`.
    pub(super) shapes: Vec<Shape>,
    /// Where they stand.
    pub(super) places: ReferencePlaces,
    /// Whether they are read as at the end of time; nothing if nobody said.
    pub(super) are_still: Option<bool>,
    tokens: Vec<Tensor>,
}

impl References {
    pub(super) fn new(
        config: &Config,
        lease: &Lease<'_>,
        cond: &Cond,
        scene: &Scene<'_>,
    ) -> Result<References> {
        let places = match cond.reference_method.as_deref() {
            None | Some("index" | STILL) => ReferencePlaces::Index,
            Some("offset") => ReferencePlaces::Offset,
            Some("uxo") => ReferencePlaces::Diagonal,
            Some(other) => return unknown_places(other, "index, offset or uxo/uno"),
        };
        let are_still = cond.reference_method.as_deref().map(|method| method == STILL);
        let (mut shapes, mut tokens) = (Vec::new(), Vec::new());
        for latent in &cond.reference_latents {
            let latent = read(config, lease, latent, scene.shape.batch)?;
            shapes.push(*latent.shape());
            tokens.push(values_as_tokens(&latent)?);
        }
        Ok(References { shapes, places, are_still, tokens })
    }

    /// How many tokens all of them have.
    pub(super) fn count(&self) -> usize {
        self.tokens.iter().map(|tokens| tokens.dim(1)).sum()
    }

    /// The tokens of each, `[batch or 1, tokens, channels]`.
    pub(super) fn tokens(&self) -> &[Tensor] {
        &self.tokens
    }

    /// The shape of each, and the index, the row and the column that its place begins at.
    pub(super) fn placed(&self, latent: &Grid) -> Vec<(&Shape, [f64; 3])> {
        let mut layout = ReferenceLayout::of_values(self.places, INDEX_STEP);
        self.shapes.iter().map(|shape| (shape, layout.next(&Grid::of_values(shape), latent))).collect()
    }
}

/// A latent picture on the device.
fn read(config: &Config, lease: &Lease<'_>, latent: &Arc<Latent>, batch: usize) -> Result<Tensor> {
    let latent = LATENT.to_model(latent)?;
    let latent = if latent.shape().first() == Some(&1) { latent } else { latent.with_items(batch)? };
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(&latent)?;
    if frames != 1 || channels != config.channels {
        return Err(Error::Input {
            what: "a reference latent",
            expected: format!("a picture of {} channels", config.channels),
            got: format!("{frames} frames of {channels} channels"),
        });
    }
    Ok(lease.lane().tensor([batch, channels, height, width], latent.values())?)
}
