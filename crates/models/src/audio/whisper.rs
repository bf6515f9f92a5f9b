//! Whisper's encoder: half a minute of sound as a picture of loudness, two convolutions over its moments, and a transformer.
//! Names are those of the published checkpoints (`model.encoder.layers.0.self_attn.q_proj`).

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Activation, ConvolutionShape, Mask, Tensor};

use super::{AudioEncoder, AudioFamily, mel};
use crate::claims::Claims;
use crate::detect::{Part, Sign};
use crate::rehearsal::read_back;
use crate::{Module, Result};

/// What errors call the family.
const NAME: &str = "Whisper";
/// Values of a head in every model of the family.
const HEAD: usize = 64;
/// Added to the variance.
const NORM_EPS: f32 = 1e-5;
/// Values of sound for each moment behind the convolutions.
const PER_MOMENT: usize = 320;
/// Moments that a kernel looks at.
const KERNEL: usize = 3;

/// The family.
pub const FAMILY: AudioFamily = AudioFamily {
    name: NAME,
    signs: &[Sign::native("encoder.embed_positions.weight", |found| {
        let is_encoder =
            found.has("encoder.conv1.weight") && found.has("encoder.layers.0.self_attn.q_proj.weight");
        is_encoder.then(|| match found.dim(1) {
            Some(1280) => Cow::Borrowed("Whisper large"),
            _ => Cow::Borrowed("Whisper"),
        })
    })],
    read: |checkpoint, part| Ok(Box::new(Whisper::read(checkpoint, part)?)),
};

/// The encoder: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Whisper {
    prefix: String,
    /// Bands of the picture.
    bands: usize,
    /// Moments behind the convolutions.
    moments: usize,
    width: usize,
    mlp: usize,
    layers: usize,
}

impl Whisper {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Whisper> {
        let claims = Claims::new(checkpoint, &part.prefix, NAME);
        let [width, bands, _] = claims.dims("encoder.conv1.weight")?;
        let [moments, _] = claims.dims("encoder.embed_positions.weight")?;
        let [mlp, _] = claims.dims("encoder.layers.0.fc1.weight")?;
        if width % HEAD != 0 {
            return Err(
                claims.misfit("encoder.conv1.weight", format!("[a multiple of {HEAD}, {bands}, {KERNEL}]"))
            );
        }
        let layers = claims.count(|i| format!("{}.fc1.weight", layer_name(i)));
        Ok(Whisper { prefix: part.prefix.clone(), bands, moments, width, mlp, layers })
    }

    /// From the picture of a sound `[1, bands, 2 · moments]` to tokens.
    fn enter(&self, lease: &Lease<'_>, picture: &Tensor) -> Result<Tensor> {
        let mut x = picture.clone();
        for (name, stride) in [("encoder.conv1", 1), ("encoder.conv2", 2)] {
            let (weight, bias) =
                (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
            let shape = ConvolutionShape::uniform(1, stride, 1);
            x = x.convolution(&weight, bias.as_ref(), &shape)?.activate(Activation::Gelu)?;
        }
        let places = lease.lane().unpack(&lease.weight("encoder.embed_positions.weight")?)?;
        let x = x.transpose(1, 2)?.contiguous()?;
        Ok(x.add(&places.reshape([1, self.moments, self.width])?)?)
    }

    fn layer(&self, lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
        let inner = normed(lease, &format!("{name}.self_attn_layer_norm"), x)?;
        let heads = [1, self.moments, self.width / HEAD, HEAD];
        let project = |part: &str| -> Result<Tensor> {
            Ok(lease.linear(&format!("{name}.self_attn.{part}_proj"), &inner)?.reshape(heads)?)
        };
        let (q, k, v) = (project("q")?, project("k")?, project("v")?);
        let attended = q.attention(&k, &v, &Mask::None, 1.0 / (HEAD as f32).sqrt())?;
        let attended = attended.reshape([1, self.moments, self.width])?;
        let x = x.add(&lease.linear(&format!("{name}.self_attn.out_proj"), &attended)?)?;
        let inner = normed(lease, &format!("{name}.final_layer_norm"), &x)?;
        let inner = lease.linear_then(&format!("{name}.fc1"), &inner, Some(Activation::Gelu))?;
        Ok(x.add(&lease.linear(&format!("{name}.fc2"), &inner)?)?)
    }
}

fn layer_name(index: usize) -> String {
    format!("encoder.layers.{index}")
}

fn normed(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.find(&format!("{name}.bias"))?);
    Ok(x.layer_norm(Some(&weight), bias.as_ref(), NORM_EPS)?)
}

impl AudioEncoder for Whisper {
    /// A sound is cut or goes on silently to as long as the model listens.
    fn listen(&self, session: &Session, sound: &[f32]) -> Result<Vec<Tensor>> {
        let length = self.moments * PER_MOMENT;
        let mut whole = sound[..sound.len().min(length)].to_vec();
        whole.resize(length, 0.0);
        let picture = mel::picture(&whole, self.bands);
        let mut x = {
            let lease = session.lease(0)?;
            let picture = lease.lane().tensor([1, self.bands, 2 * self.moments], &picture)?;
            self.enter(&lease, &picture)?
        };
        let mut heard = Vec::with_capacity(self.layers + 1);
        for index in 0..self.layers {
            let lease = session.lease(1 + index)?;
            let own = lease.bring(&x)?;
            heard.push(x);
            x = self.layer(&lease, &layer_name(index), &own)?;
        }
        let lease = session.lease(1 + self.layers)?;
        heard.push(normed(&lease, "encoder.layer_norm", &lease.bring(&x)?)?);
        Ok(heard)
    }

    fn rehearse(&self, session: &Session) -> Result<()> {
        let heard = self.listen(session, &[])?;
        heard.iter().try_for_each(read_back)
    }
}

impl Module for Whisper {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, NAME);
        let width = self.width;
        let mut entrance = claims.layer("encoder.conv1", &[width, self.bands, KERNEL])?;
        entrance.extend(claims.layer("encoder.conv2", &[width, width, KERNEL])?);
        entrance.push(claims.weight("encoder.embed_positions.weight", &[self.moments, width])?);
        let mut builder = Manifest::builder(claims.file(), NAME).block("in", true, entrance);
        for index in 0..self.layers {
            let name = layer_name(index);
            let layer = |part: &str, shape: &[usize]| -> Result<Vec<WeightSpec>> {
                claims.layer(&format!("{name}.{part}"), shape)
            };
            let mut weights = layer("self_attn_layer_norm", &[width])?;
            for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                weights.extend(layer(&format!("self_attn.{part}"), &[width, width])?);
            }
            weights.extend(layer("final_layer_norm", &[width])?);
            weights.extend(layer("fc1", &[self.mlp, width])?);
            weights.extend(layer("fc2", &[width, self.mlp])?);
            builder = builder.block(name.clone(), false, weights);
        }
        let exit = claims.layer("encoder.layer_norm", &[width])?;
        Ok(builder.block("out", true, exit).finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::F16, DType::BF16, DType::F32]
    }
}
