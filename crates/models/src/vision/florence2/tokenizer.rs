//! Florence-2's tokenizer: BART's byte pairs, and words for tasks and places after them.

use std::collections::HashMap;
use std::path::Path;

use checkpoint::Checkpoint;
use serde::Deserialize;
use serde_json::Value;

use crate::text::bpe::{Merges, byte_alphabet};
use crate::text::characters::{Kind, kind};
use crate::text::tokenizer::text_of;
use crate::{Error, Result};

/// What begins and ends a text.
const START: &str = "<s>";
const END: &str = "</s>";
/// Texts of BART's vocabulary that are one token wherever they stand.
const SPECIAL: [&str; 5] = [START, "<pad>", END, "<unk>", "<mask>"];
/// Endings that are words of their own.
const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
/// Steps along a side of a picture, each of which has a word.
const STEPS: usize = 1000;
/// Words in front of those for places, and behind them. One of them is misspelt where the model was trained.
const BEFORE_PLACES: [&str; 4] = ["<od>", "</od>", "<ocr>", "</ocr>"];
const AFTER_PLACES: [&str; 20] = [
    "<cap>",
    "</cap>",
    "<ncap>",
    "</ncap>",
    "<dcap>",
    "</dcap>",
    "<grounding>",
    "</grounding>",
    "<seg>",
    "</seg>",
    "<sep>",
    "<region_cap>",
    "</region_cap>",
    "<region_to_desciption>",
    "</region_to_desciption>",
    "<proposal>",
    "</proposal>",
    "<poly>",
    "</poly>",
    "<and>",
];

/// The tokenizer of Florence-2.
#[derive(Clone, Debug)]
pub struct Florence2Tokenizer {
    symbols: HashMap<u8, u32>,
    merges: Merges,
    /// Texts that are one token wherever they stand.
    special: HashMap<String, u32>,
    /// What each token stands for: bytes of text.
    bytes: HashMap<u32, Vec<u8>>,
    frame: (u32, u32),
}

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    added_tokens: Vec<Added>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, u32>,
    merges: Vec<Value>,
}

impl Florence2Tokenizer {
    /// The tokenizer beside a file: `tokenizer.json`, or `vocab.json` and `merges.txt`.
    pub fn beside(checkpoint: &Checkpoint) -> Result<Florence2Tokenizer> {
        let folder = checkpoint.path().parent().unwrap_or(Path::new(""));
        let read = |name: &str| text_of(&folder.join(name));
        let whole = folder.join("tokenizer.json");
        if let Some(json) = text_of(&whole)? {
            return Florence2Tokenizer::from_json(&whole.display().to_string(), &json);
        }
        match (read("vocab.json")?, read("merges.txt")?) {
            (Some(vocabulary), Some(merges)) => {
                Florence2Tokenizer::from_files(&folder.display().to_string(), &vocabulary, &merges)
            }
            _ => Err(Error::Tokenizer {
                tokenizer: folder.display().to_string(),
                reason:
                    "Florence-2 needs its tokenizer: put tokenizer.json, or vocab.json and merges.txt, there"
                        .into(),
            }),
        }
    }

    /// The tokenizer of a `tokenizer.json`.
    pub fn from_json(name: &str, json: &str) -> Result<Florence2Tokenizer> {
        let fault = |reason: String| Error::Tokenizer { tokenizer: name.into(), reason };
        let written: Written = serde_json::from_str(json).map_err(|error| fault(error.to_string()))?;
        let pair = |merge: &Value| -> Option<(String, String)> {
            let (left, right) = match merge {
                Value::String(line) => line.split_once(' ')?,
                pair => (pair.get(0)?.as_str()?, pair.get(1)?.as_str()?),
            };
            Some((left.to_owned(), right.to_owned()))
        };
        let pairs: Option<Vec<_>> = written.model.merges.iter().map(pair).collect();
        let pairs = pairs.ok_or_else(|| fault("a learned pair is not two texts".into()))?;
        let added = written.added_tokens.into_iter().map(|added| (added.content, added.id)).collect();
        Florence2Tokenizer::new(name, &written.model.vocab, &pairs, added)
    }

    /// The tokenizer of the texts of `vocab.json` and `merges.txt`.
    pub fn from_files(name: &str, vocabulary: &str, merges: &str) -> Result<Florence2Tokenizer> {
        let vocabulary: HashMap<String, u32> = serde_json::from_str(vocabulary).map_err(|error| {
            Error::Tokenizer { tokenizer: name.into(), reason: format!("vocab.json: {error}") }
        })?;
        let lines = merges.lines().filter(|line| !line.starts_with("#version"));
        let pairs = lines.filter_map(|line| line.split_once(' '));
        let pairs: Vec<_> = pairs.map(|(left, right)| (left.to_owned(), right.to_owned())).collect();
        Florence2Tokenizer::new(name, &vocabulary, &pairs, HashMap::new())
    }

    fn new(
        name: &str,
        vocabulary: &HashMap<String, u32>,
        pairs: &[(String, String)],
        added: HashMap<String, u32>,
    ) -> Result<Florence2Tokenizer> {
        let id = |symbol: &str| {
            vocabulary.get(symbol).copied().ok_or_else(|| Error::Tokenizer {
                tokenizer: name.into(),
                reason: format!("its vocabulary has no symbol '{symbol}'"),
            })
        };
        let mut merges = Merges::default();
        for (left, right) in pairs {
            merges.push(id(left)?, id(right)?, id(&format!("{left}{right}"))?);
        }
        let alphabet = byte_alphabet();
        let mut symbols = HashMap::new();
        for (byte, character) in &alphabet {
            symbols.insert(*byte, id(&character.to_string())?);
        }
        let mut special = added;
        for (text, id) in SPECIAL.iter().filter_map(|text| Some((*text, *vocabulary.get(*text)?))) {
            special.entry(text.to_owned()).or_insert(id);
        }
        let known = |text: &str| special.get(text).copied().map_or_else(|| id(text), Ok);
        let frame = (known(START)?, known(END)?);
        // Files of the first publication leave out the words for places: the program adds them behind all others.
        let places = (0..STEPS).map(|step| format!("<loc_{step}>"));
        let own = BEFORE_PLACES.into_iter().map(str::to_owned).chain(places);
        let own = own.chain(AFTER_PLACES.into_iter().map(str::to_owned));
        let used = vocabulary.values().chain(special.values()).max().copied().unwrap_or(0);
        let mut next = used.saturating_add(1);
        for text in own {
            special.entry(text).or_insert_with(|| {
                next = next.saturating_add(1);
                next - 1
            });
        }
        let byte_of: HashMap<char, u8> =
            alphabet.iter().map(|(byte, character)| (*character, *byte)).collect();
        let plain =
            |text: &String| text.chars().filter_map(|c| byte_of.get(&c).copied()).collect::<Vec<u8>>();
        let mut bytes: HashMap<u32, Vec<u8>> =
            vocabulary.iter().map(|(text, id)| (*id, plain(text))).collect();
        bytes.extend(special.iter().map(|(text, id)| (*id, text.clone().into_bytes())));
        Ok(Florence2Tokenizer { symbols, merges, special, bytes, frame })
    }

    /// A prompt's ids, with those that begin and end it.
    pub fn prompt(&self, text: &str) -> Vec<u32> {
        let mut ids = vec![self.frame.0];
        ids.extend(self.encode(text));
        ids.push(self.frame.1);
        ids
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while let Some((at, len, id)) = self.first_special(rest) {
            self.encode_plain(&rest[..at], &mut ids);
            ids.push(id);
            rest = &rest[at + len..];
        }
        self.encode_plain(rest, &mut ids);
        ids
    }

    /// The text of ids.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().filter_map(|id| self.bytes.get(id)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The first text that is one token: its place, length and id.
    fn first_special(&self, text: &str) -> Option<(usize, usize, u32)> {
        // All of them are in angle brackets.
        text.match_indices('<').find_map(|(at, _)| {
            let end = at + text[at..].find('>')? + 1;
            let id = self.special.get(&text[at..end])?;
            Some((at, end - at, *id))
        })
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        ids.extend(self.merges.encode(text, word_len, &self.symbols));
    }
}

/// Bytes of the first word: a contraction; letters, digits, or anything else, each with a space in front; or white
/// space, of which the last character belongs to the word that follows.
fn word_len(text: &str) -> usize {
    if let Some(word) = CONTRACTIONS.into_iter().find(|word| text.starts_with(word)) {
        return word.len();
    }
    let run = |from: usize| {
        let of = text[from..].chars().next().map(kind)?;
        let end = text[from..].find(|c| kind(c) != of).map_or(text.len(), |len| from + len);
        Some((of, end))
    };
    let Some((of, end)) = run(0) else { return 0 };
    if of != Kind::Space {
        return end;
    }
    if text.starts_with(' ')
        && let Some((_, end)) = run(1).filter(|(of, _)| *of != Kind::Space)
    {
        return end;
    }
    // White space before a word leaves its last character to it.
    let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
    if end < text.len() && end > last { end - last } else { end }
}
