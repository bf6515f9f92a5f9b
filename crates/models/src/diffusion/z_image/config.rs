//! The sizes of a Z-Image or Lumina 2 model, read from the shapes of its tensors.

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::heads::HeadSizes;
use crate::diffusion::patches::PATCH;

/// What errors call the family.
pub(super) const FAMILY: &str = "Z-Image";
/// Z-Image fills sequences up to a multiple of this many tokens.
const FILLED_TO: usize = 32;

/// Which of the two models with this network it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Lumina Image 2.
    Lumina2,
    /// Z-Image.
    ZImage,
}

/// The sizes of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which of the two it is.
    pub generation: Generation,
    /// Channels of the latent.
    pub channels: usize,
    /// Values per token.
    pub hidden: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub groups: usize,
    /// Values per head.
    pub head_size: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Width of the text's tokens.
    pub context_width: usize,
    /// Values of the embedded time.
    pub time_width: usize,
    /// Inner width of the layers that embed it.
    pub time_inner: usize,
    /// Blocks over the text alone.
    pub context_refiners: usize,
    /// Blocks over the image alone.
    pub noise_refiners: usize,
    /// Blocks over both.
    pub layers: usize,
    /// Whether sequences are filled up with learned tokens.
    pub is_filled: bool,
    /// Values of a head that turn with the place in the sequence, the row and the column.
    pub axes: [usize; 3],
    /// The base of the rotary frequencies.
    pub theta: f64,
}

impl Generation {
    /// How far its noise is shifted, unless a node says otherwise.
    pub(super) fn shift(self) -> f64 {
        match self {
            Generation::Lumina2 => 6.0,
            Generation::ZImage => 3.0,
        }
    }

    /// The layer that gives a block its modulation; Lumina has an activation before it.
    pub(super) fn modulation(self) -> &'static str {
        match self {
            Generation::Lumina2 => "adaLN_modulation.1",
            Generation::ZImage => "adaLN_modulation.0",
        }
    }
}

impl Config {
    pub(super) fn read(claims: &Claims<'_>) -> Result<Config> {
        let [hidden, context_width] = claims.dims("cap_embedder.1.weight")?;
        let [head_size] = claims.dims("layers.0.attention.q_norm.weight")?;
        let [_, queries] = claims.dims("layers.0.attention.out.weight")?;
        let [rows, _] = claims.dims("layers.0.attention.qkv.weight")?;
        let [mlp, _] = claims.dims("layers.0.feed_forward.w1.weight")?;
        let [time_width, time_inner] = claims.dims("t_embedder.mlp.2.weight")?;
        let [out, _] = claims.dims("final_layer.linear.weight")?;
        let wrong = |name: &str, expected: String| {
            claims.find(name).map_or(Ok(()), |entry| Err(claims.wrong_shape(entry, expected)))
        };
        if head_size % 8 != 0 || queries % head_size != 0 {
            let expected = format!("a divisor of {queries} and a multiple of eight");
            wrong("layers.0.attention.q_norm.weight", expected)?;
        }
        let keys = rows.saturating_sub(queries) / 2;
        if keys == 0 || keys % head_size != 0 || queries % keys != 0 {
            let expected = format!("[{queries} and twice a divisor of it, {hidden}]");
            wrong("layers.0.attention.qkv.weight", expected)?;
        }
        if out % (PATCH * PATCH) != 0 {
            wrong("final_layer.linear.weight", format!("[a multiple of {}, {hidden}]", PATCH * PATCH))?;
        }
        let is_z_image = claims.find("layers.0.adaLN_modulation.0.weight").is_some();
        let (generation, index, theta) = if is_z_image {
            (Generation::ZImage, head_size / 4, 256.0)
        } else {
            (Generation::Lumina2, head_size / 6 * 2, 10_000.0)
        };
        let plane = (head_size - index) / 2;
        let count = |stack: &str| claims.count(|i| format!("{stack}.{i}.attention.qkv.weight"));
        Ok(Config {
            generation,
            channels: out / (PATCH * PATCH),
            hidden,
            heads: queries / head_size,
            groups: keys / head_size,
            head_size,
            mlp,
            context_width,
            time_width,
            time_inner,
            context_refiners: count("context_refiner"),
            noise_refiners: count("noise_refiner"),
            layers: count("layers"),
            is_filled: claims.find("cap_pad_token").is_some(),
            axes: [index, plane, plane],
            theta,
        })
    }

    pub(super) fn head_sizes(&self) -> HeadSizes {
        HeadSizes { heads: self.heads, groups: self.groups, size: self.head_size }
    }

    /// What a time from 0 to 1 is multiplied with.
    pub(super) fn time_scale(&self) -> f32 {
        match self.generation {
            Generation::Lumina2 => 1.0,
            Generation::ZImage => 1000.0,
        }
    }

    /// How many tokens fill up a sequence.
    pub(super) fn filling(&self, tokens: usize) -> usize {
        if self.is_filled { tokens.next_multiple_of(FILLED_TO) - tokens } else { 0 }
    }

    /// The name of a block of the manifest between the first and the last.
    pub(super) fn block_name(&self, block: usize) -> String {
        let index = block - 1;
        match index.checked_sub(self.context_refiners) {
            None => format!("context_refiner.{index}"),
            Some(index) => match index.checked_sub(self.noise_refiners) {
                None => format!("noise_refiner.{index}"),
                Some(index) => format!("layers.{index}"),
            },
        }
    }
}
