//! Autoencoders: latents to pictures or videos and back. One folder per family, one line in [`FAMILIES`].

mod attention;
mod causal;
pub mod kl;
pub mod ltxv;
pub mod mochi;
pub mod pixels;
pub(crate) mod tiles;
mod video;
pub mod video_kl;
mod volume;
pub mod wan;

use std::fmt;

use checkpoint::Checkpoint;
use residency::Session;
use tensor::{Lane, Tensor};

use crate::detect::{Part, Sign};
use crate::{Module, Result};

pub use tiles::{FrameTiles, Tiling};

/// Every family of autoencoders, in the order in which files are tried.
pub const FAMILIES: &[&AutoencoderFamily] =
    &[&kl::FAMILY, &wan::FAMILY, &video_kl::FAMILY, &ltxv::FAMILY, &mochi::FAMILY, &pixels::FAMILY];

/// What the rest of the program asks of a family before one of its files is read.
pub struct AutoencoderFamily {
    /// Its name in the field.
    pub name: &'static str,
    /// What gives its files away.
    pub signs: &'static [Sign],
    /// Reads the sizes of one of its models.
    pub read: fn(&Checkpoint, &Part) -> Result<Box<dyn Autoencoder>>,
}

/// An autoencoder that was read from a file. Scale and shift between its latents and those of a diffusion model are not
/// its business.
pub trait Autoencoder: Module {
    /// Channels of a latent.
    fn latent_channels(&self) -> usize;

    /// Channels of a picture that it gives.
    fn picture_channels(&self) -> usize;

    /// Pixels along one side of a latent value.
    fn pixels_per_value(&self) -> usize;

    /// Frames of a video behind the first that one frame of a latent stands for; none if it makes pictures.
    fn frames_per_value(&self) -> Option<usize> {
        None
    }

    /// The means and deviations of a latent's channels, of an autoencoder whose layers have latents without them.
    fn channel_statistics(&self, checkpoint: &Checkpoint) -> Option<[Vec<f32>; 2]> {
        let _ = checkpoint;
        None
    }

    /// Whether the pictures of a batch are the frames of one video, which are made together.
    fn pictures_are_frames(&self) -> bool {
        false
    }

    /// Latents `[batch, channels, height, width]`, or with frames before the height, to pictures of values from 0 to 1:
    /// `take` is given them in order, one or more at a time, as `[height, width, channels]` each. A video is made a few
    /// frames at a time, so that its length takes no memory of a device. Whole or in tiles; their size is in latent values.
    fn decode(
        &self,
        session: &Session,
        latent: &Tensor,
        tiling: Option<Tiling>,
        take: &mut TakePictures<'_>,
    ) -> Result<()>;

    /// Pictures to latents `[batch, channels, height, width]`, or as the frames of one video to
    /// `[1, channels, frames, height, width]`, in the same ways.
    fn encode(&self, session: &Session, pictures: &Pictures<'_>, tiling: Option<Tiling>) -> Result<Tensor>;

    /// Decodes one empty picture, as [`Autoencoder::decode`] would.
    fn rehearse_decoding(&self, session: &Session, size: CodedSize) -> Result<()>;

    /// Encodes one empty picture, as [`Autoencoder::encode`] would.
    fn rehearse_encoding(&self, session: &Session, size: CodedSize) -> Result<()>;
}

/// Takes pictures as they are decoded: the values of one or more of them.
pub type TakePictures<'a> = dyn FnMut(&[f32]) -> Result<()> + 'a;

/// Pictures on the host, of values from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct Pictures<'a> {
    /// `[batch, height, width, channels]`.
    pub shape: [usize; 4],
    /// The values, the last axis fastest.
    pub values: &'a [f32],
}

impl Pictures<'_> {
    /// All of them on a device.
    pub(crate) fn on(&self, lane: &Lane) -> Result<Tensor> {
        Ok(lane.tensor(self.shape, self.values)?)
    }

    /// `len` of them from `start`, on a device.
    pub(crate) fn part_on(&self, lane: &Lane, start: usize, len: usize) -> Result<Tensor> {
        let [_, height, width, channels] = self.shape;
        let picture = height * width * channels;
        Ok(lane.tensor([len, height, width, channels], &self.values[start * picture..][..len * picture])?)
    }
}

/// A picture or video that an autoencoder works on, as latents count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodedSize {
    /// Rows of the latent.
    pub height: usize,
    /// Columns of the latent.
    pub width: usize,
    /// Frames of the latent; one for a picture.
    pub frames: usize,
    /// The side of the tiles that it is made in, unless it is made as a whole.
    pub tile: Option<usize>,
}

impl CodedSize {
    /// A picture that is made as a whole.
    #[must_use]
    pub fn whole(height: usize, width: usize) -> CodedSize {
        CodedSize::video(1, height, width)
    }

    /// A video that is made as a whole.
    #[must_use]
    pub fn video(frames: usize, height: usize, width: usize) -> CodedSize {
        CodedSize { height, width, frames, tile: None }
    }

    /// The rows and columns that are computed at once.
    #[must_use]
    pub fn at_once(self) -> (usize, usize) {
        let most = self.tile.unwrap_or(usize::MAX);
        (self.height.min(most), self.width.min(most))
    }

    /// The same in tiles, if it is larger than one and not in smaller ones already.
    #[must_use]
    pub fn in_tiles(self, tile: usize) -> Option<CodedSize> {
        let (height, width) = self.at_once();
        (height > tile || width > tile).then_some(CodedSize { tile: Some(tile), ..self })
    }
}

impl fmt::Debug for AutoencoderFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
