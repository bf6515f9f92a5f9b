//! CLIP's text model: a causal transformer. Names are those of the published checkpoints
//! (`text_model.encoder.layers.0.self_attn.q_proj`); OpenCLIP's names are read, too.

mod weights;

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Mask, Tensor};

use super::encoder::{Batch, EncodeOptions, Layer, Outputs, TextEncoder};
use super::{TextArchitecture, TextModel, tokenizer};
use crate::claims::Claims;
use crate::clip_layers::{Names, Stack, norm};
use crate::detect::{Neighbours, Part, Sign};
use crate::{Error, Module, Probe, Result};

/// Values per head in every CLIP text model.
const HEAD: usize = 64;
/// Prompts are filled up to chunks of this length.
const CHUNK_TOKENS: usize = 77;
/// Models up to this width were trained with the quick GELU.
const QUICK_GELU_WIDTH: usize = 768;

/// Width and layers of CLIP-H.
const CLIP_H: (usize, usize) = (1024, 24);

/// The architecture.
pub(super) const ARCHITECTURE: TextArchitecture = TextArchitecture {
    name: "CLIP",
    signs: &[
        Sign::native("text_model.embeddings.token_embedding.weight", |found| Some(named(found.dim(1)?))),
        Sign::native("transformer.resblocks.0.ln_1.weight", of_open_clip),
    ],
    read: |checkpoint, part| {
        let clip = Clip::read(checkpoint, part)?;
        let tokenizer = tokenizer::for_clip(checkpoint, clip.config())?;
        Ok(TextModel::new(clip, tokenizer))
    },
};

fn of_open_clip(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let width = found.dim(0)?;
    found.has("token_embedding.weight").then(|| named(width))
}

/// The name of a model by its width.
fn named(width: usize) -> Cow<'static, str> {
    match width {
        768 => Cow::Borrowed("CLIP-L"),
        1024 => Cow::Borrowed("CLIP-H"),
        1280 => Cow::Borrowed("CLIP-G"),
        width => Cow::Owned(format!("CLIP of width {width}")),
    }
}

/// A CLIP text model: its sizes and how it computes.
#[derive(Clone, Debug)]
pub struct Clip {
    config: ClipConfig,
    names: Names,
    prefix: String,
}

/// The sizes of a CLIP text model.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipConfig {
    /// Entries of the token table.
    pub vocabulary: usize,
    /// The longest chunk.
    pub positions: usize,
    /// Values per token.
    pub width: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Layers.
    pub layers: usize,
    /// The non-linearity of the feed-forward layers.
    pub activation: Activation,
}

impl Clip {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Clip> {
        let claims = Claims::new(checkpoint, &part.prefix, weights::FAMILY);
        let names = weights::names_of(&claims);
        let config = weights::read_config(&claims, names)?;
        Ok(Clip { config, names, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &ClipConfig {
        &self.config
    }

    /// The layer whose result is asked for, unless it is the last one's, normalised.
    fn wanted(&self, layer: Layer) -> Option<usize> {
        match layer {
            Layer::Last | Layer::After(_) | Layer::All => None,
            Layer::Skip(from_end) | Layer::SkipRaw(from_end) => {
                let layers = self.config.layers;
                // Some files of CLIP-H leave out the last layer, whose result nobody takes.
                let is_cut = self.config.width == CLIP_H.0 && layers + 1 == CLIP_H.1;
                let layers = if is_cut { layers + 1 } else { layers };
                layers.checked_sub(from_end.max(1)).filter(|layer| *layer < self.config.layers)
            }
        }
    }

    fn enter(&self, session: &Session, batch: &Batch, options: EncodeOptions<'_>) -> Result<Tensor> {
        if batch.len > self.config.positions {
            return Err(Error::Input {
                what: "a chunk of the prompt",
                expected: format!("at most {} tokens", self.config.positions),
                got: batch.len.to_string(),
            });
        }
        let lease = session.lease(0)?;
        let words = batch.embed(&lease, lease.lane(), weights::TOKENS, options.embeddings)?;
        let positions = lease.lane().unpack(&lease.weight(weights::POSITIONS)?)?.slice(0, 0, batch.len)?;
        Ok(words.add(&positions)?)
    }
}

impl ClipConfig {
    /// The layers.
    fn stack(&self) -> Stack {
        Stack {
            name: weights::STACK,
            width: self.width,
            mlp: self.mlp,
            heads: self.width / HEAD,
            activation: self.activation,
            mask: Mask::Causal,
        }
    }
}

impl Module for Clip {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, weights::FAMILY);
        weights::manifest(&claims, &self.config, self.names)
    }

    /// It was trained in f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F16, DType::F32]
    }
}

impl TextEncoder for Clip {
    fn key(&self) -> &'static str {
        match self.config.width {
            1280.. => "clip_g",
            1024.. => "clip_h",
            _ => "clip_l",
        }
    }

    fn width(&self) -> usize {
        self.config.width
    }

    fn layers(&self) -> usize {
        self.config.layers
    }

    fn chunk_tokens(&self) -> Option<usize> {
        Some(CHUNK_TOKENS)
    }

    fn forward(
        &self,
        session: &Session,
        batch: &Batch,
        options: EncodeOptions<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Outputs> {
        let mut x = self.enter(session, batch, options)?;
        let mut chosen = None;
        let stack = self.config.stack();
        for i in 0..self.config.layers {
            let lease = session.lease(1 + i)?;
            x = stack.layer(&lease, i, &lease.bring(&x)?, probe)?;
            probe.show(format_args!("layers.{i}"), &x);
            if self.wanted(options.layer) == Some(i) {
                chosen = Some(x.clone());
            }
        }
        let lease = session.lease(1 + self.config.layers)?;
        let last = final_norm(&lease, &lease.bring(&x)?)?;
        let pooled = last.slice(0, 0, 1)?.slice(1, batch.end_of(0), 1)?.reshape([1, self.config.width])?;
        let pooled = if options.unprojected { pooled } else { project(&lease, &pooled)? };
        let hidden = match (chosen, options.layer) {
            (Some(chosen), Layer::SkipRaw(_)) => lease.bring(&chosen)?,
            (Some(chosen), _) => final_norm(&lease, &lease.bring(&chosen)?)?,
            (None, _) => last,
        };
        Ok(Outputs { hidden, pooled: Some(pooled) })
    }
}

fn final_norm(lease: &Lease<'_>, x: &Tensor) -> Result<Tensor> {
    norm(lease, "text_model.final_layer_norm", x)
}

/// Into the space that CLIP shares with images, if the file has the way there. OpenCLIP keeps the matrix
/// with its rows for the inputs.
fn project(lease: &Lease<'_>, pooled: &Tensor) -> Result<Tensor> {
    if lease.has(weights::PROJECTION) {
        return Ok(lease.linear("text_projection", pooled)?);
    }
    match lease.find(weights::OPEN_PROJECTION)? {
        Some(matrix) => Ok(pooled.matmul(&lease.lane().unpack(&matrix)?, 1.0)?),
        None => Ok(pooled.clone()),
    }
}
