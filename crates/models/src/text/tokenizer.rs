//! Which tokenizer an encoder gets: its file's own, else one beside the file, else one embedded in the
//! checkpoint as a tensor, else the one that comes with the program.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Checkpoint, EmbeddedTokenizer, TokenizerPiece};

use super::byte_pairs::BytePairTokenizer;
use super::charsmap::CharsMap;
use super::clip::ClipConfig;
use super::clip_tokenizer::ClipTokenizer;
use super::sentence_pairs::SentencePairTokenizer;
use super::sentencepiece::{Piece, PieceKind};
use super::t5::T5Config;
use super::tokens::{PromptOptions, Tokens};
use super::unigram::T5Tokenizer;
use crate::detect::file_name;
use crate::{Error, Result};

/// The tensor that holds a SentencePiece model.
pub(super) const EMBEDDED_MODEL: &str = "spiece_model";
/// More entries of an encoder's table than its tokenizer has pieces; T5 has 28, UMT5 84.
const SPARE_ENTRIES: usize = 512;
/// CLIP models from this width on fill chunks with zeros.
const ZERO_PADDED_WIDTH: usize = 1024;

/// Cuts prompts into tokens.
pub trait Tokenizer: fmt::Debug + Send + Sync {
    /// A prompt in chunks. Encoders without chunks of their own get one that is filled up to `least` tokens.
    fn tokenize(&self, prompt: &str, options: PromptOptions<'_>, least: usize) -> Tokens;

    /// The text of tokens that a model wrote; nothing from tokenizers of encoders that write none.
    fn decode(&self, _ids: &[u32]) -> Option<String> {
        None
    }
}

impl Tokenizer for ClipTokenizer {
    fn tokenize(&self, prompt: &str, options: PromptOptions<'_>, _least: usize) -> Tokens {
        ClipTokenizer::tokenize(self, prompt, options)
    }
}

impl Tokenizer for Arc<BytePairTokenizer> {
    fn tokenize(&self, prompt: &str, options: PromptOptions<'_>, least: usize) -> Tokens {
        BytePairTokenizer::tokenize(self, prompt, options, least)
    }

    fn decode(&self, ids: &[u32]) -> Option<String> {
        Some(BytePairTokenizer::decode(self, ids))
    }
}

impl Tokenizer for SentencePairTokenizer {
    fn tokenize(&self, prompt: &str, options: PromptOptions<'_>, least: usize) -> Tokens {
        SentencePairTokenizer::tokenize(self, prompt, options, least)
    }

    fn decode(&self, ids: &[u32]) -> Option<String> {
        Some(SentencePairTokenizer::decode(self, ids))
    }
}

impl Tokenizer for T5Tokenizer {
    fn tokenize(&self, prompt: &str, options: PromptOptions<'_>, least: usize) -> Tokens {
        T5Tokenizer::tokenize(&self.clone().filled_to(least), prompt, options)
    }
}

/// The tokenizer of a CLIP model that was read from this file.
pub(super) fn for_clip(checkpoint: &Checkpoint, config: &ClipConfig) -> Result<ClipTokenizer> {
    let tokenizer = match beside(checkpoint, ClipTokenizer::from_json, |_| true)? {
        Some(tokenizer) => tokenizer,
        None => ClipTokenizer::embedded()?,
    };
    Ok(if config.width >= ZERO_PADDED_WIDTH { tokenizer.padded_with_zeros() } else { tokenizer })
}

/// The tokenizer of a T5 or UMT5 encoder that was read from this file.
pub(super) fn for_t5(checkpoint: &Checkpoint, config: &T5Config) -> Result<T5Tokenizer> {
    let umt5 = config.own_positions;
    if let Some(tokenizer) = from_metadata(checkpoint, !umt5)? {
        return Ok(tokenizer);
    }
    // Tables are rounded up a little, so a tokenizer that has far fewer pieces is another encoder's.
    let fits = |tokenizer: &T5Tokenizer| {
        let spare = config.vocabulary.checked_sub(tokenizer.vocabulary());
        spare.is_some_and(|spare| spare <= SPARE_ENTRIES)
    };
    if let Some(tokenizer) = beside(checkpoint, T5Tokenizer::from_json, fits)? {
        return Ok(tokenizer);
    }
    if let Some(bytes) = inside(checkpoint, EMBEDDED_MODEL) {
        return T5Tokenizer::from_sentencepiece(&file_name(checkpoint), bytes);
    }
    if umt5 {
        return Err(Error::Tokenizer {
            tokenizer: file_name(checkpoint),
            reason: format!(
                "a UMT5 encoder needs its tokenizer: take a file with a tensor {EMBEDDED_MODEL}, or put its tokenizer.json beside it"
            ),
        });
    }
    T5Tokenizer::embedded()
}

/// The bytes of a vocabulary that is kept as a tensor of the file.
pub(super) fn inside<'a>(checkpoint: &'a Checkpoint, tensor: &str) -> Option<&'a [u8]> {
    let is_it = |name: &str| name == tensor || name.ends_with(&format!(".{tensor}"));
    let entry = checkpoint.entries().iter().find(|entry| is_it(entry.name()))?;
    Some(checkpoint.bytes(entry))
}

/// The tokenizer in the JSON file named like the checkpoint, or in the `tokenizer.json` of its folder. The
/// latter may be another encoder's: if it is not of the right kind and size, it is left alone.
pub(super) fn beside<T>(
    checkpoint: &Checkpoint,
    read: impl Fn(&str, &str) -> Result<T>,
    fits: impl Fn(&T) -> bool,
) -> Result<Option<T>> {
    // A checkpoint in memory has no folder.
    if !checkpoint.path().is_file() {
        return Ok(None);
    }
    let own = checkpoint.path().with_extension("tokenizer.json");
    let shared = checkpoint.path().with_file_name("tokenizer.json");
    if let Some(json) = text_of(&own)? {
        return read(&own.display().to_string(), &json).map(Some);
    }
    Ok(text_of(&shared)?.and_then(|json| read(&shared.display().to_string(), &json).ok()).filter(fits))
}

pub(crate) fn text_of(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(Error::Tokenizer { tokenizer: path.display().to_string(), reason: error.to_string() })
        }
    }
}

/// The tokenizer that a file brings with its metadata, if it is a unigram model.
fn from_metadata(checkpoint: &Checkpoint, like_t5: bool) -> Result<Option<T5Tokenizer>> {
    let Some(embedded) = checkpoint.metadata().tokenizer().filter(|it| it.model() == "t5") else {
        return Ok(None);
    };
    let name = file_name(checkpoint);
    let (pieces, charsmap) =
        read_pieces(&embedded).map_err(|reason| Error::Tokenizer { tokenizer: name.clone(), reason })?;
    T5Tokenizer::from_pieces(&name, pieces, charsmap, like_t5).map(Some)
}

pub(super) fn read_pieces(embedded: &EmbeddedTokenizer<'_>) -> Result<(Vec<Piece>, CharsMap), String> {
    let pieces = embedded.pieces().map_err(|error| error.to_string())?;
    let piece = |piece: TokenizerPiece<'_>| -> Result<Piece, String> {
        let kind = PieceKind::numbered(piece.kind)?;
        Ok(Piece { text: piece.text.to_owned(), score: piece.score, kind })
    };
    let pieces = pieces.into_iter().map(piece).collect::<Result<Vec<Piece>, String>>()?;
    let charsmap = match embedded.character_map() {
        Some(bytes) => CharsMap::read(bytes).ok_or("its character map is damaged")?,
        None => CharsMap::default(),
    };
    Ok((pieces, charsmap))
}
