//! Text encoders and their tokenizers: one line per architecture in [`ARCHITECTURES`]; how a family uses them is said in
//! its [`TextRecipe`].
//!
//! ```text
//! prompt ── Tokenizer ──> Tokens ── TextEncoder ──> Encoded ── TextRecipe::join ──> conditioning
//! ```
//!
//! ```no_run
//! use checkpoint::Checkpoint;
//! use models::detect;
//! use models::text::{EncodeOptions, Encoded, PromptOptions, TextModel};
//!
//! /// Encodes a prompt; `open` plans, loads and opens a manifest.
//! fn encode(
//!     path: &str,
//!     prompt: &str,
//!     open: impl Fn(residency::Manifest) -> residency::Session,
//! ) -> Result<Encoded, Box<dyn std::error::Error>> {
//!     let file = Checkpoint::open(path)?;
//!     let model = TextModel::read_all(&file, &detect(&file))?.remove(0);
//!     let session = open(model.encoder.manifest(&file)?);
//!     let tokens = model.tokenizer.tokenize(prompt, PromptOptions::default(), 256);
//!     Ok(model.encoder.encode(&session, &tokens, EncodeOptions::default())?)
//! }
//! ```

pub(crate) mod bpe;
mod byte_pairs;
mod byte_tokenizer;
pub(crate) mod characters;
mod charsmap;
mod clip;
mod clip_tokenizer;
mod embedded;
pub(crate) mod encoder;
mod json;
mod language_model;
pub mod prompt;
mod ranks;
mod recipe;
mod sentence_pairs;
mod sentencepiece;
mod t5;
mod template;
mod token_choice;
pub(crate) mod tokenizer;
mod tokens;
mod turns;
mod unigram;

use std::fmt;

use checkpoint::Checkpoint;

use crate::Result;
use crate::detect::{Detected, Part, Reader, Role, Sign};

pub use byte_pairs::BytePairTokenizer;
pub use byte_tokenizer::ByteTokenizer;
pub use clip::{Clip, ClipConfig};
pub use clip_tokenizer::ClipTokenizer;
pub use encoder::{
    Embeddings, EncodeOptions, Encoded, Keep, Kept, Layer, PaddingUse, PictureTokens, TextEncoder,
};
pub use language_model::{Decoder, LanguageKind, LanguageModel, LanguageModelConfig};
pub use recipe::{EncoderUse, Reads, TextRecipe, name_of, recipes};
pub(crate) use recipe::{all, side_by_side};
pub use sentence_pairs::SentencePairTokenizer;
pub use t5::{T5, T5Config};
pub use template::ChatTemplate;
pub use token_choice::{TokenChooser, TokenSampling};
pub use tokenizer::Tokenizer;
pub use tokens::{EmbeddingRows, Frame, PromptOptions, Symbol, Token, Tokens};
pub(crate) use turns::{from_second_turn, user_turn, whole_second_turn};
pub use unigram::T5Tokenizer;

/// Every architecture of text encoders, in the order in which files are tried.
pub const ARCHITECTURES: &[&TextArchitecture] =
    &[&clip::ARCHITECTURE, &t5::ARCHITECTURE, &language_model::ARCHITECTURE];

/// What errors call a file that should have an encoder.
const WANTED: &str = "a text encoder (CLIP, T5, UMT5 or a language model)";

/// What the rest of the program asks of an architecture before one of its files is read.
pub struct TextArchitecture {
    /// Its name in the field.
    pub name: &'static str,
    /// What gives its files away.
    pub signs: &'static [Sign],
    /// Reads the sizes of one of its models, and finds its tokenizer.
    pub read: fn(&Checkpoint, &Part) -> Result<TextModel>,
}

/// A text encoder with its tokenizer.
#[derive(Debug)]
pub struct TextModel {
    /// The encoder.
    pub encoder: Box<dyn TextEncoder>,
    /// Its tokenizer.
    pub tokenizer: Box<dyn Tokenizer>,
}

impl TextModel {
    /// An encoder and its tokenizer.
    pub fn new(encoder: impl TextEncoder + 'static, tokenizer: impl Tokenizer + 'static) -> TextModel {
        TextModel { encoder: Box::new(encoder), tokenizer: Box::new(tokenizer) }
    }

    /// Reads one of a file's text encoders.
    pub fn read(checkpoint: &Checkpoint, detected: &Detected, part: &Part) -> Result<TextModel> {
        match part.reader {
            Some(Reader::Text(architecture)) => (architecture.read)(checkpoint, part),
            _ => Err(detected.wrong_kind(WANTED)),
        }
    }

    /// Reads every text encoder of a file that this crate knows; an error if there is none.
    pub fn read_all(checkpoint: &Checkpoint, detected: &Detected) -> Result<Vec<TextModel>> {
        let parts: Vec<&Part> = detected.parts_for(Role::Text).filter(|part| part.reader.is_some()).collect();
        if parts.is_empty() {
            return Err(detected.wrong_kind(WANTED));
        }
        parts.into_iter().map(|part| TextModel::read(checkpoint, detected, part)).collect()
    }
}

impl fmt::Debug for TextArchitecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
