//! Tokenizers as the `tokenizers` library writes them: `tokenizer.json` beside an encoder.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use super::bpe::ByteTexts;
use super::byte_pairs::PairVocabulary;
use super::charsmap::CharsMap;
use super::clip_tokenizer::ClipTokenizer;
use super::ranks::ranked;
use super::sentencepiece::{Piece, PieceKind};
use super::unigram::T5Tokenizer;
use crate::{Error, Result};

/// The parts of a `tokenizer.json` that tokenizing needs.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    #[serde(default)]
    id: u32,
    content: String,
}

/// The parts of Mistral's `tekken.json` that tokenizing needs.
#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    special_tokens: Vec<TekkenToken>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    default_vocab_size: usize,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: usize,
    #[serde(default)]
    token_bytes: Option<String>,
    #[serde(default)]
    token_str: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Model {
    Unigram {
        unk_id: Option<usize>,
        vocab: Vec<(String, f64)>,
        #[serde(default)]
        byte_fallback: bool,
    },
    #[serde(rename = "BPE")]
    Bpe { vocab: HashMap<String, u32>, merges: Vec<Merge> },
    #[serde(other)]
    Other,
}

/// A learned pair, in either of the two forms that files have.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Line(String),
    Pair(String, String),
}

impl Merge {
    fn pair(&self) -> Option<(&str, &str)> {
        match self {
            Merge::Line(line) => line.split_once(' '),
            Merge::Pair(left, right) => Some((left, right)),
        }
    }
}

impl T5Tokenizer {
    /// The tokenizer of a `tokenizer.json` with a unigram model.
    pub fn from_json(name: &str, json: &str) -> Result<T5Tokenizer> {
        let written = read(name, json)?;
        let fault = |reason: &str| Error::Tokenizer { tokenizer: name.into(), reason: reason.into() };
        let Model::Unigram { unk_id, vocab, byte_fallback } = written.model else {
            return Err(fault("its model is not Unigram, which T5 needs"));
        };
        let special: HashSet<&str> =
            written.added_tokens.iter().map(|added| added.content.as_str()).collect();
        let kind = |id: usize, text: &str| match text {
            _ if Some(id) == unk_id => PieceKind::Unknown,
            text if special.contains(text) => PieceKind::UserDefined,
            text if byte_fallback && text.starts_with("<0x") && text.ends_with('>') => PieceKind::Byte,
            _ => PieceKind::Normal,
        };
        let piece = |(id, (text, score)): (usize, &(String, f64))| Piece {
            kind: kind(id, text),
            text: text.clone(),
            score: *score as f32,
        };
        let pieces = vocab.iter().enumerate().map(piece).collect();
        let map = charsmap_text(&written.normalizer).unwrap_or_default();
        let charsmap = meta::base64::decode(map).ok().and_then(|bytes| CharsMap::read(&bytes));
        let charsmap = charsmap.ok_or_else(|| fault("its character map is damaged"))?;
        T5Tokenizer::from_pieces(name, pieces, charsmap, true)
    }
}

impl ClipTokenizer {
    /// The tokenizer of a `tokenizer.json` with byte pairs.
    pub fn from_json(name: &str, json: &str) -> Result<ClipTokenizer> {
        let written = read(name, json)?;
        let fault = |reason: &str| Error::Tokenizer { tokenizer: name.into(), reason: reason.into() };
        let Model::Bpe { vocab, merges } = written.model else {
            return Err(fault("its model is not BPE, which CLIP needs"));
        };
        let pairs: Option<Vec<(&str, &str)>> = merges.iter().map(Merge::pair).collect();
        let pairs = pairs.ok_or_else(|| fault("a learned pair has no space"))?;
        ClipTokenizer::from_vocabulary(name, &vocab, &pairs)
    }
}

/// The vocabulary of a `tokenizer.json` with byte pairs over bytes, such as Llama 3's.
pub(crate) fn pair_vocabulary(name: &str, json: &str) -> Result<PairVocabulary> {
    let written = read(name, json)?;
    let fault = |reason: &str| Error::Tokenizer { tokenizer: name.into(), reason: reason.into() };
    let Model::Bpe { vocab, merges } = written.model else {
        return Err(fault("its model is not BPE, which this language model needs"));
    };
    let pairs: Option<Vec<(&str, &str)>> = merges.iter().map(Merge::pair).collect();
    let pairs = pairs.ok_or_else(|| fault("a learned pair has no space"))?;
    let bytes = ByteTexts::new();
    Ok(PairVocabulary {
        ids: vocab.iter().map(|(text, id)| (bytes.of(text), *id)).collect(),
        pairs: pairs.into_iter().map(|(left, right)| (bytes.of(left), bytes.of(right))).collect(),
        special: written.added_tokens.into_iter().map(|added| (added.content, added.id)).collect(),
    })
}

/// The vocabulary of a `tekken.json`: special tokens first, then the ranks that are left of the vocabulary's size.
pub(crate) fn tekken_vocabulary(name: &str, json: &[u8]) -> Result<PairVocabulary> {
    let fault = |reason: String| Error::Tokenizer { tokenizer: name.into(), reason };
    let tekken: Tekken = serde_json::from_slice(json).map_err(|error| fault(error.to_string()))?;
    let special: Vec<String> =
        tekken.special_tokens.into_iter().map(|token| token.token_str.unwrap_or_default()).collect();
    let most = tekken.config.default_vocab_size.saturating_sub(special.len());
    let mut tokens = Vec::new();
    for token in tekken.vocab.into_iter().filter(|token| token.rank < most) {
        if token.rank != tokens.len() {
            return Err(fault(format!("rank {} stands where {} should", token.rank, tokens.len())));
        }
        let bytes = token.token_bytes.as_deref().and_then(|bytes| meta::base64::decode(bytes).ok());
        tokens.push(bytes.ok_or_else(|| fault(format!("the token of rank {} has no bytes", token.rank)))?);
    }
    let first = special.len() as u32;
    let special = special.into_iter().zip(0..).filter(|(text, _)| !text.is_empty()).collect();
    Ok(ranked(tokens, first, special))
}

fn read(name: &str, json: &str) -> Result<Written> {
    serde_json::from_str(json)
        .map_err(|error| Error::Tokenizer { tokenizer: name.into(), reason: error.to_string() })
}

/// The character map, by itself or in a sequence of normalisers.
fn charsmap_text(normalizer: &Value) -> Option<&str> {
    let steps = normalizer["normalizers"].as_array();
    let map = |step: &'_ Value| step["precompiled_charsmap"].as_str().is_some();
    let step = match steps {
        Some(steps) => steps.iter().find(|step| map(step))?,
        None => normalizer,
    };
    step["precompiled_charsmap"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unigram_models_and_what_is_refused() {
        let json = r#"{"added_tokens": [{"id": 1, "content": "</s>"}], "normalizer": null, "model": {"type": "Unigram",
            "unk_id": 2, "vocab": [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["▁a", -1.0], ["b", -2.0], ["▁ab", -2.5]]}}"#;
        let tokenizer = T5Tokenizer::from_json("t", json).unwrap();
        assert_eq!(tokenizer.encode("ab b</s>a z"), [5, 2, 4, 1, 3, 2]);
        assert!(ClipTokenizer::from_json("t", json).unwrap_err().to_string().contains("not BPE"));
        let bpe = r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}}"#;
        assert!(T5Tokenizer::from_json("t", bpe).unwrap_err().to_string().contains("not Unigram"));
        assert!(ClipTokenizer::from_json("t", bpe).unwrap_err().to_string().contains("no symbol"));
        assert!(T5Tokenizer::from_json("t", r#"{"model": {"type": "WordPiece"}}"#).is_err());
        assert!(T5Tokenizer::from_json("t", "{").is_err());
    }
}
