//! What a HAT has besides a SwinIR: convolutions with weighted channels beside the attention of each block, and at the end
//! of each group attention from windows to larger windows around them.

use residency::WeightSpec;
use tensor::{Activation, Mask, Padding, Tensor};

use super::super::exit::{channels_first, channels_last};
use super::super::layers::Layers;
use super::super::windows::Partition;
use crate::Result;
use crate::claims::Claims;

/// How much of what the convolutions find is added.
const CONVOLVED: f32 = 0.01;

/// The sizes of what a HAT has besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// Channels between the convolutions of a block.
    pub narrow: usize,
    /// Channels that the weights of channels are computed from.
    pub squeezed: usize,
    /// Values between the two products of a feed-forward behind large windows.
    pub hidden: usize,
    /// The side of a large window.
    pub large: usize,
}

impl Hybrid {
    /// Reads the sizes from a file with windows of this side; nothing if it is a plain SwinIR.
    pub(super) fn read(claims: &Claims<'_>, window: usize) -> Result<Option<Hybrid>> {
        let cab = "layers.0.residual_group.blocks.0.conv_block.cab";
        if claims.find(&format!("{cab}.0.weight")).is_none() {
            return Ok(None);
        }
        let [narrow, _, _, _] = claims.dims(&format!("{cab}.0.weight"))?;
        let [squeezed, _, _, _] = claims.dims(&format!("{cab}.3.attention.1.weight"))?;
        let group = "layers.0.residual_group.overlap_attn";
        let table = format!("{group}.relative_position_bias_table");
        let [places, _] = claims.dims(&table)?;
        let [hidden, _] = claims.dims(&format!("{group}.mlp.fc1.weight"))?;
        let large = (places.isqrt() + 1).saturating_sub(window);
        let fits = places.isqrt().pow(2) == places && (window..=2 * window).contains(&large);
        if !fits || !(large - window).is_multiple_of(2) {
            return Err(
                claims.misfit(&table, format!("windows of {window} to {} by an even number", 2 * window))
            );
        }
        Ok(Some(Hybrid { narrow, squeezed, hidden, large }))
    }

    /// The weights of a block.
    pub(super) fn block_weights(
        &self,
        claims: &Claims<'_>,
        name: &str,
        width: usize,
    ) -> Result<Vec<WeightSpec>> {
        let cab = format!("{name}.conv_block.cab");
        let mut weights = claims.layer(&format!("{cab}.0"), &[self.narrow, width, 3, 3])?;
        weights.extend(claims.layer(&format!("{cab}.2"), &[width, self.narrow, 3, 3])?);
        weights.extend(claims.layer(&format!("{cab}.3.attention.1"), &[self.squeezed, width, 1, 1])?);
        weights.extend(claims.layer(&format!("{cab}.3.attention.3"), &[width, self.squeezed, 1, 1])?);
        Ok(weights)
    }

    /// The weights at the end of a group.
    pub(super) fn group_weights(
        &self,
        claims: &Claims<'_>,
        name: &str,
        [width, heads, window]: [usize; 3],
    ) -> Result<Vec<WeightSpec>> {
        let places = (window + self.large - 1).pow(2);
        let mut weights =
            vec![claims.weight(&format!("{name}.relative_position_bias_table"), &[places, heads])?];
        for (layer, shape) in [
            ("norm1", &[width][..]),
            ("qkv", &[3 * width, width]),
            ("proj", &[width, width]),
            ("norm2", &[width]),
            ("mlp.fc1", &[self.hidden, width]),
            ("mlp.fc2", &[width, self.hidden]),
        ] {
            weights.extend(claims.layer(&format!("{name}.{layer}"), shape)?);
        }
        Ok(weights)
    }

    /// Attention from windows of `[rows, columns, width]` to what lies in and around them, and the feed-forward behind it.
    pub(super) fn attention(
        &self,
        layers: Layers<'_>,
        name: &str,
        x: &Tensor,
        (window, heads): (usize, usize),
    ) -> Result<Tensor> {
        let (rows, columns, width) = (x.dim(0), x.dim(1), x.dim(2));
        let (size, places) = (width / heads, window * window);
        let count = rows * columns / places;
        let qkv = layers.linear(&format!("{name}.qkv"), &layers.norm(&format!("{name}.norm1"), x)?)?;
        let partition = Partition { window: [window; 2], shift: [0; 2] };
        let q = partition.gather(&qkv.slice(2, 0, width)?)?.reshape([count, places, heads, size])?;
        let around = self.around(&qkv.slice(2, width, 2 * width)?, window)?;
        let around = around.reshape([count, self.large * self.large, 2, heads, size])?;
        let part = |i: usize| around.slice(2, i, 1)?.reshape([count, self.large * self.large, heads, size]);
        let mask = Mask::Additive(self.bias(layers, name, window, heads)?);
        let seen = q.attention(&part(0)?, &part(1)?, &mask, 1.0 / (size as f32).sqrt())?;
        let seen = partition.scatter(&seen.reshape([count, places, width])?, [rows, columns])?;
        let x = layers.linear(&format!("{name}.proj"), &seen)?.add(x)?;
        let hidden = layers.norm(&format!("{name}.norm2"), &x)?;
        let hidden = layers.linear(&format!("{name}.mlp.fc1"), &hidden)?.activate(Activation::Gelu)?;
        Ok(x.add(&layers.linear(&format!("{name}.mlp.fc2"), &hidden)?)?)
    }

    /// The large windows of a picture `[rows, columns, values]`, with zeros beyond its border, as
    /// `[windows, places, values]`. Each is put together of a small window and of parts of its neighbours.
    fn around(&self, x: &Tensor, window: usize) -> Result<Tensor> {
        let (down, right, values) = (x.dim(0) / window, x.dim(1) / window, x.dim(2));
        let before = (self.large - window) / 2;
        // So much behind the last window that every window has a whole neighbour.
        let border = (before, window - before);
        let x = x.pad(&[border, border, (0, 0)], Padding::Constant(0.0))?;
        let large = x.lane().empty([down, right, self.large, self.large, values])?;
        let parts = [(0, window), (window, self.large - window)];
        for (top, high) in parts.into_iter().filter(|(_, length)| *length > 0) {
            for (left, wide) in parts.into_iter().filter(|(_, length)| *length > 0) {
                let part = x.slice(0, top, down * window)?.slice(1, left, right * window)?;
                let part = part.reshape([down, window, right, window, values])?;
                let part = part.slice(1, 0, high)?.slice(3, 0, wide)?.permute(&[0, 2, 1, 3, 4])?;
                part.copy_into(&large.slice(2, top, high)?.slice(3, left, wide)?)?;
            }
        }
        Ok(large.reshape([down * right, self.large * self.large, values])?)
    }

    /// What is added to the scores of every pair of places, by their distance.
    fn bias(&self, layers: Layers<'_>, name: &str, window: usize, heads: usize) -> Result<Tensor> {
        let (small, large) = (window * window, self.large * self.large);
        let across = (window + self.large - 1) as i64;
        let distance =
            |from: usize, to: usize| to as i64 - from as i64 + window as i64 - self.large as i64 + 1;
        let row = |at: usize| {
            let (a, b) = (at / large, at % large);
            let down = distance(a / window, b / self.large);
            let right = distance(a % window, b % self.large);
            // Rows before the first count from the end of the table.
            (down * across + right).rem_euclid(across * across) as i32
        };
        let ids: Vec<i32> = (0..small * large).map(row).collect();
        let lane = layers.lease.lane();
        let table = layers.lease.weight(&format!("{name}.relative_position_bias_table"))?;
        let bias = lane.embedding(&table, &lane.ids([small * large], &ids)?)?;
        let bias = bias.reshape([small, large, heads])?.permute(&[2, 0, 1])?.contiguous()?;
        Ok(bias.reshape([1, heads, small, large])?)
    }
}

/// Adds a little of what convolutions find in `normed`, each channel as much as the whole of the picture says.
pub(super) fn add_convolved(layers: Layers<'_>, name: &str, x: &Tensor, normed: &Tensor) -> Result<Tensor> {
    let found =
        layers.convolution(&format!("{name}.0"), &channels_first(normed)?)?.activate(Activation::Gelu)?;
    let found = layers.convolution(&format!("{name}.2"), &found)?;
    let weights = layers.convolution(&format!("{name}.3.attention.1"), &found.mean(&[2, 3])?)?;
    let weights =
        layers.convolution(&format!("{name}.3.attention.3"), &weights.activate(Activation::Relu)?)?;
    let weights = weights.unary(device::op::UnaryKind::Sigmoid)?.affine(CONVOLVED, 0.0)?;
    Ok(x.add(&channels_last(&found.mul(&weights)?)?)?)
}
