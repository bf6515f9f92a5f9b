//! Text encoders and their tokenizers.
//!
//! ```text
//! prompt ── ClipTokenizer, T5Tokenizer ──> Tokens ── TextEncoder::encode ──> Encoded ── Encoded::flux, … ──> conditioning
//! ```

mod bpe;
mod charsmap;
mod clip;
mod clip_tokenizer;
mod conditioning;
mod embedded;
mod encoder;
mod json;
pub mod prompt;
mod sentencepiece;
mod t5;
mod tokenizer;
mod tokens;
mod unigram;

pub use clip::{Clip, ClipConfig};
pub use clip_tokenizer::ClipTokenizer;
pub use encoder::{Embeddings, EncodeOptions, Encoded, Layer, TextEncoder};
pub use t5::{T5, T5Config};
pub use tokenizer::TextTokenizer;
pub use tokens::{EmbeddingRows, Frame, PromptOptions, Symbol, Token, Tokens};
pub use unigram::T5Tokenizer;
