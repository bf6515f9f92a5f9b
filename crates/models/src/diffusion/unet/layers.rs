//! The layers of a UNet but for attention.

use residency::Lease;
use tensor::{ConvolutionShape, ResizeMode, Tensor};

use crate::diffusion::modulation::by_item;
use crate::{Probe, Result};

/// Groups of channels that are normalised together.
const GROUPS: usize = 32;
/// Added to the variance.
const NORM_EPS: f32 = 1e-5;

/// Two convolutions, the second moved by the time, beside which the picture goes on.
pub(super) fn residual(
    lease: &Lease<'_>,
    name: &str,
    x: &Tensor,
    vector: &Tensor,
    probe: &mut Probe<'_>,
) -> Result<Tensor> {
    let layer = |part: &str| format!("{name}.{part}");
    let inner = {
        let activated = activated_norm(lease, &layer("in_layers.0"), x, probe)?;
        convolution(lease, &layer("in_layers.2"), &activated, 1)?
    };
    probe.show(format_args!("{name}.in_layers.2"), &inner);
    let change = lease.linear(&layer("emb_layers.1"), vector)?;
    probe.show(format_args!("{name}.emb_layers.1"), &change);
    let (items, channels) = (inner.dim(0), inner.dim(1));
    let change = by_item(&change, items)?;
    let moved = inner.add(&change.reshape([change.dim(0), channels, 1, 1])?)?;
    drop(inner);
    let inner = {
        let activated = activated_norm(lease, &layer("out_layers.0"), &moved, probe)?;
        drop(moved);
        convolution(lease, &layer("out_layers.3"), &activated, 1)?
    };
    probe.show(format_args!("{name}.out_layers.3"), &inner);
    let skip = layer("skip_connection");
    if lease.has(&format!("{skip}.weight")) {
        return Ok(convolution(lease, &skip, x, 0)?.add(&inner)?);
    }
    Ok(x.add(&inner)?)
}

/// Half the size.
pub(super) fn down(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    convolve(lease, &format!("{name}.op"), x, &ConvolutionShape::uniform(2, 2, 1))
}

/// This height and width.
pub(super) fn up(lease: &Lease<'_>, name: &str, x: &Tensor, [height, width]: [usize; 2]) -> Result<Tensor> {
    let larger = x.resize(height, width, ResizeMode::Nearest)?;
    convolution(lease, &format!("{name}.conv"), &larger, 1)
}

/// Groups of channels normalised, then SiLU.
pub(super) fn activated_norm(
    lease: &Lease<'_>,
    name: &str,
    x: &Tensor,
    probe: &mut Probe<'_>,
) -> Result<Tensor> {
    probe.show_step(format_args!("{name}"), || group_norm(lease, name, x, NORM_EPS))?;
    let weight = lease.weight(&format!("{name}.weight"))?;
    let bias = lease.find(&format!("{name}.bias"))?;
    Ok(x.group_norm_silu(GROUPS, Some(&weight), bias.as_ref(), NORM_EPS)?)
}

/// Groups of channels normalised.
pub(super) fn group_norm(lease: &Lease<'_>, name: &str, x: &Tensor, eps: f32) -> Result<Tensor> {
    let weight = lease.weight(&format!("{name}.weight"))?;
    let bias = lease.find(&format!("{name}.bias"))?;
    Ok(x.group_norm(GROUPS, Some(&weight), bias.as_ref(), eps)?)
}

/// A convolution of stride 1 with this border.
pub(super) fn convolution(lease: &Lease<'_>, name: &str, x: &Tensor, border: usize) -> Result<Tensor> {
    convolve(lease, name, x, &ConvolutionShape::uniform(2, 1, border))
}

/// A convolution of this shape.
pub(super) fn convolve(
    lease: &Lease<'_>,
    name: &str,
    x: &Tensor,
    shape: &ConvolutionShape,
) -> Result<Tensor> {
    let weight = lease.weight(&format!("{name}.weight"))?;
    let bias = lease.find(&format!("{name}.bias"))?;
    Ok(x.convolution(&weight, bias.as_ref(), shape)?)
}
