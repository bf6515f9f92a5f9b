//! Which vocabulary a language model gets. Qwen's comes with the program. Gemma's and Mistral's come with the model's file,
//! as do all in files of llama.cpp. Llama 3's licence does not let it come with the program, so it is looked for where
//! people have it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use checkpoint::{Checkpoint, EmbeddedTokenizer};

use super::config::{LanguageKind, LanguageModelConfig, TEKKEN};
use crate::detect::file_name;
use crate::text::bpe::ByteTexts;
use crate::text::byte_pairs::{BytePairTokenizer, PairVocabulary, WordStyle};
use crate::text::json::{pair_vocabulary, tekken_vocabulary};
use crate::text::ranks;
use crate::text::sentence_pairs::SentencePairTokenizer;
use crate::text::sentencepiece::{PieceKind, Spacing};
use crate::text::tokenizer::{EMBEDDED_MODEL, Tokenizer, inside, read_pieces, text_of};
use crate::text::tokens::Frame;
use crate::{Error, Result};

/// The tensor that holds a `tokenizer.json`.
const EMBEDDED_JSON: &str = "tokenizer_json";
/// Where an installation of ComfyUI has Llama 3's vocabulary.
const IN_COMFYUI: &str = "comfy/text_encoders/llama_tokenizer/tokenizer.json";
/// Folders above a model's file in which such an installation is looked for.
const MOST_FOLDERS: usize = 6;
/// The largest vocabulary file; Llama 3's has 9 MB.
const MOST_BYTES: u64 = 64 << 20;
/// What LLaVA adds to Llama 3's vocabulary, from the first id behind it on.
const LLAVA_SPECIAL: [&str; 3] = ["<unk>", "<image>", "<pad>"];
const LLAVA_FIRST: u32 = 128_256;
/// Llama 3's start and end of a turn; Mistral's start and padding.
const LLAMA_START: u32 = 128_000;
const LLAMA_END_OF_TURN: u32 = 128_009;
const MISTRAL_START: u32 = 1;
const MISTRAL_PAD: u32 = 11;

/// The tokenizer of a language model that was read from this file.
pub(super) fn tokenizer(checkpoint: &Checkpoint, config: &LanguageModelConfig) -> Result<Box<dyn Tokenizer>> {
    Ok(match config.kind {
        LanguageKind::Qwen25 | LanguageKind::Qwen3 | LanguageKind::Qwen3Vl => Box::new(qwen()?),
        LanguageKind::Gemma2 | LanguageKind::Gemma3 => Box::new(gemma(checkpoint)?),
        LanguageKind::Mistral3 => Box::new(Arc::new(mistral(checkpoint)?)),
        LanguageKind::Llama3 => Box::new(Arc::new(llama(checkpoint, config)?)),
    })
}

/// Qwen's tokenizer, which is made once.
fn qwen() -> Result<Arc<BytePairTokenizer>> {
    static QWEN: OnceLock<Arc<BytePairTokenizer>> = OnceLock::new();
    match QWEN.get() {
        Some(tokenizer) => Ok(Arc::clone(tokenizer)),
        None => {
            let tokenizer = Arc::new(BytePairTokenizer::qwen()?);
            Ok(Arc::clone(QWEN.get_or_init(|| tokenizer)))
        }
    }
}

fn gemma(checkpoint: &Checkpoint) -> Result<SentencePairTokenizer> {
    let name = file_name(checkpoint);
    if let Some(bytes) = inside(checkpoint, EMBEDDED_MODEL) {
        return SentencePairTokenizer::from_sentencepiece(&name, bytes);
    }
    let fault = |reason: String| Error::Tokenizer { tokenizer: name.clone(), reason };
    if let Some(embedded) = checkpoint.metadata().tokenizer().filter(|it| it.model() == "llama") {
        let (pieces, charsmap) = read_pieces(&embedded).map_err(fault)?;
        let spacing = Spacing { dummy_prefix: false, collapse: false };
        return SentencePairTokenizer::from_pieces(pieces, charsmap, spacing).map_err(fault);
    }
    if let Some((path, bytes)) = beside(checkpoint, "tokenizer.model")? {
        return SentencePairTokenizer::from_sentencepiece(&path.display().to_string(), &bytes);
    }
    Err(fault(format!(
        "a Gemma model needs its vocabulary: take a file with a tensor {EMBEDDED_MODEL}, such as ComfyUI's, or put \
         tokenizer.model, as Google publishes it with the model, beside it"
    )))
}

fn mistral(checkpoint: &Checkpoint) -> Result<BytePairTokenizer> {
    let name = file_name(checkpoint);
    let frame = Frame { start: Some(MISTRAL_START), end: None, pad: MISTRAL_PAD, max_len: None, min_len: 1 };
    let vocabulary = match (inside(checkpoint, TEKKEN), of_metadata(checkpoint)?) {
        (Some(bytes), _) => tekken_vocabulary(&name, bytes)?,
        (None, Some(vocabulary)) => vocabulary,
        (None, None) => match beside(checkpoint, "tekken.json")? {
            Some((path, bytes)) => tekken_vocabulary(&path.display().to_string(), &bytes)?,
            None => {
                return Err(Error::Tokenizer {
                    tokenizer: name,
                    reason: format!(
                        "a Mistral model needs its vocabulary: take a file with a tensor {TEKKEN}, such as ComfyUI's, \
                         or put tekken.json, as Mistral publishes it with the model, beside it"
                    ),
                });
            }
        },
    };
    BytePairTokenizer::new(&name, vocabulary, WordStyle::LLAMA, frame)
}

fn llama(checkpoint: &Checkpoint, config: &LanguageModelConfig) -> Result<BytePairTokenizer> {
    let name = file_name(checkpoint);
    let mut vocabulary = llama_vocabulary(checkpoint, &name)?;
    for (text, id) in LLAVA_SPECIAL.into_iter().zip(LLAVA_FIRST..) {
        if (id as usize) < config.vocabulary && !vocabulary.special.iter().any(|(known, _)| known == text) {
            vocabulary.special.push((text.to_owned(), id));
        }
    }
    let has_pad = config.vocabulary > LLAVA_FIRST as usize + 2;
    let pad = if has_pad { LLAVA_FIRST + 2 } else { LLAMA_END_OF_TURN };
    let frame = Frame { start: Some(LLAMA_START), end: None, pad, max_len: None, min_len: 1 };
    BytePairTokenizer::new(&name, vocabulary, WordStyle::LLAMA, frame)
}

fn llama_vocabulary(checkpoint: &Checkpoint, name: &str) -> Result<PairVocabulary> {
    if let Some(vocabulary) = of_metadata(checkpoint)? {
        return Ok(vocabulary);
    }
    let fault = |tokenizer: &str, reason: String| Error::Tokenizer { tokenizer: tokenizer.into(), reason };
    if let Some(bytes) = inside(checkpoint, EMBEDDED_JSON) {
        let json = std::str::from_utf8(bytes).map_err(|error| fault(name, error.to_string()))?;
        return pair_vocabulary(name, json);
    }
    if let Some((path, bytes)) = beside(checkpoint, "tokenizer.json")? {
        let path = path.display().to_string();
        let json = String::from_utf8(bytes).map_err(|error| fault(&path, error.to_string()))?;
        return pair_vocabulary(&path, &json);
    }
    if let Some((path, bytes)) = beside(checkpoint, "tokenizer.model")? {
        let path = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|error| fault(&path, error.to_string()))?;
        return ranks::of_llama(&text).map_err(|reason| fault(&path, reason));
    }
    for folder in checkpoint.path().ancestors().skip(1).take(MOST_FOLDERS) {
        let path = folder.join(IN_COMFYUI);
        if let Some(json) = text_of(&path)? {
            return pair_vocabulary(&path.display().to_string(), &json);
        }
    }
    Err(fault(
        name,
        format!(
            "Llama 3's vocabulary is not in the file, and its licence does not let it come with this program: take \
             tokenizer.json of a Llama 3 model (ComfyUI has it as {IN_COMFYUI}, Meta publishes it with the model) and \
             put it beside the file as {} or tokenizer.json",
            own_name(checkpoint.path(), "tokenizer.json").file_name().unwrap_or_default().to_string_lossy()
        ),
    ))
}

/// A vocabulary beside the file: named like it, else by its usual name.
fn beside(checkpoint: &Checkpoint, usual: &str) -> Result<Option<(PathBuf, Vec<u8>)>> {
    // A checkpoint in memory has no folder.
    if !checkpoint.path().is_file() {
        return Ok(None);
    }
    for path in [own_name(checkpoint.path(), usual), checkpoint.path().with_file_name(usual)] {
        let fault = |error: io::Error| Error::Tokenizer {
            tokenizer: path.display().to_string(),
            reason: error.to_string(),
        };
        match fs::metadata(&path) {
            Ok(about) if about.len() > MOST_BYTES => {
                return Err(fault(io::Error::other(format!("it has more than {MOST_BYTES} bytes"))));
            }
            Ok(_) => return Ok(Some((path.clone(), fs::read(&path).map_err(fault)?))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fault(error)),
        }
    }
    Ok(None)
}

/// The name of a file that belongs to a model's file alone.
fn own_name(path: &Path, usual: &str) -> PathBuf {
    path.with_extension(usual)
}

/// The byte pairs that a file brings with its metadata.
fn of_metadata(checkpoint: &Checkpoint) -> Result<Option<PairVocabulary>> {
    let Some(embedded) = checkpoint.metadata().tokenizer().filter(|it| it.model() == "gpt2") else {
        return Ok(None);
    };
    let fault = |reason| Error::Tokenizer { tokenizer: file_name(checkpoint), reason };
    read_pairs(&embedded).map(Some).map_err(fault)
}

fn read_pairs(embedded: &EmbeddedTokenizer<'_>) -> Result<PairVocabulary, String> {
    let bytes = ByteTexts::new();
    let texts = embedded.texts().map_err(|error| error.to_string())?;
    let mut vocabulary = PairVocabulary { ids: Default::default(), pairs: Vec::new(), special: Vec::new() };
    for ((text, kind), id) in texts.into_iter().zip(0..) {
        match PieceKind::numbered(kind)? {
            PieceKind::Control | PieceKind::UserDefined => vocabulary.special.push((text.to_owned(), id)),
            _ => {
                vocabulary.ids.insert(bytes.of(text), id);
            }
        }
    }
    for pair in embedded.pairs().map_err(|error| error.to_string())? {
        let (left, right) = pair.split_once(' ').ok_or("a learned pair has no space")?;
        vocabulary.pairs.push((bytes.of(left), bytes.of(right)));
    }
    Ok(vocabulary)
}
