//! The tokenizer of Qwen's language models, which some diffusion models use as text encoders: byte pairs over
//! words that keep their spaces. Prompts are put into the template of a conversation first.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization;

use super::bpe::{Merges, byte_alphabet};
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
/// What begins a turn of a conversation.
const TURN: &str = "<|im_start|>";
/// Endings that are words of their own, in either case.
const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

/// The conversation that a prompt is put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The conversation, with `{}` for the prompt.
    pub text: &'static str,
    /// A prompt that begins with a turn is taken as a whole conversation.
    pub yields_to_turns: bool,
}

impl ChatTemplate {
    /// The template of Qwen-Image.
    pub const QWEN_IMAGE: ChatTemplate = ChatTemplate {
        text: "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, \
            text, spatial relationships of the objects and background:<|im_end|>\n\
            <|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        yields_to_turns: true,
    };
    /// The template of Z-Image.
    pub const Z_IMAGE: ChatTemplate = ChatTemplate {
        text: "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        yields_to_turns: false,
    };

    fn apply(&self, prompt: &str) -> String {
        match self.yields_to_turns && prompt.starts_with(TURN) {
            true => prompt.to_owned(),
            false => self.text.replacen("{}", prompt, 1),
        }
    }
}

/// The tokenizer of Qwen2, Qwen2.5 and Qwen3.
#[derive(Clone, Debug)]
pub struct QwenTokenizer {
    symbols: HashMap<u8, u32>,
    merges: Merges,
    special: Vec<(&'static str, u32)>,
    frame: Frame,
}

impl QwenTokenizer {
    /// The tokenizer that comes with the program.
    pub fn embedded() -> Result<QwenTokenizer> {
        let fault = |symbol: &str| Error::Tokenizer {
            tokenizer: "Qwen".into(),
            reason: format!("its vocabulary has no symbol '{symbol}'"),
        };
        let text = embedded::qwen_merges()?;
        let alphabet = byte_alphabet();
        let names = alphabet.iter().map(|(_, character)| character.to_string());
        let mut ids: HashMap<String, u32> = names.zip(0..).collect();
        let mut merges = Merges::default();
        for (left, right) in text.lines().filter_map(|line| line.split_once(' ')) {
            let id = |symbol: &str| ids.get(symbol).copied().ok_or_else(|| fault(symbol));
            let joined = ids.len() as u32;
            merges.push(id(left)?, id(right)?, joined);
            ids.insert(format!("{left}{right}"), joined);
        }
        let special: Vec<(&'static str, u32)> = SPECIAL.into_iter().zip(ids.len() as u32..).collect();
        let pad = special.first().map_or(0, |(_, id)| *id);
        let symbols = alphabet.into_iter().map(|(byte, _)| byte).zip(0..).collect();
        let frame = Frame { start: None, end: None, pad, max_len: None, min_len: 1 };
        Ok(QwenTokenizer { symbols, merges, special, frame })
    }

    /// A prompt in one chunk, put into a template. Parentheses are plain text.
    pub fn tokenize(&self, prompt: &str, template: &ChatTemplate, options: PromptOptions<'_>) -> Tokens {
        let options = PromptOptions { ignore_weights: true, ..options };
        read_prompt(&template.apply(prompt), options, self.frame, |text| self.encode(text))
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let text: String = text.nfc().collect();
        let mut ids = Vec::new();
        let mut rest = text.as_str();
        while let Some((at, len, id)) = self.first_special(rest) {
            self.encode_plain(&rest[..at], &mut ids);
            ids.push(id);
            rest = &rest[at + len..];
        }
        self.encode_plain(rest, &mut ids);
        ids
    }

    /// The first text that is one token: its place, length and id.
    fn first_special(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found = self.special.iter().filter_map(|(name, id)| Some((text.find(name)?, name.len(), *id)));
        found.min()
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        ids.extend(self.merges.encode(text, word_len, &self.symbols));
    }
}

/// Bytes of the first word: a contraction; letters with one character in front that is neither; one number; other
/// characters with a space in front and line breaks behind; or white space, of which the last character belongs to
/// the word that follows.
fn word_len(text: &str) -> usize {
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
        return first.len_utf8();
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
        let words = |text: &str| {
            let mut words = Vec::new();
            let mut rest = text;
            while !rest.is_empty() {
                let (word, after) = rest.split_at(word_len(rest));
                words.push(word.to_owned());
                rest = after;
            }
            words
        };
        assert_eq!(words("I'Ll go 12"), ["I", "'Ll", " go", " ", "1", "2"]);
        assert_eq!(words("a   b!\n\nc"), ["a", "  ", " b", "!\n\n", "c"]);
        assert_eq!(words(" \n \n  x  "), [" \n \n", " ", " x", "  "]);
        assert_eq!(words("(x) ++"), ["(x", ")", " ++"]);
    }
}
