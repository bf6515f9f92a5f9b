//! What differs between the families that have a UNet.

use sampling::{LatentSpec, ModelSampling, Scaling};

use super::config::{Config, Heads};
use crate::Result;
use crate::claims::Claims;
use crate::conditioning::{CondInput, Conditioned, Scene};

/// The latents of the first autoencoder, which several families share. Colours are fitted by the community to decoded
/// pictures.
pub const FOUR_CHANNELS: LatentSpec = LatentSpec {
    name: "SD1.5",
    channels: 4,
    scaling: Scaling::Uniform { scale: 0.18215, shift: 0.0 },
    pixels_per_value: 8,
    frames_per_value: None,
    colours: &[
        [0.3512, 0.2297, 0.3227],
        [0.3250, 0.4974, 0.2350],
        [-0.2829, 0.1762, 0.2721],
        [-0.2120, -0.2616, -0.7177],
    ],
    background: [0.0; 3],
};

/// A family's own part of a UNet.
#[derive(Debug)]
pub(in crate::diffusion) struct Kind {
    /// What errors call it.
    pub(in crate::diffusion) family: &'static str,
    /// Its latents.
    pub(in crate::diffusion) latent: &'static LatentSpec,
    /// How channels are shared out among heads.
    pub(in crate::diffusion) heads: Heads,
    /// How a model of these tensors reads noise.
    pub(in crate::diffusion) sampling: fn(&Claims<'_>, &Config) -> ModelSampling,
    /// The vector of this width that a conditioning gives, beside what the time gives.
    pub(in crate::diffusion) vector: fn(&Conditioned<'_>, &Scene<'_>, usize) -> Result<Vec<f32>>,
    /// What it has a use for beside a text: with nothing beside the latent, with a picture, with a mask and a picture.
    pub(in crate::diffusion) takes: [&'static [CondInput]; 3],
}

impl Kind {
    /// Whether a model of these sizes can be run.
    pub(super) fn check(&self, claims: &Claims<'_>, config: &Config) -> Result<()> {
        let latent = self.latent.channels;
        if Beside::of(config.in_channels, latent).is_some() {
            return Ok(());
        }
        match claims.find("input_blocks.0.0.weight") {
            Some(entry) => Err(claims.wrong_shape(
                entry,
                format!(
                    "{latent} input channels, {} with a picture beside the latent or {} with a mask, too",
                    2 * latent,
                    2 * latent + 1
                ),
            )),
            None => Ok(()),
        }
    }
}

/// What stands beside the latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// A picture to change.
    Picture,
    /// A mask, and the picture without what is under it.
    MaskAndPicture,
}

impl Beside {
    /// By the channels that go in and those of a latent.
    pub(super) fn of(taken: usize, latent: usize) -> Option<Beside> {
        match taken.checked_sub(latent)? {
            0 => Some(Beside::Nothing),
            more if more == latent => Some(Beside::Picture),
            more if more == latent + 1 => Some(Beside::MaskAndPicture),
            _ => None,
        }
    }
}
