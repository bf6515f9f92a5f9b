//! Models that listen to sound: one file per family, one line in [`FAMILIES`].

mod mel;
pub mod wav2vec2;
pub mod whisper;

use std::fmt;

use checkpoint::Checkpoint;
use residency::Session;
use tensor::Tensor;

use crate::detect::{Part, Sign};
use crate::{Module, Result};

/// Every family of audio encoders, in the order in which files are tried.
pub const FAMILIES: &[&AudioFamily] = &[&whisper::FAMILY, &wav2vec2::FAMILY];

/// Values of sound per second that all of them listen to.
pub const RATE: u32 = 16_000;

/// What the rest of the program asks of a family before one of its files is read.
pub struct AudioFamily {
    /// Its name in the field.
    pub name: &'static str,
    /// What gives its files away.
    pub signs: &'static [Sign],
    /// Reads the sizes of one of its models.
    pub read: fn(&Checkpoint, &Part) -> Result<Box<dyn AudioEncoder>>,
}

/// An audio encoder that was read from a file.
pub trait AudioEncoder: Module {
    /// What it hears in a sound of one channel at [`RATE`]: what goes into each of its layers and what comes out of the
    /// last, each `[1, moments, width]`. There are as many moments as the family has for the length of the sound.
    fn listen(&self, session: &Session, sound: &[f32]) -> Result<Vec<Tensor>>;

    /// Listens to silence, as its nodes would to a sound of a usual length.
    fn rehearse(&self, session: &Session) -> Result<()>;
}

impl fmt::Debug for AudioFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
