//! Text encoders: from tokens to conditioning. Whatever the architecture, a prompt is encoded chunk by chunk
//! beside an empty one, and weights move each token away from or toward the empty one.

use std::collections::HashMap;
use std::ops::Range;

use residency::{Lease, Session};
use tensor::{Lane, Tensor, Weight};

use super::language_model::LanguageModel;
use super::tokens::{Frame, Symbol, Token, Tokens};
use crate::{Error, Module, Probe, Result};

/// A text encoder that was read from a file.
pub trait TextEncoder: Module {
    /// What files and recipes call it: `clip_l`, `t5xxl`.
    fn key(&self) -> &'static str;

    /// Values per token.
    fn width(&self) -> usize;

    /// Layers that the file has.
    fn layers(&self) -> usize;

    /// The length of the chunks that prompts are filled up to, of encoders that have such.
    fn chunk_tokens(&self) -> Option<usize>;

    /// The language model that it is, if it can generate text.
    fn language_model(&self) -> Option<&LanguageModel> {
        None
    }

    /// What it computes for a batch of chunks.
    fn forward(
        &self,
        session: &Session,
        batch: &Batch,
        options: EncodeOptions<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Outputs>;
}

impl dyn TextEncoder {
    /// Encodes a prompt.
    pub fn encode(&self, session: &Session, tokens: &Tokens, options: EncodeOptions<'_>) -> Result<Encoded> {
        self.encode_probed(session, tokens, options, &mut Probe::none())
    }

    /// As [`encode`](#method.encode), with a look at what the modules compute.
    pub fn encode_probed(
        &self,
        session: &Session,
        tokens: &Tokens,
        options: EncodeOptions<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Encoded> {
        let batch = Batch::new(tokens, options.empty_is_padding)?;
        let outputs = self.forward(session, &batch, options, probe)?;
        let hidden = match options.padding {
            PaddingUse::Zeroed => batch.zero_padding(&outputs.hidden)?,
            PaddingUse::Seen | PaddingUse::Hidden => outputs.hidden,
        };
        let cond = batch.in_a_row(&batch.apply_weights(&hidden)?)?;
        let attention_mask = batch.visible()[..batch.sections].concat();
        let encoded =
            Encoded { cond, pooled: outputs.pooled, attention_mask, second: None, slots: Vec::new() };
        let all = tokens.chunks.concat();
        let kept = options.keep.map(|keep| keep(&all, options.picture_step.max(1)));
        if options.leaves_out_pictures {
            let (kept, slots) = without_pictures(kept.unwrap_or_else(|| vec![Kept::all(0..all.len())]), &all);
            return Ok(Encoded { slots, ..encoded.keep(&kept)? });
        }
        match kept {
            Some(kept) => encoded.keep(&kept),
            None => Ok(encoded),
        }
    }
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
    /// What becomes of the tokens that fill a chunk.
    pub padding: PaddingUse,
    /// Weights move tokens away from a prompt that is filling all over, without an end (Chroma).
    pub empty_is_padding: bool,
    /// Which tokens' results are kept; all without it.
    pub keep: Option<Keep>,
    /// Of the parts of pictures every so many-th is kept, where any are kept; all with 0 and 1.
    pub picture_step: usize,
    /// The parts of pictures are read and then left out; where each picture stood is told ([`Encoded::slots`]).
    pub leaves_out_pictures: bool,
    /// The vectors of embeddings that the tokens name.
    pub embeddings: Option<&'a Embeddings>,
    /// The pictures that tokens name.
    pub pictures: &'a [PictureTokens],
}

/// What becomes of the tokens that fill a chunk. Language models hide them in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PaddingUse {
    /// Others see them.
    #[default]
    Seen,
    /// They are hidden from the others.
    Hidden,
    /// They are hidden, and their results are zero.
    Zeroed,
}

/// A picture as another network saw it, for an encoder that reads pictures among words.
#[derive(Clone, Debug)]
pub struct PictureTokens {
    /// One vector per part, `[parts, width]`.
    pub values: Tensor,
    /// What is added to the parts behind each of the encoder's first layers, each `[parts, width]`.
    pub deep: Vec<Tensor>,
    /// Rows and columns of the parts, where their places count.
    pub grid: Option<[usize; 2]>,
}

/// Says which tokens of a prompt are kept; of the parts of pictures every so many-th.
pub type Keep = fn(&[Token], usize) -> Vec<Kept>;

/// Tokens whose results are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Their places.
    pub tokens: Range<usize>,
    /// Of these every so many-th.
    pub step: usize,
}

impl Kept {
    /// All tokens of a range.
    pub fn all(tokens: Range<usize>) -> Kept {
        Kept { tokens, step: 1 }
    }

    /// These of the places of an axis.
    fn of(&self, x: &Tensor, axis: usize) -> Result<Tensor> {
        let Kept { tokens, step } = self;
        if *step <= 1 {
            return Ok(x.slice(axis, tokens.start, tokens.len())?);
        }
        let firsts = tokens.clone().step_by(*step).map(|at| x.slice(axis, at, 1));
        let firsts = firsts.collect::<Result<Vec<_>, _>>()?;
        Ok(Tensor::concat(&firsts.iter().collect::<Vec<_>>(), axis)?)
    }
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
    /// What comes out of so many layers, of several numbers side by side and none normalised. Language models only.
    After(&'static [usize]),
    /// What goes into every layer, and the last result normalised, one state after the other: `[1, states, tokens,
    /// width]`. Language models only.
    All,
}

/// A prompt as a diffusion model takes it.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// One vector per token, `[1, tokens, width]`; chunks one after the other. With [`Layer::All`] `[1, states, tokens,
    /// width]`.
    pub cond: Tensor,
    /// The whole prompt in one vector, `[1, width]`, of encoders that have one: that of the first chunk.
    pub pooled: Option<Tensor>,
    /// Which tokens are before or at the end of their chunk's words.
    pub attention_mask: Vec<bool>,
    /// A second text, of another encoder, for models that take two.
    pub second: Option<Tensor>,
    /// The tokens before which pictures stood that were left out.
    pub slots: Vec<usize>,
}

impl Encoded {
    /// The results of some tokens.
    fn keep(self, kept: &[Kept]) -> Result<Encoded> {
        let axis = self.cond.rank() - 2;
        let parts = kept.iter().map(|kept| kept.of(&self.cond, axis)).collect::<Result<Vec<_>>>()?;
        let cond = match parts.as_slice() {
            [only] => only.clone(),
            parts => Tensor::concat(&parts.iter().collect::<Vec<_>>(), axis)?,
        };
        let mask = |kept: &Kept| {
            self.attention_mask[kept.tokens.clone()]
                .iter()
                .step_by(kept.step.max(1))
                .copied()
                .collect::<Vec<_>>()
        };
        Ok(Encoded { cond, attention_mask: kept.iter().flat_map(mask).collect(), ..self })
    }
}

/// What an encoder computes for a batch.
pub struct Outputs {
    /// `[batch, tokens, width]`.
    pub hidden: Tensor,
    /// `[1, width]`.
    pub pooled: Option<Tensor>,
}

/// The chunks of a prompt, all of one length, and an empty one behind them if any token is weighted.
pub struct Batch {
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
    pub(super) fn new(tokens: &Tokens, empty_is_padding: bool) -> Result<Batch> {
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
            let frame = Frame { end: tokens.frame.end.filter(|_| !empty_is_padding), ..tokens.frame };
            rows.push(frame.empty(len));
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

    /// Rows of the table `name`, one per token, `[batch, tokens, width]`, in a lane's type.
    pub(super) fn embed(
        &self,
        lease: &Lease<'_>,
        lane: &Lane,
        name: &str,
        embeddings: Option<&Embeddings>,
    ) -> Result<Tensor> {
        let table = lease.weight(name)?;
        let ids: Vec<i32> = self.ids(table.dims()[0])?.into_iter().map(|id| id as i32).collect();
        let ids = lane.ids([self.rows.len(), self.len], &ids)?;
        let x = lane.embedding(&table, &ids)?;
        self.put_learned(&x, embeddings)?;
        Ok(x)
    }

    /// The same from a table that stays in its file, with the pictures that tokens name.
    pub(super) fn embed_from(
        &self,
        session: &Session,
        name: &str,
        options: &EncodeOptions<'_>,
    ) -> Result<Tensor> {
        let entries = session.manifest().table(name).map_or(0, |table| table.shape.dims()[0]);
        let rows = session.rows(name, &self.ids(entries)?)?;
        let x = rows.reshape([self.rows.len(), self.len, rows.dim(1)])?;
        self.put_learned(&x, options.embeddings)?;
        for (row, tokens) in self.rows.iter().enumerate() {
            for (start, picture, parts) in pictures_in(tokens) {
                let place = x.slice(0, row, 1)?.slice(1, start, parts.len())?;
                let seen = seen(options.pictures, picture, parts, place.dim(2))?;
                seen.to_lane(x.lane())?.reshape(*place.shape())?.copy_into(&place)?;
            }
        }
        Ok(x)
    }

    /// Adds to the parts of pictures what towers have for them behind a layer.
    pub(super) fn add_deep(&self, x: &Tensor, layer: usize, pictures: &[PictureTokens]) -> Result<()> {
        if pictures.iter().all(|picture| picture.deep.len() <= layer) {
            return Ok(());
        }
        for (row, tokens) in self.rows.iter().enumerate() {
            for (start, picture, parts) in pictures_in(tokens) {
                let Some(deep) = pictures.get(picture).and_then(|picture| picture.deep.get(layer)) else {
                    continue;
                };
                let place = x.slice(0, row, 1)?.slice(1, start, parts.len())?;
                let added = deep.slice(0, parts.start, parts.len())?.to_lane(x.lane())?;
                place.add_in_place(&added.reshape(*place.shape())?)?;
            }
        }
        Ok(())
    }

    /// The id of every token of every row, below a number of entries; 0 for tokens that are no entries.
    fn ids(&self, entries: usize) -> Result<Vec<u32>> {
        let id = |token: &Token| match token.symbol {
            Symbol::Id(id) => id,
            Symbol::Embedding { .. } | Symbol::Picture { .. } => 0,
        };
        let ids: Vec<u32> = self.rows.iter().flatten().map(id).collect();
        match ids.iter().find(|id| **id as usize >= entries) {
            Some(id) => Err(Error::Input {
                what: "a token",
                expected: format!("below {entries}, as many as the encoder's table has"),
                got: id.to_string(),
            }),
            None => Ok(ids),
        }
    }

    /// Puts the vectors of learned embeddings into their places.
    fn put_learned(&self, x: &Tensor, embeddings: Option<&Embeddings>) -> Result<()> {
        for (row, tokens) in self.rows.iter().enumerate() {
            for (i, token) in tokens.iter().enumerate() {
                if let Symbol::Embedding { name, row: vector } = &token.symbol {
                    let place = x.slice(0, row, 1)?.slice(1, i, 1)?;
                    let vector = learned(embeddings, name, *vector, place.dim(2))?;
                    vector.to_lane(x.lane())?.reshape(*place.shape())?.copy_into(&place)?;
                }
            }
        }
        Ok(())
    }

    /// The results of the prompt's chunks one after the other.
    fn in_a_row(&self, hidden: &Tensor) -> Result<Tensor> {
        if hidden.rank() == 4 {
            return Ok(hidden.slice(0, 0, 1)?);
        }
        Ok(hidden.reshape([1, self.sections * self.len, hidden.dim(2)])?)
    }

    /// Values per token, `[batch, tokens, 1]`.
    fn per_token(&self, lane: &Lane, rows: usize, value: impl Fn(usize, usize) -> f32) -> Result<Tensor> {
        let values: Vec<f32> = (0..rows)
            .flat_map(|row| (0..self.len).map(move |i| (row, i)))
            .map(|(row, i)| value(row, i))
            .collect();
        Ok(lane.tensor([rows, self.len, 1], &values)?)
    }

    fn zero_padding(&self, hidden: &Tensor) -> Result<Tensor> {
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
        if hidden.rank() == 4 {
            // The reference takes the states for the tokens here: the weight of a token moves the whole state of its
            // number. Pictures that people have made depend on it.
            let excess: Vec<f32> = (0..hidden.dim(1))
                .map(|state| self.rows[0].get(state).map_or(0.0, |token| token.weight - 1.0))
                .collect();
            let excess = hidden.lane().tensor([1, hidden.dim(1), 1, 1], &excess)?;
            return Ok(words.add(&words.sub(&empty)?.mul(&excess)?)?);
        }
        let excess = self.per_token(hidden.lane(), self.sections, |row, i| self.rows[row][i].weight - 1.0)?;
        Ok(words.gated_add(&excess, &words.sub(&empty)?)?)
    }
}

/// What is kept without the parts of pictures, and the places in it where pictures stood.
fn without_pictures(kept: Vec<Kept>, tokens: &[Token]) -> (Vec<Kept>, Vec<usize>) {
    let (mut left, mut slots, mut count) = (Vec::new(), Vec::new(), 0);
    for Kept { tokens: Range { start, end }, step } in kept {
        let mut next = start;
        for (at, _, parts) in pictures_in(tokens).into_iter().filter(|(at, ..)| (start..end).contains(at)) {
            count += (at - next).div_ceil(step.max(1));
            left.push(Kept { tokens: next..at, step });
            slots.push(count);
            next = at + parts.len();
        }
        count += end.saturating_sub(next).div_ceil(step.max(1));
        left.push(Kept { tokens: next..end.max(next), step });
    }
    left.retain(|kept| !kept.tokens.is_empty());
    (left, slots)
}

/// The runs of parts of one picture: where each begins, which picture, and which of its parts.
pub(super) fn pictures_in(tokens: &[Token]) -> Vec<(usize, usize, Range<usize>)> {
    let mut runs: Vec<(usize, usize, Range<usize>)> = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let Symbol::Picture { picture, row } = token.symbol else { continue };
        match runs.last_mut() {
            Some((start, of, parts)) if *of == picture && *start + parts.len() == i && parts.end == row => {
                parts.end += 1;
            }
            _ => runs.push((i, picture, row..row + 1)),
        }
    }
    runs
}

/// Parts of a picture.
fn seen(pictures: &[PictureTokens], picture: usize, parts: Range<usize>, width: usize) -> Result<Tensor> {
    let values = pictures.get(picture).map(|picture| &picture.values);
    let fits = values.filter(|v| v.rank() == 2 && v.dim(0) >= parts.end && v.dim(1) == width);
    let values = fits.ok_or_else(|| Error::Input {
        what: "a picture among the words",
        expected: format!("of at least {} parts of {width} values", parts.end),
        got: values.map_or("not given".into(), |v| format!("of shape {}", v.shape())),
    })?;
    Ok(values.slice(0, parts.start, parts.len())?)
}

/// Rows of a table for ids of any shape, whatever the table is stored as.
pub(crate) fn look_up(lease: &Lease<'_>, table: &Weight, ids: &Tensor) -> Result<Tensor> {
    Ok(lease.lane().embedding(table, ids)?)
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
