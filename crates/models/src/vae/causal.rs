//! Convolutions that look back in time. A video goes through them a few frames at a time; what they read of the frames
//! before is kept from one part to the next, so that the result is that of the whole video.

use std::collections::HashMap;

use residency::Lease;
use tensor::Tensor;

use crate::Result;

/// The last frames that convolutions have read, by their names, each where it was computed.
#[derive(Default)]
pub(super) struct Past(HashMap<String, Tensor>);

/// Frames for a convolution in time.
pub(super) struct WithPast {
    /// `[batch, channels, frames, height, width]`: those from before, then the new ones.
    pub(super) frames: Tensor,
    /// How many of those from before are missing, since the video begins here.
    pub(super) missing: usize,
}

impl Past {
    /// New frames of this shape, which `fill` writes, behind up to `back` frames from before. The last `back` of all are
    /// kept for the next part.
    pub(super) fn join(
        &mut self,
        lease: &Lease<'_>,
        (name, back): (&str, usize),
        shape: &meta::Shape,
        fill: impl FnOnce(&Tensor) -> Result<()>,
    ) -> Result<WithPast> {
        let (lane, new) = (lease.lane(), shape.dims()[2]);
        let before = self.0.remove(name).map(|before| before.to_lane(lane)).transpose()?;
        let known = before.as_ref().map_or(0, |before| before.dim(2));
        let frames = lane.empty(shape.with(2, known + new))?;
        if let Some(before) = before {
            before.copy_into(&frames.slice(2, 0, known)?)?;
        }
        fill(&frames.slice(2, known, new)?)?;
        let keep = back.min(known + new);
        let last = frames.slice(2, known + new - keep, keep)?.contiguous()?;
        self.0.insert(name.to_owned(), last);
        Ok(WithPast { frames, missing: back - known })
    }
}
