//! The autoencoders of Wan: residual blocks over time and space whose convolutions look back in time only, so that a video
//! passes in parts of one frame of the latent. Version 2.1 (Qwen-Image has it, too) halves a picture three times; version
//! 2.2 folds two by two pixels into channels first, and adds what came into a stage to what leaves it. A later one for
//! pictures has the stages of 2.2, folds nothing and looks at one frame. Formulas and names are those of the authors' code
//! (Wan-Video, `modules/vae.py` and `modules/vae2_2.py`; for pictures diffusers' `autoencoder_kl_qwenimage21.py`).

mod config;
mod layers;
mod weights;

use std::borrow::Cow;
use std::ops::Range;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Manifest, Session};
use tensor::Tensor;

use super::AutoencoderFamily;
use super::causal::Past;
use super::video::{GiveFrames, TakeParts, VideoCoder, VideoSizes, folded, pixels_of, unfolded};
use crate::claims::Claims;
use crate::detect::{Neighbours, Part, Sign};
use crate::{Error, Module, Probe, Result};
pub use config::Config;
use layers::Layers;

/// The family.
pub const FAMILY: AutoencoderFamily = AutoencoderFamily {
    name: "the autoencoders of Wan 2.1 and 2.2",
    signs: &[
        Sign::native("decoder.upsamples.0.residual.2.weight", named),
        Sign::native("decoder.upsamples.0.upsamples.0.residual.2.weight", named),
    ],
    read: |checkpoint, part| Ok(Box::new(Wan::read(checkpoint, part)?)),
};

fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_later = found.has("decoder.upsamples.0.upsamples.0.residual.2.weight");
    let is_for_pictures = found.dims("decoder.head.2.weight").is_some_and(|dims| dims.get(2) == Some(&1));
    Some(Cow::Borrowed(match (is_later, is_for_pictures) {
        (true, true) => "RGBA, 64 channels",
        (true, false) => "Wan 2.2",
        (false, _) => "Wan 2.1",
    }))
}

/// An autoencoder of Wan: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Wan {
    config: Config,
    prefix: String,
}

/// One half of an autoencoder.
#[derive(Clone, Copy)]
enum Half {
    Decoder,
    Encoder,
}

impl Wan {
    /// Reads the autoencoder's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Wan> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Wan { config, prefix: part.prefix.clone() })
    }

    /// The autoencoder's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Decodes one latent `[1, channels, frames, height, width]`: `take` is given parts
    /// `[1, colours, frames, height, width]` of values from about -1 to 1, in order. With a look at what the modules
    /// compute.
    pub fn decode_probed(
        &self,
        session: &Session,
        latent: &Tensor,
        probe: &mut Probe<'_>,
        take: &mut dyn FnMut(&Tensor) -> Result<()>,
    ) -> Result<()> {
        let mut past = Past::default();
        for frame in 0..latent.dim(2) {
            let part = latent.slice(2, frame, 1)?.contiguous()?;
            let raw = self.pass(session, Half::Decoder, part, (&mut past, frame == 0), probe)?;
            take(&unfolded(&raw, self.config.patch)?)?;
        }
        Ok(())
    }

    /// One part of a video through one half.
    fn pass(
        &self,
        session: &Session,
        half: Half,
        part: Tensor,
        (past, is_first): (&mut Past, bool),
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let mut x = part;
        for block in self.blocks(session, half)? {
            let lease = session.lease(block)?;
            x = lease.bring(&x)?;
            let name = &session.manifest().blocks()[block].name;
            let mut layers = Layers { config: &self.config, lease: &lease, past, is_first };
            x = match half {
                Half::Decoder => layers.decode(name, x, probe)?,
                Half::Encoder => layers.encode(name, x)?,
            };
        }
        Ok(x)
    }

    /// The blocks of one half.
    fn blocks(&self, session: &Session, half: Half) -> Result<Range<usize>> {
        let (start, missing) = match half {
            Half::Decoder => ("decoder.", "decoder.conv1.weight"),
            Half::Encoder => ("encoder.", "encoder.conv1.weight"),
        };
        let names = || session.manifest().blocks().iter().map(|block| block.name.as_str());
        let count = names().filter(|name| name.starts_with(start)).count();
        match names().position(|name| name.starts_with(start)) {
            Some(start) => Ok(start..start + count),
            None => Err(Error::MissingTensor {
                file: session.manifest().name().to_owned(),
                tensor: format!("{}{missing}", self.prefix),
                family: config::FAMILY,
                seems: "an autoencoder with one half only".into(),
            }),
        }
    }
}

impl VideoCoder for Wan {
    fn sizes(&self) -> VideoSizes {
        VideoSizes {
            latent_channels: self.config.latent_channels,
            channels: self.config.channels,
            factor: self.config.factor(),
            frames: self.config.frames_per_value(),
        }
    }

    fn is_for_pictures(&self) -> bool {
        self.config.is_for_pictures()
    }

    fn decode_parts(&self, session: &Session, latent: &Tensor, take: &mut TakeParts<'_>) -> Result<()> {
        self.decode_probed(session, latent, &mut Probe::none(), take)
    }

    fn encode_parts(&self, session: &Session, frames: usize, give: &GiveFrames<'_>) -> Result<Tensor> {
        let by = self.config.frames_per_value();
        let (mut past, mut latents) = (Past::default(), Vec::new());
        for index in 0..1 + frames.saturating_sub(1) / by {
            let (start, len) = if index == 0 { (0, 1) } else { (1 + by * (index - 1), by) };
            let pixels = folded(&pixels_of(&give(start, len)?, self.sizes())?, self.config.patch)?;
            let state = (&mut past, index == 0);
            let moments = self.pass(session, Half::Encoder, pixels, state, &mut Probe::none())?;
            latents.push(moments.slice(1, 0, self.config.latent_channels)?.contiguous()?);
        }
        Ok(Tensor::concat(&latents.iter().collect::<Vec<_>>(), 2)?)
    }
}

impl Module for Wan {
    /// The decoder's blocks, then the encoder's.
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// That for pictures outgrows f16 in its middle.
    fn activations(&self) -> &'static [DType] {
        if self.config.is_for_pictures() {
            return &[DType::BF16, DType::F32];
        }
        &[DType::BF16, DType::F16, DType::F32]
    }
}
