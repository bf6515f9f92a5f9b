//! CLIP's text model: a causal transformer. Names are those of the published checkpoints
//! (`text_model.encoder.layers.0.self_attn.q_proj`); OpenCLIP's names are read, too.

mod weights;

use checkpoint::Checkpoint;
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Mask, Tensor};

use super::encoder::{Batch, EncodeOptions, Layer, Outputs};
use crate::claims::Claims;
use crate::detect::Part;
use crate::{Error, Probe, Result};
use weights::Names;

/// Values per head in every CLIP text model.
const HEAD: usize = 64;
const NORM_EPS: f32 = 1e-5;
/// Models up to this width were trained with the quick GELU.
const QUICK_GELU_WIDTH: usize = 768;

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
        let names = Names::of(&claims);
        let config = weights::read_config(&claims, names)?;
        Ok(Clip { config, names, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &ClipConfig {
        &self.config
    }

    /// What the model needs of the file it was read from.
    pub fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, weights::FAMILY);
        weights::manifest(&claims, &self.config, self.names)
    }

    pub(super) fn forward(
        &self,
        session: &Session,
        batch: &Batch,
        options: EncodeOptions<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Outputs> {
        let mut x = self.enter(session, batch, options)?;
        let mut chosen = None;
        for i in 0..self.config.layers {
            let lease = session.lease(1 + i)?;
            x = self.layer(&lease, i, &lease.bring(&x)?, probe)?;
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

    /// The layer whose result is asked for, unless it is the last one's, normalised.
    fn wanted(&self, layer: Layer) -> Option<usize> {
        match layer {
            Layer::Last => None,
            Layer::Skip(from_end) | Layer::SkipRaw(from_end) => {
                self.config.layers.checked_sub(from_end.max(1))
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
        let words = batch.embed(&lease, weights::TOKENS, options.embeddings)?;
        let positions = lease.lane().unpack(&lease.weight(weights::POSITIONS)?)?.slice(0, 0, batch.len)?;
        Ok(words.add(&positions)?)
    }

    fn layer(&self, lease: &Lease<'_>, i: usize, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = |module: &str| format!("text_model.encoder.layers.{i}.{module}");
        let (batch, len, width) = (x.dim(0), x.dim(1), self.config.width);
        let normed = norm(lease, &name("layer_norm1"), x)?;
        probe.show(format_args!("layers.{i}.layer_norm1"), &normed);
        let mut heads = Vec::with_capacity(3);
        for module in ["q_proj", "k_proj", "v_proj"] {
            let y = lease.linear(&name(&format!("self_attn.{module}")), &normed)?;
            probe.show(format_args!("layers.{i}.self_attn.{module}"), &y);
            heads.push(y.reshape([batch, len, width / HEAD, HEAD])?);
        }
        let scale = 1.0 / (HEAD as f32).sqrt();
        let attended = heads[0].attention(&heads[1], &heads[2], &Mask::Causal, scale)?;
        let attended = lease.linear(&name("self_attn.out_proj"), &attended.reshape([batch, len, width])?)?;
        probe.show(format_args!("layers.{i}.self_attn"), &attended);
        let x = x.add(&attended)?;
        let normed = norm(lease, &name("layer_norm2"), &x)?;
        probe.show(format_args!("layers.{i}.layer_norm2"), &normed);
        let inner = lease.linear_then(&name("mlp.fc1"), &normed, Some(self.config.activation))?;
        let change = lease.linear(&name("mlp.fc2"), &inner)?;
        probe.show(format_args!("layers.{i}.mlp"), &change);
        Ok(x.add(&change)?)
    }
}

fn norm(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let weight = lease.weight(&format!("{name}.weight"))?;
    let bias = lease.weight(&format!("{name}.bias"))?;
    Ok(x.layer_norm(Some(&weight), Some(&bias), NORM_EPS)?)
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
