//! How autoencoders change sizes that fold frames and pixels into channels: what a convolution gives, plus what came in,
//! repeated or averaged to the same size.

use tensor::Tensor;

use crate::Result;

/// A pixel becomes two by two.
const SIDE: usize = 2;

/// What changes with the size: whether the number of frames does, too, and whether a video begins here, whose first frame
/// stays one.
#[derive(Clone, Copy)]
pub(super) struct Folding {
    pub(super) in_time: bool,
    pub(super) is_first: bool,
}

impl Folding {
    /// Frames that become one or that one becomes.
    fn frames(self) -> usize {
        if self.in_time { 2 } else { 1 }
    }

    /// Frames at the beginning that stay as many as they are.
    fn kept(self) -> usize {
        usize::from(self.in_time && self.is_first)
    }

    /// Larger pictures, and twice the frames: `inner` is the convolution's result of `x`.
    pub(super) fn enlarged(self, inner: &Tensor, x: &Tensor) -> Result<Tensor> {
        let times = inner.dim(1) / x.dim(1);
        let part = |start: usize, len: usize, frames: usize| -> Result<Option<Tensor>> {
            if len == 0 {
                return Ok(None);
            }
            let inner = spread(&inner.slice(2, start, len)?, frames)?;
            // A frame that stays one is the first of the two that it would become.
            let channels = inner.dim(1) * frames / self.frames();
            let inner = inner.slice(1, 0, channels)?;
            let around = repeated(&x.slice(2, start, len)?, times * frames / self.frames())?;
            Ok(Some(inner.add(&spread(&around, frames)?)?))
        };
        let kept = self.kept();
        joined(&[part(0, kept, 1)?, part(kept, inner.dim(2) - kept, self.frames())?])
    }

    /// Smaller pictures, and half the frames: `inner` is the convolution's result of `x`.
    pub(super) fn reduced(self, inner: &Tensor, x: &Tensor) -> Result<Tensor> {
        let part = |start: usize, len: usize, frames: usize| -> Result<Option<Tensor>> {
            if len == 0 {
                return Ok(None);
            }
            let inner = gathered(&inner.slice(2, start, len)?, frames)?;
            // A frame that stays one counts as both of the two that become one.
            let inner = repeated_whole(&inner, self.frames() / frames)?;
            let around = gathered(&x.slice(2, start, len)?, frames)?;
            let around = averaged(&around, inner.dim(1))?;
            Ok(Some(inner.add(&around)?))
        };
        let kept = self.kept();
        joined(&[part(0, kept, 1)?, part(kept, inner.dim(2) - kept, self.frames())?])
    }
}

/// Frames one after the other.
fn joined(parts: &[Option<Tensor>; 2]) -> Result<Tensor> {
    let parts: Vec<&Tensor> = parts.iter().flatten().collect();
    match parts.as_slice() {
        [only] => Ok((*only).clone()),
        parts => Ok(Tensor::concat(parts, 2)?),
    }
}

/// Channels as frames and pixels: `[1, frames · 2 · 2 · c, t, h, w]` to `[1, c, t · frames, 2 · h, 2 · w]`.
fn spread(x: &Tensor, frames: usize) -> Result<Tensor> {
    let (channels, t, h, w) = (x.dim(1) / (frames * SIDE * SIDE), x.dim(2), x.dim(3), x.dim(4));
    let apart = x.reshape([frames, SIDE, SIDE, channels, t, h, w])?;
    Ok(apart.permute(&[3, 4, 0, 5, 1, 6, 2])?.reshape([1, channels, t * frames, h * SIDE, w * SIDE])?)
}

/// Frames and pixels as channels: `[1, c, t · frames, 2 · h, 2 · w]` to `[1, frames · 2 · 2 · c, t, h, w]`.
fn gathered(x: &Tensor, frames: usize) -> Result<Tensor> {
    let (channels, t, h, w) = (x.dim(1), x.dim(2) / frames, x.dim(3) / SIDE, x.dim(4) / SIDE);
    let apart = x.reshape([channels, t, frames, h, SIDE, w, SIDE])?;
    Ok(apart.permute(&[2, 4, 6, 0, 1, 3, 5])?.reshape([1, frames * SIDE * SIDE * channels, t, h, w])?)
}

/// Every channel so many times, one copy behind the other.
pub(super) fn repeated(x: &Tensor, times: usize) -> Result<Tensor> {
    let (channels, places) = (x.dim(1), x.dim(2) * x.dim(3) * x.dim(4));
    let many = x.reshape([channels, 1, places])?.broadcast([channels, times, places])?;
    Ok(many.reshape(x.shape().with(1, channels * times))?)
}

/// All channels so many times.
fn repeated_whole(x: &Tensor, times: usize) -> Result<Tensor> {
    if times == 1 {
        return Ok(x.clone());
    }
    Ok(Tensor::concat(&vec![x; times], 1)?)
}

/// Means of neighbouring channels, so that there are so many.
pub(super) fn averaged(x: &Tensor, channels: usize) -> Result<Tensor> {
    let (each, places) = (x.dim(1) / channels, x.dim(2) * x.dim(3) * x.dim(4));
    if each == 1 {
        return Ok(x.clone());
    }
    let mean = x.reshape([channels, each, places])?.mean(&[1])?;
    Ok(mean.reshape(x.shape().with(1, channels))?)
}
