//! Tokenizers that converters of language models put into a file beside its tensors, under keys of their own.

use crate::{Error, Metadata, Value, ValueFault};

/// The kind of tokenizer.
const MODEL: &str = "tokenizer.ggml.model";
/// The pieces: their texts, scores and kinds, each an array.
const TEXTS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";
/// How characters are normalised before a text is cut.
const CHARACTER_MAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// A tokenizer in the metadata of a file.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedTokenizer<'a> {
    metadata: &'a Metadata,
    model: &'a str,
}

/// One piece of its vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenizerPiece<'a> {
    /// Its text.
    pub text: &'a str,
    /// How likely it is: the logarithm of a probability.
    pub score: f32,
    /// What it is, in SentencePiece's numbers.
    pub kind: u64,
}

impl Metadata {
    /// The tokenizer that the file brings, if it brings one.
    pub fn tokenizer(&self) -> Option<EmbeddedTokenizer<'_>> {
        self.str(MODEL).map(|model| EmbeddedTokenizer { metadata: self, model })
    }
}

impl<'a> EmbeddedTokenizer<'a> {
    /// Its kind, such as `t5` or `gpt2`.
    pub fn model(&self) -> &'a str {
        self.model
    }

    /// Its vocabulary, in the order of the ids.
    ///
    /// # Errors
    /// A part of it is missing or of another type.
    pub fn pieces(&self) -> Result<Vec<TokenizerPiece<'a>>, Error> {
        let array = |key: &'static str| {
            self.metadata.array(key).ok_or_else(|| self.metadata.value_error(key, ValueFault::Missing))
        };
        let wrong = |key: &'static str, wanted: &'static str| {
            self.metadata.value_error(key, ValueFault::NotThat { wanted })
        };
        let (texts, scores, kinds) = (array(TEXTS)?, array(SCORES)?, array(KINDS)?);
        let mut pieces = Vec::new();
        for ((text, score), kind) in texts.iter().zip(scores.iter()).zip(kinds.iter()) {
            let Value::Str(text) = text? else { return Err(wrong(TEXTS, "texts")) };
            let Value::Float(score) = score? else { return Err(wrong(SCORES, "floats")) };
            let kind = kind?.to_u64().ok_or_else(|| wrong(KINDS, "whole numbers"))?;
            pieces.push(TokenizerPiece { text, score: score as f32, kind });
        }
        Ok(pieces)
    }

    /// How it normalises characters, as SentencePiece precompiles it; none if it does not.
    pub fn character_map(&self) -> Option<&'a [u8]> {
        self.metadata.array(CHARACTER_MAP).map(|bytes| bytes.raw())
    }
}
