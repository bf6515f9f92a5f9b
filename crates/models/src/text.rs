//! Text encoders and their tokenizers.
//!
//! ```text
//! prompt ── TextTokenizer ──> Tokens ── TextEncoder::encode ──> Encoded ── Encoded::flux, … ──> conditioning
//! ```
//!
//! ```no_run
//! use checkpoint::Checkpoint;
//! use models::detect;
//! use models::text::{EncodeOptions, Encoded, PromptOptions, TextEncoder, TextTokenizer};
//!
//! /// Encodes a prompt for FLUX; `open` plans, loads and opens a manifest.
//! fn encode(
//!     path: &str,
//!     prompt: &str,
//!     open: impl Fn(residency::Manifest) -> residency::Session,
//! ) -> Result<Encoded, Box<dyn std::error::Error>> {
//!     let file = Checkpoint::open(path)?;
//!     let encoder = TextEncoder::read_all(&file, &detect(&file))?.remove(0);
//!     let tokenizer = TextTokenizer::for_encoder(&file, &encoder)?.filled_to(256);
//!     let session = open(encoder.manifest(&file)?);
//!     let tokens = tokenizer.tokenize(prompt, PromptOptions::default());
//!     Ok(encoder.encode(&session, &tokens, EncodeOptions::default())?)
//! }
//! ```

pub(crate) mod bpe;
pub(crate) mod characters;
mod charsmap;
mod clip;
mod clip_tokenizer;
mod conditioning;
mod embedded;
pub(crate) mod encoder;
mod json;
pub mod prompt;
mod qwen_tokenizer;
mod sentencepiece;
mod t5;
pub(crate) mod tokenizer;
mod tokens;
mod unigram;

pub use clip::{Clip, ClipConfig};
pub use clip_tokenizer::ClipTokenizer;
pub use encoder::{Embeddings, EncodeOptions, Encoded, Layer, TextEncoder};
pub use qwen_tokenizer::{ChatTemplate, QwenTokenizer};
pub use t5::{T5, T5Config};
pub use tokenizer::TextTokenizer;
pub use tokens::{EmbeddingRows, Frame, PromptOptions, Symbol, Token, Tokens};
pub use unigram::T5Tokenizer;
