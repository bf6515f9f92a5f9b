//! Upscalers: pictures made larger, or better at their size. One folder per family, one line in [`FAMILIES`].

pub mod compact;
pub mod dat;
pub mod esrgan;
mod exit;
mod layers;
mod picture;
pub mod swinir;
mod windows;

use std::fmt;

use checkpoint::Checkpoint;
use residency::Session;
use tensor::Tensor;

use crate::detect::{Part, Sign};
use crate::rehearsal::{arrived, read_back};
use crate::vae::Tiling;
use crate::{Module, Result};

pub use picture::{Pixels, enlarge, tiles};

/// Every family of upscalers, in the order in which files are tried.
pub const FAMILIES: &[&UpscalerFamily] = &[&esrgan::FAMILY, &compact::FAMILY, &swinir::FAMILY, &dat::FAMILY];

/// The tiles that pictures are enlarged in, in pixels of what goes in.
pub const USUAL_TILES: Tiling = Tiling::square(512, 32);

/// What the rest of the program asks of a family before one of its files is read.
pub struct UpscalerFamily {
    /// Its name in the field.
    pub name: &'static str,
    /// What gives its files away.
    pub signs: &'static [Sign],
    /// Reads the sizes of one of its models.
    pub read: fn(&Checkpoint, &Part) -> Result<Box<dyn Upscaler>>,
}

/// An upscaler that was read from a file.
pub trait Upscaler: Module {
    /// By how much each side grows; 1 for models that restore.
    fn scale(&self) -> usize;

    /// Channels of a picture that it takes, and of one that it gives.
    fn channels(&self) -> [usize; 2];

    /// The sizes that it takes.
    fn sides(&self) -> Sides;

    /// One picture `[1, channels, height, width]` of values from 0 to 1, with sides that it takes, enlarged. What comes out
    /// may leave the range a little.
    fn upscale(&self, session: &Session, pixels: &Tensor) -> Result<Tensor>;
}

/// The sides of pictures that a network takes; others are filled up by what is mirrored at the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides {
    /// The least.
    pub least: usize,
    /// What they are multiples of.
    pub multiple: usize,
}

/// Enlarges one empty tile of so many rows and columns.
pub fn rehearse(upscaler: &dyn Upscaler, session: &Session, (height, width): (usize, usize)) -> Result<()> {
    let [channels, _] = upscaler.channels();
    let tile = arrived(session.lane()?, [1, height, width, channels])?;
    read_back(&picture::tile(upscaler, session, &tile)?)
}

impl fmt::Debug for UpscalerFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
