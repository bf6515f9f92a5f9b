//! The sizes of a Stable Diffusion 3 model, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::heads::HeadSizes;
use crate::diffusion::patches::PATCH;

/// What errors call the family.
pub(super) const FAMILY: &str = "Stable Diffusion 3";
/// Values per head in every model of the family.
pub(super) const HEAD: usize = 64;

/// The sizes of a Stable Diffusion 3 model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
    /// Values per token.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Width of the text's tokens.
    pub context_width: usize,
    /// Width of the pooled text.
    pub pooled_width: usize,
    /// Blocks.
    pub blocks: usize,
    /// Blocks from the first on that have a second attention over the image.
    pub dual_blocks: usize,
    /// Whether queries and keys are normalised.
    pub normed_heads: bool,
    /// Rows and columns of the table of positions.
    pub positions_side: usize,
    /// Whether the text ends before the last block, which then reads it and does not change it.
    pub ends_text: bool,
}

impl Config {
    pub(super) fn head_sizes(&self) -> HeadSizes {
        HeadSizes::equal(self.heads, HEAD)
    }

    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [rows, _] = claims.dims("final_layer.linear.weight")?;
        let config = Config::without_end(claims)?;
        if rows % (PATCH * PATCH) != 0
            && let Some(entry) = claims.find("final_layer.linear.weight")
        {
            let expected = format!("[a multiple of {}, {}]", PATCH * PATCH, config.hidden);
            return Err(claims.wrong_shape(entry, expected));
        }
        Ok(Config { out_channels: rows / (PATCH * PATCH), ends_text: true, ..config })
    }

    /// The sizes of a model that ends with its blocks, whose result counts as having the channels of the latent.
    pub(super) fn without_end(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, channels, height, width] = claims.dims("x_embedder.proj.weight")?;
        let [_, context_width] = claims.dims("context_embedder.weight")?;
        let [_, pooled_width] = claims.dims("y_embedder.mlp.0.weight")?;
        let [mlp, _] = claims.dims("joint_blocks.0.x_block.mlp.fc1.weight")?;
        let [_, positions, _] = claims.dims("pos_embed")?;
        let wrong = |name: &str, expected: String| {
            claims.find(name).map_or(Ok(()), |entry| Err(claims.wrong_shape(entry, expected)))
        };
        if (height, width) != (PATCH, PATCH) || hidden % HEAD != 0 {
            wrong("x_embedder.proj.weight", format!("[a multiple of {HEAD}, channels, {PATCH}, {PATCH}]"))?;
        }
        let positions_side = positions.isqrt();
        if positions_side * positions_side != positions {
            wrong("pos_embed", format!("[1, a square number, {hidden}]"))?;
        }
        Ok(Config {
            channels,
            out_channels: channels,
            hidden,
            heads: hidden / HEAD,
            mlp,
            context_width,
            pooled_width,
            blocks: claims.count(|i| format!("joint_blocks.{i}.x_block.attn.qkv.weight")),
            dual_blocks: claims.count(|i| format!("joint_blocks.{i}.x_block.attn2.qkv.weight")),
            normed_heads: claims.find("joint_blocks.0.x_block.attn.ln_q.weight").is_some(),
            positions_side,
            ends_text: false,
        })
    }

    /// Whether the text is not changed any more from a block on.
    pub(super) fn ends_text_at(&self, block: usize) -> bool {
        self.ends_text && block + 1 == self.blocks
    }
}
