//! Models that look at pictures: one folder per family, one line in [`FAMILIES`].

pub mod clip_vision;
pub mod florence2;
mod patches;
pub mod qwen3_tower;
pub mod qwen_tower;
pub mod redux;
pub mod uso;

use std::any::Any;
use std::fmt;

use checkpoint::Checkpoint;
use residency::Session;
use tensor::Tensor;

use crate::detect::{Part, Sign};
use crate::{Module, Result};

/// Every family of vision models, in the order in which files are tried.
pub const FAMILIES: &[&VisionFamily] = &[
    &clip_vision::FAMILY,
    &florence2::FAMILY,
    &redux::FAMILY,
    &uso::FAMILY,
    &qwen_tower::FAMILY,
    &qwen3_tower::FAMILY,
];

/// Those that stand beside a language model, in its file.
pub const TOWERS: &[&VisionFamily] = &[&qwen_tower::FAMILY, &qwen3_tower::FAMILY];

/// What the rest of the program asks of a family before one of its files is read.
pub struct VisionFamily {
    /// Its name in the field.
    pub name: &'static str,
    /// What gives its files away.
    pub signs: &'static [Sign],
    /// Reads the sizes of one of its models, and what lies beside the file.
    pub read: fn(&Checkpoint, &Part) -> Result<Box<dyn VisionModel>>,
}

/// A vision model that was read from a file.
pub trait VisionModel: Module {
    /// Looks at one empty picture, as its nodes would.
    fn rehearse(&self, session: &Session) -> Result<()>;

    /// Itself, for the nodes of its family.
    fn as_any(&self) -> &dyn Any;

    /// Itself as a tower that a language model reads pictures by, if it is one.
    fn tower(&self) -> Option<&dyn LanguageTower> {
        None
    }
}

/// A tower by which a language model reads pictures among words.
pub trait LanguageTower {
    /// The size that a picture of this height and width is scaled to before it is looked at.
    fn fitting_size(&self, size: [usize; 2]) -> [usize; 2];

    /// Looks at a picture of three channels, values 0 to 1, whose height and width fit.
    fn look(&self, session: &Session, size: [usize; 2], pixels: &[f32]) -> Result<Seen>;
}

/// A picture as a tower sees it.
pub struct Seen {
    /// One vector for each token, `[tokens, width]`.
    pub tokens: Tensor,
    /// What is added to the tokens behind each of the first layers of the language model, each `[tokens, width]`.
    pub deep: Vec<Tensor>,
    /// Rows and columns of tokens.
    pub grid: [usize; 2],
}

impl fmt::Debug for VisionFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
