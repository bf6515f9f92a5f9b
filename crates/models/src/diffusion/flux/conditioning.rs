//! From a conditioning on the host to what the model is given on the device.

use std::sync::Arc;

use sampling::{Latent, LatentShape};
use tensor::{Lane, Tensor};

use super::{Flux, FluxInputs, LATENT, ReferencePlaces};
use crate::conditioning::{Array, Cond, Conditioned, Guidance, Scene, TokenBias};
use crate::diffusion::references::unknown_places;
use crate::{Error, Result};

/// The guidance of a conditioning that says none: what dev was published with.
const USUAL_GUIDANCE: f32 = 3.5;
/// Pixels along one side of a latent value, which the mask of an inpainting model keeps as channels.
const PIXELS: usize = LATENT.pixels_per_value;

/// What a conditioning gives the model, on the device.
pub(super) struct Given {
    pub(super) context: Tensor,
    biased: Vec<TokenBias>,
    in_front: Option<Tensor>,
    pooled: Tensor,
    /// What a distilled model is told, unless that is nothing.
    guidance: Option<f32>,
    concat: Option<Tensor>,
    references: Vec<Tensor>,
    places: ReferencePlaces,
}

impl Given {
    pub(super) fn new(
        flux: &Flux,
        lane: &Lane,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
    ) -> Result<Given> {
        let cond = conditioned.cond;
        let concat = match beside(flux, cond, scene)? {
            None => None,
            Some(latent) => {
                let part =
                    conditioned.window.map_or_else(|| Ok(latent.clone()), |window| latent.cropped(window))?;
                Some(picture(lane, &part)?)
            }
        };
        let reference = |latent: &Arc<Latent>| -> Result<Tensor> {
            let latent = LATENT.to_model(latent)?;
            let alone = latent.shape().first() == Some(&1);
            picture(lane, &if alone { latent } else { latent.with_items(scene.shape.batch)? })
        };
        Ok(Given {
            context: cond.text_on(lane)?,
            biased: cond.attention_bias.clone(),
            in_front: cond.in_front.as_ref().map(|tokens| style(lane, tokens)).transpose()?,
            pooled: cond.pooled_on(lane, flux.config.pooled_width)?,
            guidance: match cond.guidance {
                Guidance::Usual => Some(USUAL_GUIDANCE),
                Guidance::Scale(scale) => Some(scale),
                Guidance::Off => None,
            },
            concat,
            references: cond.reference_latents.iter().map(reference).collect::<Result<_>>()?,
            places: places(cond.reference_method.as_deref())?,
        })
    }

    /// All of it as the model's inputs, with something in place of the latent.
    pub(super) fn inputs<'a>(&'a self, latent: &'a Tensor) -> FluxInputs<'a> {
        FluxInputs {
            concat: self.concat.as_ref(),
            biased: &self.biased,
            in_front: self.in_front.as_ref(),
            guidance: self.guidance,
            references: &self.references,
            reference_places: self.places,
            ..FluxInputs::new(latent, 0.0, &self.context, &self.pooled)
        }
    }
}

/// Tokens before those of the text, on the device.
fn style(lane: &Lane, tokens: &Array) -> Result<Tensor> {
    let axes: [usize; 3] = tokens.axes("what stands before the text", "batch, tokens and width")?;
    Ok(lane.tensor(axes, &tokens.values)?)
}

/// A latent picture on the device.
fn picture(lane: &Lane, latent: &Latent) -> Result<Tensor> {
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(latent)?;
    if frames != 1 {
        return Err(Error::Input {
            what: "a latent",
            expected: "a picture, with one frame".into(),
            got: format!("{frames} frames"),
        });
    }
    Ok(lane.tensor([batch, channels, height, width], latent.values())?)
}

fn places(method: Option<&str>) -> Result<ReferencePlaces> {
    match method {
        None | Some("offset") => Ok(ReferencePlaces::Offset),
        Some("index") => Ok(ReferencePlaces::Index),
        Some("uxo") => Ok(ReferencePlaces::Diagonal),
        Some(other) => unknown_places(other, "offset, index or uxo/uno"),
    }
}

/// What stands beside the latent for a model that has more channels than it gives back: a picture, and for an
/// inpainting model its mask, with the pixels of a latent value as channels.
fn beside(flux: &Flux, cond: &Cond, scene: &Scene<'_>) -> Result<Option<Latent>> {
    let (taken, given) = (flux.config.in_channels, flux.config.out_channels);
    let LatentShape { batch, channels, height, width, .. } = scene.shape;
    if taken <= given {
        return Ok(None);
    }
    let picture = match &cond.concat_latent {
        Some(latent) => latent.resized_and_centred(height, width)?.with_items(batch)?,
        None => Latent::zeros(&[batch, channels, height, width]),
    };
    let picture = LATENT.to_model(&picture)?;
    if taken <= 2 * given {
        return Ok(Some(picture));
    }
    let mask = match (&cond.concat_mask, scene.mask) {
        (Some(mask), _) => Latent::clone(mask),
        (None, Some(mask)) => channel_mean(mask)?,
        (None, None) => {
            let mut ones = Latent::zeros(&[batch, 1, height, width]);
            ones.values_mut().fill(1.0);
            ones
        }
    };
    let mask = mask.resized_and_centred(height * PIXELS, width * PIXELS)?;
    Ok(Some(picture.with_channels_of(&pixels_as_channels(&mask)?.with_items(batch)?)?))
}

fn channel_mean(latent: &Latent) -> Result<Latent> {
    let LatentShape { batch, channels, height, width, .. } = LatentShape::of(latent)?;
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
    let LatentShape { batch, height: rows, width: columns, .. } = LatentShape::of(mask)?;
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
