//! The vision encoder: stages of smaller and smaller grids. In each, places attend to each other inside windows, then
//! channels attend to each other over the whole picture.

use device::op::Activation;
use residency::Lease;
use tensor::{ConvolutionShape, Mask, Padding, Tensor};

use super::config::{Florence2Config, Stage};
use super::norm;
use super::weights::{FIRST_PROJECTION, PROJECTION, TIMES};
use crate::{Error, Result};

/// The grid of a stage, `[1, channels, height, width]`, from the one before it.
pub(super) fn enter(lease: &Lease<'_>, number: usize, stage: &Stage, x: &Tensor) -> Result<Tensor> {
    let name = |module: &str| format!("vision_tower.convs.{number}.{module}");
    let mut x = lease.bring(x)?;
    if stage.norm_first {
        x = norm_places(lease, &name("norm"), &x)?;
    }
    let shape = ConvolutionShape::uniform(2, stage.stride, stage.padding);
    x = convolve(lease, &name("conv"), &x, &shape)?;
    if stage.norm_first { Ok(x) } else { norm_places(lease, &name("norm"), &x) }
}

/// A pair of blocks.
pub(super) fn layer(
    lease: &Lease<'_>,
    (number, layer): (usize, usize),
    stage: &Stage,
    window: usize,
    x: &Tensor,
) -> Result<Tensor> {
    let name = |block: &str| format!("vision_tower.blocks.{number}.{layer}.{block}");
    let x = lease.bring(x)?;
    let spatial = name("spatial_block");
    let x = block(lease, &spatial, stage, &x, |module, grid| {
        attend_in_windows(lease, &format!("{module}.window_attn"), stage.heads, window, grid)
    })?;
    let channel = name("channel_block");
    block(lease, &channel, stage, &x, |module, grid| {
        attend_over_channels(lease, &format!("{module}.channel_attn"), stage.groups, grid)
    })
}

/// A look at the neighbours, attention, another look, and the feed-forward layers; each adds to what was there.
fn block(
    lease: &Lease<'_>,
    name: &str,
    stage: &Stage,
    x: &Tensor,
    attend: impl Fn(&str, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let near = ConvolutionShape { groups: stage.channels, ..ConvolutionShape::uniform(2, 1, 1) };
    let x = x.add(&convolve(lease, &format!("{name}.conv1"), x, &near)?)?;
    let places = x.permute(&[0, 2, 3, 1])?.contiguous()?;
    let attended = attend(name, &norm(lease, &format!("{name}.norm1"), &places)?)?;
    let x = places.add(&attended)?.permute(&[0, 3, 1, 2])?.contiguous()?;
    let x = x.add(&convolve(lease, &format!("{name}.conv2"), &x, &near)?)?;
    let places = x.permute(&[0, 2, 3, 1])?.contiguous()?;
    let normed = norm(lease, &format!("{name}.norm2"), &places)?;
    let inner = lease.linear_then(&format!("{name}.ffn.fc1"), &normed, Some(Activation::Gelu))?;
    let x = places.add(&lease.linear(&format!("{name}.ffn.fc2"), &inner)?)?;
    Ok(x.permute(&[0, 3, 1, 2])?.contiguous()?)
}

/// Attention of places `[1, height, width, channels]` inside square windows; the last ones are filled with zeros.
fn attend_in_windows(
    lease: &Lease<'_>,
    name: &str,
    heads: usize,
    window: usize,
    x: &Tensor,
) -> Result<Tensor> {
    let (height, width, channels) = (x.dim(1), x.dim(2), x.dim(3));
    let (rows, columns) = (height.div_ceil(window), width.div_ceil(window));
    let (below, beside) = (rows * window - height, columns * window - width);
    let filled = match below + beside {
        0 => x.clone(),
        _ => x.pad(&[(0, 0), (0, below), (0, beside), (0, 0)], Padding::Constant(0.0))?,
    };
    let windows = filled
        .reshape([rows, window, columns, window, channels])?
        .permute(&[0, 2, 1, 3, 4])?
        .reshape([rows * columns, window * window, channels])?;
    let places = [rows * columns, window * window, heads, channels / heads];
    let joined = lease.linear(&format!("{name}.qkv"), &windows)?;
    let part = |i: usize| -> Result<Tensor> { Ok(joined.slice(2, i * channels, channels)?.reshape(places)?) };
    let scale = 1.0 / ((channels / heads) as f32).sqrt();
    let attended = part(0)?.attention(&part(1)?, &part(2)?, &Mask::None, scale)?;
    let attended = attended.reshape([rows * columns, window * window, channels])?;
    let attended = lease.linear(&format!("{name}.proj"), &attended)?;
    let grid = attended
        .reshape([rows, columns, window, window, channels])?
        .permute(&[0, 2, 1, 3, 4])?
        .reshape([1, rows * window, columns * window, channels])?;
    Ok(grid.slice(1, 0, height)?.slice(2, 0, width)?.contiguous()?)
}

/// Attention of channels to the channels of their group, over all places `[1, height, width, channels]`.
fn attend_over_channels(lease: &Lease<'_>, name: &str, groups: usize, x: &Tensor) -> Result<Tensor> {
    let (height, width, channels) = (x.dim(1), x.dim(2), x.dim(3));
    let places = height * width;
    let joined = lease.linear(&format!("{name}.qkv"), &x.reshape([1, places, channels])?)?;
    let part = |i: usize, order: &[usize]| -> Result<Tensor> {
        let part = joined.slice(2, i * channels, channels)?;
        Ok(part.reshape([1, places, groups, channels / groups])?.permute(order)?)
    };
    let (query, key) = (part(0, &[0, 2, 3, 1])?, part(1, &[0, 2, 1, 3])?);
    let scores = query.matmul(&key, 1.0 / (places as f32).sqrt())?.softmax()?;
    let attended = part(2, &[0, 2, 1, 3])?.matmul(&scores.transpose(2, 3)?, 1.0)?;
    let attended = attended.permute(&[0, 2, 1, 3])?.reshape([1, places, channels])?;
    let attended = lease.linear(&format!("{name}.proj"), &attended)?;
    Ok(attended.reshape([1, height, width, channels])?)
}

/// The tokens of a picture: one for all of it, then one for each place of the last grid.
pub(super) fn project(lease: &Lease<'_>, config: &Florence2Config, x: &Tensor) -> Result<Tensor> {
    let x = lease.bring(x)?;
    let (channels, height, width) = (x.dim(1), x.dim(2), x.dim(3));
    if height > config.grid.0 || width > config.grid.1 {
        return Err(Error::Input {
            what: "the picture",
            expected: format!("at most {} rows and {} columns of places", config.grid.0, config.grid.1),
            got: format!("{height} rows and {width} columns"),
        });
    }
    let table = |name: &str, len: usize| -> Result<Tensor> {
        let weight = lease.weight(&format!("multi_modal_projector.image_position_embed.{name}.weight"))?;
        Ok(lease.lane().unpack(&weight)?.slice(0, 0, len)?)
    };
    let (columns, rows) = (table("column_embeddings", width)?, table("row_embeddings", height)?);
    let (across, down) = (columns.dim(1), rows.dim(1));
    let across = columns.reshape([1, width, across])?.broadcast([height, width, across])?.contiguous()?;
    let down = rows.reshape([height, 1, down])?.broadcast([height, width, down])?.contiguous()?;
    let places = Tensor::concat(&[&across, &down], 2)?.reshape([1, height * width, channels])?;
    let tokens = x.permute(&[0, 2, 3, 1])?.reshape([1, height * width, channels])?.add(&places)?;
    let tokens = tokens.add(&first_time(lease, channels)?)?;
    let tokens = Tensor::concat(&[&tokens.mean(&[1])?, &tokens], 1)?;
    let tokens = match lease.find(FIRST_PROJECTION)? {
        Some(matrix) => tokens.matmul(&lease.lane().unpack(&matrix)?, 1.0)?,
        None => lease.linear(PROJECTION.trim_end_matches(".weight"), &tokens)?,
    };
    norm(lease, "multi_modal_projector.image_proj_norm", &tokens)
}

/// What is added to a picture that stands first in time: waves at their start, unless the file has it.
fn first_time(lease: &Lease<'_>, channels: usize) -> Result<Tensor> {
    let lane = lease.lane();
    if let Some(times) = lease.find(TIMES)? {
        return Ok(lane.unpack(&times)?.slice(0, 0, 1)?.reshape([1, 1, channels])?);
    }
    let values: Vec<f32> = (0..channels).map(|i| (i % 2) as f32).collect();
    Ok(lane.tensor([1, 1, channels], &values)?)
}

/// Normalises the values of each place of `[1, channels, height, width]`.
fn norm_places(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let places = x.permute(&[0, 2, 3, 1])?.contiguous()?;
    Ok(norm(lease, name, &places)?.permute(&[0, 3, 1, 2])?.contiguous()?)
}

fn convolve(lease: &Lease<'_>, name: &str, x: &Tensor, shape: &ConvolutionShape) -> Result<Tensor> {
    let bias = lease.find(&format!("{name}.bias"))?;
    Ok(x.convolution(&lease.weight(&format!("{name}.weight"))?, bias.as_ref(), shape)?)
}
