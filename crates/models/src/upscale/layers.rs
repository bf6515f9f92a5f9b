//! The layers that upscalers share.

use device::op::UnaryKind;
use residency::Lease;
use tensor::{Activation, ConvolutionShape, Tensor};

use crate::Result;

/// The layers of one block of the manifest.
#[derive(Clone, Copy)]
pub(super) struct Layers<'a> {
    pub(super) lease: &'a Lease<'a>,
}

impl Layers<'_> {
    /// A convolution that keeps the size of the picture.
    pub(super) fn convolution(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        let border = weight.dims().last().copied().unwrap_or(1) / 2;
        Ok(x.convolution(&weight, bias.as_ref(), &ConvolutionShape::uniform(2, 1, border))?)
    }

    /// A convolution of each channel by itself that keeps the size of the picture.
    pub(super) fn depthwise(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        let shape = ConvolutionShape { groups: x.dim(1), ..ConvolutionShape::uniform(2, 1, 1) };
        Ok(x.convolution(&weight, bias.as_ref(), &shape)?)
    }

    /// Channels normalised by the means and variances of training.
    pub(super) fn batch_norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        /// Added to the variance.
        const EPS: f32 = 1e-5;
        let of = |what: &str| -> Result<Tensor> {
            let values = self.lease.lane().unpack(&self.lease.weight(&format!("{name}.{what}"))?)?;
            Ok(values.reshape([1, values.dim(0), 1, 1])?)
        };
        let scale = of("running_var")?.affine(1.0, EPS)?.unary(UnaryKind::Rsqrt)?.mul(&of("weight")?)?;
        let shift = of("bias")?.sub(&of("running_mean")?.mul(&scale)?)?;
        Ok(shift.broadcast(*x.shape())?.gated_add(&scale, x)?)
    }

    /// A product over the last axis.
    pub(super) fn linear(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        Ok(x.linear(&weight, bias.as_ref())?)
    }

    /// A normalisation over the last axis.
    pub(super) fn norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        /// Added to the variance.
        const EPS: f32 = 1e-5;
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        Ok(x.layer_norm(Some(&weight), bias.as_ref(), EPS)?)
    }

    /// What is negative, times a factor that each channel has learned.
    pub(super) fn prelu(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let slopes = self.lease.lane().unpack(&self.lease.weight(&format!("{name}.weight"))?)?;
        let slopes = slopes.reshape([1, slopes.dim(0), 1, 1])?;
        let positive = x.activate(Activation::Relu)?;
        let negative = x.sub(&positive)?;
        Ok(positive.gated_add(&slopes, &negative)?)
    }

    /// Several of them with a bend between, as some models have in the place of one; others have none.
    pub(super) fn convolutions(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        if self.lease.has(&format!("{name}.weight")) {
            return self.convolution(name, x);
        }
        if !self.lease.has(&format!("{name}.0.weight")) {
            return Ok(x.clone());
        }
        let x = self.convolution(&format!("{name}.0"), x)?.leaky_relu(0.2)?;
        let x = self.convolution(&format!("{name}.2"), &x)?.leaky_relu(0.2)?;
        self.convolution(&format!("{name}.4"), &x)
    }
}

/// `[1, channels · r², height, width]` as `[1, channels, height · r, width · r]`.
pub(super) fn pixel_shuffle(x: &Tensor, r: usize) -> Result<Tensor> {
    let (channels, height, width) = (x.dim(1) / (r * r), x.dim(2), x.dim(3));
    let x = x.reshape([channels, r, r, height, width])?.permute(&[0, 3, 1, 4, 2])?;
    Ok(x.contiguous()?.reshape([1, channels, height * r, width * r])?)
}

/// The other way: every square of `r · r` pixels becomes one with so many channels more.
pub(super) fn pixel_unshuffle(x: &Tensor, r: usize) -> Result<Tensor> {
    let (channels, height, width) = (x.dim(1), x.dim(2) / r, x.dim(3) / r);
    let x = x.reshape([channels, height, r, width, r])?.permute(&[0, 2, 4, 1, 3])?;
    Ok(x.contiguous()?.reshape([1, channels * r * r, height, width])?)
}
