//! Layers over the frames of a video, behind those over each of its pictures. The frames of a video are the items of an
//! evaluation.

use device::op::UnaryKind;
use residency::Lease;
use tensor::{Activation, ConvolutionShape, Padding, Tensor, Window};

use super::altered::Attending;
use super::attention::{Block, Stack};
use super::config::{Config, Unit};
use super::layers::activated_norm;
use crate::diffusion::modulation::waves;
use crate::{Probe, Result};

/// Two convolutions over frames behind a residual unit `[videos · frames, channels, height, width]`, mixed with it.
pub(super) fn residual(
    lease: &Lease<'_>,
    name: &str,
    x: &Tensor,
    (vector, frames): (&Tensor, usize),
    probe: &mut Probe<'_>,
) -> Result<Tensor> {
    let layer = |part: &str| format!("{name}.time_stack.{part}");
    let (videos, channels, height, width) = (x.dim(0) / frames, x.dim(1), x.dim(2), x.dim(3));
    let volume = x.reshape([videos, frames, channels, height, width])?.permute(&[0, 2, 1, 3, 4])?;
    let volume = volume.contiguous()?;
    let inner = {
        let activated = activated_norm(lease, &layer("in_layers.0"), &volume, probe)?;
        convolution(lease, &layer("in_layers.2"), &activated)?
    };
    // A video has one row for all of its frames, or one for each.
    let change = lease.linear(&layer("emb_layers.1"), vector)?;
    let rows = change.dim(0) / videos;
    let change = change.reshape([videos, rows, channels])?.transpose(1, 2)?.contiguous()?;
    let moved = inner.add(&change.reshape([videos, channels, rows, 1, 1])?)?;
    drop(inner);
    let inner = {
        let activated = activated_norm(lease, &layer("out_layers.0"), &moved, probe)?;
        drop(moved);
        convolution(lease, &layer("out_layers.3"), &activated)?
    };
    let share = share(lease, &format!("{name}.time_mixer"))?;
    let mixed = mixed(&share, &volume, &volume.add(&inner)?)?;
    Ok(mixed.permute(&[0, 2, 1, 3, 4])?.contiguous()?.reshape(*x.shape())?)
}

/// A convolution over three frames.
fn convolution(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let window = vec![Window::padded(1), Window::padded(0), Window::padded(0)];
    let shape = ConvolutionShape { window, padding: Padding::Constant(0.0), groups: 1 };
    let weight = lease.weight(&format!("{name}.weight"))?;
    let bias = lease.find(&format!("{name}.bias"))?;
    Ok(x.convolution(&weight, bias.as_ref(), &shape)?)
}

/// How much counts of what each picture gives by itself.
fn share(lease: &Lease<'_>, name: &str) -> Result<Tensor> {
    let factor = lease.lane().unpack(&lease.weight(&format!("{name}.mix_factor"))?)?;
    Ok(factor.unary(UnaryKind::Sigmoid)?)
}

/// `share · alone + (1 - share) · together`.
fn mixed(share: &Tensor, alone: &Tensor, together: &Tensor) -> Result<Tensor> {
    Ok(together.gated_add(share, &alone.sub(together)?)?)
}

/// What the blocks of a transformer over frames have in common.
#[derive(Clone)]
pub(super) struct Mixing {
    /// The numbers of the frames in the transformer's width, `[frames, channels]`.
    positions: Tensor,
    share: Tensor,
}

impl Mixing {
    /// Of the layer that a unit is the first of.
    pub(super) fn new(lease: &Lease<'_>, unit: &Unit, [frames, channels]: [usize; 2]) -> Result<Mixing> {
        let name = &unit.name;
        let table: Vec<f32> = (0..frames).flat_map(|frame| waves(frame as f32, channels)).collect();
        let table = lease.lane().tensor([frames, channels], &table)?;
        let inner = lease.linear_then(&format!("{name}.time_pos_embed.0"), &table, Some(Activation::Silu))?;
        let positions = lease.linear(&format!("{name}.time_pos_embed.2"), &inner)?;
        Ok(Mixing { positions, share: share(lease, &format!("{name}.time_mixer"))? })
    }

    /// One block over the frames at each place of the pictures `[videos · frames, places, channels]`, mixed with them. Each
    /// video looks at its first frame's text.
    pub(super) fn block(
        &self,
        config: &Config,
        lease: &Lease<'_>,
        unit: &Unit,
        [x, text]: [&Tensor; 2],
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let (positions, share) = (lease.bring(&self.positions)?, lease.bring(&self.share)?);
        let (frames, places, channels) = (positions.dim(0), x.dim(1), x.dim(2));
        let videos = x.dim(0) / frames;
        let by_frame = x.reshape([videos, frames, places, channels])?;
        let moved = by_frame.add(&positions.reshape([1, frames, 1, channels])?)?;
        let by_place = moved.permute(&[0, 2, 1, 3])?.contiguous()?;
        let by_place = by_place.reshape([videos * places, frames, channels])?;
        let (tokens, width) = (text.dim(1), text.dim(2));
        let first = text.reshape([videos, frames, tokens, width])?.slice(1, 0, 1)?.contiguous()?;
        let first = first.reshape([videos, tokens, width])?;
        let changed = Block { config, lease, unit, stack: Stack::Frames, attending: Attending::USUAL }
            .through(&by_place, &first, probe)?;
        let changed = changed.reshape([videos, places, frames, channels])?.permute(&[0, 2, 1, 3])?;
        mixed(&share, x, &changed.contiguous()?.reshape(*x.shape())?)
    }
}
