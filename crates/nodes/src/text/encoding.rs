//! Prompts through the text encoders of a family.

use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Failure};
use models::text::{
    EncodeOptions, Encoded, Layer, PromptOptions, Symbol, TextEncoder, TextTokenizer, Token, Tokens,
};
use residency::Cancel;
use tensor::Tensor;

use super::embeddings::EmbeddingFiles;
use crate::studio::{Clip, ClipKind, Network, Source, Studio, Wanted, Work, kind_of};
use crate::value::{Array, Entry};
use crate::{Error, Result};

/// T5's prompts are filled up to this many tokens for FLUX, and for SD3.
const FLUX_TOKENS: usize = 256;
const SD3_TOKENS: usize = 77;

/// What CLIP and T5 are told.
#[derive(Clone, Copy)]
pub(super) struct Prompts<'a> {
    pub(super) clip: &'a str,
    pub(super) t5: &'a str,
}

impl<'a> Prompts<'a> {
    /// The same for both.
    pub(super) fn same(text: &'a str) -> Prompts<'a> {
        Prompts { clip: text, t5: text }
    }
}

/// How one encoder of a family is used.
#[derive(Clone, Copy)]
struct Use {
    layer: Layer,
    unprojected: bool,
    tokens: usize,
}

/// Encodes prompts.
pub(super) fn encode(
    studio: &Studio,
    call: &Call,
    clip: &Clip,
    prompts: Prompts<'_>,
) -> Result<Entry, Failure> {
    let job = Job { studio, call, clip, prompts };
    let encoded = match clip.kind {
        ClipKind::Flux => {
            let last = clip.layer(Layer::Last);
            let pooled =
                job.run(patch::TextEncoder::ClipL, Use { layer: last, unprojected: true, tokens: 0 })?;
            let t5 = Use { layer: Layer::Last, unprojected: false, tokens: FLUX_TOKENS };
            Encoded::flux(&pooled, job.run(patch::TextEncoder::T5, t5)?)
        }
        ClipKind::StableDiffusion => {
            let layer = clip.layer(Layer::Last);
            job.run(patch::TextEncoder::ClipL, Use { layer, unprojected: true, tokens: 0 })?
        }
        ClipKind::Sdxl => {
            let (clip_l, clip_g) = job.both_clips()?;
            Encoded::sdxl(&clip_l, &clip_g).map_err(Error::from)?
        }
        ClipKind::Sd3 => {
            let (clip_l, clip_g) = job.both_clips()?;
            let t5 = Use { layer: Layer::Last, unprojected: false, tokens: SD3_TOKENS };
            let t5 = job.run(patch::TextEncoder::T5, t5)?;
            Encoded::sd3(&clip_l, &clip_g, &t5).map_err(Error::from)?
        }
    };
    let pooled = encoded.pooled.as_ref().map(to_array).transpose()?;
    Ok(Entry::new(to_array(&encoded.cond)?, pooled))
}

fn to_array(tensor: &Tensor) -> Result<Array> {
    Ok(Array { shape: tensor.dims().to_vec(), values: tensor.to_vec()? })
}

struct Job<'a> {
    studio: &'a Studio,
    call: &'a Call,
    clip: &'a Clip,
    prompts: Prompts<'a>,
}

impl Job<'_> {
    /// The encoder of a kind.
    fn encoder(&self, kind: patch::TextEncoder) -> Result<(&Source, &(TextEncoder, TextTokenizer))> {
        let found = self.clip.encoders.iter().find_map(|source| match &source.network {
            Network::Text(text) if kind_of(&text.0) == kind => Some((&**source, &**text)),
            _ => None,
        });
        found.ok_or_else(|| {
            let have: Vec<String> = self.clip.encoders.iter().map(|source| source.name()).collect();
            Error::Told(format!("none of {} is a {kind:?} text encoder", have.join(", ")))
        })
    }

    /// CLIP-L and CLIP-G as SDXL and SD3 use them.
    fn both_clips(&self) -> Result<(Encoded, Encoded)> {
        let layer = self.clip.layer(Layer::SkipRaw(2));
        let clip_l = self.run(patch::TextEncoder::ClipL, Use { layer, unprojected: true, tokens: 0 })?;
        let clip_g = self.run(patch::TextEncoder::ClipG, Use { layer, unprojected: false, tokens: 0 })?;
        Ok((clip_l, clip_g))
    }

    /// Encodes with one encoder.
    fn run(&self, kind: patch::TextEncoder, how: Use) -> Result<Encoded> {
        let (source, (encoder, tokenizer)) = self.encoder(kind)?;
        let files = EmbeddingFiles::new(self.studio, key_of(kind), encoder.width());
        let tokens = self.tokens(tokenizer, kind, how, &files);
        for name in &tokens.missing {
            tracing::warn!("there is no embedding {name} for {}; it is left out", source.name());
        }
        let work = Work::text(&tokens);
        let wanted = Wanted { source, beside: &self.clip.encoders, loras: &self.clip.loras, work: &work };
        let cancel = Cancel::from(Arc::clone(&self.call.job.cancel));
        self.studio.with_session(wanted, &cancel, |opened| {
            let vectors = files.tensors(&tokens, opened.session.lane()?)?;
            let options = EncodeOptions {
                layer: how.layer,
                unprojected: how.unprojected,
                masked: false,
                embeddings: Some(&vectors),
            };
            let started = Instant::now();
            let encoded = encoder.encode(&opened.session, &tokens, options)?;
            self.studio.note_evaluation(opened, started);
            // Results of several encoders meet on the host, wherever each computed.
            on_host(self.studio, encoded)
        })
    }

    fn tokens(
        &self,
        tokenizer: &TextTokenizer,
        kind: patch::TextEncoder,
        how: Use,
        files: &EmbeddingFiles<'_>,
    ) -> Tokens {
        let rows = |name: &str| files.rows(name);
        let options = PromptOptions { embeddings: Some(&rows), ignore_weights: false };
        if kind != patch::TextEncoder::T5 {
            return tokenizer.tokenize(self.prompts.clip, options);
        }
        let (least, padding) = self.clip.lengths.unwrap_or((how.tokens, 0));
        let natural = if padding > 0 { 0 } else { least };
        let mut tokens = tokenizer.clone().filled_to(natural).tokenize(self.prompts.t5, options);
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

/// The name that embedding files have for an encoder's vectors.
fn key_of(kind: patch::TextEncoder) -> &'static str {
    match kind {
        patch::TextEncoder::ClipL => "clip_l",
        patch::TextEncoder::ClipG => "clip_g",
        patch::TextEncoder::ClipH => "clip_h",
        patch::TextEncoder::T5 => "t5xxl",
    }
}

/// A result on the host's device, where another encoder's can join it.
fn on_host(studio: &Studio, encoded: Encoded) -> Result<Encoded> {
    let lane = tensor::Lane::new(studio.devices.get(meta::DeviceId::CPU)?, meta::DType::F32)?;
    let bring = |tensor: &Tensor| -> Result<Tensor> { Ok(lane.tensor(*tensor.shape(), &tensor.to_vec()?)?) };
    let pooled = encoded.pooled.as_ref().map(bring).transpose()?;
    Ok(Encoded { cond: bring(&encoded.cond)?, pooled, attention_mask: encoded.attention_mask })
}
