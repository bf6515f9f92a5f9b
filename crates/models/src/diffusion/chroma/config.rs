//! The sizes of a Chroma model, read from the shapes of its tensors, and which modulations are whose.

use tensor::Tensor;

use super::approximator::ROWS;
use crate::Result;
use crate::claims::Claims;
use crate::diffusion::BlockGroup;
use crate::diffusion::heads::HeadSizes;
use crate::diffusion::modulation::{Modulation, by_item};
use crate::diffusion::patches::PATCH;
use crate::diffusion::streams::StreamSizes;

/// What errors call the family.
pub(super) const FAMILY: &str = "Chroma";
/// The base of the rotary frequencies.
pub(super) const THETA: f64 = 10_000.0;

/// The sizes of a Chroma model.
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
    /// Width of the network that gives modulations.
    pub approximator_width: usize,
    /// Layers of it.
    pub approximator_layers: usize,
    /// Values of a head that turn with the index of the image, the row and the column.
    pub axes: [usize; 3],
    /// How pixels are painted, of the model that has no autoencoder.
    pub pixels: Option<Pixels>,
}

/// How the model without an autoencoder paints: every token gives the weights of small networks, which each pixel of its
/// patch passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels along a side of the patch that is a token.
    pub side: usize,
    /// Values per pixel inside of the networks.
    pub width: usize,
    /// Inner width of the networks.
    pub mlp: usize,
    /// Waves along each side by which a pixel knows its place.
    pub waves: usize,
    /// Networks.
    pub blocks: usize,
    /// Whether the last layer looks at neighbours.
    pub is_convolved: bool,
    /// Whether the model gives the picture itself, not the direction to noise.
    pub gives_picture: bool,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let (hidden, channels, pixels) = Config::entrance(claims)?;
        let [_, context_width] = claims.dims("txt_in.weight")?;
        let [head_size] = claims.dims("double_blocks.0.img_attn.norm.query_norm.scale")?;
        let [mlp, _] = claims.dims("double_blocks.0.img_mlp.0.weight")?;
        let [approximator_width, _] = claims.dims("distilled_guidance_layer.in_proj.weight")?;
        let wrong = |name: &str, expected: String| {
            claims.find(name).map_or(Ok(()), |entry| Err(claims.wrong_shape(entry, expected)))
        };
        if head_size % 16 != 0 || hidden % head_size != 0 {
            let expected = format!("a divisor of {hidden} and a multiple of 16");
            wrong("double_blocks.0.img_attn.norm.query_norm.scale", expected)?;
        }
        let double_blocks = claims.count(|i| format!("double_blocks.{i}.img_attn.qkv.weight"));
        let single_blocks = claims.count(|i| format!("single_blocks.{i}.linear1.weight"));
        if 3 * single_blocks + 12 * double_blocks + 2 > ROWS {
            let expected = format!("for as many blocks as {ROWS} modulations are enough for");
            wrong("distilled_guidance_layer.out_proj.weight", expected)?;
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
            double_blocks,
            single_blocks,
            approximator_width,
            approximator_layers: claims.count(|i| format!("distilled_guidance_layer.norms.{i}.scale")),
            axes: [index, plane, plane],
            pixels,
        })
    }

    /// Values per token, channels of a latent, and how pixels are painted.
    fn entrance(claims: &Claims<'_>) -> Result<(usize, usize, Option<Pixels>)> {
        if claims.find("img_in.weight").is_some() {
            let [hidden, columns] = claims.dims("img_in.weight")?;
            if columns % (PATCH * PATCH) != 0 {
                let expected = format!("[{hidden}, a multiple of {}]", PATCH * PATCH);
                return Err(claims.misfit("img_in.weight", expected));
            }
            return Ok((hidden, columns / (PATCH * PATCH), None));
        }
        let [hidden, channels, side, across] = claims.dims("img_in_patch.weight")?;
        let [width, columns] = claims.dims("nerf_image_embedder.embedder.0.weight")?;
        let [rows, _] = claims.dims("nerf_blocks.0.param_generator.weight")?;
        let waves = columns.saturating_sub(channels).isqrt();
        if side != across || side == 0 || channels == 0 {
            return Err(claims.misfit("img_in_patch.weight", format!("[{hidden}, channels, side, side]")));
        }
        if columns != channels + waves * waves || width == 0 {
            let expected = format!("[{width}, {channels} and a square number]");
            return Err(claims.misfit("nerf_image_embedder.embedder.0.weight", expected));
        }
        if rows == 0 || !rows.is_multiple_of(3 * width * width) {
            let expected = format!("[a multiple of {}, {hidden}]", 3 * width * width);
            return Err(claims.misfit("nerf_blocks.0.param_generator.weight", expected));
        }
        let pixels = Pixels {
            side,
            width,
            mlp: rows / (3 * width),
            waves,
            blocks: claims.count(|i| format!("nerf_blocks.{i}.param_generator.weight")),
            is_convolved: claims.find("nerf_final_layer_conv.norm.scale").is_some(),
            gives_picture: claims.is_marked("__x0__"),
        };
        Ok((hidden, channels, Some(pixels)))
    }

    /// Rows and columns of the tokens of a picture of so many rows and columns.
    pub(super) fn grid(&self, height: usize, width: usize) -> [usize; 2] {
        let side = self.pixels.map_or(PATCH, |pixels| pixels.side);
        [height.div_ceil(side), width.div_ceil(side)]
    }

    pub(super) fn sizes(&self) -> StreamSizes {
        let heads = HeadSizes::equal(self.heads, self.head_size);
        StreamSizes { heads, mlp: self.mlp, is_gated: false }
    }

    /// The kind of a block of the manifest, and its number among its kind; none of those that paint pixels.
    pub(super) fn kind_of(&self, block: usize) -> Option<(BlockGroup, usize)> {
        match (block - 1).checked_sub(self.double_blocks) {
            None => Some((BlockGroup::Double, block - 1)),
            Some(index) => (index < self.single_blocks).then_some((BlockGroup::Single, index)),
        }
    }

    /// The number of a block of the manifest among those that paint pixels.
    pub(super) fn painting_block(&self, block: usize) -> usize {
        block - 1 - self.double_blocks - self.single_blocks
    }

    /// How a single block is moved: its modulations are the first.
    pub(super) fn single_change(&self, changes: &Tensor, index: usize, items: usize) -> Result<Modulation> {
        three(changes, 3 * index, items)
    }

    /// How the halves of a side of a double block are moved: 0 for the image, whose modulations are first, 1 for the text.
    pub(super) fn double_change(
        &self,
        changes: &Tensor,
        (index, side): (usize, usize),
        items: usize,
    ) -> Result<[Modulation; 2]> {
        let first = 3 * self.single_blocks + 6 * (self.double_blocks * side + index);
        Ok([three(changes, first, items)?, three(changes, first + 3, items)?])
    }

    /// Shift and scale of the last layer: the last modulations.
    pub(super) fn last_change(&self, changes: &Tensor, items: usize) -> Result<[Tensor; 2]> {
        let row = |row: usize| rows(changes, row, 1, items);
        Ok([row(ROWS - 2)?, row(ROWS - 1)?])
    }
}

/// Three modulations from row `first` on.
fn three(changes: &Tensor, first: usize, items: usize) -> Result<Modulation> {
    Modulation::part(&rows(changes, first, 3, items)?, 0, 3)
}

/// Rows of all modulations side by side, `[items or 1, 1, count · hidden]`.
fn rows(changes: &Tensor, first: usize, count: usize, items: usize) -> Result<Tensor> {
    let width = count * changes.dim(2);
    by_item(&changes.slice(1, first, count)?.reshape([changes.dim(0), width])?, items)
}
