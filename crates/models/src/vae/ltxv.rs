//! The autoencoder of LTX-Video: four by four pixels are folded into channels, then residual blocks make a video smaller in
//! time and space, thirty-two times along a side and eight times in frames. The encoder looks back in time only; the
//! decoder of most files looks ahead, too, so a video passes as a whole or in tiles. Later decoders are told how much noise
//! is left in the latent and take it away. Formulas and names are those of the authors' code (Lightricks/LTX-Video,
//! `ltx_video/models/autoencoders`).

mod config;
mod layers;
mod weights;

use std::ops::Range;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Manifest, Session};
use tensor::Tensor;

use super::AutoencoderFamily;
use super::video::{GiveFrames, TakeParts, VideoCoder, VideoSizes, folded, pixels_of, unfolded};
use crate::claims::Claims;
use crate::detect::{Part, Sign};
use crate::{Error, Module, Result};
pub use config::Config;
use layers::Layers;

/// The noise that a decoder is told of is left in the latent, and how much of it is put there. The reference's is another
/// in every run; this one is always the same.
const NOISE: f32 = 0.025;
const NOISE_TIME: f32 = 0.05;
const NOISE_SEED: u64 = 0;

/// The family.
pub const FAMILY: AutoencoderFamily = AutoencoderFamily {
    name: "the autoencoder of LTX-Video",
    signs: &[Sign::native("decoder.up_blocks.0.res_blocks.0.conv1.conv.weight", |found| {
        found.has("per_channel_statistics.std-of-means").then_some("LTX-Video".into())
    })],
    read: |checkpoint, part| Ok(Box::new(Ltxv::read(checkpoint, part)?)),
};

/// An autoencoder of LTX-Video: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Ltxv {
    config: Config,
    prefix: String,
}

impl Ltxv {
    /// Reads the autoencoder's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Ltxv> {
        let claims = Claims::new(checkpoint, &part.prefix, config::FAMILY);
        let config = Config::read(&claims, checkpoint.metadata())?;
        Ok(Ltxv { config, prefix: part.prefix.clone() })
    }

    /// The autoencoder's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// One half over a whole video.
    fn pass(&self, session: &Session, half: &'static str, mut x: Tensor) -> Result<Tensor> {
        let time = self.config.time_scale.map(|scale| scale * NOISE_TIME);
        for block in self.blocks(session, half)? {
            let lease = session.lease(block)?;
            x = lease.bring(&x)?;
            let name = &session.manifest().blocks()[block].name;
            x = Layers { config: &self.config, lease: &lease, time, is_decoder: half == "decoder." }
                .block(name, x)?;
        }
        Ok(x)
    }

    /// A latent with the noise that its decoder is told of.
    fn noised(&self, latent: &Tensor) -> Result<Tensor> {
        if self.config.time_scale.is_none() {
            return Ok(latent.clone());
        }
        let noise = latent.lane().normal_noise(NOISE_SEED, *latent.shape())?;
        Ok(latent.affine(1.0 - NOISE, 0.0)?.add(&noise.affine(NOISE, 0.0)?)?)
    }

    /// The blocks of one half.
    fn blocks(&self, session: &Session, half: &'static str) -> Result<Range<usize>> {
        let names = || session.manifest().blocks().iter().map(|block| block.name.as_str());
        let count = names().filter(|name| name.starts_with(half)).count();
        match names().position(|name| name.starts_with(half)) {
            Some(start) => Ok(start..start + count),
            None => Err(Error::MissingTensor {
                file: session.manifest().name().to_owned(),
                tensor: format!("{}{half}conv_in.conv.weight", self.prefix),
                family: config::FAMILY,
                seems: "an autoencoder with one half only".into(),
            }),
        }
    }

    /// The means and deviations of the latent's channels, `[1, channels, 1, 1, 1]`.
    fn statistics(&self, session: &Session) -> Result<[Tensor; 2]> {
        let lease = session.lease(0)?;
        let channels = self.config.latent_channels;
        let values = |name: &str| -> Result<Tensor> {
            let weight = lease.weight(&format!("per_channel_statistics.{name}"))?;
            Ok(lease.lane().unpack(&weight)?.reshape([1, channels, 1, 1, 1])?)
        };
        Ok([values("mean-of-means")?, values("std-of-means")?])
    }
}

impl VideoCoder for Ltxv {
    fn sizes(&self) -> VideoSizes {
        VideoSizes {
            latent_channels: self.config.latent_channels,
            channels: self.config.channels,
            factor: self.config.factor(),
            frames: self.config.frames_per_value(),
        }
    }

    fn channel_statistics(&self, checkpoint: &Checkpoint) -> Option<[Vec<f32>; 2]> {
        let claims = Claims::new(checkpoint, &self.prefix, config::FAMILY);
        let values = |name: &str| claims.values(&format!("per_channel_statistics.{name}"));
        Some([values("mean-of-means")?, values("std-of-means")?])
    }

    fn decode_parts(&self, session: &Session, latent: &Tensor, take: &mut TakeParts<'_>) -> Result<()> {
        let [means, deviations] = self.statistics(session)?;
        let latent = self.noised(latent)?.to_lane(means.lane())?;
        let raw = self.pass(session, "decoder.", latent.mul(&deviations)?.add(&means)?)?;
        take(&unfolded(&raw, self.config.patch)?)
    }

    fn encode_parts(&self, session: &Session, frames: usize, give: &GiveFrames<'_>) -> Result<Tensor> {
        let by = self.config.frames_per_value();
        let whole = 1 + frames.saturating_sub(1) / by * by;
        let pixels = folded(&pixels_of(&give(0, whole)?, self.sizes())?, self.config.patch)?;
        let moments = self.pass(session, "encoder.", pixels)?;
        let [means, deviations] = self.statistics(session)?;
        let latent = moments.slice(1, 0, self.config.latent_channels)?.to_lane(means.lane())?;
        Ok(latent.sub(&means)?.div(&deviations)?)
    }
}

impl Module for Ltxv {
    /// The statistics, the decoder's blocks, then the encoder's.
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
