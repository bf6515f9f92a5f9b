//! The layers of a KL autoencoder.

use residency::Lease;
use tensor::{Activation, ConvolutionShape, Padding, ResizeMode, Tensor, Window};

use super::Config;
use super::config::Stage;
use crate::{Probe, Result};

/// Groups of channels that are normalised together.
const GROUPS: usize = 32;
/// Added to the variance.
const NORM_EPS: f32 = 1e-6;
/// Scores that attention holds at a time. Its one head is as wide as all channels, which is more than the
/// attention of devices takes, so queries come in chunks of this size over the number of keys.
pub(super) const SCORES: usize = 1 << 22;

/// The layers of one block of the manifest.
pub(super) struct Layers<'a> {
    pub(super) config: &'a Config,
    pub(super) lease: &'a Lease<'a>,
}

impl Layers<'_> {
    /// The decoder's block `name`.
    pub(super) fn decode(&self, name: &str, x: Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        match name {
            "decoder.in" => {
                let x = self.optional_product("post_quant_conv", &x)?;
                let x = self.convolution("decoder.conv_in", &x, 1)?;
                probe.show(format_args!("conv_in"), &x);
                Ok(x)
            }
            "decoder.mid" => self.middle("decoder.mid", &x),
            "decoder.out" => {
                let x = self.norm("decoder.norm_out", &x)?;
                probe.show(format_args!("norm_out"), &x);
                let x = self.convolution("decoder.conv_out", &x.activate(Activation::Silu)?, 1)?;
                probe.show(format_args!("conv_out"), &x);
                Ok(x)
            }
            stage => self.up(stage, x, probe),
        }
    }

    /// The encoder's block `name`.
    pub(super) fn encode(&self, name: &str, x: Tensor) -> Result<Tensor> {
        match name {
            "encoder.in" => self.convolution("encoder.conv_in", &x, 1),
            "encoder.mid" => self.middle("encoder.mid", &x),
            "encoder.out" => {
                let x = self.norm("encoder.norm_out", &x)?.activate(Activation::Silu)?;
                self.optional_product("quant_conv", &self.convolution("encoder.conv_out", &x, 1)?)
            }
            stage => self.down(stage, x),
        }
    }

    fn up(&self, name: &str, mut x: Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let short = name.trim_start_matches("decoder.");
        let stage = stage_of(&self.config.up, name);
        for i in 0..stage.map_or(0, |stage| stage.channels.len()) {
            x = self.residual(&format!("{name}.block.{i}"), &x, probe)?;
            probe.show(format_args!("{short}.block.{i}"), &x);
        }
        if stage.is_some_and(|stage| stage.resizes) {
            x = x.resize(x.dim(2) * 2, x.dim(3) * 2, ResizeMode::Nearest)?;
            x = self.convolution(&format!("{name}.upsample.conv"), &x, 1)?;
            probe.show(format_args!("{short}.upsample"), &x);
        }
        Ok(x)
    }

    fn down(&self, name: &str, mut x: Tensor) -> Result<Tensor> {
        let stage = stage_of(&self.config.down, name);
        for i in 0..stage.map_or(0, |stage| stage.channels.len()) {
            x = self.residual(&format!("{name}.block.{i}"), &x, &mut Probe::none())?;
        }
        if stage.is_some_and(|stage| stage.resizes) {
            // The border is at the far side only.
            let window = Window { stride: 2, pad_before: 0, pad_after: 1, dilation: 1 };
            let shape =
                ConvolutionShape { window: vec![window; 2], padding: Padding::Constant(0.0), groups: 1 };
            x = self.convolve(&format!("{name}.downsample.conv"), &x, &shape)?;
        }
        Ok(x)
    }

    fn middle(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let probe = &mut Probe::none();
        let x = self.residual(&format!("{name}.block_1"), x, probe)?;
        let x = self.attention(&format!("{name}.attn_1"), &x)?;
        self.residual(&format!("{name}.block_2"), &x, probe)
    }

    fn residual(&self, name: &str, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let short = name.trim_start_matches("decoder.");
        // What a step was computed from goes before the next one starts: images are large.
        let mut half = |part: usize, x: &Tensor| -> Result<Tensor> {
            let activated = {
                let normed = self.norm(&format!("{name}.norm{part}"), x)?;
                probe.show(format_args!("{short}.norm{part}"), &normed);
                normed.activate(Activation::Silu)?
            };
            let out = self.convolution(&format!("{name}.conv{part}"), &activated, 1)?;
            probe.show(format_args!("{short}.conv{part}"), &out);
            Ok(out)
        };
        let first = half(1, x)?;
        let inner = half(2, &first)?;
        drop(first);
        let around = self.optional_product(&format!("{name}.nin_shortcut"), x)?;
        Ok(around.add(&inner)?)
    }

    /// Attention of every position over all, in one head.
    fn attention(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let (batch, channels, positions) = (x.dim(0), x.dim(1), x.dim(2) * x.dim(3));
        let inner = self.norm(&format!("{name}.norm"), x)?;
        let product = |layer: &str| -> Result<Tensor> {
            let y = self.convolution(&format!("{name}.{layer}"), &inner, 0)?;
            Ok(y.reshape([batch, channels, positions])?)
        };
        let (q, k, v) = (product("q")?, product("k")?, product("v")?);
        let out = self.lease.lane().empty([batch, channels, positions])?;
        let chunk = (SCORES / (positions * batch)).clamp(1, positions);
        for start in (0..positions).step_by(chunk) {
            let len = chunk.min(positions - start);
            let queries = q.slice(2, start, len)?.transpose(1, 2)?;
            let scores = queries.matmul(&k, 1.0 / (channels as f32).sqrt())?.softmax()?;
            v.matmul(&scores.transpose(1, 2)?, 1.0)?.copy_into(&out.slice(2, start, len)?)?;
        }
        let out = self.convolution(&format!("{name}.proj_out"), &out.reshape(*x.shape())?, 0)?;
        Ok(x.add(&out)?)
    }

    fn norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        // Small models have fewer channels than the usual number of groups.
        let groups = GROUPS.min(x.dim(1));
        Ok(x.group_norm(groups, Some(&weight), bias.as_ref(), NORM_EPS)?)
    }

    /// A convolution of stride 1 with this border.
    fn convolution(&self, name: &str, x: &Tensor, border: usize) -> Result<Tensor> {
        self.convolve(name, x, &ConvolutionShape::uniform(2, 1, border))
    }

    fn convolve(&self, name: &str, x: &Tensor, shape: &ConvolutionShape) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        Ok(x.convolution(&weight, bias.as_ref(), shape)?)
    }

    /// A product over channels, if the file has it.
    fn optional_product(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        if !self.lease.has(&format!("{name}.weight")) {
            return Ok(x.clone());
        }
        self.convolution(name, x, 0)
    }
}

/// The stage with the number at the end of a name.
fn stage_of<'a>(stages: &'a [Stage], name: &str) -> Option<&'a Stage> {
    let number = name.rsplit('.').next()?.parse::<usize>().ok()?;
    stages.get(number)
}
