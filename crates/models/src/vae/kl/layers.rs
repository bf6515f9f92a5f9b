//! The layers of a KL autoencoder.

use device::op::UnaryKind;
use residency::Lease;
use tensor::{ConvolutionShape, Padding, ResizeMode, Tensor, Weight, Window};

use super::Config;
use super::config::{PATCH, Stage};
use crate::vae::attention::attend;
use crate::{Probe, Result};

/// Groups of channels that are normalised together.
const GROUPS: usize = 32;
/// Added to the variance.
const NORM_EPS: f32 = 1e-6;
/// The same in layers over frames.
const FRAMES_NORM_EPS: f32 = 1e-5;
/// Added to the variance of patches.
const PATCH_EPS: f32 = 1e-4;

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
                let x = if self.config.is_patched { self.values_of_patches(&x)? } else { x };
                let x = self.optional_product("decoder.post_quant_conv", &x)?;
                let x = self.optional_product("post_quant_conv", &x)?;
                let x = self.convolution("decoder.conv_in", &x, 1)?;
                probe.show(format_args!("conv_in"), &x);
                Ok(x)
            }
            "decoder.mid" => self.middle("decoder.mid", &x),
            "decoder.out" => {
                probe.show_step(format_args!("norm_out"), || self.norm("decoder.norm_out", &x))?;
                let x = self.activated_norm("decoder.norm_out", &x, NORM_EPS)?;
                let mut x = self.convolution("decoder.conv_out", &x, 1)?;
                if self.config.has_frames {
                    x = pictures(
                        &self.convolution_over_frames("decoder.conv_out.time_mix_conv", &video(&x)?)?,
                    )?;
                }
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
                let x = self.activated_norm("encoder.norm_out", &x, NORM_EPS)?;
                let x = self.convolution("encoder.conv_out", &x, 1)?;
                let x = self.optional_product("encoder.quant_conv", &x)?;
                let x = self.optional_product("quant_conv", &x)?;
                let mean = x.slice(1, 0, self.config.inner_channels)?.contiguous()?;
                if self.config.is_patched { self.patches_of_values(&mean) } else { Ok(mean) }
            }
            stage => self.down(stage, x),
        }
    }

    /// Patches `[batch, channels · 2 · 2, height, width]` as the values that they were made of.
    fn values_of_patches(&self, x: &Tensor) -> Result<Tensor> {
        let [mean, deviation] = self.patch_norm("decoder")?;
        let x = x.mul(&deviation)?.add(&mean)?;
        let [batch, channels, height, width] = [0, 1, 2, 3].map(|axis| x.dim(axis));
        let channels = channels / (PATCH * PATCH);
        let x = x.reshape([batch, channels, PATCH, PATCH, height, width])?.permute(&[0, 1, 4, 2, 5, 3])?;
        Ok(x.reshape([batch, channels, height * PATCH, width * PATCH])?)
    }

    /// Values `[batch, channels, height, width]` as patches.
    fn patches_of_values(&self, x: &Tensor) -> Result<Tensor> {
        let [batch, channels, height, width] = [0, 1, 2, 3].map(|axis| x.dim(axis));
        let (rows, columns) = (height / PATCH, width / PATCH);
        let x = x.reshape([batch, channels, rows, PATCH, columns, PATCH])?.permute(&[0, 1, 3, 5, 2, 4])?;
        let x = x.reshape([batch, channels * PATCH * PATCH, rows, columns])?;
        let [mean, deviation] = self.patch_norm("encoder")?;
        Ok(x.sub(&mean)?.div(&deviation)?)
    }

    /// Mean and deviation of the values of patches, `[1, values, 1, 1]`.
    fn patch_norm(&self, half: &str) -> Result<[Tensor; 2]> {
        let values = |name: &str| -> Result<Tensor> {
            let values = self.lease.lane().unpack(&self.lease.weight(&format!("{half}.{name}"))?)?;
            Ok(values.reshape([1, values.dim(0), 1, 1])?)
        };
        let variance = values("running_var")?.affine(1.0, PATCH_EPS)?;
        Ok([values("running_mean")?, variance.unary(UnaryKind::Sqrt)?])
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
            let norm = format!("{name}.norm{part}");
            probe.show_step(format_args!("{short}.norm{part}"), || self.norm(&norm, x))?;
            let activated = self.activated_norm(&norm, x, NORM_EPS)?;
            let out = self.convolution(&format!("{name}.conv{part}"), &activated, 1)?;
            probe.show(format_args!("{short}.conv{part}"), &out);
            Ok(out)
        };
        let first = half(1, x)?;
        let inner = half(2, &first)?;
        drop(first);
        let around = self.optional_product(&format!("{name}.nin_shortcut"), x)?;
        let out = around.add(&inner)?;
        drop(inner);
        if self.config.has_frames && name.starts_with("decoder.") {
            return self.over_frames(name, &out);
        }
        Ok(out)
    }

    /// Two convolutions over frames behind a unit, mixed with it. The pictures are the frames of one video.
    fn over_frames(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let volume = video(x)?;
        let half = |norm: &str, kernel: &str, x: &Tensor| -> Result<Tensor> {
            let activated = self.activated_norm(&format!("{name}.time_stack.{norm}"), x, FRAMES_NORM_EPS)?;
            self.convolution_over_frames(&format!("{name}.time_stack.{kernel}"), &activated)
        };
        let inner = half("out_layers.0", "out_layers.3", &half("in_layers.0", "in_layers.2", &volume)?)?;
        let share = self.lease.lane().unpack(&self.lease.weight(&format!("{name}.mix_factor"))?)?;
        // What the convolutions give counts by its share: `volume + inner` beside `volume`.
        let mixed = volume.gated_add(&share.unary(UnaryKind::Sigmoid)?, &inner)?;
        pictures(&mixed)
    }

    /// A convolution over three frames of `[1, channels, frames, height, width]`.
    fn convolution_over_frames(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let window = vec![Window::padded(1), Window::padded(0), Window::padded(0)];
        self.convolve(name, x, &ConvolutionShape { window, padding: Padding::Constant(0.0), groups: 1 })
    }

    /// Attention of every position over all, in one head.
    fn attention(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let (batch, channels, positions) = (x.dim(0), x.dim(1), x.dim(2) * x.dim(3));
        let inner = self.norm(&format!("{name}.norm"), x)?;
        let product = |layer: &str| -> Result<Tensor> {
            let y = self.convolution(&format!("{name}.{layer}"), &inner, 0)?;
            Ok(y.reshape([batch, channels, positions])?)
        };
        let out = attend([&product("q")?, &product("k")?, &product("v")?])?;
        let out = self.convolution(&format!("{name}.proj_out"), &out.reshape(*x.shape())?, 0)?;
        Ok(x.add(&out)?)
    }

    fn norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = self.norm_weights(name)?;
        Ok(x.group_norm(groups_of(x), Some(&weight), bias.as_ref(), NORM_EPS)?)
    }

    /// Groups of channels normalised, then SiLU.
    fn activated_norm(&self, name: &str, x: &Tensor, eps: f32) -> Result<Tensor> {
        let (weight, bias) = self.norm_weights(name)?;
        Ok(x.group_norm_silu(groups_of(x), Some(&weight), bias.as_ref(), eps)?)
    }

    fn norm_weights(&self, name: &str) -> Result<(Weight, Option<Weight>)> {
        Ok((self.lease.weight(&format!("{name}.weight"))?, self.lease.find(&format!("{name}.bias"))?))
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

/// Small models have fewer channels than the usual number of groups.
fn groups_of(x: &Tensor) -> usize {
    GROUPS.min(x.dim(1))
}

/// The stage with the number at the end of a name.
fn stage_of<'a>(stages: &'a [Stage], name: &str) -> Option<&'a Stage> {
    let number = name.rsplit('.').next()?.parse::<usize>().ok()?;
    stages.get(number)
}

/// Pictures `[frames, channels, height, width]` as one video, `[1, channels, frames, height, width]`.
fn video(x: &Tensor) -> Result<Tensor> {
    let (frames, channels, height, width) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3));
    Ok(x.transpose(0, 1)?.contiguous()?.reshape([1, channels, frames, height, width])?)
}

/// The reverse.
fn pictures(x: &Tensor) -> Result<Tensor> {
    let (channels, frames, height, width) = (x.dim(1), x.dim(2), x.dim(3), x.dim(4));
    Ok(x.reshape([channels, frames, height, width])?.transpose(0, 1)?.contiguous()?)
}
