//! Which tokenizer an encoder gets: its file's own, else one beside the file, else one embedded in the
//! checkpoint as a tensor, else the one that comes with the program.

use std::fs;
use std::io;
use std::path::Path;

use checkpoint::{Checkpoint, EmbeddedTokenizer, TokenizerPiece};

use super::charsmap::CharsMap;
use super::clip_tokenizer::ClipTokenizer;
use super::encoder::TextEncoder;
use super::sentencepiece::{Piece, PieceKind};
use super::t5::T5Config;
use super::tokens::{PromptOptions, Tokens};
use super::unigram::T5Tokenizer;
use crate::detect::file_name;
use crate::{Error, Result};

/// The tensor that holds a SentencePiece model.
const EMBEDDED_MODEL: &str = "spiece_model";
/// More entries of an encoder's table than its tokenizer has pieces; T5 has 28, UMT5 84.
const SPARE_ENTRIES: usize = 512;
/// CLIP models from this width on fill chunks with zeros.
const ZERO_PADDED_WIDTH: usize = 1024;

/// A tokenizer of one kind or the other.
#[derive(Clone, Debug)]
pub enum TextTokenizer {
    /// CLIP's.
    Clip(ClipTokenizer),
    /// T5's.
    T5(T5Tokenizer),
}

impl TextTokenizer {
    /// The tokenizer for an encoder that was read from this file.
    pub fn for_encoder(checkpoint: &Checkpoint, encoder: &TextEncoder) -> Result<TextTokenizer> {
        match encoder {
            TextEncoder::Clip(clip) => {
                let tokenizer = match beside(checkpoint, ClipTokenizer::from_json, |_| true)? {
                    Some(tokenizer) => tokenizer,
                    None => ClipTokenizer::embedded()?,
                };
                let zeros = clip.config().width >= ZERO_PADDED_WIDTH;
                Ok(TextTokenizer::Clip(if zeros { tokenizer.padded_with_zeros() } else { tokenizer }))
            }
            TextEncoder::T5(t5) => Ok(TextTokenizer::T5(t5_tokenizer(checkpoint, t5.config())?)),
        }
    }

    /// The same tokenizer with T5 prompts filled to this many tokens (FLUX: 256, SD3: 77, Wan: 512). CLIP's
    /// are always filled to 77.
    pub fn filled_to(self, len: usize) -> TextTokenizer {
        match self {
            TextTokenizer::T5(t5) => TextTokenizer::T5(t5.filled_to(len)),
            clip => clip,
        }
    }

    /// A prompt in chunks.
    pub fn tokenize(&self, prompt: &str, options: PromptOptions<'_>) -> Tokens {
        match self {
            TextTokenizer::Clip(clip) => clip.tokenize(prompt, options),
            TextTokenizer::T5(t5) => t5.tokenize(prompt, options),
        }
    }
}

fn t5_tokenizer(checkpoint: &Checkpoint, config: &T5Config) -> Result<T5Tokenizer> {
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
    let inside = |name: &str| name == EMBEDDED_MODEL || name.ends_with(&format!(".{EMBEDDED_MODEL}"));
    if let Some(entry) = checkpoint.entries().iter().find(|entry| inside(entry.name())) {
        return T5Tokenizer::from_sentencepiece(&file_name(checkpoint), checkpoint.bytes(entry));
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

/// The tokenizer in the JSON file named like the checkpoint, or in the `tokenizer.json` of its folder. The
/// latter may be another encoder's: if it is not of the right kind and size, it is left alone.
fn beside<T>(
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

fn read_pieces(embedded: &EmbeddedTokenizer<'_>) -> Result<(Vec<Piece>, CharsMap), String> {
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
