//! The sizes of a Kandinsky 5 model, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::patches::PATCH;

/// What errors call the family.
pub(super) const FAMILY: &str = "Kandinsky 5";
/// Values per token of the model that makes pictures, which are counted as they lie.
const PICTURE_HIDDEN: usize = 2560;
/// Values per token of the large model, whose positions are closer still in large videos.
const LARGE_HIDDEN: usize = 4096;
/// From how many values of a frame a video is large.
const LARGE_FRAME: usize = 14_080;

/// The sizes of a Kandinsky 5 model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
    /// Channels that the model is shown: those of the latent, and of a video those of a picture and a mask.
    pub in_channels: usize,
    /// Values per token.
    pub hidden: usize,
    /// Values of the time.
    pub time: usize,
    /// Values per head of attention.
    pub head: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Width of the text's tokens as they come in.
    pub context_width: usize,
    /// Width of the pooled text.
    pub pooled_width: usize,
    /// Blocks that refine the text.
    pub text_blocks: usize,
    /// Blocks.
    pub blocks: usize,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, patch] = claims.dims("visual_embeddings.in_layer.weight")?;
        let [out, _] = claims.dims("out_layer.out_layer.weight")?;
        let [time, _] = claims.dims("time_embeddings.in_layer.weight")?;
        let [_, context_width] = claims.dims("text_embeddings.in_layer.weight")?;
        let [_, pooled_width] = claims.dims("pooled_text_embeddings.in_layer.weight")?;
        let [head] = claims.dims("visual_transformer_blocks.0.self_attention.query_norm.weight")?;
        let [mlp, _] = claims.dims("visual_transformer_blocks.0.feed_forward.in_layer.weight")?;
        let (channels, in_channels) = (out / (PATCH * PATCH), patch / (PATCH * PATCH));
        if !out.is_multiple_of(PATCH * PATCH) || out == 0 {
            let expected = format!("[a multiple of {}, {hidden}]", PATCH * PATCH);
            return Err(claims.misfit("out_layer.out_layer.weight", expected));
        }
        let knows = [channels, 2 * channels + 1];
        if !patch.is_multiple_of(PATCH * PATCH) || !knows.contains(&in_channels) {
            let [alone, beside] = knows.map(|channels| channels * PATCH * PATCH);
            let expected = format!("[{hidden}, {alone} or {beside}]");
            return Err(claims.misfit("visual_embeddings.in_layer.weight", expected));
        }
        if head == 0 || !head.is_multiple_of(16) || !hidden.is_multiple_of(head) || !hidden.is_multiple_of(2)
        {
            let expected = format!("[a multiple of 16 that divides {hidden}]");
            return Err(
                claims.misfit("visual_transformer_blocks.0.self_attention.query_norm.weight", expected)
            );
        }
        Ok(Config {
            channels,
            in_channels,
            hidden,
            time,
            head,
            mlp,
            context_width,
            pooled_width,
            text_blocks: claims
                .count(|i| format!("text_transformer_blocks.{i}.self_attention.query_norm.weight")),
            blocks: claims
                .count(|i| format!("visual_transformer_blocks.{i}.self_attention.query_norm.weight")),
        })
    }

    /// Whether it makes videos; the other model makes pictures.
    pub fn makes_videos(&self) -> bool {
        self.in_channels > self.channels
    }

    /// Heads of attention.
    pub(super) fn heads(&self) -> usize {
        self.hidden / self.head
    }

    /// Values of a head that turn with the frame, the row and the column.
    pub(super) fn axes(&self) -> [usize; 3] {
        [self.head / 4, self.head / 8 * 3, self.head / 8 * 3]
    }

    /// How much closer rows and columns of a frame of this height and width stand than frames.
    pub(super) fn closer(&self, [height, width]: [usize; 2]) -> f64 {
        match self.hidden {
            PICTURE_HIDDEN => 1.0,
            LARGE_HIDDEN if height * width >= LARGE_FRAME => 3.16,
            _ => 2.0,
        }
    }
}
