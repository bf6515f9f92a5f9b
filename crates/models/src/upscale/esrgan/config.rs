//! The sizes of an ESRGAN, and what its files call their layers.

use crate::Result;
use crate::claims::Claims;

/// What errors call the family.
pub(super) const NAME: &str = "ESRGAN";

/// The most doublings of the size that make sense.
const MAX_DOUBLINGS: usize = 4;

/// The sizes of an ESRGAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What the file calls its layers.
    pub names: Names,
    /// Channels of what goes into the first convolution.
    pub in_channels: usize,
    /// Channels of a picture that comes out.
    pub out_channels: usize,
    /// Channels between.
    pub width: usize,
    /// Channels that each convolution of a dense block adds.
    pub growth: usize,
    /// Blocks of three dense blocks.
    pub blocks: usize,
    /// Doublings of the size.
    pub doublings: usize,
    /// The side of the squares of pixels that become one before the first convolution.
    pub unshuffle: usize,
    /// Whether dense blocks have residuals of their own (ESRGAN+).
    pub is_plus: bool,
}

/// How layers are called: by their place in one sequence, or by what they do, in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// `model.1.sub.0.RDB1.conv1.0`: the first files.
    Sequence,
    /// `RRDB_trunk.0.RDB1.conv1`: BSRGAN and RealSR.
    Trunk,
    /// `body.0.rdb1.conv1`: RealESRGAN.
    Body,
}

impl Names {
    pub(super) fn first(self) -> String {
        match self {
            Names::Sequence => "model.0".into(),
            Names::Trunk | Names::Body => "conv_first".into(),
        }
    }

    /// A convolution of a dense block, the first being 1.
    pub(super) fn dense(self, block: usize, dense: usize, step: usize) -> String {
        let dense = dense + 1;
        match self {
            Names::Sequence => format!("model.1.sub.{block}.RDB{dense}.conv{step}.0"),
            Names::Trunk => format!("RRDB_trunk.{block}.RDB{dense}.conv{step}"),
            Names::Body => format!("body.{block}.rdb{dense}.conv{step}"),
        }
    }

    /// The product around the second convolution of a dense block.
    pub(super) fn around(self, block: usize, dense: usize) -> String {
        let dense = dense + 1;
        match self {
            Names::Sequence => format!("model.1.sub.{block}.RDB{dense}.conv1x1"),
            Names::Trunk => format!("RRDB_trunk.{block}.RDB{dense}.conv1x1"),
            Names::Body => format!("body.{block}.rdb{dense}.conv1x1"),
        }
    }

    /// What stands behind all blocks.
    pub(super) fn trunk(self, blocks: usize) -> String {
        match self {
            Names::Sequence => format!("model.1.sub.{blocks}"),
            Names::Trunk => "trunk_conv".into(),
            Names::Body => "conv_body".into(),
        }
    }

    /// What stands behind a doubling, the first being 0.
    pub(super) fn up(self, doubling: usize) -> String {
        match self {
            Names::Sequence => format!("model.{}", 3 * (doubling + 1)),
            Names::Trunk => format!("upconv{}", doubling + 1),
            Names::Body => format!("conv_up{}", doubling + 1),
        }
    }

    /// The first convolution at full size.
    pub(super) fn large(self, doublings: usize) -> String {
        match self {
            Names::Sequence => format!("model.{}", 3 * doublings + 2),
            Names::Trunk => "HRconv".into(),
            Names::Body => "conv_hr".into(),
        }
    }

    pub(super) fn last(self, doublings: usize) -> String {
        match self {
            Names::Sequence => format!("model.{}", 3 * doublings + 4),
            Names::Trunk | Names::Body => "conv_last".into(),
        }
    }
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let has = |name: &str| claims.find(&format!("{name}.weight")).is_some();
        let names = [Names::Sequence, Names::Trunk, Names::Body];
        let names = names.into_iter().find(|names| has(&names.dense(0, 0, 1))).unwrap_or(Names::Body);
        let [width, in_channels, _, _] = claims.dims(&format!("{}.weight", names.first()))?;
        let [growth, _, _, _] = claims.dims(&format!("{}.weight", names.dense(0, 0, 1)))?;
        let blocks = claims.count(|block| format!("{}.weight", names.dense(block, 0, 1)));
        // In a sequence, what stands behind the last doubling has a place that no doubling has.
        let doublings = (0..=MAX_DOUBLINGS).find(|at| !has(&names.up(*at))).unwrap_or(MAX_DOUBLINGS);
        let last = format!("{}.weight", names.last(doublings));
        let [out_channels, _, _, _] = claims.dims(&last)?;
        let unshuffle = match in_channels / out_channels {
            4 if in_channels == 4 * out_channels => 2,
            16 if in_channels == 16 * out_channels => 4,
            _ => 1,
        };
        let is_plus = has(&names.around(0, 0));
        let config =
            Config { names, in_channels, out_channels, width, growth, blocks, doublings, unshuffle, is_plus };
        if config.scale() == 0 {
            return Err(claims.misfit(&last, "more doublings of the size than it is halved before".into()));
        }
        Ok(config)
    }

    /// By how much the sides of a picture grow.
    pub(super) fn scale(&self) -> usize {
        (1 << self.doublings) / self.unshuffle
    }
}
