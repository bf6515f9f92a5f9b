//! Prompts through the text encoders of a family.

use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Failure};
use models::text::{
    ChatTemplate, EncodeOptions, Encoded, EncoderUse, PictureTokens, PromptOptions, Reads, Symbol, TextModel,
    Token, Tokens, name_of,
};
use runtime::{Caller, Clip, Runtime, Source, Wanted, Work};
use tensor::{Lane, Tensor};

use super::embeddings::EmbeddingFiles;
use crate::value::{Array, Cond, Entry};
use crate::{Error, Result};

/// What encoders are told.
#[derive(Clone, Copy, Default)]
pub(crate) struct Prompts<'a> {
    /// What some are told, by their keys.
    pub(crate) own: &'a [(&'a str, &'a str)],
    /// What all others are told.
    pub(crate) others: &'a str,
    /// Those that are told nothing at all, by their keys, and give no result.
    pub(crate) left_out: &'a [&'a str],
    /// Those whose prompts are not filled up, by their keys.
    pub(crate) unfilled: &'a [&'a str],
    /// The pictures that encoders are shown that can be shown any.
    pub(crate) pictures: &'a [SeenPicture],
    /// Of the parts of pictures every so many-th is kept, where any are kept; all with 0.
    pub(crate) picture_step: usize,
    /// Whether the parts of pictures are read and then left out, and the conditioning says where they stood.
    pub(crate) leaves_out_pictures: bool,
    /// The conversation of language models, if it is not the family's own.
    pub(crate) template: Option<&'static ChatTemplate>,
    /// Whether encoders with chunks get as many of them as the longest prompt has.
    pub(crate) is_even: bool,
}

/// A picture as another network saw it.
pub(crate) struct SeenPicture {
    /// One vector per part, `[parts, width]`.
    pub(crate) values: Array,
    /// What is added to the parts behind each of the encoder's first layers, each `[parts, width]`.
    pub(crate) deep: Vec<Array>,
    /// Rows and columns of the parts, where their places count.
    pub(crate) grid: Option<[usize; 2]>,
}

impl<'a> Prompts<'a> {
    /// The same for all.
    pub(crate) fn same(text: &'a str) -> Prompts<'a> {
        Prompts { others: text, ..Prompts::default() }
    }

    fn of(&self, key: &str) -> &'a str {
        self.own.iter().find(|(own, _)| *own == key).map_or(self.others, |(_, text)| *text)
    }

    /// What an encoder reads; nothing if it is not asked.
    fn read_by(&self, how: &EncoderUse) -> Option<String> {
        let reads = match (how.reads, self.template) {
            (Reads::Chat(_), Some(template)) => Reads::Chat(template),
            (reads, _) => reads,
        };
        reads.of(self.of(how.key), !self.pictures.is_empty())
    }
}

/// Encodes prompts as the encoders' family does.
pub(crate) fn encode(
    runtime: &Runtime,
    call: &Call,
    clip: &Clip,
    prompts: Prompts<'_>,
) -> Result<Entry, Failure> {
    let job = Job { runtime, call, clip, prompts };
    let results = clip.recipe.encoders.iter().map(|how| job.run(how)).collect::<Result<Vec<_>>>()?;
    let encoded = (clip.recipe.join)(results).map_err(Error::from)?;
    let pooled = encoded.pooled.as_ref().map(to_array).transpose()?;
    let mut cond = Cond::text(to_array(&encoded.cond)?, pooled);
    cond.second_text = encoded.second.as_ref().map(to_array).transpose()?.map(Arc::new);
    cond.reference_slots = encoded.slots;
    if clip.recipe.has_mask {
        cond.attention_mask = Some(Arc::new(encoded.attention_mask));
    }
    Ok(Entry::new(cond))
}

pub(super) fn to_array(tensor: &Tensor) -> Result<Array> {
    Ok(Array { shape: tensor.dims().to_vec(), values: tensor.to_vec()? })
}

struct Job<'a> {
    runtime: &'a Runtime,
    call: &'a Call,
    clip: &'a Clip,
    prompts: Prompts<'a>,
}

impl Job<'_> {
    /// Encodes with one encoder of the recipe; nothing comes of an optional one that is not there.
    fn run(&self, how: &EncoderUse) -> Result<Option<Encoded>> {
        if self.prompts.left_out.contains(&how.key) {
            return Ok(None);
        }
        let Some((source, model)) = self.clip.encoder(how.key) else {
            if how.is_optional {
                return Ok(None);
            }
            let have: Vec<String> = self.clip.encoders.iter().map(|source| source.name()).collect();
            return Err(Error::Told(format!(
                "none of {} is a {} text encoder",
                have.join(", "),
                name_of(how.key)
            )));
        };
        let Some(text) = self.prompts.read_by(how) else { return Ok(None) };
        self.encode(source, model, how, &text).map(Some)
    }

    fn encode(&self, source: &Source, model: &TextModel, how: &EncoderUse, text: &str) -> Result<Encoded> {
        let files = EmbeddingFiles::new(self.runtime, how.key, model.encoder.width());
        let mut tokens = self.tokens(model, how, text, &files);
        if self.prompts.is_even && model.encoder.chunk_tokens().is_some() {
            let (count, length) = (self.most_chunks(), tokens.chunks.first().map_or(0, Vec::len));
            let empty = tokens.frame.empty(length);
            tokens.chunks.resize(tokens.chunks.len().max(count), empty);
        }
        let shown = if how.picture.is_some() { self.prompts.pictures } else { &[] };
        if let Some(place) = how.picture {
            let parts: Vec<usize> = shown.iter().map(|picture| picture.values.shape[0]).collect();
            tokens.show_pictures(place, &parts);
        }
        for name in &tokens.missing {
            if let Some(misfit) = files.misfit(name, &self.widths()) {
                return Err(misfit);
            }
            tracing::warn!("there is no embedding {name} for {}; it is left out", source.name());
        }
        let work = Work::text(&tokens);
        let wanted = Wanted { source, beside: &self.clip.encoders, loras: &self.clip.loras, work: &work };
        let caller = Caller::of(&self.call.job);
        self.runtime.with_session(wanted, &caller, |opened| {
            let lane = opened.session.lane()?;
            let vectors = files.tensors(&tokens, lane)?;
            let pictures = shown.iter().map(|picture| picture.on(lane)).collect::<Result<Vec<_>>>()?;
            let options = EncodeOptions {
                // Skipping layers is CLIP's; encoders of whole prompts have one result.
                layer: if model.encoder.chunk_tokens().is_some() {
                    self.clip.layer(how.layer)
                } else {
                    how.layer
                },
                embeddings: Some(&vectors),
                pictures: &pictures,
                picture_step: self.prompts.picture_step,
                leaves_out_pictures: self.prompts.leaves_out_pictures,
                ..how.options()
            };
            let started = Instant::now();
            let encoded = model.encoder.encode(&opened.session, &tokens, options)?;
            self.runtime.note_evaluation(opened, started);
            // Results of several encoders meet on the host, wherever each computed.
            on_host(self.runtime, encoded)
        })
    }

    /// The widths of the encoders' vectors, each once.
    fn widths(&self) -> Vec<usize> {
        let encoders = self.clip.recipe.encoders.iter().filter_map(|how| self.clip.encoder(how.key));
        let mut widths: Vec<usize> = encoders.map(|(_, model)| model.encoder.width()).collect();
        widths.sort_unstable();
        widths.dedup();
        widths
    }

    /// The most chunks that a prompt has.
    fn most_chunks(&self) -> usize {
        let chunks = |how: &EncoderUse| {
            let (_, model) = self.clip.encoder(how.key)?;
            let files = EmbeddingFiles::new(self.runtime, how.key, model.encoder.width());
            let text = self.prompts.read_by(how)?;
            Some(self.tokens(model, how, &text, &files).chunks.len())
        };
        self.clip.recipe.encoders.iter().filter_map(chunks).max().unwrap_or(0)
    }

    fn tokens(&self, model: &TextModel, how: &EncoderUse, text: &str, files: &EmbeddingFiles<'_>) -> Tokens {
        let rows = |name: &str| files.rows(name);
        let options = PromptOptions { embeddings: Some(&rows), ..PromptOptions::default() };
        if model.encoder.chunk_tokens().is_some() {
            return model.tokenizer.tokenize(text, options, 0);
        }
        // What a node said of lengths is about T5 and its kin.
        let is_t5 = how.key.starts_with("t5") || how.key.starts_with("umt5");
        let (least, padding) = self.clip.lengths.filter(|_| is_t5).unwrap_or((how.tokens, 0));
        let is_filled = padding == 0 && !self.prompts.unfilled.contains(&how.key);
        let natural = if is_filled { least } else { 0 };
        let mut tokens = how.tokenize(&*model.tokenizer, text, options, natural);
        if padding > 0 {
            let pad = Token { symbol: Symbol::Id(tokens.frame.pad), weight: 1.0 };
            for chunk in &mut tokens.chunks {
                let length = (chunk.len() + padding).max(least);
                chunk.resize(length, pad.clone());
            }
        }
        tokens
    }
}

impl SeenPicture {
    pub(super) fn on(&self, lane: &Lane) -> Result<PictureTokens> {
        let on = |array: &Array| -> Result<Tensor> {
            let axes: [usize; 2] = array.axes("a picture among the words", "parts and width")?;
            Ok(lane.tensor(axes, &array.values)?)
        };
        let deep = self.deep.iter().map(on).collect::<Result<_>>()?;
        Ok(PictureTokens { values: on(&self.values)?, deep, grid: self.grid })
    }
}

/// A result on the host's device, where another encoder's can join it.
fn on_host(runtime: &Runtime, encoded: Encoded) -> Result<Encoded> {
    let lane = Lane::new(runtime.devices.get(meta::DeviceId::CPU)?, meta::DType::F32)?;
    let bring = |tensor: &Tensor| -> Result<Tensor> { Ok(lane.tensor(*tensor.shape(), &tensor.to_vec()?)?) };
    let pooled = encoded.pooled.as_ref().map(bring).transpose()?;
    let second = encoded.second.as_ref().map(bring).transpose()?;
    Ok(Encoded { cond: bring(&encoded.cond)?, pooled, second, ..encoded })
}
