//! T2I-Adapters (TencentARC/T2I-Adapter): a small network that looks at the picture alone, so that it runs once for all steps.
//! What its levels give is added on the way in.

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Activation, ConvolutionShape, Padding, Tensor};

use super::layers;
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondShape, Scene};
use crate::control::{ControlNetwork, ControlRun, Controlled, HintForm, HintSpec};
use crate::detect::{Layout, Neighbours, Part};
use crate::diffusion::{ControlResiduals, Evaluation};
use crate::{Module, Result};

/// Whether the tensors around a sign are an adapter's that takes so many pixels along each side at once.
pub(in crate::diffusion) fn is_adapter(found: &Neighbours<'_>, pixels: usize) -> bool {
    let first = found.dims("conv_in.weight").or_else(|| found.dims("body.0.in_conv.weight"));
    let Some(&[_, from, _, _]) = first else { return false };
    // Pictures of one channel or of three.
    from == pixels * pixels || from == 3 * pixels * pixels
}

/// Levels of an adapter, and residual units of each.
const LEVELS: usize = 4;
const UNITS: usize = 2;

/// What a file's adapter is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::diffusion) struct AdapterKind {
    /// Pixels along each side that become channels at once.
    pub(in crate::diffusion) pixels: usize,
    /// The levels that halve the picture.
    pub(in crate::diffusion) halves: [bool; LEVELS],
    /// The blocks on the way in that get what the levels give; none is the middle.
    pub(in crate::diffusion) places: [Option<usize>; LEVELS],
}

/// An adapter: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub(in crate::diffusion) struct Adapter {
    prefix: String,
    layout: Layout,
    kind: &'static AdapterKind,
    controls: &'static [&'static str],
    /// Channels of the picture.
    channels: usize,
    /// Whether levels are narrow inside, with a convolution before and behind.
    is_light: bool,
}

/// What an adapter gave, for each picture.
struct Run {
    residuals: Vec<ControlResiduals>,
}

impl Adapter {
    /// Reads the adapter's sizes from a part of a file.
    pub(in crate::diffusion) fn read(
        checkpoint: &Checkpoint,
        part: &Part,
        kind: &'static AdapterKind,
        controls: &'static [&'static str],
    ) -> Result<Adapter> {
        let claims = claims(checkpoint, &part.prefix, part.layout);
        let is_light = claims.find("conv_in.weight").is_none();
        let first = if is_light { "body.0.in_conv.weight" } else { "conv_in.weight" };
        let [_, from, _, _] = claims.dims(first)?;
        let channels = from / (kind.pixels * kind.pixels);
        Ok(Adapter { prefix: part.prefix.clone(), layout: part.layout, kind, controls, channels, is_light })
    }

    /// The names of the units of a level.
    fn units(&self, level: usize) -> Vec<String> {
        if self.is_light {
            return (0..2 * UNITS).map(|unit| format!("body.{level}.body.{unit}")).collect();
        }
        (0..UNITS).map(|unit| format!("body.{}", level * UNITS + unit)).collect()
    }

    /// A level's layers before its units, `[…]` as they are in the file.
    fn level(&self, lease: &Lease<'_>, level: usize, x: Tensor) -> Result<Tensor> {
        let units = self.units(level);
        let first = if self.is_light { format!("body.{level}") } else { units[0].clone() };
        let mut x = if self.kind.halves[level] { halved(lease, &first, &x)? } else { x };
        if lease.has(&format!("{first}.in_conv.weight")) {
            x = same_size(lease, &format!("{first}.in_conv"), &x)?;
        }
        for unit in &units {
            let inner = same_size(lease, &format!("{unit}.block1"), &x)?.activate(Activation::Relu)?;
            x = same_size(lease, &format!("{unit}.block2"), &inner)?.add(&x)?;
        }
        if self.is_light {
            x = same_size(lease, &format!("{first}.out_conv"), &x)?;
        }
        Ok(x)
    }

    /// Pixels as channels.
    fn unshuffled(&self, picture: &Tensor) -> Result<Tensor> {
        let [items, channels, height, width] = *picture.dims() else { return Ok(picture.clone()) };
        let pixels = self.kind.pixels;
        let (rows, columns) = (height / pixels, width / pixels);
        let apart = picture.reshape([items, channels, rows, pixels, columns, pixels])?;
        let apart = apart.permute(&[0, 1, 3, 5, 2, 4])?;
        Ok(apart.reshape([items, channels * pixels * pixels, rows, columns])?)
    }
}

/// Half the size: by a convolution, or the means of squares of values.
fn halved(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let layer = format!("{name}.down_opt.op");
    if lease.has(&format!("{layer}.weight")) {
        return layers::convolve(lease, &layer, x, &ConvolutionShape::uniform(2, 2, 1));
    }
    // An odd side begins with nothing.
    let odd = |axis: usize| (x.dim(axis) % 2, 0);
    let even = if odd(2).0 + odd(3).0 == 0 {
        x.clone()
    } else {
        x.pad(&[(0, 0), (0, 0), odd(2), odd(3)], Padding::Constant(0.0))?
    };
    let [items, channels, height, width] = *even.dims() else { return Ok(even) };
    let squares = even.reshape([items, channels, height / 2, 2, width / 2, 2])?;
    Ok(squares.mean(&[3, 5])?.reshape([items, channels, height / 2, width / 2])?)
}

/// A convolution that keeps the size, whatever its kernel.
fn same_size(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let border = lease.weight(&format!("{name}.weight"))?.dims()[2] / 2;
    layers::convolution(lease, name, x, border)
}

fn claims<'a>(checkpoint: &'a Checkpoint, prefix: &'a str, layout: Layout) -> Claims<'a> {
    let claims = Claims::new(checkpoint, prefix, "T2I-Adapter");
    if layout == Layout::Diffusers { claims.named_by(diffusers_names) } else { claims }
}

/// What a file in the layout of diffusers calls a weight: it counts levels, the authors count units.
fn diffusers_names(name: &str) -> Vec<String> {
    let unit = name.strip_prefix("body.").and_then(|rest| rest.split_once('.'));
    let Some((Ok(unit), rest)) = unit.map(|(unit, rest)| (unit.parse::<usize>(), rest)) else {
        return vec![name.to_owned()];
    };
    let (level, unit) = (unit / UNITS, unit % UNITS);
    vec![match rest.starts_with("block") {
        true => format!("body.{level}.resnets.{unit}.{rest}"),
        false => format!("body.{level}.{rest}"),
    }]
}

/// A convolution of a known number of channels, with the kernel that it has, if it is there.
fn convolution(claims: &Claims<'_>, name: &str, from: usize) -> Result<(Vec<WeightSpec>, usize)> {
    let [to, _, kernel, _] = claims.dims(&format!("{name}.weight"))?;
    Ok((claims.layer(name, &[to, from, kernel, kernel])?, to))
}

impl Module for Adapter {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = claims(checkpoint, &self.prefix, self.layout);
        let mut builder = Manifest::builder(claims.file(), "T2I-Adapter");
        let mut channels = self.channels * self.kind.pixels * self.kind.pixels;
        let mut entrance = Vec::new();
        if !self.is_light {
            let (weights, to) = convolution(&claims, "conv_in", channels)?;
            entrance.extend(weights);
            channels = to;
        }
        for level in 0..LEVELS {
            let mut block = std::mem::take(&mut entrance);
            let mut add = |name: &str, channels: &mut usize| -> Result<()> {
                if claims.find(&format!("{name}.weight")).is_some() {
                    let (weights, to) = convolution(&claims, name, *channels)?;
                    block.extend(weights);
                    *channels = to;
                }
                Ok(())
            };
            let units = self.units(level);
            let first = if self.is_light { format!("body.{level}") } else { units[0].clone() };
            if self.kind.halves[level] {
                add(&format!("{first}.down_opt.op"), &mut channels)?;
            }
            add(&format!("{first}.in_conv"), &mut channels)?;
            for unit in &units {
                let (weights, _) = convolution(&claims, &format!("{unit}.block1"), channels)?;
                block.extend(weights);
                let (weights, _) = convolution(&claims, &format!("{unit}.block2"), channels)?;
                block.extend(weights);
            }
            if self.is_light {
                let (weights, to) = convolution(&claims, &format!("{first}.out_conv"), channels)?;
                block.extend(weights);
                channels = to;
            }
            builder = builder.block(format!("body.{level}"), false, block);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::F16, DType::BF16, DType::F32]
    }
}

impl ControlNetwork for Adapter {
    fn controls(&self) -> &'static [&'static str] {
        self.controls
    }

    fn hint(&self) -> HintSpec {
        let form = HintForm::Pixels { per_value: 8, multiple: self.kind.pixels, channels: self.channels };
        HintSpec { form, preparing: |value| value, takes_mask: false }
    }

    fn latent_channels(&self) -> usize {
        super::FOUR_CHANNELS.channels
    }

    fn blank(&self, _shape: &CondShape) -> Cond {
        Cond::text(Array::zeros(&[1, 1, 1]), None)
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        controlled: &[Controlled<'_>],
        _scene: &Scene<'_>,
    ) -> Result<Box<dyn ControlRun + 'a>> {
        let mut states = Vec::with_capacity(controlled.len());
        for controlled in controlled {
            let axes = controlled.hint_axes(self.channels)?;
            let picture = session.lane()?.tensor(axes, &controlled.hint.values)?;
            states.push(self.unshuffled(&picture)?);
        }
        let mut residuals = vec![ControlResiduals::default(); controlled.len()];
        for level in 0..LEVELS {
            let lease = session.lease(level)?;
            for (state, residuals) in states.iter_mut().zip(&mut residuals) {
                let mut x = lease.bring(state)?;
                if level == 0 && !self.is_light {
                    x = same_size(&lease, "conv_in", &x)?;
                }
                *state = self.level(&lease, level, x)?;
                match self.kind.places[level] {
                    Some(block) => {
                        residuals.input.resize(block, None);
                        residuals.input.push(Some(state.clone()));
                    }
                    None => residuals.middle = vec![Some(state.clone())],
                }
            }
        }
        Ok(Box::new(Run { residuals }))
    }
}

impl ControlRun for Run {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<ControlResiduals>> {
        Ok(evaluations.iter().map(|evaluation| self.residuals[evaluation.cond].clone()).collect())
    }
}
