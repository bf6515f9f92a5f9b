//! The sizes of a Cosmos Predict 2 model, read from the shapes of its tensors.

use checkpoint::Metadata;

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::patches::PATCH;
use crate::diffusion::positions::frequencies;
use crate::diffusion::told;

/// What errors call the family.
pub(super) const FAMILY: &str = "Cosmos Predict 2";
/// The slowest waves of positions turn once in about so many, before they are stretched.
const THETA: f64 = 10_000.0;
/// Values per token of the large model.
const LARGE_HIDDEN: usize = 5120;
/// How far positions are stretched along frames, rows and columns: in models of pictures, in those of videos, and in the
/// large one of those.
const PICTURES: [f64; 3] = [1.0, 4.0, 4.0];
const VIDEOS: [f64; 3] = [1.0, 3.0, 3.0];
const LARGE_VIDEOS: [f64; 3] = [5.0 / 6.0, 2.0, 2.0];
/// What files call them.
const STRETCHES: [&str; 3] =
    ["rope_t_extrapolation_ratio", "rope_h_extrapolation_ratio", "rope_w_extrapolation_ratio"];

/// The sizes of a Cosmos Predict 2 model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
    /// Channels that the model is shown: those of the latent, of a video where frames are given, and one that says where
    /// nothing is, which is nowhere.
    pub in_channels: usize,
    /// Values per token.
    pub hidden: usize,
    /// Values per head of attention.
    pub head: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Inner width of the layers that move a block.
    pub narrow: usize,
    /// Width of the text's tokens.
    pub context_width: usize,
    /// Blocks.
    pub blocks: usize,
    /// How far positions are stretched along frames, rows and columns.
    pub stretches: [f64; 3],
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>, metadata: &Metadata) -> Result<Config> {
        let [hidden, shown] = claims.dims("x_embedder.proj.1.weight")?;
        let [made, _] = claims.dims("final_layer.linear.weight")?;
        let [head] = claims.dims("blocks.0.self_attn.q_norm.weight")?;
        let [mlp, _] = claims.dims("blocks.0.mlp.layer1.weight")?;
        let [narrow, _] = claims.dims("blocks.0.adaln_modulation_self_attn.1.weight")?;
        let [_, context_width] = claims.dims("blocks.0.cross_attn.k_proj.weight")?;
        let patch = PATCH * PATCH;
        let (channels, in_channels) = (made / patch, shown / patch);
        if !made.is_multiple_of(patch) || made == 0 {
            return Err(
                claims.misfit("final_layer.linear.weight", format!("[a multiple of {patch}, {hidden}]"))
            );
        }
        let knows = [channels + 1, channels + 2];
        if !shown.is_multiple_of(patch) || !knows.contains(&in_channels) {
            let [pictures, videos] = knows.map(|channels| channels * patch);
            let expected = format!("[{hidden}, {pictures} or {videos}]");
            return Err(claims.misfit("x_embedder.proj.1.weight", expected));
        }
        if head < 12 || !head.is_multiple_of(2) || !hidden.is_multiple_of(head) {
            let expected = format!("[an even number from 12 that divides {hidden}]");
            return Err(claims.misfit("blocks.0.self_attn.q_norm.weight", expected));
        }
        let mut stretches = match (in_channels == knows[1], hidden) {
            (false, _) => PICTURES,
            (true, LARGE_HIDDEN) => LARGE_VIDEOS,
            (true, _) => VIDEOS,
        };
        for (stretch, name) in stretches.iter_mut().zip(STRETCHES) {
            *stretch = told::numbers(metadata, name).first().copied().unwrap_or(*stretch);
        }
        Ok(Config {
            channels,
            in_channels,
            hidden,
            head,
            mlp,
            narrow,
            context_width,
            blocks: claims.count(|i| format!("blocks.{i}.self_attn.q_norm.weight")),
            stretches,
        })
    }

    /// Whether it is shown where frames are given.
    pub fn sees_given_frames(&self) -> bool {
        self.in_channels == self.channels + 2
    }

    /// Heads of attention.
    pub(super) fn heads(&self) -> usize {
        self.hidden / self.head
    }

    /// How fast pairs of values of a head turn with the frame, the row and the column.
    pub(super) fn frequencies(&self) -> Vec<Vec<f64>> {
        let side = 2 * (self.head / 6);
        let axes = [self.head - 2 * side, side, side];
        let axis = |(values, stretch): (usize, f64)| {
            let exponent = values as f64 / (values as f64 - 2.0);
            frequencies(values, THETA * stretch.powf(exponent))
        };
        axes.into_iter().zip(self.stretches).map(axis).collect()
    }
}
