//! The sizes of an LTX-Video model, read from the shapes of its tensors and from what its file says.

use checkpoint::Metadata;

use crate::Result;
use crate::claims::Claims;
use crate::file_config;

/// What errors call the family.
pub(super) const FAMILY: &str = "LTX-Video";
/// Heads of attention, unless a file says otherwise.
const HEADS: usize = 32;

/// The sizes of an LTX-Video model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
    /// Values per token.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Width of the text's tokens.
    pub context_width: usize,
    /// Blocks.
    pub blocks: usize,
    /// Whether positions know that the first frame of a latent stands for one of the video, and not for eight.
    pub has_causal_times: bool,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>, metadata: &Metadata) -> Result<Config> {
        let [hidden, channels] = claims.dims("patchify_proj.weight")?;
        let [_, context_width] = claims.dims("caption_projection.linear_1.weight")?;
        let [mlp, _] = claims.dims("transformer_blocks.0.ff.net.0.proj.weight")?;
        let said = file_config::of_part(metadata, "transformer").unwrap_or_default();
        let heads = said["num_attention_heads"].as_u64().and_then(|heads| usize::try_from(heads).ok());
        let heads = heads.unwrap_or(HEADS);
        if heads == 0 || hidden % heads != 0 || !(hidden / heads).is_multiple_of(2) {
            let expected = format!("[{heads} heads of an even size, {channels}]");
            return Err(claims.misfit("patchify_proj.weight", expected));
        }
        Ok(Config {
            channels,
            hidden,
            heads,
            mlp,
            context_width,
            blocks: claims.count(|i| format!("transformer_blocks.{i}.attn1.to_q.weight")),
            has_causal_times: said["causal_temporal_positioning"].as_bool().unwrap_or(false),
        })
    }

    /// Values per head.
    pub(super) fn head(&self) -> usize {
        self.hidden / self.heads
    }
}
