//! The attention of a DAT's blocks: within windows or between channels, each beside a convolution of the values.

use device::op::UnaryKind;
use tensor::{Activation, Padding, Tensor, Weight};

use super::super::exit::{channels_first, channels_last};
use super::super::layers::Layers;
use super::super::windows::{Partition, Places};
use crate::Result;

/// The least length that something is divided by.
const LEAST_LENGTH: f32 = 1e-12;

/// The attention of one block.
pub(super) struct Block<'a> {
    pub(super) layers: Layers<'a>,
    pub(super) name: String,
    pub(super) heads: usize,
}

impl Block<'_> {
    /// Attention within windows of `[rows, columns, width]`: those of the first half of the heads lie, those of the others
    /// stand.
    pub(super) fn spatial(&self, x: &Tensor, split: [usize; 2], is_shifted: bool) -> Result<Tensor> {
        let (rows, columns, width) = (x.dim(0), x.dim(1), x.dim(2));
        let qkv = self.layers.linear(&format!("{}.qkv", self.name), x)?;
        let longest = split[0].max(split[1]);
        let (down, right) =
            (rows.next_multiple_of(longest) - rows, columns.next_multiple_of(longest) - columns);
        let padded = if down + right == 0 {
            qkv.clone()
        } else {
            qkv.pad(&[(0, down), (0, right), (0, 0)], Padding::Constant(0.0))?
        };
        let seen = self.layers.lease.lane().empty([rows, columns, width])?;
        for (half, window) in [split, [split[1], split[0]]].into_iter().enumerate() {
            let shift = if is_shifted { window.map(|side| side / 2) } else { [0; 2] };
            let out = self.within(&padded, (half, width), Partition { window, shift })?;
            let out = out.slice(0, 0, rows)?.slice(1, 0, columns)?;
            out.copy_into(&seen.slice(2, half * width / 2, width / 2)?)?;
        }
        let convolved = self.convolved(&channels_first(&qkv.slice(2, 2 * width, width)?)?)?;
        let seen = channels_first(&seen)?;
        let channels = self.of_channels(&convolved)?;
        let places = self.of_places(&seen)?;
        let both = seen.mul(&channels)?.add(&convolved.mul(&places)?)?;
        self.layers.linear(&format!("{}.proj", self.name), &channels_last(&both)?)
    }

    /// Attention between channels.
    pub(super) fn channels(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, columns, width) = (x.dim(0), x.dim(1), x.dim(2));
        let (places, size) = (rows * columns, width / self.heads);
        let qkv =
            self.layers.linear(&format!("{}.qkv", self.name), x)?.reshape([places, 3, self.heads, size])?;
        let part = |i: usize| -> Result<Tensor> {
            let part = qkv.slice(1, i, 1)?.reshape([places, self.heads, size])?;
            Ok(part.permute(&[1, 2, 0])?.contiguous()?)
        };
        let (q, k, v) = (normalised(&part(0)?)?, normalised(&part(1)?)?, part(2)?);
        let warmth = self.layers.lease.weight(&format!("{}.temperature", self.name))?;
        let warmth = self.layers.lease.lane().unpack(&warmth)?;
        let scores = q.matmul(&k.transpose(1, 2)?, 1.0)?.mul(&warmth)?.softmax()?;
        let picture = [1, width, rows, columns];
        let seen = scores.matmul(&v, 1.0)?.reshape(picture)?;
        let convolved = self.convolved(&v.reshape(picture)?)?;
        let channels = self.of_channels(&seen)?;
        let places = self.of_places(&convolved)?;
        let both = seen.mul(&places)?.add(&convolved.mul(&channels)?)?;
        self.layers.linear(&format!("{}.proj", self.name), &channels_last(&both)?)
    }

    /// What half of the heads see in their windows: `[rows, columns, width / 2]`.
    fn within(&self, qkv: &Tensor, (half, width): (usize, usize), partition: Partition) -> Result<Tensor> {
        let (half_width, heads) = (width / 2, self.heads / 2);
        let part = |i: usize| -> Result<Tensor> {
            let windows = partition.gather(&qkv.slice(2, i * width + half * half_width, half_width)?)?;
            Ok(windows.reshape([windows.dim(0), windows.dim(1), heads, half_width / heads])?)
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let bias = self.bias(half, partition.window)?;
        let size = [qkv.dim(0), qkv.dim(1)];
        let seen = partition.attend([&q, &k, &v], &bias, size)?;
        partition.scatter(&seen.reshape([q.dim(0), q.dim(1), half_width])?, size)
    }

    /// What is added to the scores of every pair of places, computed from their distance.
    fn bias(&self, half: usize, [high, wide]: [usize; 2]) -> Result<Tensor> {
        let (layers, lane) = (self.layers, self.layers.lease.lane());
        let name = format!("{}.attns.{half}.pos", self.name);
        let across = 2 * wide - 1;
        let distance = |at: usize| {
            let (down, right) = (at / 2 / across, at / 2 % across);
            if at.is_multiple_of(2) {
                down as f32 + 1.0 - high as f32
            } else {
                right as f32 + 1.0 - wide as f32
            }
        };
        let count = (2 * high - 1) * across;
        let distances: Vec<f32> = (0..2 * count).map(distance).collect();
        let mut table = layers.linear(&format!("{name}.pos_proj"), &lane.tensor([count, 2], &distances)?)?;
        for step in ["pos1", "pos2", "pos3"] {
            let bent = layers.norm(&format!("{name}.{step}.0"), &table)?.activate(Activation::Relu)?;
            table = layers.linear(&format!("{name}.{step}.2"), &bent)?;
        }
        Places::new(lane, [high, wide])?.bias(lane, &Weight::new(table.operand().clone()))
    }

    /// The values, each channel convolved by itself.
    fn convolved(&self, values: &Tensor) -> Result<Tensor> {
        let x = self.layers.depthwise(&format!("{}.dwconv.0", self.name), values)?;
        Ok(self.layers.batch_norm(&format!("{}.dwconv.1", self.name), &x)?.activate(Activation::Gelu)?)
    }

    /// How much each channel counts, by the whole of a picture.
    fn of_channels(&self, x: &Tensor) -> Result<Tensor> {
        self.interaction("channel_interaction", [1, 2, 4], &x.mean(&[2, 3])?)
    }

    /// How much each place counts, by all channels of a picture.
    fn of_places(&self, x: &Tensor) -> Result<Tensor> {
        self.interaction("spatial_interaction", [0, 1, 3], x)
    }

    fn interaction(&self, name: &str, [first, norm, last]: [usize; 3], x: &Tensor) -> Result<Tensor> {
        let name = format!("{}.{name}", self.name);
        let x = self.layers.convolution(&format!("{name}.{first}"), x)?;
        let x = self.layers.batch_norm(&format!("{name}.{norm}"), &x)?.activate(Activation::Gelu)?;
        let x = self.layers.convolution(&format!("{name}.{last}"), &x)?;
        Ok(x.unary(UnaryKind::Sigmoid)?)
    }
}

/// Rows of length one.
fn normalised(x: &Tensor) -> Result<Tensor> {
    let length = x.unary(UnaryKind::Square)?.sum(&[2])?.unary(UnaryKind::Sqrt)?;
    Ok(x.div(&length.clamp(LEAST_LENGTH, f32::MAX)?)?)
}
