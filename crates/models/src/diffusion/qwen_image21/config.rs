//! The sizes of a Qwen-Image 2.1 model, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::heads::HeadSizes;

/// What errors call the family.
pub(super) const FAMILY: &str = "Qwen-Image 2.1";
/// The base of the rotary frequencies.
pub(super) const THETA: f64 = 10_000.0;

/// The sizes of a Qwen-Image 2.1 model.
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
    /// Values of a head that turn with the place in the sequence, the row and the column.
    pub axes: [usize; 3],
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, channels] = claims.dims("img_in.weight")?;
        let [context_width] = claims.dims("txt_in.text_norm.weight")?;
        let norm = "transformer_blocks.0.attn.norm_q.weight";
        let [head_size] = claims.dims(norm)?;
        let [_, mlp] = claims.dims("transformer_blocks.0.img_mlp.out.weight")?;
        if head_size % 16 != 0 || hidden % head_size != 0 {
            return Err(claims.misfit(norm, format!("a divisor of {hidden} and a multiple of 16")));
        }
        let index = head_size / 8;
        let plane = (head_size - index) / 2;
        Ok(Config {
            channels,
            hidden,
            heads: hidden / head_size,
            head_size,
            mlp,
            context_width,
            blocks: claims.count(|i| format!("transformer_blocks.{i}.attn.to_q.weight")),
            axes: [index, plane, plane],
        })
    }

    pub(super) fn head_sizes(&self) -> HeadSizes {
        HeadSizes::equal(self.heads, self.head_size)
    }
}

/// The tensors of a part of a file, whether the two inputs of a feed-forward layer are one in it or two.
pub(super) fn claims<'a>(checkpoint: &'a checkpoint::Checkpoint, prefix: &'a str) -> Claims<'a> {
    let claims = Claims::new(checkpoint, prefix, FAMILY);
    if claims.find("transformer_blocks.0.img_mlp.gate_up.weight").is_some() {
        return claims;
    }
    claims.named_by(|name| match name.strip_suffix("img_mlp.gate_up.weight") {
        Some(block) => ["gate_layer", "proj"].map(|part| format!("{block}img_mlp.{part}.weight")).into(),
        None => vec![name.to_owned()],
    })
}
