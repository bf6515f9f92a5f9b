//! CLIP's tokenizer: lower case, words by kind of character, byte pairs with an end-of-word mark.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

use super::bpe::{Merges, byte_alphabet};
use super::embedded;
use super::tokens::{Frame, PromptOptions, Tokens, read_prompt};
use crate::{Error, Result};

/// The mark of a symbol that ends a word.
const END_OF_WORD: &str = "</w>";
/// Texts that are one token wherever they stand.
const START: (&str, u32) = ("<|startoftext|>", 49406);
const END: (&str, u32) = ("<|endoftext|>", 49407);
/// Endings that are words of their own.
const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
/// Tokens of a chunk.
const CHUNK: usize = 77;

/// The tokenizer of CLIP text encoders.
#[derive(Clone, Debug)]
pub struct ClipTokenizer {
    symbols: HashMap<u8, u32>,
    merges: Merges,
    frame: Frame,
}

impl ClipTokenizer {
    /// The tokenizer that comes with the program, for CLIP-L: chunks are filled with the end token.
    pub fn embedded() -> Result<ClipTokenizer> {
        ClipTokenizer::from_merges(&embedded::clip_merges()?)
    }

    /// A tokenizer with these learned pairs, one `left right` per line.
    pub fn from_merges(merges: &str) -> Result<ClipTokenizer> {
        let alphabet = byte_alphabet();
        let mut names: HashMap<String, u32> = HashMap::new();
        for (id, (_, character)) in alphabet.iter().enumerate() {
            names.insert(character.to_string(), id as u32);
            names.insert(format!("{character}{END_OF_WORD}"), (alphabet.len() + id) as u32);
        }
        let mut learned = Merges::default();
        for line in merges.lines().filter(|line| !line.is_empty() && !line.starts_with("#version")) {
            let fault = |reason: &str| Error::Tokenizer {
                tokenizer: "CLIP".into(),
                reason: format!("{reason} in the learned pair '{line}'"),
            };
            let (left, right) = line.split_once(' ').ok_or_else(|| fault("no space"))?;
            let joined = names.len() as u32;
            let id = |name: &str| names.get(name).copied().ok_or_else(|| fault("an unknown symbol"));
            learned.push(id(left)?, id(right)?, joined);
            names.insert(format!("{left}{right}"), joined);
        }
        let symbols = alphabet.iter().enumerate().map(|(id, (byte, _))| (*byte, id as u32)).collect();
        let frame =
            Frame { start: Some(START.1), end: END.1, pad: END.1, max_len: Some(CHUNK), min_len: CHUNK };
        Ok(ClipTokenizer { symbols, merges: learned, frame })
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
        while let Some((at, (name, id))) = first_special(rest) {
            self.encode_plain(&rest[..at], &mut ids);
            ids.push(id);
            rest = &rest[at + name.len()..];
        }
        self.encode_plain(rest, &mut ids);
        ids
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let text = clean(text);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let len = word_len(rest);
            let (word, after) = rest.split_at(len);
            match [START, END].iter().find(|(name, _)| *name == word) {
                Some((_, id)) => ids.push(*id),
                None if word != " " => ids.extend(self.encode_word(word)),
                None => {}
            }
            rest = after;
        }
    }

    fn encode_word(&self, word: &str) -> Vec<u32> {
        // Every byte has a symbol; the map was made from all of them.
        let mut symbols: Vec<u32> = word.bytes().filter_map(|b| self.symbols.get(&b).copied()).collect();
        if let Some(last) = symbols.last_mut() {
            *last += self.symbols.len() as u32;
        }
        self.merges.apply(&mut symbols);
        symbols
    }
}

/// The first text in `text` that is one token.
fn first_special(text: &str) -> Option<(usize, (&'static str, u32))> {
    [START, END].into_iter().filter_map(|special| Some((text.find(special.0)?, special))).min()
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
    let whole = [START.0, END.0].into_iter().chain(CONTRACTIONS).find(|word| text.starts_with(word));
    if let Some(word) = whole {
        return word.len();
    }
    let Some(first) = text.chars().next() else { return 0 };
    match kind(first) {
        Kind::Space | Kind::Number => first.len_utf8(),
        of => text.find(|c| kind(c) != of).unwrap_or(text.len()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Space,
    Letter,
    Number,
    Other,
}

fn kind(c: char) -> Kind {
    match c.general_category_group() {
        _ if c.is_whitespace() => Kind::Space,
        GeneralCategoryGroup::Letter => Kind::Letter,
        GeneralCategoryGroup::Number => Kind::Number,
        _ => Kind::Other,
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
        assert_eq!(words("<|ENDOFTEXT|>"), [END.0]);
    }

    #[test]
    fn a_broken_table_is_named() {
        let error = ClipTokenizer::from_merges("a b\nab zz").unwrap_err().to_string();
        assert!(error.contains("unknown symbol") && error.contains("ab zz"), "{error}");
        assert!(ClipTokenizer::from_merges("ab").is_err());
    }
}
