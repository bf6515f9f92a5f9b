//! CLIP's tokenizer: lower case, words by kind of character, byte pairs with an end-of-word mark.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

use super::bpe::{Merges, byte_alphabet};
use super::characters::{Kind, kind};
use super::embedded;
use super::tokens::{Frame, PromptOptions, Tokens, read_prompt};
use crate::{Error, Result};

/// The mark of a symbol that ends a word.
const END_OF_WORD: &str = "</w>";
/// Texts that are one token wherever they stand.
const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
/// Endings that are words of their own.
const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
/// Tokens of a chunk.
const CHUNK: usize = 77;

/// The tokenizer of CLIP text encoders.
#[derive(Clone, Debug)]
pub struct ClipTokenizer {
    /// The ids of each byte inside a word and at its end.
    symbols: HashMap<u8, (u32, u32)>,
    merges: Merges,
    /// Texts that are one token wherever they stand: start and end.
    special: [(&'static str, u32); 2],
    frame: Frame,
}

impl ClipTokenizer {
    /// The tokenizer that comes with the program, for CLIP-L: chunks are filled with the end token.
    pub fn embedded() -> Result<ClipTokenizer> {
        let merges = embedded::clip_merges()?;
        let pairs: Vec<(&str, &str)> = merges.lines().filter_map(|line| line.split_once(' ')).collect();
        ClipTokenizer::from_vocabulary("CLIP", &standard_names(&pairs), &pairs)
    }

    /// A tokenizer with these ids of symbols and these learned pairs, the first learned first.
    pub(crate) fn from_vocabulary(
        name: &str,
        ids: &HashMap<String, u32>,
        pairs: &[(&str, &str)],
    ) -> Result<ClipTokenizer> {
        let id = |symbol: &str| {
            ids.get(symbol).copied().ok_or_else(|| Error::Tokenizer {
                tokenizer: name.into(),
                reason: format!("its vocabulary has no symbol '{symbol}'"),
            })
        };
        let mut merges = Merges::default();
        for (left, right) in pairs {
            merges.push(id(left)?, id(right)?, id(&format!("{left}{right}"))?);
        }
        let mut symbols = HashMap::new();
        for (byte, character) in byte_alphabet() {
            let ending = format!("{character}{END_OF_WORD}");
            symbols.insert(byte, (id(&character.to_string())?, id(&ending)?));
        }
        let (start, end) = (id(START)?, id(END)?);
        let frame =
            Frame { start: Some(start), end: Some(end), pad: end, max_len: Some(CHUNK), min_len: CHUNK };
        Ok(ClipTokenizer { symbols, merges, special: [(START, start), (END, end)], frame })
    }

    /// The same tokenizer for CLIP-G, whose chunks are filled with zeros.
    pub fn padded_with_zeros(mut self) -> ClipTokenizer {
        self.frame.pad = 0;
        self
    }

    /// A prompt in chunks of 77 tokens.
    pub fn tokenize(&self, prompt: &str, options: PromptOptions<'_>) -> Tokens {
        read_prompt(prompt, options, self.frame, |text| self.encode(text))
    }

    /// The ids of a text, without start, end or filling.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while let Some((at, (name, id))) = self.first_special(rest) {
            self.encode_plain(&rest[..at], &mut ids);
            ids.push(id);
            rest = &rest[at + name.len()..];
        }
        self.encode_plain(rest, &mut ids);
        ids
    }

    /// The first text in `text` that is one token.
    fn first_special(&self, text: &str) -> Option<(usize, (&'static str, u32))> {
        self.special.into_iter().filter_map(|special| Some((text.find(special.0)?, special))).min()
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let text = clean(text);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (word, after) = rest.split_at(word_len(rest));
            match self.special.iter().find(|(name, _)| *name == word) {
                Some((_, id)) => ids.push(*id),
                None if word != " " => ids.extend(self.encode_word(word)),
                None => {}
            }
            rest = after;
        }
    }

    fn encode_word(&self, word: &str) -> Vec<u32> {
        let last = word.len().saturating_sub(1);
        let symbol = |(i, byte): (usize, u8)| {
            // Every byte has a symbol; the map was made from all of them.
            self.symbols.get(&byte).map(|(inside, ending)| if i == last { *ending } else { *inside })
        };
        let mut symbols: Vec<u32> = word.bytes().enumerate().filter_map(symbol).collect();
        self.merges.apply(&mut symbols);
        symbols
    }
}

/// The ids that a vocabulary of these pairs has: bytes, bytes at the end of a word, pairs in the order of
/// learning, start and end.
fn standard_names(pairs: &[(&str, &str)]) -> HashMap<String, u32> {
    let alphabet = byte_alphabet();
    let inside = alphabet.iter().map(|(_, c)| c.to_string());
    let ending = alphabet.iter().map(|(_, c)| format!("{c}{END_OF_WORD}"));
    let joined = pairs.iter().map(|(left, right)| format!("{left}{right}"));
    let special = [START.to_owned(), END.to_owned()];
    inside.chain(ending).chain(joined).chain(special).zip(0..).collect()
}

/// Text without control characters, each ideograph a word, composed, in lower case, with single spaces.
fn clean(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' | '\n' | '\r' => spaced.push(' '),
            '\0' | '\u{FFFD}' => {}
            c if c.general_category_group() == GeneralCategoryGroup::Other => {}
            c if c.general_category() == GeneralCategory::SpaceSeparator => spaced.push(' '),
            c if is_ideograph(c) => spaced.extend([' ', c, ' ']),
            c => spaced.push(c),
        }
    }
    let composed: String = spaced.nfc().collect();
    let words: Vec<String> = composed.split_whitespace().map(str::to_lowercase).collect();
    words.join(" ")
}

/// Bytes of the first word of a cleaned text: a special text, a contraction, letters, one digit, or anything
/// else but spaces; or one space.
fn word_len(text: &str) -> usize {
    let whole = [START, END].into_iter().chain(CONTRACTIONS).find(|word| text.starts_with(word));
    if let Some(word) = whole {
        return word.len();
    }
    let Some(first) = text.chars().next() else { return 0 };
    match kind(first) {
        Kind::Space | Kind::Number => first.len_utf8(),
        of => text.find(|c| kind(c) != of).unwrap_or(text.len()),
    }
}

/// Whether a character is in the blocks of CJK unified ideographs, or their compatibility blocks.
fn is_ideograph(c: char) -> bool {
    matches!(u32::from(c),
        0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x20000..=0x2A6DF
        | 0x2A700..=0x2B73F | 0x2B740..=0x2B81F | 0x2B820..=0x2CEAF | 0x2F800..=0x2FA1F)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_by_kind() {
        let words = |text: &str| {
            let text = clean(text);
            let mut words = Vec::new();
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let (word, after) = rest.split_at(word_len(rest));
                words.push(word.to_owned());
                rest = after;
            }
            words.retain(|word| word != " ");
            words
        };
        assert_eq!(words("It's  42 CATS!'s"), ["it", "'s", "4", "2", "cats", "!'", "s"]);
        assert_eq!(words("日本a\u{200b}b"), ["日", "本", "ab"]);
        assert_eq!(words("e\u{301}"), ["é"]);
        assert_eq!(words("<|ENDOFTEXT|>"), [END]);
    }

    #[test]
    fn ids_begin_and_end_where_they_should() {
        let tokenizer = ClipTokenizer::embedded().unwrap();
        assert_eq!(tokenizer.special, [(START, 49406), (END, 49407)]);
        assert_eq!(tokenizer.symbols[&b'!'], (0, 256));
    }

    #[test]
    fn a_broken_table_is_named() {
        let pairs = [("a", "b"), ("ab", "zz")];
        let error = ClipTokenizer::from_vocabulary("x.json", &standard_names(&pairs), &pairs).unwrap_err();
        assert_eq!(error.to_string(), "x.json: its vocabulary has no symbol 'zz'");
    }
}
