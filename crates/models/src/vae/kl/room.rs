//! What a picture takes at least. These are sums of tensors that are alive at the same moment, so with less memory than
//! this it cannot be done, and it need not be tried.

use device::OutOfMemory;
use residency::Session;

use super::{Config, Kl, weights};
use crate::Result;

/// The least memory for a picture, in bytes. More than a machine has means that there is no way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastBytes {
    /// On the device where it computes, for a picture that is computed whole.
    pub whole: u64,
    /// The same for a picture in tiles, however small they are: the picture itself.
    pub tiled: u64,
    /// Then also on the host, where tiles are put together.
    pub canvas: u64,
}

impl Kl {
    /// What decoding pictures of this size in pixels takes at least, with elements of this size.
    pub fn least_to_decode(
        &self,
        batch: usize,
        height: usize,
        width: usize,
        element_bytes: usize,
    ) -> LeastBytes {
        let (pixels, channels) = (area(height, width), self.config.out_channels as u64);
        let picture = pixels.saturating_mul(channels);
        LeastBytes {
            whole: least_whole(&self.config, pixels).saturating_mul(element_bytes as u64),
            // The picture, and the same in the range of pictures.
            tiled: picture.saturating_mul(2 * batch as u64).saturating_mul(element_bytes as u64),
            // The mean of the passes, one pass, and its weights.
            canvas: picture.saturating_mul(2).saturating_add(pixels).saturating_mul(VALUE_BYTES),
        }
    }

    /// What encoding pictures of this size in pixels takes at least, with elements of this size.
    pub fn least_to_encode(
        &self,
        batch: usize,
        height: usize,
        width: usize,
        element_bytes: usize,
    ) -> LeastBytes {
        let pixels = area(height, width);
        let picture = pixels.saturating_mul(self.config.in_channels as u64);
        LeastBytes {
            whole: least_whole(&self.config, pixels).saturating_mul(element_bytes as u64),
            // The picture, and the same with its channels first.
            tiled: picture.saturating_mul(2 * batch as u64).saturating_mul(element_bytes as u64),
            canvas: 0,
        }
    }

    /// An error if a whole picture of this size has no room where it computes, whatever else leaves.
    pub(super) fn check_whole(&self, session: &Session, height: usize, width: usize) -> Result<()> {
        let lane = session.lane()?;
        let wanted = self.least_to_decode(1, height, width, lane.dtype().bytes()).whole;
        let report = lane.device().ledger().report();
        if wanted <= report.budget {
            return Ok(());
        }
        Err(crate::Error::Device(device::Error::OutOfMemory(OutOfMemory {
            device: lane.device().id(),
            wanted,
            available: report.budget,
            budget: report.budget,
            used: report.used,
            reserved: report.reserved,
        })))
    }
}

/// Bytes of a value on the host.
const VALUE_BYTES: u64 = 4;

fn area(height: usize, width: usize) -> u64 {
    (height as u64).saturating_mul(width as u64)
}

/// The most values of a whole picture that are alive at one moment, at least.
fn least_whole(config: &Config, pixels: u64) -> u64 {
    let pixels = usize::try_from(pixels).unwrap_or(usize::MAX);
    weights::stage_values(config, pixels) as u64
}
