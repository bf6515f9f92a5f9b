//! From a conditioning on the host to what the model is given on the device, through its first layers once.

use meta::Shape;
use residency::Lease;
use sampling::{Latent, LatentShape};
use tensor::Tensor;

use super::blocks::NORM_EPS;
use super::{Kandinsky5, wrong};
use crate::Result;
use crate::conditioning::{Cond, Conditioned, Scene};
use crate::diffusion::Diffusion;
use crate::diffusion::video::video_on;

/// What an evaluation is given beside its latent and time, on the device of the first block.
pub(super) struct Prepared {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    pub(super) text: Tensor,
    /// All of the text in one vector, `[batch or 1, time]`.
    pub(super) pooled: Tensor,
    /// What stands in place of the first frames, in the model's scale: `[batch, channels, frames, height, width]`.
    first: Option<Tensor>,
    /// Further channels beside the latent: zeros, and where frames are given.
    beside: Option<Tensor>,
}

impl Prepared {
    pub(super) fn new(
        model: &Kandinsky5,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
    ) -> Result<Prepared> {
        let (cond, config, batch) = (conditioned.cond, &model.config, scene.shape.batch);
        let repeats = |x: &Tensor| x.dim(0) == 1 || x.dim(0) == batch;
        let (text, width) = (cond.text_on(lease.lane())?, config.context_width);
        if text.dim(2) != width || text.dim(1) == 0 || !repeats(&text) {
            return wrong("the text", format!("[{batch} or 1, tokens, {width}]"), &text);
        }
        let (pooled, width) = (cond.pooled_on(lease.lane(), config.pooled_width)?, config.pooled_width);
        if pooled.dim(1) != width || !repeats(&pooled) {
            return wrong("the pooled text", format!("[{batch} or 1, {width}]"), &pooled);
        }
        let crop = |latent: Latent| match conditioned.window {
            None => Ok(latent),
            Some(window) => latent.cropped(window),
        };
        let on = |latent: Option<Latent>| -> Result<Option<Tensor>> {
            latent.map(|latent| video_on(lease.lane(), &crop(latent)?)).transpose()
        };
        Ok(Prepared {
            text: embedded(lease, "text_embeddings", &text)?,
            pooled: embedded(lease, "pooled_text_embeddings", &pooled)?,
            first: on(first(model, cond, scene)?)?,
            beside: on(beside(model, cond, scene)?)?,
        })
    }

    /// A latent with all that the model is shown: its first frames replaced, and further channels.
    pub(super) fn shown(&self, lease: &Lease<'_>, latent: &Tensor) -> Result<Tensor> {
        let mut shown = latent.clone();
        if let Some(first) = &self.first {
            let (given, frames) = (first.dim(2), latent.dim(2));
            let first = lease.bring(first)?;
            shown = match frames.checked_sub(given).filter(|rest| *rest > 0) {
                None => first.slice(2, 0, frames)?.contiguous()?,
                Some(rest) => Tensor::concat(&[&first, &latent.slice(2, given, rest)?], 2)?,
            };
        }
        match &self.beside {
            None => Ok(shown),
            Some(beside) => Ok(Tensor::concat(&[&shown, &lease.bring(beside)?], 1)?),
        }
    }

    /// Whether what is given has the size of a latent of this shape.
    pub(super) fn check(&self, latent: &Shape) -> Result<()> {
        if let Some(first) = &self.first {
            let expected = latent.with(2, first.dim(2));
            if *first.shape() != expected {
                return wrong("the pictures of the first frames", format!("of shape {expected}"), first);
            }
        }
        if let Some(beside) = &self.beside {
            let expected = latent.with(1, beside.dim(1));
            if *beside.shape() != expected {
                return wrong("the mask beside the latent", format!("of shape {expected}"), beside);
            }
        }
        Ok(())
    }
}

/// A text in another width, normalised.
fn embedded(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let x = lease.linear(&format!("{name}.in_layer"), x)?;
    let (weight, bias) =
        (lease.weight(&format!("{name}.norm.weight"))?, lease.find(&format!("{name}.norm.bias"))?);
    Ok(x.layer_norm(Some(&weight), bias.as_ref(), NORM_EPS)?)
}

/// The pictures that a video begins with, in the model's scale.
fn first(model: &Kandinsky5, cond: &Cond, scene: &Scene<'_>) -> Result<Option<Latent>> {
    let Some(given) = cond.concat_latent.as_ref().filter(|_| model.config.makes_videos()) else {
        return Ok(None);
    };
    let LatentShape { batch, height, width, .. } = scene.shape;
    let given = model.latent().to_model(given)?.resized_and_centred(height, width)?;
    Ok(Some(given.with_items(batch)?))
}

/// What stands beside the latent of a video: no picture, and one where frames are given.
fn beside(model: &Kandinsky5, cond: &Cond, scene: &Scene<'_>) -> Result<Option<Latent>> {
    if !model.config.makes_videos() {
        return Ok(None);
    }
    let LatentShape { batch, frames, height, width, .. } = scene.shape;
    let channels = model.config.channels;
    let empty = Latent::zeros(&[batch, channels, frames, height, width]);
    let mask = match cond.concat_mask.as_deref().or(scene.mask) {
        None => Latent::zeros(&[batch, 1, frames, height, width]),
        Some(mask) => given_where(&mask.resized_and_centred(height, width)?, frames)?.with_items(batch)?,
    };
    Ok(Some(empty.with_channels_of(&mask)?))
}

/// A mask of what is made new as one of what is given, in one channel: zero in frames that it lacks.
fn given_where(mask: &Latent, frames: usize) -> Result<Latent> {
    let LatentShape { batch, channels, frames: have, height, width } = LatentShape::of(mask)?;
    let plane = height * width;
    let mut values = Vec::with_capacity(batch * frames * plane);
    for item in 0..batch {
        let own = &mask.values()[item * channels * have * plane..][..have.min(frames) * plane];
        values.extend(own.iter().map(|made| 1.0 - made));
        values.resize((item + 1) * frames * plane, 0.0);
    }
    Ok(Latent::new(vec![batch, 1, frames, height, width], values)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_say_what_is_given() {
        // The first of two channels counts; of two frames one is given, and a third is not known.
        let mask = Latent::new(vec![1, 2, 2, 1, 1], vec![0.0, 1.0, 7.0, 7.0]).unwrap();
        assert_eq!(given_where(&mask, 3).unwrap().values(), [1.0, 0.0, 0.0]);
        assert_eq!(given_where(&mask, 1).unwrap().shape(), [1, 1, 1, 1, 1]);
    }
}
