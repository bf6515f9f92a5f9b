//! Text encoders: from tokens to conditioning. Whatever the architecture, a prompt is encoded chunk by chunk
//! beside an empty one, and weights move each token away from or toward the empty one.

use std::collections::HashMap;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::{Lane, Tensor, Weight};

use super::clip::Clip;
use super::t5::T5;
use super::tokens::{Frame, Symbol, Token, Tokens};
use crate::detect::{Detected, Family, Part, Role};
use crate::{Error, Probe, Result};

/// What errors call a file that should have an encoder.
const WANTED: &str = "a CLIP, T5 or UMT5 text encoder";

/// A text encoder: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub enum TextEncoder {
    /// CLIP-L, CLIP-G and their kin.
    Clip(Clip),
    /// T5 and UMT5.
    T5(T5),
}

/// Learned vectors by name, each `[rows, width]`.
pub type Embeddings = HashMap<String, Tensor>;

/// How a prompt is encoded.
#[derive(Clone, Copy, Default)]
pub struct EncodeOptions<'a> {
    /// Which layer's result becomes the conditioning.
    pub layer: Layer,
    /// The pooled result is not multiplied with the encoder's projection (SD1.5, SD3 and FLUX use CLIP-L so).
    pub unprojected: bool,
    /// Tokens after the end are hidden from attention, and their results are zero (Wan).
    pub masked: bool,
    /// The vectors of embeddings that the tokens name.
    pub embeddings: Option<&'a Embeddings>,
}

/// Which layer's result becomes the conditioning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// The last, normalised.
    #[default]
    Last,
    /// The layer so many from the end (1 is the last), normalised as the last would be: "clip skip".
    Skip(usize),
    /// The same without normalisation (SDXL and SD3 use CLIP so, with 2).
    SkipRaw(usize),
}

/// A prompt as a diffusion model takes it.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// One vector per token, `[1, tokens, width]`; chunks one after the other.
    pub cond: Tensor,
    /// The whole prompt in one vector, `[1, width]`, of encoders that have one: that of the first chunk.
    pub pooled: Option<Tensor>,
    /// Which tokens are before or at the end of their chunk's words.
    pub attention_mask: Vec<bool>,
}

impl TextEncoder {
    /// Reads the sizes of one of a file's text encoders.
    pub fn read(checkpoint: &Checkpoint, detected: &Detected, part: &Part) -> Result<TextEncoder> {
        match (part.role, part.family) {
            (Role::Text, Family::Clip { .. }) => Ok(TextEncoder::Clip(Clip::read(checkpoint, part)?)),
            (Role::Text, Family::T5 { .. } | Family::Umt5 { .. }) => {
                Ok(TextEncoder::T5(T5::read(checkpoint, part)?))
            }
            _ => Err(detected.wrong_kind(WANTED)),
        }
    }

    /// Reads every text encoder of a file that this crate knows; an error if there is none.
    pub fn read_all(checkpoint: &Checkpoint, detected: &Detected) -> Result<Vec<TextEncoder>> {
        let known = |part: &&Part| !matches!(part.family, Family::Named(_));
        let parts: Vec<&Part> = detected.parts_for(Role::Text).filter(known).collect();
        if parts.is_empty() {
            return Err(detected.wrong_kind(WANTED));
        }
        parts.into_iter().map(|part| TextEncoder::read(checkpoint, detected, part)).collect()
    }

    /// What the encoder needs of the file it was read from.
    pub fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        match self {
            TextEncoder::Clip(clip) => clip.manifest(checkpoint),
            TextEncoder::T5(t5) => t5.manifest(checkpoint),
        }
    }

    /// Values per token.
    pub fn width(&self) -> usize {
        match self {
            TextEncoder::Clip(clip) => clip.config().width,
            TextEncoder::T5(t5) => t5.config().width,
        }
    }

    /// The element types that its activations may have, the preferred one first.
    /// The feed-forward layers of T5 and its kin outgrow f16; CLIP was trained in it.
    pub fn activations(&self) -> &'static [DType] {
        match self {
            TextEncoder::Clip(_) => &[DType::BF16, DType::F16, DType::F32],
            TextEncoder::T5(_) => &[DType::BF16, DType::F32],
        }
    }

    /// Encodes a prompt.
    pub fn encode(&self, session: &Session, tokens: &Tokens, options: EncodeOptions<'_>) -> Result<Encoded> {
        self.encode_probed(session, tokens, options, &mut Probe::none())
    }

    /// As [`TextEncoder::encode`], with a look at what the modules compute.
    pub fn encode_probed(
        &self,
        session: &Session,
        tokens: &Tokens,
        options: EncodeOptions<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Encoded> {
        let batch = Batch::new(tokens)?;
        let outputs = match self {
            TextEncoder::Clip(clip) => clip.forward(session, &batch, options, probe)?,
            TextEncoder::T5(t5) => t5.forward(session, &batch, options, probe)?,
        };
        let hidden = if options.masked { batch.zero_masked(&outputs.hidden)? } else { outputs.hidden };
        let cond = batch.apply_weights(&hidden)?;
        let cond = cond.reshape([1, batch.sections * batch.len, self.width()])?;
        let attention_mask = batch.visible()[..batch.sections].concat();
        Ok(Encoded { cond, pooled: outputs.pooled, attention_mask })
    }
}

/// What an encoder computes for a batch.
pub(super) struct Outputs {
    /// `[batch, tokens, width]`.
    pub(super) hidden: Tensor,
    /// `[1, width]`.
    pub(super) pooled: Option<Tensor>,
}

/// The chunks of a prompt, all of one length, and an empty one behind them if any token is weighted.
pub(super) struct Batch {
    /// The chunks.
    pub(super) rows: Vec<Vec<Token>>,
    /// Tokens of each.
    pub(super) len: usize,
    /// The chunks that belong to the prompt.
    sections: usize,
    weighted: bool,
    frame: Frame,
}

impl Batch {
    fn new(tokens: &Tokens) -> Result<Batch> {
        let len = tokens.chunks.iter().map(Vec::len).max().unwrap_or(0);
        let sections = tokens.chunks.len();
        if len == 0 || tokens.chunks.iter().any(|chunk| chunk.len() != len) {
            return Err(Error::Input {
                what: "the prompt",
                expected: "chunks of one length".into(),
                got: format!("{sections} chunks of up to {len} tokens"),
            });
        }
        let weighted = tokens.is_weighted();
        let mut rows = tokens.chunks.clone();
        if weighted {
            rows.push(tokens.frame.empty(len));
        }
        Ok(Batch { rows, len, sections, weighted, frame: tokens.frame })
    }

    /// The place of the first end token of a row; of the last word where rows have no end token.
    pub(super) fn end_of(&self, row: usize) -> usize {
        let place = |id: u32| self.rows[row].iter().position(|token| token.symbol == Symbol::Id(id));
        match self.frame.end {
            Some(end) => place(end).unwrap_or(0),
            None => place(self.frame.pad).unwrap_or(self.len).saturating_sub(1),
        }
    }

    /// Which tokens of each row come no later than its end.
    pub(super) fn visible(&self) -> Vec<Vec<bool>> {
        (0..self.rows.len()).map(|row| (0..self.len).map(|i| i <= self.end_of(row)).collect()).collect()
    }

    /// Rows of the table `name`, one per token, `[batch, tokens, width]`.
    pub(super) fn embed(
        &self,
        lease: &Lease<'_>,
        name: &str,
        embeddings: Option<&Embeddings>,
    ) -> Result<Tensor> {
        let id = |token: &Token| match token.symbol {
            Symbol::Id(id) => id as i32,
            Symbol::Embedding { .. } => 0,
        };
        let ids: Vec<i32> = self.rows.iter().flatten().map(id).collect();
        let table = lease.weight(name)?;
        let entries = table.dims()[0];
        if let Some(id) = ids.iter().find(|id| **id as usize >= entries) {
            return Err(Error::Input {
                what: "a token",
                expected: format!("below {entries}, as many as the encoder's table has"),
                got: id.to_string(),
            });
        }
        let ids = lease.lane().ids([self.rows.len(), self.len], &ids)?;
        let x = look_up(lease, &table, &ids)?;
        for (row, tokens) in self.rows.iter().enumerate() {
            for (i, token) in tokens.iter().enumerate() {
                if let Symbol::Embedding { name, row: vector } = &token.symbol {
                    let place = x.slice(0, row, 1)?.slice(1, i, 1)?;
                    let vector = learned(embeddings, name, *vector, place.dim(2))?;
                    lease.bring(&vector)?.reshape([1, 1, place.dim(2)])?.copy_into(&place)?;
                }
            }
        }
        Ok(x)
    }

    /// Values per token, `[batch, tokens, 1]`.
    fn per_token(&self, lane: &Lane, rows: usize, value: impl Fn(usize, usize) -> f32) -> Result<Tensor> {
        let values: Vec<f32> = (0..rows)
            .flat_map(|row| (0..self.len).map(move |i| (row, i)))
            .map(|(row, i)| value(row, i))
            .collect();
        Ok(lane.tensor([rows, self.len, 1], &values)?)
    }

    fn zero_masked(&self, hidden: &Tensor) -> Result<Tensor> {
        let visible = self.visible();
        let mask = self.per_token(hidden.lane(), self.rows.len(), |row, i| f32::from(visible[row][i]))?;
        Ok(hidden.mul(&mask)?)
    }

    /// Moves each token by its weight: `empty + weight · (token - empty)`, written so that a weight of 1
    /// changes nothing at all.
    fn apply_weights(&self, hidden: &Tensor) -> Result<Tensor> {
        if !self.weighted {
            return Ok(hidden.clone());
        }
        let words = hidden.slice(0, 0, self.sections)?.contiguous()?;
        let empty = hidden.slice(0, self.sections, 1)?;
        let excess = self.per_token(hidden.lane(), self.sections, |row, i| self.rows[row][i].weight - 1.0)?;
        Ok(words.gated_add(&excess, &words.sub(&empty)?)?)
    }
}

/// Rows of a table for ids of any shape, whatever the table is stored as.
pub(crate) fn look_up(lease: &Lease<'_>, table: &Weight, ids: &Tensor) -> Result<Tensor> {
    let rows = lease.lane().embedding(table, ids)?;
    match table.scale() {
        None => Ok(rows),
        Some(scale) => {
            let scale = Tensor::new(scale.clone(), lease.lane().clone()).cast(rows.dtype())?;
            Ok(rows.mul(&scale.reshape([1])?)?)
        }
    }
}

/// One vector of an embedding.
fn learned(embeddings: Option<&Embeddings>, name: &str, row: usize, width: usize) -> Result<Tensor> {
    let vectors = embeddings.and_then(|embeddings| embeddings.get(name));
    let fits = vectors.filter(|v| v.rank() == 2 && v.dim(0) > row && v.dim(1) == width);
    let vectors = fits.ok_or_else(|| Error::Input {
        what: "an embedding",
        expected: format!("'{name}' with more than {row} vectors of {width} values"),
        got: vectors.map_or("not loaded".into(), |v| format!("of shape {}", v.shape())),
    })?;
    Ok(vectors.slice(0, row, 1)?)
}
