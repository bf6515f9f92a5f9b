//! Models that look at pictures: one folder per family, one line in [`FAMILIES`].

pub mod clip_vision;
pub mod florence2;
pub mod qwen_tower;
pub mod redux;

use std::any::Any;
use std::fmt;

use checkpoint::Checkpoint;
use residency::Session;

use crate::detect::{Part, Sign};
use crate::{Module, Result};

/// Every family of vision models, in the order in which files are tried.
pub const FAMILIES: &[&VisionFamily] =
    &[&clip_vision::FAMILY, &florence2::FAMILY, &redux::FAMILY, &qwen_tower::FAMILY];

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
}

impl fmt::Debug for VisionFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
