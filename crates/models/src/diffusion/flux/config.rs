//! The sizes of a FLUX model, read from the shapes of its tensors.

use checkpoint::Metadata;

use crate::Result;
use crate::claims::Claims;
use crate::diffusion::heads::HeadSizes;
use crate::diffusion::patches::PATCH;
use crate::diffusion::streams::StreamSizes;
use crate::diffusion::told;

/// What errors call the family.
pub(super) const FAMILY: &str = "FLUX.1";

/// The sizes of a FLUX model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent and of what stands beside it.
    pub in_channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
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
    /// Width of the pooled text.
    pub pooled_width: usize,
    /// Blocks that keep image and text apart.
    pub double_blocks: usize,
    /// Blocks over both.
    pub single_blocks: usize,
    /// Whether it takes a guidance.
    pub guidance: bool,
    /// Values of a head that turn with the index of the image, the row and the column.
    pub axes: [usize; 3],
    /// The base of the rotary frequencies.
    pub theta: f64,
}

impl Config {
    pub(super) fn sizes(&self) -> StreamSizes {
        let heads = HeadSizes::equal(self.heads, self.head_size);
        StreamSizes { heads, mlp: self.mlp, is_gated: false }
    }

    pub(super) fn read(claims: &Claims<'_>, metadata: &Metadata) -> Result<Config> {
        let [rows, _] = claims.dims("final_layer.linear.weight")?;
        let config = Config::without_end(claims, metadata)?;
        if rows % (PATCH * PATCH) != 0
            && let Some(entry) = claims.find("final_layer.linear.weight")
        {
            let expected = format!("[a multiple of {}, {}]", PATCH * PATCH, config.hidden);
            return Err(claims.wrong_shape(entry, expected));
        }
        Ok(Config { out_channels: rows / (PATCH * PATCH), ..config })
    }

    /// The sizes of a model that ends with its blocks, whose result counts as having the channels of the latent.
    pub(super) fn without_end(claims: &Claims<'_>, metadata: &Metadata) -> Result<Config> {
        let [hidden, columns] = claims.dims("img_in.weight")?;
        let [_, context_width] = claims.dims("txt_in.weight")?;
        let [_, pooled_width] = claims.dims("vector_in.in_layer.weight")?;
        let [head_size] = claims.dims("double_blocks.0.img_attn.norm.query_norm.scale")?;
        let [mlp, _] = claims.dims("double_blocks.0.img_mlp.0.weight")?;
        let wrong = |name: &str, expected: String| {
            claims.find(name).map_or(Ok(()), |entry| Err(claims.wrong_shape(entry, expected)))
        };
        if head_size == 0 || head_size % 2 != 0 || hidden % head_size != 0 {
            wrong("double_blocks.0.img_attn.norm.query_norm.scale", format!("an even divisor of {hidden}"))?;
        }
        if columns % (PATCH * PATCH) != 0 {
            wrong("img_in.weight", format!("[{hidden}, a multiple of {}]", PATCH * PATCH))?;
        }
        Ok(Config {
            in_channels: columns / (PATCH * PATCH),
            out_channels: columns / (PATCH * PATCH),
            hidden,
            heads: hidden / head_size,
            head_size,
            mlp,
            context_width,
            pooled_width,
            double_blocks: claims.count(|i| format!("double_blocks.{i}.img_attn.qkv.weight")),
            single_blocks: claims.count(|i| format!("single_blocks.{i}.linear1.weight")),
            guidance: claims.find("guidance_in.in_layer.weight").is_some(),
            axes: axes(&told::numbers(metadata, "axes_dim"), head_size),
            theta: told::numbers(metadata, "theta")
                .first()
                .copied()
                .filter(|theta| *theta > 0.0)
                .unwrap_or(10_000.0),
        })
    }
}

/// The split of a head over the three axes: as told, if that is one, else in the proportions of FLUX.1
/// (16, 56 and 56 of 128), in even numbers.
fn axes(told: &[f64], head_size: usize) -> [usize; 3] {
    if let [a, b, c] = *told {
        let axes = [a as usize, b as usize, c as usize];
        let whole = axes.iter().try_fold(0usize, |sum, axis| sum.checked_add(*axis)) == Some(head_size);
        if whole && axes.iter().all(|axis| axis % 2 == 0) {
            return axes;
        }
    }
    // Two equal even numbers are left of the head if what is taken leaves a multiple of four.
    let first = head_size / 8 / 4 * 4 + head_size % 4;
    [first, (head_size - first) / 2, (head_size - first) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_split_as_told_or_in_proportion() {
        assert_eq!(axes(&[], 128), [16, 56, 56]);
        assert_eq!(axes(&[], 64), [8, 28, 28]);
        assert_eq!(axes(&[16.0, 24.0, 24.0], 64), [16, 24, 24]);
        for told in [&[16.0, 24.0][..], &[16.0, 24.0, 25.0], &[15.0, 25.0, 24.0], &[f64::NAN, 1e30, -1.0]] {
            assert_eq!(axes(told, 64), [8, 28, 28], "{told:?}");
        }
        for head in (2..300).step_by(2) {
            let split = axes(&[], head);
            assert_eq!(split.iter().sum::<usize>(), head);
            assert!(split.iter().all(|axis| axis % 2 == 0), "{split:?}");
        }
    }
}
