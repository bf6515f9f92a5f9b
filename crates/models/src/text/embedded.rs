//! The vocabulary tables that come with the program; `data/README.md` says where each is from.

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

use crate::{Error, Result};

static CLIP_MERGES: &[u8] = include_bytes!("../../data/clip_merges.txt.zz");
static QWEN_MERGES: &[u8] = include_bytes!("../../data/qwen2_merges.txt.zz");
static T5_PIECES: &[u8] = include_bytes!("../../data/t5_unigram.pb.zz");

/// More than the largest table has.
const MAX_BYTES: usize = 8 << 20;

/// CLIP's learned pairs, one per line.
pub(crate) fn clip_merges() -> Result<String> {
    unpack_text("CLIP", CLIP_MERGES)
}

/// Qwen's learned pairs, one per line.
pub(crate) fn qwen_merges() -> Result<String> {
    unpack_text("Qwen", QWEN_MERGES)
}

/// T5's pieces, as a SentencePiece model.
pub(crate) fn t5_pieces() -> Result<Vec<u8>> {
    unpack("T5", T5_PIECES)
}

fn unpack_text(tokenizer: &str, packed: &[u8]) -> Result<String> {
    String::from_utf8(unpack(tokenizer, packed)?).map_err(|error| fault(tokenizer, &error))
}

fn unpack(tokenizer: &str, packed: &[u8]) -> Result<Vec<u8>> {
    decompress_to_vec_zlib_with_limit(packed, MAX_BYTES).map_err(|error| fault(tokenizer, &error))
}

fn fault(tokenizer: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Tokenizer {
        tokenizer: tokenizer.into(),
        reason: format!("the table inside the program is damaged: {error}"),
    }
}
