//! Latent videos on devices and as tokens: patches of two by two values of a frame, and back.

use meta::Shape;
use sampling::{Latent, LatentShape};
use tensor::{Lane, Padding, Tensor};

use super::patches::PATCH;
use crate::Result;

/// A latent video's size, in values and in patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VideoGrid {
    pub(super) frames: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl VideoGrid {
    /// The size of latents `[batch, channels, frames, height, width]` of a shape.
    pub(super) fn sized(shape: &Shape) -> VideoGrid {
        let (frames, height, width) = (shape.dims()[2], shape.dims()[3], shape.dims()[4]);
        VideoGrid { frames, height, width, rows: height.div_ceil(PATCH), columns: width.div_ceil(PATCH) }
    }

    /// Tokens of one frame.
    pub(super) fn per_frame(&self) -> usize {
        self.rows * self.columns
    }

    /// Tokens of all frames.
    pub(super) fn tokens(&self) -> usize {
        self.frames * self.per_frame()
    }

    /// Tokens `[batch, tokens, 2 · 2 · channels]`, whose values go through the channels first, back to a latent of the size
    /// that came in. Tokens of further frames are left out.
    pub(super) fn unpatchify(&self, tokens: &Tensor) -> Result<Tensor> {
        let (batch, channels) = (tokens.dim(0), tokens.dim(2) / (PATCH * PATCH));
        let latent = tokens
            .slice(1, 0, self.tokens())?
            .reshape([batch, self.frames, self.rows, self.columns, PATCH, PATCH, channels])?
            .permute(&[0, 6, 1, 2, 4, 3, 5])?
            .reshape([batch, channels, self.frames, self.rows * PATCH, self.columns * PATCH])?;
        Ok(latent.slice(3, 0, self.height)?.slice(4, 0, self.width)?.contiguous()?)
    }
}

/// A latent `[batch, channels, frames, height, width]` as tokens `[batch, tokens, channels · 2 · 2]`, channel by channel. A
/// size that is no multiple of a patch goes on from the other side.
pub(super) fn patchify_video(latent: &Tensor) -> Result<Tensor> {
    let grid = VideoGrid::sized(latent.shape());
    let (batch, channels) = (latent.dim(0), latent.dim(1));
    let border = [
        (0, 0),
        (0, 0),
        (0, 0),
        (0, grid.rows * PATCH - grid.height),
        (0, grid.columns * PATCH - grid.width),
    ];
    let even = if border[3].1 + border[4].1 == 0 {
        latent.clone()
    } else {
        latent.pad(&border, Padding::Circular)?
    };
    let patches = even.reshape([batch, channels, grid.frames, grid.rows, PATCH, grid.columns, PATCH])?;
    Ok(patches.permute(&[0, 2, 3, 5, 1, 4, 6])?.reshape([batch, grid.tokens(), channels * PATCH * PATCH])?)
}

/// A latent video on the device; a picture is one of one frame.
pub(super) fn video_on(lane: &Lane, latent: &Latent) -> Result<Tensor> {
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(latent)?;
    Ok(lane.tensor([batch, channels, frames, height, width], latent.values())?)
}

/// How much of each frame is made new: the mean of its mask, for each item.
pub(super) fn made_of_frames(mask: &Latent) -> Result<Vec<f32>> {
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(mask)?;
    let plane = height * width;
    let mut shares = Vec::with_capacity(batch * frames);
    for (item, frame) in (0..batch).flat_map(|item| (0..frames).map(move |frame| (item, frame))) {
        let planes = (0..channels).map(|channel| ((item * channels + channel) * frames + frame) * plane);
        let sum: f64 = planes
            .flat_map(|start| &mask.values()[start..start + plane])
            .map(|value| f64::from(*value))
            .sum();
        shares.push((sum / (channels * plane) as f64) as f32);
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_made_new_by_the_means_of_their_masks() {
        let mask = Latent::new(vec![1, 2, 2, 1, 2], vec![0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]).unwrap();
        assert_eq!(made_of_frames(&mask).unwrap(), [0.0, 0.75]);
    }

    #[test]
    fn a_grid_counts_what_is_begun() {
        let grid = VideoGrid::sized(&Shape::from([1, 16, 3, 5, 8]));
        assert_eq!((grid.rows, grid.columns, grid.per_frame(), grid.tokens()), (3, 4, 12, 36));
    }
}
