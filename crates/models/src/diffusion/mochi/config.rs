//! The sizes of a Mochi model, read from the shapes of its tensors, and the angles that it has learned.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::patches::PATCH;

/// What errors call the family.
pub(super) const FAMILY: &str = "Mochi";
/// Heads of the attention that makes one vector of a text.
pub(super) const POOL_HEADS: usize = 8;

/// The sizes of a Mochi model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
    /// Values per token of the video.
    pub hidden: usize,
    /// Values per token of the text.
    pub text_hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Inner widths of the feed-forward layers of the video and of the text.
    pub mlp: [usize; 2],
    /// Width of the text's tokens as they come in.
    pub context_width: usize,
    /// Blocks.
    pub blocks: usize,
    /// How fast each pair of values of each head turns with the frame, the row and the column.
    pub frequencies: [Vec<f32>; 3],
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, channels, _, _] = claims.dims("x_embedder.proj.weight")?;
        let [text_hidden, context_width] = claims.dims("t5_yproj.weight")?;
        let [axes, heads, pairs] = claims.dims("pos_frequencies")?;
        let blocks = claims.count(|i| format!("blocks.{i}.attn.qkv_x.weight"));
        let [_, mlp] = claims.dims("blocks.0.mlp_x.w2.weight")?;
        // The last block leaves the text as it is, so one of a single block has no such layer.
        let text_mlp = match claims.find("blocks.0.mlp_y.w2.weight") {
            None => 0,
            Some(_) => claims.dims::<2>("blocks.0.mlp_y.w2.weight")?[1],
        };
        let learned = claims.values("pos_frequencies").unwrap_or_default();
        if axes != 3 || 2 * heads * pairs != hidden || learned.len() != axes * heads * pairs {
            let expected = format!("[3, heads, half of a head] for {hidden} values, as plain numbers");
            return Err(claims.misfit("pos_frequencies", expected));
        }
        if context_width % POOL_HEADS != 0 {
            return Err(
                claims.misfit("t5_yproj.weight", format!("[{text_hidden}, a multiple of {POOL_HEADS}]"))
            );
        }
        let axis = |axis: usize| learned[axis * heads * pairs..][..heads * pairs].to_vec();
        Ok(Config {
            channels,
            hidden,
            text_hidden,
            heads,
            mlp: [mlp, text_mlp],
            context_width,
            blocks,
            frequencies: [axis(0), axis(1), axis(2)],
        })
    }

    /// Values per head.
    pub(super) fn head(&self) -> usize {
        self.hidden / self.heads
    }

    /// Values of a patch.
    pub(super) fn patch(&self) -> usize {
        self.channels * PATCH * PATCH
    }
}
