//! How an evaluation departs from the model as it was trained: what guidance nodes ask of the inside of a model.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use tensor::{ResizeMode, Tensor};

/// One departure. A family that does not know one says so before it runs ([`super::Diffusion::knows`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Alteration {
    /// A block is passed over: what comes in goes out.
    SkipBlock {
        /// The kind of block.
        group: BlockGroup,
        /// Its number among its kind.
        index: usize,
    },
    /// In the middle of a UNet every token attends to itself alone.
    OwnValues,
    /// The weights of the first attention in the middle of a UNet are kept.
    RecordAttention(Recording),
    /// Of what a UNet's output blocks get, some is made stronger, and the slow part of what skips the middle weaker.
    FreeU(FreeU),
    /// A UNet computes at a smaller size between an input block and the output block that belongs to it.
    Shrink(Shrink),
    /// A model that paints pixels paints so many of its patches at once; all of them with zero. It changes what is held
    /// meanwhile, not what is painted.
    PatchesAtOnce(usize),
    /// Tokens stand elsewhere than they were counted.
    Placed(Placed),
    /// Pictures to look at are read as at the end of time, and their keys and values are those of the first step. So are
    /// those of all else that does not change within a run.
    KeepReferences,
}

/// Where tokens stand: their numbers along frames, rows and columns are scaled, then shifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// What the numbers are multiplied with.
    pub scale: [Amount; 3],
    /// What is added to them.
    pub shift: [Amount; 3],
}

impl Placed {
    /// As they were counted.
    pub const COUNTED: Placed = Placed { scale: [Amount(1.0); 3], shift: [Amount(0.0); 3] };

    /// What the last of these alterations says.
    pub(super) fn of(altered: &[Alteration]) -> Option<Placed> {
        altered.iter().rev().find_map(|alteration| match alteration {
            Alteration::Placed(placed) => Some(*placed),
            _ => None,
        })
    }

    /// The number of a place along an axis.
    pub(super) fn at(&self, axis: usize, place: usize) -> f64 {
        f64::from(self.shift[axis].0) + f64::from(self.scale[axis].0) * place as f64
    }
}

/// Blocks of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockGroup {
    /// Blocks of a transformer that keep image and text apart, or its only kind.
    Double,
    /// Blocks of a transformer in which image and text are one.
    Single,
}

/// A number of an alteration. Two are the same if their bits are.
#[derive(Clone, Copy, Debug)]
pub struct Amount(pub f32);

/// The numbers of FreeU, for blocks of four and of two times the model's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FreeU {
    /// Factors on the first half of the channels that come from below.
    pub backbone: [Amount; 2],
    /// Factors on the slow part of what comes from the input blocks.
    pub skip: [Amount; 2],
    /// Whether the first factors follow the mean over the channels (the second version).
    pub by_mean: bool,
}

/// Where a UNet shrinks, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shrink {
    /// The number of the input block.
    pub block: usize,
    /// How many times smaller.
    pub factor: Amount,
    /// Whether what skips the middle is taken before it shrinks.
    pub after_skip: bool,
    /// How it is made smaller.
    pub down: ResizeMode,
    /// How it is made larger again.
    pub up: ResizeMode,
}

/// A place that an evaluation leaves its attention at, `[batch, heads, queries, keys]`. All recordings are alike for plans
/// and batches: what matters is that one is made.
#[derive(Clone, Debug, Default)]
pub struct Recording(Arc<Mutex<Option<Tensor>>>);

impl Recording {
    /// Leaves the attention there.
    pub fn put(&self, attention: Tensor) {
        // A tensor is put in whole, so what another thread left is good.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(attention);
    }

    /// Takes the attention that was left, if an evaluation did.
    #[must_use]
    pub fn take(&self) -> Option<Tensor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl PartialEq for Recording {
    fn eq(&self, _: &Recording) -> bool {
        true
    }
}

impl Eq for Recording {}

impl Hash for Recording {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialEq for Amount {
    fn eq(&self, other: &Amount) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Amount {}

impl Hash for Amount {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl fmt::Display for Alteration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Alteration::SkipBlock { group: BlockGroup::Double, .. } => "skipped double blocks",
            Alteration::SkipBlock { group: BlockGroup::Single, .. } => "skipped single blocks",
            Alteration::OwnValues => "perturbed attention",
            Alteration::RecordAttention(_) => "a record of its attention",
            Alteration::FreeU(_) => "FreeU",
            Alteration::Shrink(_) => "blocks at a smaller size",
            Alteration::PatchesAtOnce(_) => "how many patches are painted at once",
            Alteration::Placed(_) => "other positions",
            Alteration::KeepReferences => "kept keys and values",
        })
    }
}

/// The blocks that an evaluation passes over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SkippedBlocks(Vec<(BlockGroup, usize)>);

impl SkippedBlocks {
    pub(super) fn of(altered: &[Alteration]) -> SkippedBlocks {
        let skipped = altered.iter().filter_map(|alteration| match alteration {
            Alteration::SkipBlock { group, index } => Some((*group, *index)),
            _ => None,
        });
        SkippedBlocks(skipped.collect())
    }

    /// Whether a block is passed over.
    pub(super) fn has(&self, group: BlockGroup, index: usize) -> bool {
        self.0.contains(&(group, index))
    }
}
