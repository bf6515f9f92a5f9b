//! The layers of an autoencoder of LTX-Video, over a whole video.

use residency::Lease;
use tensor::{Activation, ConvolutionShape, Padding, Tensor, Window};

use super::Config;
use super::config::{Stage, StageKind};
use crate::diffusion::modulation::{TIME_VALUES, waves};
use crate::{Error, Result};

/// Added to the mean square of a place's channels.
const NORM_EPS: f32 = 1e-8;
/// Added to the variance of a place's channels, where they are normalised with weights.
const LAYER_NORM_EPS: f32 = 1e-6;

/// The layers of one block of the manifest.
pub(super) struct Layers<'a> {
    pub(super) config: &'a Config,
    pub(super) lease: &'a Lease<'a>,
    /// What a decoder is told of the noise in a latent.
    pub(super) time: Option<f32>,
    pub(super) is_decoder: bool,
}

/// Scale and shift of all places, `[1, channels, 1, 1, 1]` each.
struct Modulation {
    scale: Tensor,
    shift: Tensor,
}

impl Layers<'_> {
    /// The block `name`.
    pub(super) fn block(&self, name: &str, x: Tensor) -> Result<Tensor> {
        match name {
            "decoder.in" => self.convolution("decoder.conv_in.conv", &x, [1, 1]),
            "encoder.in" => self.convolution("encoder.conv_in.conv", &x, [1, 1]),
            "decoder.out" => {
                let embedded = self.embedded("decoder.last_time_embedder")?;
                let table = "decoder.last_scale_shift_table";
                let modulation = embedded.map(|time| self.modulations(table, &time)).transpose()?;
                self.activated("decoder.conv_out.conv", &x, modulation.as_ref().map(|all| &all[0]))
            }
            "encoder.out" => self.activated("encoder.conv_out.conv", &x, None),
            stage => {
                let stages = if self.is_decoder { &self.config.up } else { &self.config.down };
                match stages.iter().find(|one| one.name == stage) {
                    Some(stage) => self.stage(stage, x),
                    None => Ok(x),
                }
            }
        }
    }

    fn stage(&self, stage: &Stage, mut x: Tensor) -> Result<Tensor> {
        let name = &stage.name;
        match stage.kind {
            StageKind::Residuals(count, has_noise) => {
                let embedded = self.embedded(&format!("{name}.time_embedder"))?;
                for i in 0..count {
                    let name = format!("{name}.res_blocks.{i}");
                    let table = format!("{name}.scale_shift_table");
                    let modulations =
                        embedded.as_ref().map(|time| self.modulations(&table, time)).transpose()?;
                    x = self.residual(&name, &x, modulations.as_deref().unwrap_or_default(), has_noise)?;
                }
                Ok(x)
            }
            StageKind::Widening(has_noise) => self.residual(name, &x, &[], has_noise),
            StageKind::Strided(steps) => self.convolution(&format!("{name}.conv"), &x, steps),
            StageKind::Folding(factors, is_residual) if self.is_decoder => {
                self.enlarge(stage, &x, factors, is_residual)
            }
            StageKind::Folding(factors, _) => self.reduce(stage, &x, factors),
        }
    }

    /// Channels become places; what came in is added, its channels repeated.
    fn enlarge(&self, stage: &Stage, x: &Tensor, factors: [usize; 2], is_residual: bool) -> Result<Tensor> {
        let larger = spread(&self.convolution(&format!("{}.conv.conv", stage.name), x, [1, 1])?, factors)?;
        if !is_residual {
            return Ok(larger);
        }
        let around = spread(x, factors)?;
        let [batch, channels, frames, height, width] = axes(&around)?;
        let repeats = stage.to / channels.max(1);
        let around = around
            .reshape([batch, 1, channels, frames, height, width])?
            .broadcast([batch, repeats, channels, frames, height, width])?;
        Ok(larger.reshape(*around.shape())?.add(&around)?.reshape(*larger.shape())?)
    }

    /// Places become channels; to that the means of what came in are added.
    fn reduce(&self, stage: &Stage, x: &Tensor, factors: [usize; 2]) -> Result<Tensor> {
        // The first frame stands for as many as are behind it.
        let x = if factors[0] == 1 { x.clone() } else { Tensor::concat(&[&x.slice(2, 0, 1)?, x], 2)? };
        let around = gathered(&x, factors)?;
        let [batch, channels, frames, height, width] = axes(&around)?;
        let around = around.reshape([batch, stage.to, channels / stage.to, frames, height, width])?;
        let around = around.mean(&[2])?.reshape([batch, stage.to, frames, height, width])?;
        let smaller = self.convolution(&format!("{}.conv.conv", stage.name), &x, [1, 1])?;
        Ok(gathered(&smaller, factors)?.add(&around)?)
    }

    fn residual(
        &self,
        name: &str,
        x: &Tensor,
        modulations: &[Modulation],
        has_noise: bool,
    ) -> Result<Tensor> {
        let mut inner = x.clone();
        for part in [1, 2] {
            inner = self.activated(&format!("{name}.conv{part}.conv"), &inner, modulations.get(part - 1))?;
            if has_noise {
                inner = self.with_noise(&format!("{name}.per_channel_scale{part}"), &inner)?;
            }
        }
        if !self.lease.has(&format!("{name}.conv_shortcut.weight")) {
            return Ok(x.add(&inner)?);
        }
        let weight = |layer: &str| self.lease.weight(&format!("{name}.{layer}.weight"));
        let bias = |layer: &str| self.lease.find(&format!("{name}.{layer}.bias"));
        let around = x.permute(&[0, 2, 3, 4, 1])?.contiguous()?.layer_norm(
            Some(&weight("norm3.norm")?),
            bias("norm3.norm")?.as_ref(),
            LAYER_NORM_EPS,
        )?;
        let around = around.permute(&[0, 4, 1, 2, 3])?.contiguous()?.convolution(
            &weight("conv_shortcut")?,
            bias("conv_shortcut")?.as_ref(),
            &ConvolutionShape::uniform(3, 1, 0),
        )?;
        Ok(around.add(&inner)?)
    }

    /// A picture of noise added to every frame, for each channel by its own factor.
    fn with_noise(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let [_, channels, _, height, width] = axes(x)?;
        let scale = self.lease.lane().unpack(&self.lease.weight(name)?)?.reshape([1, channels, 1, 1, 1])?;
        let seed = name.bytes().fold(0u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let noise = self.lease.lane().normal_noise(seed, [1, 1, 1, height, width])?;
        Ok(x.add(&noise.mul(&scale)?)?)
    }

    /// What a decoder is told of noise, in the width of a block: `[1, width]`.
    fn embedded(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(time) = self.time.filter(|_| self.is_decoder) else { return Ok(None) };
        let name = format!("{name}.timestep_embedder");
        let values = self.lease.lane().tensor([1, TIME_VALUES], &waves(time, TIME_VALUES))?;
        let inner = self.lease.linear_then(&format!("{name}.linear_1"), &values, Some(Activation::Silu))?;
        Ok(Some(self.lease.linear(&format!("{name}.linear_2"), &inner)?))
    }

    /// The modulations of a block: pairs of shift and scale one after the other.
    fn modulations(&self, table: &str, time: &Tensor) -> Result<Vec<Modulation>> {
        let own = self.lease.lane().unpack(&self.lease.weight(table)?)?;
        let all = time.add(&own)?;
        let pairs = if table.starts_with("decoder.last") { 1 } else { 2 };
        let channels = all.dim(1) / (2 * pairs);
        let part = |index: usize| -> Result<Tensor> {
            Ok(all.slice(1, index * channels, channels)?.reshape([1, channels, 1, 1, 1])?)
        };
        (0..pairs).map(|i| Ok(Modulation { shift: part(2 * i)?, scale: part(2 * i + 1)? })).collect()
    }

    /// A norm over channels, what a modulation makes of it, an activation and a convolution.
    fn activated(&self, name: &str, x: &Tensor, modulation: Option<&Modulation>) -> Result<Tensor> {
        let mut normed = x.rms_norm_over(1, None, NORM_EPS)?;
        if let Some(Modulation { scale, shift }) = modulation {
            normed = normed.modulate(scale, shift)?;
        }
        let padded = self.padded(&normed, |x, out| x.activate_into(Activation::Silu, out))?;
        // What a step was computed from goes before the next one starts: videos are large.
        drop(normed);
        self.over_padded(name, &padded, [1, 1])
    }

    /// A convolution over three frames, with steps in time and along the sides.
    fn convolution(&self, name: &str, x: &Tensor, steps: [usize; 2]) -> Result<Tensor> {
        let padded = self.padded(x, Tensor::copy_into)?;
        self.over_padded(name, &padded, steps)
    }

    /// Frames through a function, with the first of them repeated in front and the last behind.
    fn padded(&self, x: &Tensor, through: impl Fn(&Tensor, &Tensor) -> device::Result<()>) -> Result<Tensor> {
        let frames = x.dim(2);
        let (before, behind) = if self.is_decoder && !self.config.is_causal { (1, 1) } else { (2, 0) };
        let all = self.lease.lane().empty(x.shape().with(2, before + frames + behind))?;
        through(x, &all.slice(2, before, frames)?)?;
        let ahead = (0..before).map(|frame| (0, frame));
        for (from, to) in ahead.chain((0..behind).map(|frame| (frames - 1, before + frames + frame))) {
            through(&x.slice(2, from, 1)?, &all.slice(2, to, 1)?)?;
        }
        Ok(all)
    }

    fn over_padded(&self, name: &str, x: &Tensor, [time, side]: [usize; 2]) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        let mirrors = self.config.mirrors[usize::from(!self.is_decoder)];
        let sides = Window { stride: side, ..Window::padded(1) };
        let shape = ConvolutionShape {
            window: vec![Window { stride: time, ..Window::padded(0) }, sides, sides],
            padding: if mirrors { Padding::Reflect } else { Padding::Constant(0.0) },
            groups: 1,
        };
        Ok(x.convolution(&weight, bias.as_ref(), &shape)?)
    }
}

/// Channels as places: the first of the frames that a frame becomes is left out where time grows.
fn spread(x: &Tensor, [time, side]: [usize; 2]) -> Result<Tensor> {
    let [batch, channels, frames, height, width] = axes(x)?;
    let to = channels / (time * side * side);
    let larger = x
        .reshape([batch, to, time, side, side, frames, height, width])?
        .permute(&[0, 1, 5, 2, 6, 3, 7, 4])?
        .reshape([batch, to, frames * time, height * side, width * side])?;
    if time == 1 {
        return Ok(larger);
    }
    Ok(larger.slice(2, 1, frames * time - 1)?.contiguous()?)
}

/// Places as channels.
fn gathered(x: &Tensor, [time, side]: [usize; 2]) -> Result<Tensor> {
    let [batch, channels, frames, height, width] = axes(x)?;
    let (frames, height, width) = (frames / time, height / side, width / side);
    Ok(x.reshape([batch, channels, frames, time, height, side, width, side])?
        .permute(&[0, 1, 3, 5, 7, 2, 4, 6])?
        .reshape([batch, channels * time * side * side, frames, height, width])?)
}

fn axes(x: &Tensor) -> Result<[usize; 5]> {
    <[usize; 5]>::try_from(x.dims()).map_err(|_| Error::Input {
        what: "a video",
        expected: "[batch, channels, frames, height, width]".into(),
        got: format!("of shape {}", x.shape()),
    })
}
