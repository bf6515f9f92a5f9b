//! The sizes of a Qwen-Image model, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::heads::HeadSizes;
use crate::diffusion::patches::PATCH;

/// What errors call the family.
pub(super) const FAMILY: &str = "Qwen-Image";
/// The base of the rotary frequencies.
pub(super) const THETA: f64 = 10_000.0;

/// The sizes of a Qwen-Image model.
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
    /// Blocks.
    pub blocks: usize,
    /// Whether pictures to look at are read as at the end of time (Edit 2511).
    pub has_timeless_references: bool,
    /// Whether it makes a picture's layers.
    pub is_layered: bool,
    /// Values of a head that turn with the index of the image, the row and the column.
    pub axes: [usize; 3],
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, columns] = claims.dims("img_in.weight")?;
        let [context_width] = claims.dims("txt_norm.weight")?;
        let [head_size] = claims.dims("transformer_blocks.0.attn.norm_q.weight")?;
        let [mlp, _] = claims.dims("transformer_blocks.0.img_mlp.net.0.proj.weight")?;
        let wrong = |name: &str, expected: String| {
            claims.find(name).map_or(Ok(()), |entry| Err(claims.wrong_shape(entry, expected)))
        };
        if head_size % 16 != 0 || hidden % head_size != 0 {
            let expected = format!("a divisor of {hidden} and a multiple of 16");
            wrong("transformer_blocks.0.attn.norm_q.weight", expected)?;
        }
        if columns % (PATCH * PATCH) != 0 {
            wrong("img_in.weight", format!("[{hidden}, a multiple of {}]", PATCH * PATCH))?;
        }
        let index = head_size / 8;
        let plane = (head_size - index) / 2;
        Ok(Config {
            channels: columns / (PATCH * PATCH),
            hidden,
            heads: hidden / head_size,
            head_size,
            mlp,
            context_width,
            blocks: claims.count(|i| format!("transformer_blocks.{i}.attn.to_q.weight")),
            has_timeless_references: claims.find("__index_timestep_zero__").is_some(),
            is_layered: claims.find("time_text_embed.addition_t_embedding.weight").is_some(),
            axes: [index, plane, plane],
        })
    }

    pub(super) fn head_sizes(&self) -> HeadSizes {
        HeadSizes::equal(self.heads, self.head_size)
    }
}
