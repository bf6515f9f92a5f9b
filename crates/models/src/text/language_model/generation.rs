//! Generation: a language model reads a prompt once, keeps the keys and values of every layer, and then computes one token
//! at a time. Weights come through the session's leases, as they do for encoding.

use residency::Session;
use tensor::{Mask, Tensor, Weight};

use super::config::LanguageKind;
use super::positions::{self, Rotation};
use super::{Attending, LanguageModel, weights};
use crate::text::encoder::{Batch, EncodeOptions, PictureTokens};
use crate::text::tokens::Tokens;
use crate::{Error, Probe, Result};

/// Tokens by which the room for keys and values grows.
const GROWTH: usize = 256;
/// Rows of the output table that are multiplied at once.
const ROWS: usize = 8192;
/// Gemma 2 bounds its logits by a hyperbolic tangent of this height.
const GEMMA2_CAP: f32 = 30.0;

/// The keys and values of one layer, of all tokens so far.
#[derive(Default)]
pub(super) struct LayerCache {
    /// Keys and values with room for more, each `[1, room, groups, head]`.
    stored: Option<[Tensor; 2]>,
    len: usize,
    /// How far back the layer looks, if not all the way.
    window: Option<usize>,
}

impl LayerCache {
    /// Keeps further keys and values, and gives those that the new tokens look at.
    pub(super) fn extended(&mut self, keys: &Tensor, values: &Tensor) -> Result<[Tensor; 2]> {
        let added = keys.dim(1);
        let needed = self.len + added;
        let stored = match self.stored.take() {
            Some(stored) if stored[0].dim(1) >= needed => stored,
            before => {
                let grown = |like: &Tensor, old: Option<&Tensor>| -> Result<Tensor> {
                    let room = like.shape().with(1, needed.next_multiple_of(GROWTH));
                    let new = like.lane().empty_as(like.dtype(), room)?;
                    if let Some(old) = old.filter(|_| self.len > 0) {
                        old.slice(1, 0, self.len)?.copy_into(&new.slice(1, 0, self.len)?)?;
                    }
                    Ok(new)
                };
                let old = |i: usize| before.as_ref().map(|before| &before[i]);
                [grown(keys, old(0))?, grown(values, old(1))?]
            }
        };
        for (new, stored) in [keys, values].into_iter().zip(&stored) {
            new.copy_into(&stored.slice(1, self.len, added)?)?;
        }
        self.len = needed;
        // A prompt's tokens have a mask for what is too far back; a single one simply does not get it.
        let start = self.window.filter(|_| added == 1).map_or(0, |window| needed.saturating_sub(window));
        let seen = [stored[0].slice(1, start, needed - start)?, stored[1].slice(1, start, needed - start)?];
        self.stored = Some(stored);
        Ok(seen)
    }
}

/// A language model that generates: what it has read and written so far.
pub struct Decoder<'a> {
    model: &'a LanguageModel,
    session: &'a Session,
    caches: Vec<LayerCache>,
    next_position: usize,
    output: OutputTable,
}

/// The table that states are multiplied with for the logits of all tokens.
enum OutputTable {
    /// Nobody asked yet.
    Unread,
    /// All of it is beside the layers.
    Kept(Vec<Weight>),
    /// There is no room for all of it: its rows travel for every token.
    Streamed,
}

impl LanguageModel {
    /// A decoder that has read nothing yet.
    ///
    /// # Errors
    /// [`Error::Input`] for a file that ends at a middle layer, as some text encoders do.
    pub fn decoder<'a>(&'a self, session: &'a Session) -> Result<Decoder<'a>> {
        if !self.config.has_last_norm {
            return Err(Error::Input {
                what: "the language model",
                expected: "one with all of its layers and its last norm, which generating text needs".into(),
                got: format!("a file that ends behind layer {}", self.config.layers),
            });
        }
        let cache = |i| LayerCache { window: self.config.kind.window(i), ..LayerCache::default() };
        let caches = (0..self.config.layers).map(cache).collect();
        Ok(Decoder { model: self, session, caches, next_position: 0, output: OutputTable::Unread })
    }

    /// The tokens that end what the model writes.
    pub fn stop_tokens(&self) -> &'static [u32] {
        match self.config.kind {
            LanguageKind::Qwen25 | LanguageKind::Qwen3 | LanguageKind::Qwen3Vl => &[151_643, 151_645],
            LanguageKind::Gemma2 => &[1, 107],
            LanguageKind::Gemma3 => &[1, 106],
            LanguageKind::Mistral3 => &[2],
            LanguageKind::Llama3 => &[128_001, 128_008, 128_009],
        }
    }
}

impl Decoder<'_> {
    /// Reads a prompt, and gives the logits of the token that follows.
    pub fn read(&mut self, tokens: &Tokens, pictures: &[PictureTokens]) -> Result<Vec<f32>> {
        if self.caches.iter().any(|cache| cache.len > 0) || tokens.chunks.len() != 1 || tokens.is_weighted() {
            return Err(Error::Input {
                what: "the prompt",
                expected: "one chunk without weights, before anything else is read".into(),
                got: format!("{} chunks", tokens.chunks.len()),
            });
        }
        let batch = Batch::new(tokens, false)?;
        let options = EncodeOptions { pictures, ..EncodeOptions::default() };
        let x = batch.embed_from(self.session, weights::TABLE, &options)?;
        let config = &self.model.config;
        let rotations = positions::rotations(config, x.lane(), &batch, pictures)?;
        self.next_position = positions::next(&batch, pictures);
        // A batch has at least one token.
        let last = batch.len - 1;
        let x = self.layers(x, rotations, Some((&batch, pictures)))?.slice(1, last, 1)?.contiguous()?;
        self.logits(&x)
    }

    /// Reads one more token, and gives the logits of the one that follows.
    pub fn step(&mut self, id: u32) -> Result<Vec<f32>> {
        let config = &self.model.config;
        let x = self.session.rows(weights::TABLE, &[id])?.reshape([1, 1, config.width])?;
        let rotations = positions::rotations_at(config, x.lane(), &[[self.next_position; 3]])?;
        self.next_position += 1;
        let x = self.layers(x, rotations, None)?;
        self.logits(&x)
    }

    /// All layers and the last norm; without a prompt for a single token, which sees all that was kept.
    fn layers(
        &mut self,
        mut x: Tensor,
        mut rotations: Vec<Rotation>,
        prompt: Option<(&Batch, &[PictureTokens])>,
    ) -> Result<Tensor> {
        let (model, probe) = (self.model, &mut Probe::none());
        if model.config.kind.scales_table() {
            x = x.affine((model.config.width as f32).sqrt(), 0.0)?;
        }
        for (i, cache) in self.caches.iter_mut().enumerate() {
            let lease = self.session.lease(i)?;
            x = lease.bring(&x)?;
            let rotation = &mut rotations[usize::from(cache.window.is_some())];
            rotation.bring(lease.lane())?;
            let mask = prompt.map_or(Ok(Mask::None), |(batch, _)| model.mask(&lease, i, batch))?;
            let attending = Attending { mask: &mask, rotation, cache: Some(cache) };
            x = model.layer(&lease, i, &x, attending, probe)?;
            if let Some((batch, pictures)) = prompt {
                batch.add_deep(&x, i, pictures)?;
            }
        }
        model.finish(self.session, &x, probe)
    }

    /// The logits of every token of the vocabulary behind a state `[1, 1, width]`.
    fn logits(&mut self, x: &Tensor) -> Result<Vec<f32>> {
        let manifest = self.session.manifest();
        let name = if manifest.table(weights::OUTPUT).is_some() { weights::OUTPUT } else { weights::TABLE };
        let entries = manifest.table(name).map_or(0, |table| table.shape.dims()[0]);
        let x = x.to_lane(self.session.lane()?)?;
        if matches!(self.output, OutputTable::Unread) {
            self.output = match self.has_room_for(entries) {
                true => OutputTable::Kept(Vec::new()),
                false => OutputTable::Streamed,
            };
        }
        let mut logits = Vec::with_capacity(entries);
        for (chunk, start) in (0..entries).step_by(ROWS).enumerate() {
            let known = match &self.output {
                OutputTable::Kept(kept) => kept.get(chunk).cloned(),
                OutputTable::Unread | OutputTable::Streamed => None,
            };
            let rows = match known {
                Some(rows) => rows,
                None => {
                    let ids: Vec<u32> = (start..entries.min(start + ROWS)).map(|id| id as u32).collect();
                    Weight::new(self.session.rows(name, &ids)?.operand().clone())
                }
            };
            logits.extend(x.linear(&rows, None)?.to_vec()?);
            if let OutputTable::Kept(kept) = &mut self.output
                && kept.len() == chunk
            {
                kept.push(rows);
            }
        }
        if self.model.config.kind == LanguageKind::Gemma2 {
            logits.iter_mut().for_each(|logit| *logit = GEMMA2_CAP * (*logit / GEMMA2_CAP).tanh());
        }
        Ok(logits)
    }

    /// Whether the whole output table can stay beside the layers, with as much room again left for the work.
    fn has_room_for(&self, entries: usize) -> bool {
        let Ok(lane) = self.session.lane() else { return false };
        let bytes = (entries * self.model.config.width * lane.dtype().bytes()) as u64;
        lane.device().ledger().report().available() > 2 * bytes
    }
}
