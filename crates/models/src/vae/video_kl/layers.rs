//! The layers of a KL autoencoder of videos, over one part of a video.

use residency::Lease;
use tensor::{Activation, ConvolutionShape, Padding, ResizeMode, Tensor, Window};

use super::Config;
use super::config::Stage;
use super::folding::{Folding, averaged, repeated};
use crate::vae::attention::attend;
use crate::vae::causal::Past;
use crate::{Probe, Result};

/// Groups of channels that are normalised together.
const GROUPS: usize = 32;
/// Added to the variance.
const NORM_EPS: f32 = 1e-6;
/// The same of norms that have no mean.
const RMS_EPS: f32 = 1e-24;
/// Frames before its own that a convolution looks at.
const BACK: usize = 2;

/// The layers of one block of the manifest.
pub(super) struct Layers<'a> {
    pub(super) config: &'a Config,
    pub(super) lease: &'a Lease<'a>,
    pub(super) past: &'a mut Past,
    /// Whether this is the first part of a video, whose first frame stays one.
    pub(super) is_first: bool,
}

impl Layers<'_> {
    /// The block `name`.
    pub(super) fn block(&mut self, name: &str, x: Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        match name {
            "decoder.in" => {
                let x = self.optional_product("post_quant_conv", &x)?;
                let inner = self.causal("decoder.conv_in", &x, 1)?;
                probe.show(format_args!("conv_in"), &inner);
                if !self.config.folds {
                    return Ok(inner);
                }
                Ok(inner.add(&repeated(&x, inner.dim(1) / x.dim(1))?)?)
            }
            "encoder.in" => self.causal("encoder.conv_in", &x, 1),
            "decoder.mid" | "encoder.mid" => self.middle(name, &x, probe),
            "decoder.out" => {
                let x = self.norm("decoder.norm_out", &x)?;
                probe.show(format_args!("norm_out"), &x);
                let x = self.activated("decoder.conv_out", &x)?;
                probe.show(format_args!("conv_out"), &x);
                Ok(x)
            }
            "encoder.out" => {
                let inner = self.norm("encoder.norm_out", &x)?;
                let inner = self.activated("encoder.conv_out", &inner)?;
                if self.config.folds {
                    return Ok(inner.add(&averaged(&x, inner.dim(1))?)?);
                }
                self.optional_product("quant_conv", &inner)
            }
            stage => self.stage(stage, x, probe),
        }
    }

    fn stage(&mut self, name: &str, mut x: Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let (is_up, short) = (name.starts_with("decoder."), name.trim_start_matches("decoder."));
        let stages = if is_up { &self.config.up } else { &self.config.down };
        let number = name.rsplit('.').next().and_then(|number| number.parse::<usize>().ok());
        let Some(Stage { channels, resize, in_time }) = number.and_then(|number| stages.get(number)) else {
            return Ok(x);
        };
        for i in 0..channels.len() {
            x = self.residual(&format!("{name}.block.{i}"), &x, probe)?;
            probe.show(format_args!("{short}.block.{i}"), &x);
        }
        if resize.is_none() {
            return Ok(x);
        }
        if self.config.folds {
            let kernel = format!("{name}.{}.conv", if is_up { "upsample" } else { "downsample" });
            let folding = Folding { in_time: *in_time, is_first: self.is_first };
            let inner = self.causal(&kernel, &x, 1)?;
            return if is_up { folding.enlarged(&inner, &x) } else { folding.reduced(&inner, &x) };
        }
        if !is_up {
            return self.strided(&format!("{name}.downsample.conv"), &x, if *in_time { 2 } else { 1 });
        }
        x = x.resize(x.dim(3) * 2, x.dim(4) * 2, ResizeMode::Nearest)?;
        if *in_time {
            x = self.doubled(&x)?;
        }
        x = self.causal(&format!("{name}.upsample.conv"), &x, 1)?;
        probe.show(format_args!("{short}.upsample"), &x);
        Ok(x)
    }

    /// Every frame twice, but for the first of a video.
    fn doubled(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, channels, frames, height, width) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3), x.dim(4));
        let kept = usize::from(self.is_first);
        let rest = frames - kept;
        if rest == 0 {
            return Ok(x.clone());
        }
        let twice = x
            .slice(2, kept, rest)?
            .reshape([batch, channels, rest, 1, height, width])?
            .broadcast([batch, channels, rest, 2, height, width])?
            .reshape([batch, channels, 2 * rest, height, width])?;
        if kept == 0 { Ok(twice) } else { Ok(Tensor::concat(&[&x.slice(2, 0, 1)?, &twice], 2)?) }
    }

    fn middle(&mut self, name: &str, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let x = self.residual(&format!("{name}.block_1"), x, probe)?;
        let x = self.attention(&format!("{name}.attn_1"), &x)?;
        self.residual(&format!("{name}.block_2"), &x, probe)
    }

    fn residual(&mut self, name: &str, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let short = name.trim_start_matches("decoder.");
        let mut half = |part: usize, x: &Tensor| -> Result<Tensor> {
            let normed = self.norm(&format!("{name}.norm{part}"), x)?;
            probe.show(format_args!("{short}.norm{part}"), &normed);
            let out = self.activated(&format!("{name}.conv{part}"), &normed)?;
            probe.show(format_args!("{short}.conv{part}"), &out);
            Ok(out)
        };
        let first = half(1, x)?;
        let inner = half(2, &first)?;
        drop(first);
        let around = self.optional_product(&format!("{name}.nin_shortcut.conv"), x)?;
        Ok(around.add(&inner)?)
    }

    /// Attention of every place of every frame over all, in one head.
    fn attention(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let (batch, channels, places) = (x.dim(0), x.dim(1), x.dim(2) * x.dim(3) * x.dim(4));
        let inner = self.norm(&format!("{name}.norm"), x)?;
        let product = |layer: &str| -> Result<Tensor> {
            Ok(self
                .optional_product(&format!("{name}.{layer}"), &inner)?
                .reshape([batch, channels, places])?)
        };
        let out = attend([&product("q")?, &product("k")?, &product("v")?])?;
        let out = self.optional_product(&format!("{name}.proj_out"), &out.reshape(*x.shape())?)?;
        Ok(x.add(&out)?)
    }

    fn norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        if self.config.folds {
            let weight = self.lease.weight(&format!("{name}.gamma"))?;
            return Ok(x.rms_norm_over(1, Some(&weight), RMS_EPS)?);
        }
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        Ok(x.group_norm(GROUPS.min(x.dim(1)), Some(&weight), bias.as_ref(), NORM_EPS)?)
    }

    /// An activation and a convolution over three frames.
    fn activated(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        let joined = self
            .past
            .join(self.lease, (name, BACK), x.shape(), |out| Ok(x.activate_into(Activation::Silu, out)?))?;
        self.looking_back(name, &joined.frames, (joined.missing, 1), 1)
    }

    /// A convolution over three frames.
    fn causal(&mut self, name: &str, x: &Tensor, side: usize) -> Result<Tensor> {
        let joined = self.past.join(self.lease, (name, BACK), x.shape(), |out| Ok(x.copy_into(out)?))?;
        self.looking_back(name, &joined.frames, (joined.missing, 1), side)
    }

    /// A convolution that halves the sides, and by a step of two the number of frames.
    fn strided(&mut self, name: &str, x: &Tensor, step: usize) -> Result<Tensor> {
        let joined = self.past.join(self.lease, (name, BACK), x.shape(), |out| Ok(x.copy_into(out)?))?;
        self.looking_back(name, &joined.frames, (joined.missing, step), 2)
    }

    /// A convolution with the border's values around it; `(missing, step)` are of time.
    fn looking_back(
        &self,
        name: &str,
        x: &Tensor,
        (missing, step): (usize, usize),
        side: usize,
    ) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.conv.weight"))?;
        let bias = self.lease.find(&format!("{name}.conv.bias"))?;
        let time = Window { stride: step, pad_before: missing, pad_after: 0, dilation: 1 };
        let side = Window { stride: side, ..Window::padded(1) };
        let shape =
            ConvolutionShape { window: vec![time, side, side], padding: Padding::Replicate, groups: 1 };
        Ok(x.convolution(&weight, bias.as_ref(), &shape)?)
    }

    /// A product over channels, if the file has it.
    fn optional_product(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let Some(weight) = self.lease.find(&format!("{name}.weight"))? else { return Ok(x.clone()) };
        let bias = self.lease.find(&format!("{name}.bias"))?;
        Ok(x.convolution(&weight, bias.as_ref(), &ConvolutionShape::uniform(3, 1, 0))?)
    }
}
