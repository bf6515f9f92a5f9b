//! No autoencoder: the latents of models that paint pixels are pictures, of values from -1 to 1.

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Manifest, Session};
use tensor::Tensor;

use super::{Autoencoder, AutoencoderFamily, CodedSize, Pictures, TakePictures, Tiling};
use crate::claims::Claims;
use crate::detect::{Part, Sign};
use crate::{Error, Module, Result};

/// What loaders call it: there is no file of this name.
pub const NAME: &str = "pixel_space";
/// The only tensor that stands for it.
pub const TENSOR: &str = "pixel_space_vae";
/// Colours of a picture.
const CHANNELS: usize = 3;

/// The family.
pub const FAMILY: AutoencoderFamily = AutoencoderFamily {
    name: "pixels as they are",
    signs: &[Sign::native(TENSOR, |_| Some("pixels".into()))],
    read: |_, part: &Part| Ok(Box::new(Pixels { prefix: part.prefix.clone() })),
};

/// Pictures as latents, and back.
#[derive(Clone, Debug)]
pub struct Pixels {
    prefix: String,
}

impl Autoencoder for Pixels {
    fn latent_channels(&self) -> usize {
        CHANNELS
    }

    fn picture_channels(&self) -> usize {
        CHANNELS
    }

    fn pixels_per_value(&self) -> usize {
        1
    }

    fn decode(
        &self,
        _: &Session,
        latent: &Tensor,
        _: Option<Tiling>,
        take: &mut TakePictures<'_>,
    ) -> Result<()> {
        // Frames are pictures of their own.
        let latent = match *latent.dims() {
            [batch, channels, frames, height, width] => {
                let frames_first = latent.permute(&[0, 2, 1, 3, 4])?.contiguous()?;
                frames_first.reshape([batch * frames, channels, height, width])?
            }
            _ => latent.clone(),
        };
        if latent.rank() != 4 || latent.dim(1) != CHANNELS {
            return Err(Error::Input {
                what: "the latent",
                expected: format!("[batch, {CHANNELS}, height, width]"),
                got: format!("of shape {}", latent.shape()),
            });
        }
        for item in 0..latent.dim(0) {
            let colours = latent.slice(0, item, 1)?.permute(&[0, 2, 3, 1])?.contiguous()?.to_vec()?;
            let shown = colours.into_iter().map(|value| ((value + 1.0) / 2.0).clamp(0.0, 1.0));
            take(&shown.collect::<Vec<f32>>())?;
        }
        Ok(())
    }

    fn encode(&self, session: &Session, pictures: &Pictures<'_>, _: Option<Tiling>) -> Result<Tensor> {
        let [batch, height, width, channels] = pictures.shape;
        if channels < CHANNELS {
            return Err(Error::Input {
                what: "the picture",
                expected: format!("[batch, height, width, {CHANNELS}]"),
                got: format!("of shape {:?}", pictures.shape),
            });
        }
        let plane = height * width;
        let mut values = Vec::with_capacity(batch * CHANNELS * plane);
        for picture in pictures.values.chunks_exact((plane * channels).max(1)) {
            for channel in 0..CHANNELS {
                let colours = picture.iter().skip(channel).step_by(channels);
                values.extend(colours.map(|value| value * 2.0 - 1.0));
            }
        }
        Ok(session.lane()?.tensor([batch, CHANNELS, height, width], &values)?)
    }

    fn rehearse_decoding(&self, session: &Session, size: CodedSize) -> Result<()> {
        session.lane()?.full([1, CHANNELS, size.height, size.width], 0.0)?;
        Ok(())
    }

    fn rehearse_encoding(&self, session: &Session, size: CodedSize) -> Result<()> {
        self.rehearse_decoding(session, size)
    }
}

impl Module for Pixels {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let weights = vec![claims.weight(TENSOR, &[1])?];
        Ok(Manifest::builder(claims.file(), NAME).block(NAME, true, weights).finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::F32]
    }
}
