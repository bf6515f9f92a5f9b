//! Tokens: a prompt as an encoder reads it, in chunks of ids with weights.

use std::sync::Arc;

use super::prompt::{self, EmbeddingText, Part, Segment};

/// Groups of at least so many tokens may be cut between two chunks; shorter ones move as a whole.
const LONG_WORD: usize = 8;

/// One place in a chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// What stands there.
    pub symbol: Symbol,
    /// How much it counts; 1 is plain.
    pub weight: f32,
}

/// What a token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// A row of the encoder's table.
    Id(u32),
    /// A row of a learned embedding.
    Embedding {
        /// Its name.
        name: Arc<str>,
        /// Which of its rows.
        row: usize,
    },
    /// A part of a picture that another network has looked at.
    Picture {
        /// Which of the pictures.
        picture: usize,
        /// Which of its parts.
        row: usize,
    },
}

/// A prompt in chunks, each as long as the encoder reads at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokens {
    /// The chunks; at least one.
    pub chunks: Vec<Vec<Token>>,
    /// Names of embeddings that the prompt asks for and that are not there.
    pub missing: Vec<String>,
    /// How the chunks were made.
    pub frame: Frame,
}

impl Tokens {
    /// Puts pictures into the places of a token, in their order: each becomes as many tokens as the picture has parts.
    /// Places beyond the last picture stay.
    pub fn show_pictures(&mut self, place: u32, parts: &[usize]) {
        let mut pictures = parts.iter().enumerate();
        for chunk in &mut self.chunks {
            let mut shown = Vec::with_capacity(chunk.len());
            for token in chunk.drain(..) {
                match (token.symbol == Symbol::Id(place)).then(|| pictures.next()).flatten() {
                    Some((picture, parts)) => {
                        shown.extend((0..*parts).map(|row| Token {
                            symbol: Symbol::Picture { picture, row },
                            weight: token.weight,
                        }));
                    }
                    None => shown.push(token),
                }
            }
            *chunk = shown;
        }
    }

    /// Whether any token has a weight other than 1.
    pub fn is_weighted(&self) -> bool {
        self.chunks.iter().flatten().any(|token| token.weight != 1.0)
    }

    /// The ids of a chunk, if it has no learned embeddings and no pictures.
    pub fn ids(&self, chunk: usize) -> Option<Vec<u32>> {
        let id = |token: &Token| match token.symbol {
            Symbol::Id(id) => Some(id),
            Symbol::Embedding { .. } | Symbol::Picture { .. } => None,
        };
        self.chunks.get(chunk)?.iter().map(id).collect()
    }
}

/// How chunks begin, end and are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The id before the first word.
    pub start: Option<u32>,
    /// The id after the last word.
    pub end: Option<u32>,
    /// The id that fills a chunk.
    pub pad: u32,
    /// The longest chunk; further words go into the next. Unlimited if not given.
    pub max_len: Option<usize>,
    /// Chunks are filled to this length.
    pub min_len: usize,
}

impl Frame {
    /// A chunk without words.
    pub fn empty(&self, len: usize) -> Vec<Token> {
        let mut chunk = self.begin();
        self.finish(&mut chunk);
        self.fill(&mut chunk, len);
        chunk
    }

    /// Puts groups of tokens into chunks. A group that is too long for what is left of a chunk begins the
    /// next one, unless it is long itself: then it is cut.
    fn chunks(&self, groups: Vec<Vec<Token>>) -> Vec<Vec<Token>> {
        let room = self.max_len.map_or(usize::MAX, |len| len.saturating_sub(1).max(2));
        let mut chunks = Vec::new();
        let mut chunk = self.begin();
        for mut group in groups {
            let alone = usize::from(self.start.is_some()).saturating_add(group.len());
            let long = group.len() >= LONG_WORD || alone > room;
            while chunk.len().saturating_add(group.len()) > room {
                if long {
                    let rest = group.split_off(room - chunk.len());
                    chunk.append(&mut group);
                    group = rest;
                }
                self.finish(&mut chunk);
                chunks.push(std::mem::replace(&mut chunk, self.begin()));
            }
            chunk.append(&mut group);
        }
        self.finish(&mut chunk);
        chunks.push(chunk);
        chunks
    }

    fn begin(&self) -> Vec<Token> {
        self.start.map(plain).into_iter().collect()
    }

    fn finish(&self, chunk: &mut Vec<Token>) {
        chunk.extend(self.end.map(plain));
        self.fill(chunk, self.min_len);
    }

    fn fill(&self, chunk: &mut Vec<Token>, len: usize) {
        while chunk.len() < len {
            chunk.push(plain(self.pad));
        }
    }
}

/// Answers how many rows an embedding has, if it is there.
pub type EmbeddingRows<'a> = &'a dyn Fn(&str) -> Option<usize>;

/// How a prompt is read.
#[derive(Clone, Copy, Default)]
pub struct PromptOptions<'a> {
    /// The embeddings that a prompt may name. Without them `embedding:name` is plain text.
    pub embeddings: Option<EmbeddingRows<'a>>,
    /// Parentheses are plain text.
    pub ignore_weights: bool,
    /// The id that fills chunks, if it is not the tokenizer's own.
    pub pad: Option<u32>,
    /// The longest chunk, if the tokenizer has no other.
    pub most: Option<usize>,
}

/// Turns a prompt into chunks, with `tokenize` for its words.
pub(crate) fn read_prompt(
    prompt: &str,
    options: PromptOptions<'_>,
    frame: Frame,
    tokenize: impl Fn(&str) -> Vec<u32>,
) -> Tokens {
    let segments = if options.ignore_weights { prompt::unweighted(prompt) } else { prompt::segments(prompt) };
    let mut reader = Reader { options, tokenize, groups: Vec::new(), missing: Vec::new() };
    for segment in &segments {
        reader.segment(segment);
    }
    let Reader { groups, missing, .. } = reader;
    let frame =
        Frame { pad: options.pad.unwrap_or(frame.pad), max_len: frame.max_len.or(options.most), ..frame };
    Tokens { chunks: frame.chunks(groups), missing, frame }
}

/// Collects groups of tokens, segment by segment.
struct Reader<'a, T> {
    options: PromptOptions<'a>,
    tokenize: T,
    groups: Vec<Vec<Token>>,
    missing: Vec<String>,
}

impl<T: Fn(&str) -> Vec<u32>> Reader<'_, T> {
    fn segment(&mut self, segment: &Segment) {
        let weight = segment.weight as f32;
        for part in prompt::parts(&segment.text) {
            match (part, self.options.embeddings) {
                (Part::Text(text), _) => self.words(text, weight),
                (Part::Embedding(text), None) => self.words(text.whole, weight),
                (Part::Embedding(text), Some(rows)) => self.embedding(rows, text, weight),
            }
        }
    }

    fn words(&mut self, text: &str, weight: f32) {
        if !text.is_empty() {
            let token = |id| Token { symbol: Symbol::Id(id), weight };
            self.groups.push((self.tokenize)(text).into_iter().map(token).collect());
        }
    }

    /// A name may end in commas that are not part of it: they are words then.
    fn embedding(&mut self, rows: EmbeddingRows<'_>, text: EmbeddingText<'_>, weight: f32) {
        let EmbeddingText { name, rest, .. } = text;
        let bare = name.trim_matches(',');
        let (name, commas, count) = match (rows(name), rows(bare)) {
            (Some(count), _) => (name, "", Some(count)),
            (None, Some(count)) => (bare, name.get(bare.len()..).unwrap_or_default(), Some(count)),
            (None, None) => (bare, name.get(bare.len()..).unwrap_or_default(), None),
        };
        match count {
            None => self.missing.push(name.to_owned()),
            Some(count) => {
                let name: Arc<str> = name.into();
                let symbol = |row| Symbol::Embedding { name: Arc::clone(&name), row };
                self.groups.push((0..count).map(|row| Token { symbol: symbol(row), weight }).collect());
            }
        }
        let words: Vec<&str> = [commas, rest].into_iter().filter(|text| !text.is_empty()).collect();
        self.words(&words.join(" "), weight);
    }
}

fn plain(id: u32) -> Token {
    Token { symbol: Symbol::Id(id), weight: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Frame = Frame { start: Some(100), end: Some(101), pad: 102, max_len: Some(12), min_len: 12 };

    /// One token per letter.
    fn letters(text: &str) -> Vec<u32> {
        text.chars().filter(|c| c.is_alphabetic()).map(u32::from).collect()
    }

    fn read(prompt: &str, embeddings: Option<EmbeddingRows<'_>>) -> Tokens {
        read_prompt(prompt, PromptOptions { embeddings, ..PromptOptions::default() }, FRAME, letters)
    }

    #[test]
    fn short_groups_move_whole_and_long_ones_are_cut() {
        let tokens = read("(abcdef)(ghijkl)(mnopqrstuvwxyz)", None);
        let words: Vec<usize> = tokens
            .chunks
            .iter()
            .map(|chunk| {
                chunk
                    .iter()
                    .filter(|t| matches!(t.symbol, Symbol::Id(id) if !(100..=102).contains(&id)))
                    .count()
            })
            .collect();
        assert!(tokens.chunks.iter().all(|chunk| chunk.len() == 12));
        // d, e and f are 100 to 102, which the count leaves out.
        assert_eq!(words, [3, 10, 10]);
        assert_eq!(tokens.chunks[1][1].symbol, Symbol::Id('g'.into()));
        assert_eq!(tokens.chunks[1][7].symbol, Symbol::Id('m'.into()));
        assert_eq!(tokens.chunks[2][1].symbol, Symbol::Id('q'.into()));
    }

    #[test]
    fn embeddings_are_rows_and_missing_ones_are_named() {
        let rows = |name: &str| (name == "good").then_some(2);
        let tokens = read("x embedding:good, y (embedding:bad:1.2)", Some(&rows));
        assert_eq!(tokens.missing, ["bad"]);
        let row = |row| Symbol::Embedding { name: "good".into(), row };
        let symbols: Vec<_> = tokens.chunks[0][1..6].iter().map(|t| t.symbol.clone()).collect();
        let id = |c: char| Symbol::Id(c.into());
        assert_eq!(symbols, [id('x'), row(0), row(1), id('y'), Symbol::Id(101)]);
        assert!(!tokens.is_weighted() && tokens.ids(0).is_none());
    }
}
