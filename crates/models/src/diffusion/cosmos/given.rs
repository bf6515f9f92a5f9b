//! From a conditioning on the host to what the model is given on the device.

use residency::Lease;
use sampling::{Latent, LatentShape};
use tensor::Tensor;

use super::{Cosmos, wrong};
use crate::Result;
use crate::conditioning::{Conditioned, Scene};
use crate::diffusion::video::{made_of_frames, video_on};

/// What an evaluation is given beside its latent and time, on the device of the first block.
pub(super) struct Prepared {
    /// The text, `[batch or 1, tokens, width]`. What fills it up is zero and seen.
    pub(super) text: Tensor,
    /// How much of each frame is made new, of so many items one after the other.
    pub(super) made: Option<Vec<f32>>,
    timed_items: usize,
    /// Further channels beside the latent: of a model that sees them, where frames are given, then zeros.
    beside: Tensor,
}

impl Prepared {
    pub(super) fn new(
        model: &Cosmos,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
    ) -> Result<Prepared> {
        let (cond, lane, width) = (conditioned.cond, lease.lane(), model.config.context_width);
        let LatentShape { batch, frames, height, width: columns, .. } = scene.shape;
        let text = cond.text_on(lane)?;
        if text.dim(2) != width || text.dim(1) == 0 || (text.dim(0) != 1 && text.dim(0) != batch) {
            return wrong("the text", format!("[{batch} or 1, tokens, {width}]"), &text);
        }
        let mask = cond.concat_mask.as_deref().or(scene.mask);
        let mask = mask.map(|mask| mask.resized_and_centred(height, columns)).transpose()?;
        let nowhere = Latent::zeros(&[batch, 1, frames, height, columns]);
        let beside = if model.config.sees_given_frames() {
            let given = match &mask {
                None => nowhere.clone(),
                Some(mask) => given_where(mask, frames)?.with_items(batch)?,
            };
            given.with_channels_of(&nowhere)?
        } else {
            nowhere
        };
        let beside = match conditioned.window {
            None => beside,
            Some(window) => beside.cropped(window)?,
        };
        // A mask of pictures says nothing of frames.
        let mask = mask.filter(|mask| LatentShape::of(mask).is_ok_and(|shape| shape.frames == frames));
        let made = mask.as_ref().map(made_of_frames).transpose()?;
        Ok(Prepared {
            text,
            timed_items: mask.map_or(1, |mask| mask.shape()[0]),
            made,
            beside: video_on(lane, &beside)?,
        })
    }

    /// How many times an item has: one, or one for each frame.
    pub(super) fn times_of_an_item(&self) -> usize {
        self.made.as_ref().map_or(1, |made| made.len() / self.timed_items.max(1)).max(1)
    }

    /// A latent with all that the model is shown.
    pub(super) fn shown(&self, lease: &Lease<'_>, latent: &Tensor) -> Result<Tensor> {
        Ok(Tensor::concat(&[latent, &lease.bring(&self.beside)?], 1)?)
    }

    /// Whether what is given has the size of a latent.
    pub(super) fn check(&self, latent: &Tensor) -> Result<()> {
        let expected = latent.shape().with(1, self.beside.dim(1));
        if *self.beside.shape() != expected {
            return wrong("the mask beside the latent", format!("of shape {expected}"), &self.beside);
        }
        Ok(())
    }
}

/// A mask of what is made new as one of what is given, in one channel and all or nothing: zero in frames that it lacks.
fn given_where(mask: &Latent, frames: usize) -> Result<Latent> {
    let LatentShape { batch, channels, frames: have, height, width } = LatentShape::of(mask)?;
    let plane = height * width;
    let mut values = Vec::with_capacity(batch * frames * plane);
    for item in 0..batch {
        let own = &mask.values()[item * channels * have * plane..][..have.min(frames) * plane];
        values.extend(own.iter().map(|made| 1.0 - made.round_ties_even()));
        values.resize((item + 1) * frames * plane, 0.0);
    }
    Ok(Latent::new(vec![batch, 1, frames, height, width], values)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_say_what_is_given_all_or_nothing() {
        let mask = Latent::new(vec![1, 2, 2, 1, 1], vec![0.2, 0.8, 7.0, 7.0]).unwrap();
        assert_eq!(given_where(&mask, 3).unwrap().values(), [1.0, 0.0, 0.0]);
    }
}
