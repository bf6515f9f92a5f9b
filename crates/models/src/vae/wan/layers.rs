//! The layers of an autoencoder of Wan, over one part of a video.

use residency::Lease;
use tensor::{Activation, ConvolutionShape, Padding, ResizeMode, Tensor, Window};

use super::Config;
use super::config::{LayerKind, Stage};
use crate::vae::attention::attend;
use crate::vae::causal::Past;
use crate::{Error, Probe, Result};

/// Keeps channels that are all zero from being divided by zero; nothing else sees it.
const NORM_EPS: f32 = 1e-24;
/// Frames before its own that a convolution looks at.
const BACK: usize = 2;

/// The layers of one block of the manifest.
pub(super) struct Layers<'a> {
    pub(super) config: &'a Config,
    pub(super) lease: &'a Lease<'a>,
    pub(super) past: &'a mut Past,
    /// Whether this is the first part of a video: one frame, which is not doubled or halved in time.
    pub(super) is_first: bool,
}

impl Layers<'_> {
    /// The decoder's block `name`.
    pub(super) fn decode(&mut self, name: &str, x: Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        match name {
            "decoder.in" => {
                let x = self.product("conv2", &x)?;
                let x = self.causal("decoder.conv1", &x)?;
                probe.show(format_args!("conv1"), &x);
                Ok(x)
            }
            "decoder.middle" => self.middle("decoder.middle", &x),
            "decoder.head" => self.activated("decoder.head.0", "decoder.head.2", &x),
            stage => match self.config.up.iter().find(|up| up.name == stage) {
                Some(stage) => self.up(stage, x),
                None => Ok(x),
            },
        }
    }

    /// The encoder's block `name`.
    pub(super) fn encode(&mut self, name: &str, x: Tensor) -> Result<Tensor> {
        match name {
            "encoder.in" => self.causal("encoder.conv1", &x),
            "encoder.middle" => self.middle("encoder.middle", &x),
            "encoder.head" => {
                let x = self.activated("encoder.head.0", "encoder.head.2", &x)?;
                self.product("conv1", &x)
            }
            stage => match self.config.down.iter().find(|down| down.name == stage) {
                Some(stage) => self.down(stage, x),
                None => Ok(x),
            },
        }
    }

    fn up(&mut self, stage: &Stage, x: Tensor) -> Result<Tensor> {
        let around = stage.is_bridged.then(|| x.clone());
        let mut x = x;
        for layer in &stage.layers {
            x = match layer.kind {
                LayerKind::Residual => self.residual(&layer.name, &x)?,
                LayerKind::Resample { in_time } => self.enlarge(&layer.name, x, in_time)?,
            };
        }
        match around {
            None => Ok(x),
            Some(around) => add_spread(&x, &around, stage, self.is_first),
        }
    }

    fn down(&mut self, stage: &Stage, x: Tensor) -> Result<Tensor> {
        let around = stage.is_bridged.then(|| x.clone());
        let mut x = x;
        for layer in &stage.layers {
            x = match layer.kind {
                LayerKind::Residual => self.residual(&layer.name, &x)?,
                LayerKind::Resample { in_time } => self.reduce(&layer.name, &x, in_time)?,
            };
        }
        match around {
            None => Ok(x),
            Some(around) => Ok(x.add(&gathered(&around, stage)?)?),
        }
    }

    /// Twice as high and wide; frames behind the first become two.
    fn enlarge(&mut self, name: &str, x: Tensor, in_time: bool) -> Result<Tensor> {
        let mut x = x;
        if in_time && !self.is_first {
            let [batch, channels, frames, height, width] = axes(&x)?;
            let both = self.in_time(&format!("{name}.time_conv"), &x)?;
            x = both
                .reshape([batch, 2, channels, frames, height, width])?
                .permute(&[0, 2, 3, 1, 4, 5])?
                .reshape([batch, channels, frames * 2, height, width])?;
        }
        let x = x.resize(x.dim(3) * 2, x.dim(4) * 2, ResizeMode::NearestExact)?;
        self.convolution(
            &format!("{name}.resample.1"),
            &x,
            [Window::padded(0), Window::padded(1), Window::padded(1)],
        )
    }

    /// Half as high and wide; two frames behind the first become one.
    fn reduce(&mut self, name: &str, x: &Tensor, in_time: bool) -> Result<Tensor> {
        // The border is at the far side only.
        let side = Window { stride: 2, pad_before: 0, pad_after: 1, dilation: 1 };
        let x = self.convolution(&format!("{name}.resample.1"), x, [Window::padded(0), side, side])?;
        if !in_time || self.config.is_for_pictures() {
            return Ok(x);
        }
        let time = format!("{name}.time_conv");
        let with_past = self.past.join(self.lease, (&time, 1), x.shape(), |out| Ok(x.copy_into(out)?))?;
        if self.is_first {
            return Ok(x);
        }
        drop(x);
        let halved = Window { stride: 2, ..Window::padded(0) };
        self.convolution(&time, &with_past.frames, [halved, Window::padded(0), Window::padded(0)])
    }

    fn middle(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        let x = self.residual(&format!("{name}.0"), x)?;
        let x = self.attention(&format!("{name}.1"), &x)?;
        self.residual(&format!("{name}.2"), &x)
    }

    fn residual(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        let first = self.activated(&format!("{name}.residual.0"), &format!("{name}.residual.2"), x)?;
        let inner = self.activated(&format!("{name}.residual.3"), &format!("{name}.residual.6"), &first)?;
        drop(first);
        let shortcut = format!("{name}.shortcut");
        if self.lease.has(&format!("{shortcut}.weight")) {
            return Ok(self.product(&shortcut, x)?.add(&inner)?);
        }
        Ok(x.add(&inner)?)
    }

    /// A norm, an activation and a convolution over three frames.
    fn activated(&mut self, norm: &str, convolution: &str, x: &Tensor) -> Result<Tensor> {
        let normed = self.norm(norm, x)?;
        if self.config.is_for_pictures() {
            return self.looking_back(convolution, &normed.activate(Activation::Silu)?, 0, 1);
        }
        let with_past = self.past.join(self.lease, (convolution, BACK), x.shape(), |out| {
            Ok(normed.activate_into(Activation::Silu, out)?)
        })?;
        // What a step was computed from goes before the next one starts: videos are large.
        drop(normed);
        self.looking_back(convolution, &with_past.frames, with_past.missing, 1)
    }

    /// A convolution over three frames.
    fn causal(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        if self.config.is_for_pictures() {
            return self.looking_back(name, x, 0, 1);
        }
        let with_past = self.past.join(self.lease, (name, BACK), x.shape(), |out| Ok(x.copy_into(out)?))?;
        self.looking_back(name, &with_past.frames, with_past.missing, 1)
    }

    /// A convolution over three frames and one place.
    fn in_time(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        let with_past = self.past.join(self.lease, (name, BACK), x.shape(), |out| Ok(x.copy_into(out)?))?;
        self.looking_back(name, &with_past.frames, with_past.missing, 0)
    }

    fn looking_back(&self, name: &str, x: &Tensor, missing: usize, border: usize) -> Result<Tensor> {
        let time = Window { pad_before: missing, ..Window::padded(0) };
        self.convolution(name, x, [time, Window::padded(border), Window::padded(border)])
    }

    /// Attention of every place over all of its frame.
    fn attention(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let [batch, channels, frames, height, width] = axes(x)?;
        let (items, places) = (batch * frames, height * width);
        let inner = self.norm(&format!("{name}.norm"), x)?.permute(&[0, 2, 1, 3, 4])?;
        let inner = inner.reshape([items, channels, height, width])?;
        let qkv = self.pictures(&format!("{name}.to_qkv"), &inner)?.reshape([items, 3 * channels, places])?;
        let part = |index: usize| qkv.slice(1, index * channels, channels);
        let out = attend([&part(0)?, &part(1)?, &part(2)?])?.reshape([items, channels, height, width])?;
        let out = self.pictures(&format!("{name}.proj"), &out)?;
        let out = out.reshape([batch, frames, channels, height, width])?.permute(&[0, 2, 1, 3, 4])?;
        Ok(x.add(&out)?)
    }

    fn norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.gamma"))?;
        Ok(x.rms_norm_over(1, Some(&weight), NORM_EPS)?)
    }

    /// A product over channels.
    fn product(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        self.convolution(name, x, [Window::padded(0); 3])
    }

    /// A product over the channels of pictures.
    fn pictures(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        Ok(x.convolution(&weight, bias.as_ref(), &ConvolutionShape::uniform(2, 1, 0))?)
    }

    fn convolution(&self, name: &str, x: &Tensor, window: [Window; 3]) -> Result<Tensor> {
        let weight = self.lease.weight(&format!("{name}.weight"))?;
        let bias = self.lease.find(&format!("{name}.bias"))?;
        let shape = ConvolutionShape { window: window.to_vec(), padding: Padding::Constant(0.0), groups: 1 };
        Ok(x.convolution(&weight, bias.as_ref(), &shape)?)
    }
}

fn axes(x: &Tensor) -> Result<[usize; 5]> {
    <[usize; 5]>::try_from(x.dims()).map_err(|_| Error::Input {
        what: "a part of a video",
        expected: "[batch, channels, frames, height, width]".into(),
        got: format!("of shape {}", x.shape()),
    })
}

/// What came into a stage, spread over time and space as the stage does, added to what leaves it. Channels that come in
/// are the slowest of what spreads, so that all of it is a view.
fn add_spread(x: &Tensor, around: &Tensor, stage: &Stage, is_first: bool) -> Result<Tensor> {
    let [time, side] = stage.factors();
    let [batch, from, frames, height, width] = axes(around)?;
    let to = stage.to();
    let mut left = from / to.max(1);
    // Each factor is one of channels as long as there are any, then one of repeats.
    let mut of_channels = |factor: usize| {
        let is = left > 1;
        left = if is { left / factor } else { left };
        if is { factor } else { 1 }
    };
    let own = [of_channels(time), of_channels(side), of_channels(side)];
    let spread = around
        .reshape([batch, to, own[0], own[1], own[2], frames, height, width])?
        .permute(&[0, 1, 5, 2, 6, 3, 7, 4])?
        .broadcast([batch, to, frames, time, height, side, width, side])?;
    // The first frame stays one: the last of its repeats.
    let (spread, time) = if is_first { (spread.slice(3, time - 1, 1)?, 1) } else { (spread, time) };
    let sum = x.reshape([batch, to, frames, time, height, side, width, side])?.add(&spread)?;
    Ok(sum.reshape(*x.shape())?)
}

/// What came into a stage, gathered over time and space as the stage does: means of so many as make the channels right.
fn gathered(around: &Tensor, stage: &Stage) -> Result<Tensor> {
    let [time, side] = stage.factors();
    let missing = (time - around.dim(2) % time) % time;
    let border = [(0, 0), (0, 0), (missing, 0), (0, 0), (0, 0)];
    let around = if missing == 0 { around.clone() } else { around.pad(&border, Padding::Constant(0.0))? };
    let [batch, from, frames, height, width] = axes(&around)?;
    let (frames, height, width) = (frames / time, height / side, width / side);
    let to = stage.to();
    let gathered = around
        .reshape([batch, from, frames, time, height, side, width, side])?
        .permute(&[0, 1, 3, 5, 7, 2, 4, 6])?
        .reshape([batch, to, from * time * side * side / to.max(1), frames, height, width])?;
    Ok(gathered.mean(&[2])?.reshape([batch, to, frames, height, width])?)
}
