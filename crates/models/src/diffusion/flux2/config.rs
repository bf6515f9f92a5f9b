//! The sizes of a FLUX.2 model, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::BlockGroup;
use crate::diffusion::heads::HeadSizes;
use crate::diffusion::streams::StreamSizes;

/// What errors call the family.
pub(super) const FAMILY: &str = "FLUX.2";
/// The base of the rotary frequencies.
pub(super) const THETA: f64 = 2000.0;

/// The sizes of a FLUX.2 model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
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
    /// Blocks that keep image and text apart.
    pub double_blocks: usize,
    /// Blocks over both.
    pub single_blocks: usize,
    /// Whether it takes a guidance.
    pub guidance: bool,
    /// Values of a head that turn with the index of the image, the row, the column, and the token of the text.
    pub axes: [usize; 4],
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, channels] = claims.dims("img_in.weight")?;
        let [_, context_width] = claims.dims("txt_in.weight")?;
        let norm = "double_blocks.0.img_attn.norm.query_norm.scale";
        let [head_size] = claims.dims(norm)?;
        let [_, mlp] = claims.dims("double_blocks.0.img_mlp.2.weight")?;
        if (head_size % 8 != 0 || hidden % head_size != 0)
            && let Some(entry) = claims.find(norm)
        {
            return Err(claims.wrong_shape(entry, format!("a divisor of {hidden} and a multiple of 8")));
        }
        Ok(Config {
            channels,
            hidden,
            heads: hidden / head_size,
            head_size,
            mlp,
            context_width,
            double_blocks: claims.count(|i| format!("double_blocks.{i}.img_attn.qkv.weight")),
            single_blocks: claims.count(|i| format!("single_blocks.{i}.linear1.weight")),
            guidance: claims.find("guidance_in.in_layer.weight").is_some(),
            axes: [head_size / 4; 4],
        })
    }

    pub(super) fn sizes(&self) -> StreamSizes {
        let heads = HeadSizes::equal(self.heads, self.head_size);
        StreamSizes { heads, mlp: self.mlp, is_gated: true }
    }

    /// The kind of a block of the manifest, and its number among its kind.
    pub(super) fn kind_of(&self, block: usize) -> (BlockGroup, usize) {
        match (block - 1).checked_sub(self.double_blocks) {
            None => (BlockGroup::Double, block - 1),
            Some(index) => (BlockGroup::Single, index),
        }
    }
}
