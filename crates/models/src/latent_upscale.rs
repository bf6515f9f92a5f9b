//! Latents made larger by a network, before they are refined and decoded. One file per family, one line in [`FAMILIES`].

pub mod hunyuan_video_15;
pub mod ltxv;

use std::fmt;

use checkpoint::Checkpoint;
use residency::Session;
use tensor::Tensor;

use crate::detect::{Part, Sign};
use crate::rehearsal::{arrived, read_back};
use crate::vae::CodedSize;
use crate::{Module, Result};

/// Every family, in the order in which files are tried.
pub const FAMILIES: &[&LatentUpscalerFamily] = &[&ltxv::FAMILY, &hunyuan_video_15::FAMILY];

/// What the rest of the program asks of a family before one of its files is read.
pub struct LatentUpscalerFamily {
    /// Its name in the field.
    pub name: &'static str,
    /// What gives its files away.
    pub signs: &'static [Sign],
    /// Reads the sizes of one of its models.
    pub read: fn(&Checkpoint, &Part) -> Result<Box<dyn LatentUpscaler>>,
}

/// A network that makes latents larger, as it was read from a file.
pub trait LatentUpscaler: Module {
    /// Channels of a latent.
    fn channels(&self) -> usize;

    /// By how much each side of a frame grows.
    fn scale(&self) -> usize;

    /// A latent `[batch, channels, frames, height, width]` as the autoencoder's layers have it, without any scale of a
    /// diffusion model, enlarged.
    fn enlarge(&self, session: &Session, latent: &Tensor) -> Result<Tensor>;
}

/// Enlarges one empty latent of this size.
pub fn rehearse(upscaler: &dyn LatentUpscaler, session: &Session, size: CodedSize) -> Result<()> {
    let CodedSize { frames, height, width, .. } = size;
    let latent = arrived(session.lane()?, [1, upscaler.channels(), frames, height, width])?;
    read_back(&upscaler.enlarge(session, &latent)?)
}

impl fmt::Debug for LatentUpscalerFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
