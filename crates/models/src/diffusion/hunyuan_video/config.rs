//! The sizes of a HunyuanVideo model, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::BlockGroup;
use crate::diffusion::heads::HeadSizes;
use crate::diffusion::streams::StreamSizes;

/// What errors call the family.
pub(super) const FAMILY: &str = "HunyuanVideo";
/// The base of the rotary frequencies.
pub(super) const THETA: f64 = 256.0;
/// Values of a head that turn with the frame, the row and the column.
pub(super) const AXES: [usize; 3] = [16, 56, 56];
/// Values per head in every model of the family.
const HEAD: usize = 128;
/// The largest patch.
const MAX_PATCH: usize = 2;

/// The sizes of a HunyuanVideo model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent with what stands beside it.
    pub in_channels: usize,
    /// Channels of the latent.
    pub channels: usize,
    /// Values of a latent along one side that become one token.
    pub patch: usize,
    /// Values per token.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Width of the text's tokens.
    pub context_width: usize,
    /// Width of the pooled text, of a model that takes one.
    pub pooled_width: Option<usize>,
    /// Whether it takes a guidance.
    pub guidance: bool,
    /// Blocks that refine the text.
    pub refiner_blocks: usize,
    /// Blocks that keep video and text apart.
    pub double_blocks: usize,
    /// Blocks over both.
    pub single_blocks: usize,
    /// What a model has that reads letters which are to be seen.
    pub letters: Option<Letters>,
    /// Width of features of a picture, of a model that looks at them.
    pub vision_width: Option<usize>,
    /// Kinds of tokens of the text side that are told apart.
    pub kinds: Option<usize>,
    /// Whether it jumps: it is told the time at which a step lands, too.
    pub jumps: bool,
}

/// Letters that are to be seen, as an encoder of bytes read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letters {
    /// Values per token.
    pub width: usize,
    /// Inner width of the layers that bring them to the model's.
    pub inner: usize,
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, in_channels, time, patch, side] = claims.dims("img_in.proj.weight")?;
        let [_, context_width] = claims.dims("txt_in.input_embedder.weight")?;
        let norm = "double_blocks.0.img_attn.norm.query_norm.scale";
        let [head] = claims.dims(norm)?;
        let [mlp, _] = claims.dims("double_blocks.0.img_mlp.0.weight")?;
        let [rows, _] = claims.dims("final_layer.linear.weight")?;
        if time != 1 || patch != side || patch > MAX_PATCH || hidden % HEAD != 0 {
            let expected = format!("[a multiple of {HEAD}, channels, 1, 1 or 2, the same]");
            return Err(claims.misfit("img_in.proj.weight", expected));
        }
        if head != HEAD {
            return Err(claims.misfit(norm, format!("[{HEAD}]")));
        }
        let channels = rows / (patch * patch);
        if rows % (patch * patch) != 0 || channels > in_channels {
            let expected =
                format!("[a multiple of {} up to the channels that go in, {hidden}]", patch * patch);
            return Err(claims.misfit("final_layer.linear.weight", expected));
        }
        let width = |name: &str| -> Result<Option<usize>> {
            claims.find(name).map(|_| claims.dims::<2>(name).map(|[_, width]| width)).transpose()
        };
        let letters = match width("byt5_in.fc1.weight")? {
            None => None,
            Some(width) => Some(Letters { width, inner: claims.dims::<2>("byt5_in.fc1.weight")?[0] }),
        };
        let kinds = match claims.find("cond_type_embedding.weight") {
            None => None,
            Some(_) => Some(claims.dims::<2>("cond_type_embedding.weight")?[0]),
        };
        Ok(Config {
            in_channels,
            channels,
            patch,
            hidden,
            heads: hidden / HEAD,
            mlp,
            context_width,
            pooled_width: width("vector_in.in_layer.weight")?,
            guidance: claims.find("guidance_in.in_layer.weight").is_some(),
            refiner_blocks: claims
                .count(|i| format!("txt_in.individual_token_refiner.blocks.{i}.norm1.weight")),
            double_blocks: claims.count(|i| format!("double_blocks.{i}.img_attn.qkv.weight")),
            single_blocks: claims.count(|i| format!("single_blocks.{i}.linear1.weight")),
            letters,
            vision_width: width("vision_in.proj.1.weight")?,
            kinds,
            jumps: claims.find("time_r_in.in_layer.weight").is_some(),
        })
    }

    pub(super) fn sizes(&self) -> StreamSizes {
        StreamSizes { heads: self.head_sizes(), mlp: self.mlp, is_gated: false }
    }

    pub(super) fn head_sizes(&self) -> HeadSizes {
        HeadSizes::equal(self.heads, HEAD)
    }

    /// Channels of what stands beside the latent: of a picture, and of a mask.
    pub(super) fn beside(&self) -> [usize; 2] {
        let extra = self.in_channels - self.channels;
        [extra - extra % 2, extra % 2]
    }

    /// Whether it makes videos larger: a picture with its mask and the video with its mask stand beside the latent.
    pub(super) fn enlarges(&self) -> bool {
        self.patch == 1 && self.in_channels == 3 * self.channels + 2
    }

    /// The kind of a block of the manifest, and its number among its kind; none of those that refine the text.
    pub(super) fn kind_of(&self, block: usize) -> Option<(BlockGroup, usize)> {
        let index = (block - 1).checked_sub(self.refiner_blocks)?;
        Some(match index.checked_sub(self.double_blocks) {
            None => (BlockGroup::Double, index),
            Some(index) => (BlockGroup::Single, index),
        })
    }
}
