//! Tokenizers that converters of language models put into a file beside its tensors, under keys of their own.

use crate::{Error, Metadata, Value, ValueFault};

/// The kind of tokenizer.
const MODEL: &str = "tokenizer.ggml.model";
/// The pieces: their texts, scores and kinds, each an array.
const TEXTS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";
/// Learned pairs: two pieces with a space between them.
const PAIRS: &str = "tokenizer.ggml.merges";
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
        let wrong = |key: &'static str, wanted: &'static str| {
            self.metadata.value_error(key, ValueFault::NotThat { wanted })
        };
        let (texts, scores, kinds) = (self.array(TEXTS)?, self.array(SCORES)?, self.array(KINDS)?);
        let mut pieces = Vec::new();
        for ((text, score), kind) in texts.iter().zip(scores.iter()).zip(kinds.iter()) {
            let Value::Str(text) = text? else { return Err(wrong(TEXTS, "texts")) };
            let Value::Float(score) = score? else { return Err(wrong(SCORES, "floats")) };
            let kind = kind?.to_u64().ok_or_else(|| wrong(KINDS, "whole numbers"))?;
            pieces.push(TokenizerPiece { text, score: score as f32, kind });
        }
        Ok(pieces)
    }

    /// The texts of its vocabulary and what they are, in SentencePiece's numbers, in the order of the ids; for kinds
    /// without scores.
    ///
    /// # Errors
    /// A part of it is missing or of another type.
    pub fn texts(&self) -> Result<Vec<(&'a str, u64)>, Error> {
        let kinds = self.array(KINDS)?;
        let wrong = || self.metadata.value_error(KINDS, ValueFault::NotThat { wanted: "whole numbers" });
        let kinds = kinds.iter().map(|kind| kind?.to_u64().ok_or_else(wrong));
        self.strings(TEXTS)?.into_iter().zip(kinds).map(|(text, kind)| Ok((text, kind?))).collect()
    }

    /// Its learned pairs, each two pieces with a space between them, the first learned first.
    ///
    /// # Errors
    /// They are missing or of another type.
    pub fn pairs(&self) -> Result<Vec<&'a str>, Error> {
        self.strings(PAIRS)
    }

    fn array(&self, key: &'static str) -> Result<crate::Array<'a>, Error> {
        self.metadata.array(key).ok_or_else(|| self.metadata.value_error(key, ValueFault::Missing))
    }

    fn strings(&self, key: &'static str) -> Result<Vec<&'a str>, Error> {
        let wrong = || self.metadata.value_error(key, ValueFault::NotThat { wanted: "texts" });
        let text = |value: Result<Value<'a>, Error>| match value? {
            Value::Str(text) => Ok(text),
            _ => Err(wrong()),
        };
        self.array(key)?.iter().map(text).collect()
    }

    /// How it normalises characters, as SentencePiece precompiles it; none if it does not.
    pub fn character_map(&self) -> Option<&'a [u8]> {
        self.metadata.array(CHARACTER_MAP).map(|bytes| bytes.raw())
    }
}
