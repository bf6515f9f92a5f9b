//! The KL autoencoder of videos (HunyuanVideo's, which Kandinsky 5 has, too): that of pictures with convolutions over three
//! frames, none of which lies ahead, and that of HunyuanVideo 1.5, which changes sizes by folding frames and pixels into
//! channels. Its ends and its middle see the whole latent; stages pass two frames of it at a time.

mod config;
mod folding;
mod layers;
mod weights;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Manifest, Session};
use tensor::Tensor;

use super::AutoencoderFamily;
use super::causal::Past;
use super::video::{GiveFrames, TakeParts, VideoCoder, VideoSizes, pixels_of};
use crate::claims::Claims;
use crate::detect::{Part, Sign};
use crate::{Error, Module, Probe, Result};
pub use config::Config;
use layers::Layers;

/// Frames of a latent that pass the decoder's stages at a time.
const AT_ONCE: usize = 2;

/// The family.
pub const FAMILY: AutoencoderFamily = AutoencoderFamily {
    name: "the KL autoencoder of HunyuanVideo",
    signs: &[Sign::native("decoder.conv_in.conv.weight", |found| match found.own_dims() {
        [_, 16, _, _, _] if found.has("decoder.mid.attn_1.q.weight") => Some("HunyuanVideo".into()),
        [_, 32, _, _, _] if found.has("decoder.norm_out.gamma") => Some("HunyuanVideo 1.5".into()),
        _ => None,
    })],
    read: |checkpoint, part| Ok(Box::new(VideoKl::read(checkpoint, part)?)),
};

/// A KL autoencoder of videos: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct VideoKl {
    config: Config,
    prefix: String,
}

impl VideoKl {
    /// Reads the autoencoder's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<VideoKl> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(VideoKl { config, prefix: part.prefix.clone() })
    }

    /// Decodes one latent with a look at what the modules compute of its first part.
    pub fn decode_probed(
        &self,
        session: &Session,
        latent: &Tensor,
        probe: &mut Probe<'_>,
        take: &mut dyn FnMut(&Tensor) -> Result<()>,
    ) -> Result<()> {
        let (whole, stages) = self.split(session, "decoder.", 2)?;
        let mut x = latent.contiguous()?;
        for block in whole {
            x = self.block(session, block, &x, (&mut Past::default(), true), probe)?;
        }
        let (mut past, frames) = (Past::default(), x.dim(2));
        for start in (0..frames).step_by(AT_ONCE) {
            let mut part = x.slice(2, start, AT_ONCE.min(frames - start))?.contiguous()?;
            for block in stages.clone() {
                part = self.block(session, block, &part, (&mut past, start == 0), probe)?;
            }
            take(&part)?;
        }
        Ok(())
    }

    /// One block of the manifest.
    fn block(
        &self,
        session: &Session,
        block: usize,
        x: &Tensor,
        (past, is_first): (&mut Past, bool),
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let lease = session.lease(block)?;
        let x = lease.bring(x)?;
        let name = &session.manifest().blocks()[block].name;
        Layers { config: &self.config, lease: &lease, past, is_first }.block(name, x, probe)
    }

    /// The blocks of one half: the first so many, and those behind.
    fn split(
        &self,
        session: &Session,
        half: &'static str,
        first: usize,
    ) -> Result<(std::ops::Range<usize>, std::ops::Range<usize>)> {
        let names = || session.manifest().blocks().iter().map(|block| block.name.as_str());
        let count = names().filter(|name| name.starts_with(half)).count();
        match names().position(|name| name.starts_with(half)) {
            Some(start) => Ok((start..start + first, start + first..start + count)),
            None => Err(Error::MissingTensor {
                file: session.manifest().name().to_owned(),
                tensor: format!("{}{half}conv_in.conv.weight", self.prefix),
                family: config::FAMILY,
                seems: "an autoencoder with one half only".into(),
            }),
        }
    }
}

impl VideoCoder for VideoKl {
    fn sizes(&self) -> VideoSizes {
        VideoSizes {
            latent_channels: self.config.latent_channels,
            channels: self.config.channels,
            factor: self.config.factor(),
            frames: self.config.frames_per_value(),
        }
    }

    fn decode_parts(&self, session: &Session, latent: &Tensor, take: &mut TakeParts<'_>) -> Result<()> {
        self.decode_probed(session, latent, &mut Probe::none(), take)
    }

    fn encode_parts(&self, session: &Session, frames: usize, give: &GiveFrames<'_>) -> Result<Tensor> {
        let (by, probe) = (self.config.frames_per_value(), &mut Probe::none());
        let (stages, whole) = self.split(session, "encoder.", 1 + self.config.down.len())?;
        let (mut past, mut parts) = (Past::default(), Vec::new());
        // The first frame by itself, then whole values of the latent, two at a time.
        let last = 1 + frames.saturating_sub(1) / by * by;
        let mut start = 0;
        while start < last {
            let len = if start == 0 { 1 } else { (AT_ONCE * by).min(last - start) };
            let mut part = pixels_of(&give(start, len)?, self.sizes())?;
            for block in stages.clone() {
                part = self.block(session, block, &part, (&mut past, start == 0), probe)?;
            }
            parts.push(part);
            start += len;
        }
        let mut x = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 2)?;
        drop(parts);
        for block in whole {
            x = self.block(session, block, &x, (&mut Past::default(), true), probe)?;
        }
        Ok(x.slice(1, 0, self.config.latent_channels)?.contiguous()?)
    }
}

impl Module for VideoKl {
    /// The decoder's blocks, then the encoder's.
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F16, DType::F32]
    }
}
