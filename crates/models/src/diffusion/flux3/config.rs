//! The sizes of a FLUX.3 model, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::heads::HeadSizes;

/// What errors call the family.
pub(super) const FAMILY: &str = "FLUX.3";
/// The base of the rotary frequencies.
pub(super) const THETA: f64 = 10_000.0;
/// Axes of positions: time, row, column, and the index of tokens of text and of pictures to look at.
pub(super) const AXES: usize = 4;

/// The sizes of a FLUX.3 model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
    /// Channels of pictures to look at.
    pub looked_at_channels: usize,
    /// Values per token.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Values per head.
    pub head_size: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Width of the text's tokens.
    pub context_width: usize,
    /// Blocks of each kind of tokens by itself.
    pub mode_blocks: usize,
    /// Blocks over all tokens.
    pub joint_blocks: usize,
    /// Whether it jumps: it is told the time at which a step lands.
    pub jumps: bool,
}

/// A kind of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Text,
    Image,
    /// Pictures to look at.
    LookedAt,
}

impl Mode {
    pub(super) const ALL: [Mode; 3] = [Mode::Text, Mode::Image, Mode::LookedAt];

    /// What its modulations are called.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Text => "txt",
            Mode::Image => "image",
            Mode::LookedAt => "image_cond",
        }
    }

    /// What its blocks are called.
    fn blocks(self) -> &'static str {
        match self {
            Mode::Text => "txt_mode_blocks",
            Mode::Image => "content_mode_blocks.image",
            Mode::LookedAt => "content_mode_blocks.image_cond",
        }
    }
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, channels] = claims.dims("emb_in.image.weight")?;
        let [_, looked_at_channels] = claims.dims("emb_in.image_cond.weight")?;
        let [_, context_width] = claims.dims("txt_in.weight")?;
        let norm = "single_blocks.0.norm.query_norm.scale";
        let [head_size] = claims.dims(norm)?;
        let [_, mlp] = claims.dims("single_blocks.0.mlp_out.weight")?;
        if head_size % (2 * AXES) != 0 || hidden % head_size != 0 {
            let expected = format!("a divisor of {hidden} and a multiple of {}", 2 * AXES);
            return Err(claims.misfit(norm, expected));
        }
        Ok(Config {
            channels,
            looked_at_channels,
            hidden,
            heads: hidden / head_size,
            head_size,
            mlp,
            context_width,
            mode_blocks: claims.count(|i| format!("{}.{i}.q_proj.weight", Mode::Image.blocks())),
            joint_blocks: claims.count(|i| format!("single_blocks.{i}.q_proj.weight")),
            jumps: claims.find("ref_time_in.in_layer.weight").is_some(),
        })
    }

    pub(super) fn head_sizes(&self) -> HeadSizes {
        HeadSizes::equal(self.heads, self.head_size)
    }

    /// The kind of tokens that a block of the manifest is for, all without one, and its name.
    pub(super) fn block(&self, block: usize) -> (Option<Mode>, String) {
        let index = block - 1;
        match Mode::ALL.get(index / self.mode_blocks.max(1)).filter(|_| self.mode_blocks > 0) {
            Some(mode) => (Some(*mode), format!("{}.{}", mode.blocks(), index % self.mode_blocks)),
            None => (None, format!("single_blocks.{}", index - self.first_joint())),
        }
    }

    /// How many blocks come before those over all tokens.
    pub(super) fn first_joint(&self) -> usize {
        Mode::ALL.len() * self.mode_blocks
    }

    /// All blocks between the first and the last of the manifest.
    pub(super) fn blocks(&self) -> usize {
        self.first_joint() + self.joint_blocks
    }
}
