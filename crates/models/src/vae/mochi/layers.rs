//! The layers of an autoencoder of Mochi, over one part of a video.

use residency::Lease;
use tensor::{Activation, ConvolutionShape, Padding, Tensor, Window};

use super::{SIDE, Stage};
use crate::Result;
use crate::vae::causal::Past;

/// Groups of channels that are normalised together, in each frame by itself.
const GROUPS: usize = 32;
/// Added to the variance.
const NORM_EPS: f32 = 1e-5;
/// Frames before its own that a convolution looks at.
const BACK: usize = 2;

/// The layers of one block of the manifest.
pub(super) struct Layers<'a> {
    pub(super) lease: &'a Lease<'a>,
    pub(super) past: &'a mut Past,
    /// Whether this is the first part of a video, whose first frame stays one.
    pub(super) is_first: bool,
}

impl Layers<'_> {
    pub(super) fn stage(&mut self, stage: &Stage, mut x: Tensor) -> Result<Tensor> {
        for name in &stage.residuals {
            let inner = self.activated(name, [0, 2], &x)?;
            let inner = self.activated(name, [3, 5], &inner)?;
            x = x.add(&inner)?;
        }
        match stage.enlarges {
            None => Ok(x),
            Some((frames, _)) => {
                let all = self.product(&format!("{}.proj", stage.name), &x)?;
                self.enlarged(&all, frames)
            }
        }
    }

    /// The activation and the product at the end.
    pub(super) fn output(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        self.product(name, &x.activate(Activation::Silu)?)
    }

    /// Channels as places and frames. Of those that the first frame of a video becomes only the last stays.
    fn enlarged(&self, x: &Tensor, by: usize) -> Result<Tensor> {
        let (batch, frames, height, width) = (x.dim(0), x.dim(2), x.dim(3), x.dim(4));
        let channels = x.dim(1) / (by * SIDE * SIDE);
        let larger = x
            .reshape([batch, channels, by, SIDE, SIDE, frames, height, width])?
            .permute(&[0, 1, 5, 2, 6, 3, 7, 4])?
            .reshape([batch, channels, frames * by, height * SIDE, width * SIDE])?;
        if !self.is_first || by == 1 {
            return Ok(larger);
        }
        Ok(larger.slice(2, by - 1, frames * by - (by - 1))?.contiguous()?)
    }

    /// A norm of every frame, an activation and a convolution over three frames.
    fn activated(&mut self, name: &str, [norm, kernel]: [usize; 2], x: &Tensor) -> Result<Tensor> {
        let [norm, kernel] = [norm, kernel].map(|part| format!("{name}.stack.{part}"));
        let (batch, channels, frames, height, width) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3), x.dim(4));
        let by_frame = x.permute(&[0, 2, 1, 3, 4])?.contiguous()?;
        let by_frame = by_frame.reshape([batch * frames, channels, height, width])?;
        let (weight, bias) = self.weights(&norm)?;
        let groups = GROUPS.min(channels);
        let normed = by_frame.group_norm(groups, Some(&weight), bias.as_ref(), NORM_EPS)?;
        drop(by_frame);
        let normed = normed.reshape([batch, frames, channels, height, width])?.permute(&[0, 2, 1, 3, 4])?;
        let joined = self.past.join(self.lease, (&kernel, BACK), x.shape(), |out| {
            Ok(normed.activate_into(Activation::Silu, out)?)
        })?;
        // What a step was computed from goes before the next one starts: videos are large.
        drop(normed);
        let (weight, bias) = self.weights(&kernel)?;
        let time = Window { pad_before: joined.missing, ..Window::padded(0) };
        let window = vec![time, Window::padded(1), Window::padded(1)];
        let shape = ConvolutionShape { window, padding: Padding::Replicate, groups: 1 };
        Ok(joined.frames.convolution(&weight, bias.as_ref(), &shape)?)
    }

    /// A product over channels.
    pub(super) fn product(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = self.weights(name)?;
        Ok(x.convolution(&weight, bias.as_ref(), &ConvolutionShape::uniform(3, 1, 0))?)
    }

    fn weights(&self, name: &str) -> Result<(tensor::Weight, Option<tensor::Weight>)> {
        Ok((self.lease.weight(&format!("{name}.weight"))?, self.lease.find(&format!("{name}.bias"))?))
    }
}
