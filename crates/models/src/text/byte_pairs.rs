//! Tokenizers of language models that diffusion models use as text encoders: byte pairs over words that keep their
//! spaces.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization;

use super::bpe::{ByteTexts, Merges, byte_alphabet};
use super::characters::{Kind, kind};
use super::embedded;
use super::tokens::{Frame, PromptOptions, Tokens, read_prompt};
use crate::{Error, Result};

/// Texts that are one token wherever they stand, from the first id after the learned pairs on.
const SPECIAL: [&str; 26] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
];
/// Those of them that belong to what a model writes.
const WRITTEN: [&str; 6] =
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];
/// Endings that are words of their own, in either case.
const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

/// How a tokenizer cuts text into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordStyle {
    /// The most digits of a word.
    pub(crate) digits: usize,
    /// Characters are composed first (NFC).
    pub(crate) composes: bool,
    /// A word that is in the vocabulary is one token, whatever its pairs.
    pub(crate) whole_words: bool,
}

impl WordStyle {
    /// Qwen2, Qwen2.5 and Qwen3.
    pub(crate) const QWEN: WordStyle = WordStyle { digits: 1, composes: true, whole_words: false };
    /// Llama 3, and Mistral's models as diffusion models were trained with them.
    pub(crate) const LLAMA: WordStyle = WordStyle { digits: 3, composes: false, whole_words: true };
}

/// A vocabulary of byte pairs: each token's bytes, in the order of the ids, and the pairs that were learned.
pub(crate) struct PairVocabulary {
    /// The ids of tokens by their bytes.
    pub(crate) ids: HashMap<Vec<u8>, u32>,
    /// Pairs of tokens, the first learned first.
    pub(crate) pairs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Texts that are one token wherever they stand.
    pub(crate) special: Vec<(String, u32)>,
}

/// A tokenizer of byte pairs over words that keep their spaces: Qwen's, Llama 3's and Mistral's. It is written here and
/// not taken from a library because all that differs between them is a few lines, and because ids must be those of the
/// reference to the last one, which tests compare.
#[derive(Clone, Debug)]
pub struct BytePairTokenizer {
    /// The token of each byte.
    symbols: HashMap<u8, u32>,
    merges: Merges,
    /// Whole words, where those come first.
    words: HashMap<Vec<u8>, u32>,
    /// The bytes of every token but the special ones.
    texts: HashMap<u32, Box<[u8]>>,
    special: Vec<(String, u32)>,
    style: WordStyle,
    frame: Frame,
}

impl BytePairTokenizer {
    /// Qwen's tokenizer, which comes with the program.
    pub fn qwen() -> Result<BytePairTokenizer> {
        let text = embedded::qwen_merges()?;
        let alphabet = byte_alphabet();
        let bytes = ByteTexts::new();
        let mut ids: HashMap<Vec<u8>, u32> = alphabet.iter().map(|(byte, _)| vec![*byte]).zip(0..).collect();
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for (left, right) in text.lines().filter_map(|line| line.split_once(' ')) {
            let (left, right) = (bytes.of(left), bytes.of(right));
            ids.insert([&left[..], &right[..]].concat(), ids.len() as u32);
            pairs.push((left, right));
        }
        let special: Vec<(String, u32)> =
            SPECIAL.into_iter().map(str::to_owned).zip(ids.len() as u32..).collect();
        let pad = special.first().map_or(0, |(_, id)| *id);
        let frame = Frame { start: None, end: None, pad, max_len: None, min_len: 1 };
        BytePairTokenizer::new("Qwen", PairVocabulary { ids, pairs, special }, WordStyle::QWEN, frame)
    }

    /// A tokenizer of a vocabulary; `name` is for errors.
    pub(crate) fn new(
        name: &str,
        vocabulary: PairVocabulary,
        style: WordStyle,
        frame: Frame,
    ) -> Result<BytePairTokenizer> {
        let PairVocabulary { ids, pairs, special } = vocabulary;
        let id = |symbol: &[u8]| {
            ids.get(symbol).copied().ok_or_else(|| Error::Tokenizer {
                tokenizer: name.into(),
                reason: format!("its vocabulary has no symbol '{}'", String::from_utf8_lossy(symbol)),
            })
        };
        let mut merges = Merges::default();
        let mut joined = Vec::new();
        for (left, right) in &pairs {
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            merges.push(id(left)?, id(right)?, id(&joined)?);
        }
        let symbols = (0..=255).map(|byte| Ok((byte, id(&[byte])?))).collect::<Result<_>>()?;
        let texts = ids.iter().map(|(bytes, id)| (*id, bytes.clone().into_boxed_slice())).collect();
        let words = if style.whole_words { ids } else { HashMap::new() };
        Ok(BytePairTokenizer { symbols, merges, words, texts, special, style, frame })
    }

    /// A prompt in one chunk of at least so many tokens.
    pub fn tokenize(&self, prompt: &str, options: PromptOptions<'_>, least: usize) -> Tokens {
        let frame = Frame { min_len: least.max(1), ..self.frame };
        read_prompt(prompt, options, frame, |text| self.encode(text))
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let composed: String;
        let mut rest = match self.style.composes {
            true => {
                composed = text.nfc().collect();
                composed.as_str()
            }
            false => text,
        };
        let mut ids = Vec::new();
        while let Some((at, len, id)) = self.first_special(rest) {
            self.encode_plain(&rest[..at], &mut ids);
            ids.push(id);
            rest = &rest[at + len..];
        }
        self.encode_plain(rest, &mut ids);
        ids
    }

    /// The text of tokens, without those that only mark turns and places.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for id in ids {
            if let Some(text) = self.texts.get(id) {
                bytes.extend_from_slice(text);
            } else if let Some((text, _)) = self.special.iter().find(|(_, known)| known == id)
                && WRITTEN.contains(&text.as_str())
            {
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The id of a text that is one token wherever it stands.
    pub fn special(&self, text: &str) -> Option<u32> {
        self.special.iter().find(|(known, _)| known == text).map(|(_, id)| *id)
    }

    /// The first text that is one token, and of those at one place the longest: its place, length and id.
    fn first_special(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found = self.special.iter().filter_map(|(name, id)| Some((text.find(name)?, name.len(), *id)));
        found.min_by_key(|(at, len, _)| (*at, usize::MAX - len))
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let mut rest = text;
        while !rest.is_empty() {
            let (word, after) = rest.split_at(word_len(rest, self.style.digits));
            match self.words.get(word.as_bytes()) {
                Some(id) => ids.push(*id),
                None => {
                    // Every byte has a symbol; the map was made from all of them.
                    let mut symbols =
                        word.bytes().filter_map(|byte| self.symbols.get(&byte).copied()).collect();
                    self.merges.apply(&mut symbols);
                    ids.extend(symbols);
                }
            }
            rest = after;
        }
    }
}

/// Bytes of the first word: a contraction; letters with one character in front that is neither; numbers; other
/// characters with a space in front and line breaks behind; or white space, of which the last character belongs to
/// the word that follows.
fn word_len(text: &str, digits: usize) -> usize {
    let starts = |word: &&str| text.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word));
    if let Some(word) = CONTRACTIONS.iter().find(|word| starts(word)) {
        return word.len();
    }
    let Some(first) = text.chars().next() else { return 0 };
    let after = &text[first.len_utf8()..];
    let run = |text: &str, of: Kind| text.find(|c| kind(c) != of).unwrap_or(text.len());
    let of = kind(first);
    if of == Kind::Letter {
        return run(text, Kind::Letter);
    }
    if of == Kind::Number {
        return text.chars().take(digits).take_while(|c| kind(*c) == of).map(char::len_utf8).sum();
    }
    let letters = run(after, Kind::Letter);
    if letters > 0 && !is_break(first) {
        return first.len_utf8() + letters;
    }
    let lead = usize::from(first == ' ');
    let others = run(&text[lead..], Kind::Other);
    if others > 0 {
        let end = lead + others;
        let breaks = text[end..].find(|c| !is_break(c)).unwrap_or(text.len() - end);
        return end + breaks;
    }
    space_len(&text[..run(text, Kind::Space)], text.len())
}

/// Bytes of the white space that is a word of its own: up to its last line break; all of it at the end of the
/// text; else all but its last character, if there are more.
fn space_len(space: &str, text_len: usize) -> usize {
    if let Some(at) = space.rfind(is_break) {
        return at + 1;
    }
    let last = space.chars().next_back().map_or(0, char::len_utf8);
    if space.len() == text_len || space.len() == last { space.len() } else { space.len() - last }
}

fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_spaces() {
        let cut = |text: &str, digits: usize| {
            let mut words = Vec::new();
            let mut rest = text;
            while !rest.is_empty() {
                let (word, after) = rest.split_at(word_len(rest, digits));
                words.push(word.to_owned());
                rest = after;
            }
            words
        };
        let words = |text: &str| cut(text, 1);
        assert_eq!(words("I'Ll go 12"), ["I", "'Ll", " go", " ", "1", "2"]);
        assert_eq!(words("a   b!\n\nc"), ["a", "  ", " b", "!\n\n", "c"]);
        assert_eq!(words(" \n \n  x  "), [" \n \n", " ", " x", "  "]);
        assert_eq!(words("(x) ++"), ["(x", ")", " ++"]);
        assert_eq!(cut("a 12345", 3), ["a", " ", "123", "45"]);
    }
}
