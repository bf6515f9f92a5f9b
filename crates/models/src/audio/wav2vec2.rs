//! wav2vec 2.0: a sound through convolutions, and a transformer over its moments that knows where they stand by a
//! convolution over many of them. Names are those of the published checkpoints (`wav2vec2.encoder.layers.0.attention.q_proj`).

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Activation, ConvolutionShape, Mask, Padding, Tensor, Weight, Window};

use super::{AudioEncoder, AudioFamily, RATE};
use crate::claims::Claims;
use crate::detect::{Part, Sign};
use crate::rehearsal::read_back;
use crate::{Error, Module, Result};

/// What errors call the family.
const NAME: &str = "wav2vec 2.0";
/// Values of a head in every model of the family.
const HEAD: usize = 64;
/// Added to the variance of moments, and of a sound.
const NORM_EPS: f32 = 1e-5;
const SOUND_EPS: f64 = 1e-7;
/// How far each of the first convolutions steps.
const STEPS: [usize; 7] = [5, 2, 2, 2, 2, 2, 2];
/// Seconds of sound that a rehearsal listens to.
const USUAL_SECONDS: usize = 10;

/// The family.
pub const FAMILY: AudioFamily = AudioFamily {
    name: NAME,
    signs: &[Sign::native("feature_extractor.conv_layers.0.conv.weight", |found| {
        found.has("encoder.pos_conv_embed.conv.bias").then(|| match found.dims("encoder.layer_norm.bias") {
            Some([1024]) => Cow::Borrowed("wav2vec 2.0 large"),
            Some([768]) => Cow::Borrowed("wav2vec 2.0 base"),
            _ => Cow::Borrowed("wav2vec 2.0"),
        })
    })],
    read: |checkpoint, part| Ok(Box::new(Wav2Vec2::read(checkpoint, part)?)),
};

/// The encoder: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Wav2Vec2 {
    prefix: String,
    /// Channels of the convolutions, and moments that each looks at.
    channels: usize,
    kernels: Vec<usize>,
    width: usize,
    mlp: usize,
    layers: usize,
    /// Moments that the convolution over places looks at, and its groups; what the file calls how long its vectors are and
    /// where they point.
    places: [usize; 2],
    lengths: &'static str,
    directions: &'static str,
    /// Whether norms stand behind all convolutions and before what they are for, as in large models; else one stands behind the
    /// first convolution, over moments, and all others behind what they are for.
    is_large: bool,
}

/// What the convolution over places is called.
const PLACES: &str = "encoder.pos_conv_embed.conv";

impl Wav2Vec2 {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Wav2Vec2> {
        let claims = Claims::new(checkpoint, &part.prefix, NAME);
        let [width, channels] = claims.dims("feature_projection.projection.weight")?;
        let kernel = |i: usize| {
            claims.dims::<3>(&format!("{}.weight", convolution_name(i))).map(|[_, _, kernel]| kernel)
        };
        let kernels = (0..STEPS.len()).map(kernel).collect::<Result<_>>()?;
        let later = claims.find(&format!("{PLACES}.parametrizations.weight.original1")).is_some();
        let (lengths, directions) = match later {
            true => ("parametrizations.weight.original0", "parametrizations.weight.original1"),
            false => ("weight_g", "weight_v"),
        };
        let name = format!("{PLACES}.{directions}");
        let [_, each, moments] = claims.dims(&name)?;
        if width % HEAD != 0 || width % each != 0 {
            return Err(
                claims.misfit(&name, format!("[a multiple of {HEAD} and of {each}, {each}, {moments}]"))
            );
        }
        let [mlp, _] = claims.dims("encoder.layers.0.feed_forward.intermediate_dense.weight")?;
        Ok(Wav2Vec2 {
            prefix: part.prefix.clone(),
            channels,
            kernels,
            width,
            mlp,
            layers: claims.count(|i| format!("encoder.layers.{i}.layer_norm.weight")),
            places: [moments, width / each],
            lengths,
            directions,
            is_large: claims.find("feature_extractor.conv_layers.1.layer_norm.weight").is_some(),
        })
    }

    /// From a sound to the moments of the first layer, `[1, moments, width]`.
    fn enter(&self, lease: &Lease<'_>, sound: &[f32]) -> Result<Tensor> {
        let mut x = lease.lane().tensor([1, 1, sound.len()], sound)?;
        for (index, stride) in STEPS.into_iter().enumerate() {
            let name = convolution_name(index);
            let (weight, bias) =
                (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
            x = x.convolution(&weight, bias.as_ref(), &ConvolutionShape::uniform(1, stride, 0))?;
            let norm = format!("feature_extractor.conv_layers.{index}.layer_norm");
            if self.is_large {
                x = normed(lease, &norm, &x.transpose(1, 2)?.contiguous()?)?.transpose(1, 2)?.contiguous()?;
            } else if index == 0 {
                let (weight, bias) =
                    (lease.weight(&format!("{norm}.weight"))?, lease.find(&format!("{norm}.bias"))?);
                x = x.group_norm(self.channels, Some(&weight), bias.as_ref(), NORM_EPS)?;
            }
            x = x.activate(Activation::Gelu)?;
        }
        let x = normed(lease, "feature_projection.layer_norm", &x.transpose(1, 2)?.contiguous()?)?;
        let x = lease.linear("feature_projection.projection", &x)?;
        let x = x.add(&self.places_of(lease, &x)?)?;
        if self.is_large { Ok(x) } else { normed(lease, "encoder.layer_norm", &x) }
    }

    /// What is added for where moments stand: each looks at many around it.
    fn places_of(&self, lease: &Lease<'_>, x: &Tensor) -> Result<Tensor> {
        let [kernel, groups] = self.places;
        let lane = lease.lane();
        let each = self.width / groups;
        let count = self.width * each;
        let directions = lane.unpack(&lease.weight(&format!("{PLACES}.{}", self.directions))?)?;
        let by_moment = directions.permute(&[2, 0, 1])?.contiguous()?.reshape([kernel, count])?;
        let lengths = lane.unpack(&lease.weight(&format!("{PLACES}.{}", self.lengths))?)?;
        let lengths = lengths.reshape([kernel, 1])?.affine(1.0 / (count as f32).sqrt(), 0.0)?;
        let weight = by_moment.rms_norm(None, 0.0)?.mul(&lengths)?;
        let weight = weight.reshape([kernel, self.width, each])?.permute(&[1, 2, 0])?.contiguous()?;
        let weight = Weight::new(weight.operand().clone());
        let bias = lease.find(&format!("{PLACES}.bias"))?;
        let shape = ConvolutionShape {
            window: vec![Window::padded(kernel / 2)],
            padding: Padding::Constant(0.0),
            groups,
        };
        let moments = x.dim(1);
        let x = x.transpose(1, 2)?.contiguous()?.convolution(&weight, bias.as_ref(), &shape)?;
        Ok(x.slice(2, 0, moments)?.activate(Activation::Gelu)?.transpose(1, 2)?.contiguous()?)
    }

    fn layer(&self, lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
        let norm = |part: &str, x: &Tensor| normed(lease, &format!("{name}.{part}"), x);
        let forward = |x: &Tensor| -> Result<Tensor> {
            let inner = format!("{name}.feed_forward.intermediate_dense");
            let inner = lease.linear_then(&inner, x, Some(Activation::Gelu))?;
            Ok(lease.linear(&format!("{name}.feed_forward.output_dense"), &inner)?)
        };
        if self.is_large {
            let x = x.add(&self.attention(lease, name, &norm("layer_norm", x)?)?)?;
            return Ok(x.add(&forward(&norm("final_layer_norm", &x)?)?)?);
        }
        let x = norm("layer_norm", &x.add(&self.attention(lease, name, x)?)?)?;
        norm("final_layer_norm", &x.add(&forward(&x)?)?)
    }

    fn attention(&self, lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
        let heads = [1, x.dim(1), self.width / HEAD, HEAD];
        let project = |part: &str| -> Result<Tensor> {
            Ok(lease.linear(&format!("{name}.attention.{part}_proj"), x)?.reshape(heads)?)
        };
        let (q, k, v) = (project("q")?, project("k")?, project("v")?);
        let attended = q.attention(&k, &v, &Mask::None, 1.0 / (HEAD as f32).sqrt())?;
        Ok(lease.linear(&format!("{name}.attention.out_proj"), &attended.reshape(*x.shape())?)?)
    }
}

fn convolution_name(index: usize) -> String {
    format!("feature_extractor.conv_layers.{index}.conv")
}

fn layer_name(index: usize) -> String {
    format!("encoder.layers.{index}")
}

fn normed(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
    Ok(x.layer_norm(Some(&weight), bias.as_ref(), NORM_EPS)?)
}

/// A sound of mean 0 and variance 1.
fn evened(sound: &[f32]) -> Vec<f32> {
    let count = sound.len() as f64;
    let mean = sound.iter().copied().map(f64::from).sum::<f64>() / count;
    let squares: f64 = sound.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0).max(1.0) + SOUND_EPS).sqrt();
    sound.iter().map(|value| ((f64::from(*value) - mean) / deviation) as f32).collect()
}

impl AudioEncoder for Wav2Vec2 {
    fn listen(&self, session: &Session, sound: &[f32]) -> Result<Vec<Tensor>> {
        // So much of a sound makes the first moment.
        let shortest = self
            .kernels
            .iter()
            .zip(STEPS)
            .rev()
            .fold(1, |length, (kernel, step)| (length - 1) * step + kernel);
        if sound.len() < shortest {
            return Err(Error::Input {
                what: "a sound",
                expected: format!("at least {shortest} values at {RATE} Hz"),
                got: sound.len().to_string(),
            });
        }
        let even = if self.is_large { Cow::Owned(evened(sound)) } else { Cow::Borrowed(sound) };
        let mut x = self.enter(&session.lease(0)?, &even)?;
        let mut heard = Vec::with_capacity(self.layers + 1);
        for index in 0..self.layers {
            let lease = session.lease(1 + index)?;
            let own = lease.bring(&x)?;
            heard.push(x);
            x = self.layer(&lease, &layer_name(index), &own)?;
        }
        if self.is_large {
            let lease = session.lease(1 + self.layers)?;
            x = normed(&lease, "encoder.layer_norm", &lease.bring(&x)?)?;
        }
        heard.push(x);
        Ok(heard)
    }

    fn rehearse(&self, session: &Session) -> Result<()> {
        let heard = self.listen(session, &vec![0.0; USUAL_SECONDS * RATE as usize])?;
        heard.iter().try_for_each(read_back)
    }
}

impl Module for Wav2Vec2 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let (width, channels, [kernel, groups]) = (self.width, self.channels, self.places);
        let mut entrance = Vec::new();
        for (index, kernel) in self.kernels.iter().enumerate() {
            let from = if index == 0 { 1 } else { channels };
            entrance.extend(claims.layer(&convolution_name(index), &[channels, from, *kernel])?);
            if self.is_large || index == 0 {
                let norm = format!("feature_extractor.conv_layers.{index}.layer_norm");
                entrance.extend(claims.layer(&norm, &[channels])?);
            }
        }
        entrance.extend(claims.layer("feature_projection.layer_norm", &[channels])?);
        entrance.extend(claims.layer("feature_projection.projection", &[width, channels])?);
        entrance.push(claims.weight(&format!("{PLACES}.{}", self.lengths), &[1, 1, kernel])?);
        entrance
            .push(claims.weight(&format!("{PLACES}.{}", self.directions), &[width, width / groups, kernel])?);
        entrance.push(claims.weight(&format!("{PLACES}.bias"), &[width])?);
        let last = claims.layer("encoder.layer_norm", &[width])?;
        if !self.is_large {
            entrance.extend(last.clone());
        }
        let mut builder = Manifest::builder(claims.file(), NAME).block("in", true, entrance);
        for index in 0..self.layers {
            let name = layer_name(index);
            let layer = |part: &str, shape: &[usize]| -> Result<Vec<WeightSpec>> {
                claims.layer(&format!("{name}.{part}"), shape)
            };
            let mut weights = layer("layer_norm", &[width])?;
            for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                weights.extend(layer(&format!("attention.{part}"), &[width, width])?);
            }
            weights.extend(layer("final_layer_norm", &[width])?);
            weights.extend(layer("feed_forward.intermediate_dense", &[self.mlp, width])?);
            weights.extend(layer("feed_forward.output_dense", &[width, self.mlp])?);
            builder = builder.block(name.clone(), false, weights);
        }
        if self.is_large {
            builder = builder.block("out", true, last);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::F16, DType::BF16, DType::F32]
    }
}
