//! T5's tokenizers: text is cut into the pieces whose scores add up highest.

use std::collections::HashMap;

use super::charsmap::CharsMap;
use super::embedded;
use super::sentencepiece::{ModelKind, Piece, PieceKind, SPACE, SentencePieceModel, Spacing, byte_of};
use super::tokens::{Frame, PromptOptions, Tokens, read_prompt};
use crate::{Error, Result};

/// How far below the least piece a character scores that no piece covers.
const UNKNOWN_PENALTY: f64 = 10.0;
/// Both are fixed in every T5 and UMT5.
const PAD: u32 = 0;
const END: u32 = 1;

/// The tokenizer of T5 and UMT5 text encoders.
#[derive(Clone, Debug)]
pub struct T5Tokenizer {
    pieces: Pieces,
    charsmap: CharsMap,
    style: Style,
    frame: Frame,
}

/// Which library's handling of white space and special texts a tokenizer follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// `tokenizers`: special texts are tokens; white space at the start counts.
    Json,
    /// SentencePiece itself.
    SentencePiece(Spacing),
}

impl T5Tokenizer {
    /// The tokenizer that comes with the program: that of all T5 encoders (not UMT5).
    pub fn embedded() -> Result<T5Tokenizer> {
        T5Tokenizer::read("T5", &embedded::t5_pieces()?, |_| Style::Json)
    }

    /// The tokenizer of a SentencePiece model, such as one embedded in a checkpoint.
    pub fn from_sentencepiece(name: &str, model: &[u8]) -> Result<T5Tokenizer> {
        T5Tokenizer::read(name, model, |model| Style::SentencePiece(model.spacing))
    }

    /// The tokenizer of a table of pieces, as some files carry it in their metadata.
    pub(crate) fn from_pieces(
        name: &str,
        pieces: Vec<Piece>,
        charsmap: CharsMap,
        like_t5: bool,
    ) -> Result<T5Tokenizer> {
        let style = match like_t5 {
            true => Style::Json,
            false => Style::SentencePiece(Spacing { dummy_prefix: true, collapse: true }),
        };
        let fault = |reason| Error::Tokenizer { tokenizer: name.into(), reason };
        let frame = Frame { start: None, end: Some(END), pad: PAD, max_len: None, min_len: 0 };
        Ok(T5Tokenizer { pieces: Pieces::new(pieces).map_err(fault)?, charsmap, style, frame })
    }

    /// The same tokenizer with prompts filled to this many tokens (FLUX: 256, SD3: 77, Wan: 512).
    pub fn filled_to(mut self, len: usize) -> T5Tokenizer {
        self.frame.min_len = len;
        self
    }

    /// Number of pieces.
    pub fn vocabulary(&self) -> usize {
        self.pieces.scores.len()
    }

    /// A prompt in one chunk, however long.
    pub fn tokenize(&self, prompt: &str, options: PromptOptions<'_>) -> Tokens {
        read_prompt(prompt, options, self.frame, |text| self.encode(text))
    }

    /// The ids of a text, without end or filling.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        match self.style {
            Style::Json => {
                let mut rest = text;
                while let Some((at, len, id)) = self.pieces.first_special(rest) {
                    self.pieces.encode(&self.ready_as_json(&rest[..at]), &mut ids);
                    ids.push(id);
                    rest = &rest[at + len..];
                }
                self.pieces.encode(&self.ready_as_json(rest), &mut ids);
            }
            Style::SentencePiece(spacing) => {
                self.pieces.encode_f32(&spacing.ready(&self.charsmap, text), &mut ids);
            }
        }
        ids
    }

    fn read(name: &str, bytes: &[u8], style: impl Fn(&SentencePieceModel) -> Style) -> Result<T5Tokenizer> {
        let fault = |reason| Error::Tokenizer { tokenizer: name.into(), reason };
        let model = SentencePieceModel::read(bytes).and_then(|model| model.of_kind(ModelKind::Unigram));
        let model = model.map_err(fault)?;
        let style = style(&model);
        let mut tokenizer = T5Tokenizer::from_pieces(name, model.pieces, model.charsmap, true)?;
        tokenizer.style = style;
        Ok(tokenizer)
    }

    /// Mapped characters, no space at the end, single spaces, and one in front.
    fn ready_as_json(&self, text: &str) -> String {
        let mapped = self.charsmap.normalize_graphemes(text);
        let mut ready = String::with_capacity(mapped.len() + SPACE.len());
        for c in mapped.trim_end().chars() {
            match c {
                ' ' if ready.ends_with(SPACE) => {}
                ' ' => ready.push_str(SPACE),
                c => ready.push(c),
            }
        }
        match ready.is_empty() || ready.starts_with(SPACE) {
            true => ready,
            false => format!("{SPACE}{ready}"),
        }
    }
}

/// A vocabulary and the search for the best cut.
#[derive(Clone, Debug)]
struct Pieces {
    ids: HashMap<Box<[u8]>, u32>,
    scores: Vec<f32>,
    /// Texts that are one token wherever they stand.
    special: Vec<(String, u32)>,
    /// The ids of the bytes, if there are such pieces.
    bytes: Option<Box<[u32]>>,
    unknown: u32,
    unknown_score: f64,
    longest: usize,
}

/// The best way to reach a place in the text: from where, by which piece, and its score.
#[derive(Clone, Copy)]
struct Reached<S> {
    from: usize,
    id: u32,
    score: S,
}

impl Pieces {
    fn new(pieces: Vec<Piece>) -> Result<Pieces, String> {
        let scores: Vec<f32> = pieces.iter().map(|piece| piece.score).collect();
        let mut ids = HashMap::with_capacity(pieces.len());
        let (mut special, mut bytes, mut unknown) = (Vec::new(), vec![None; 256], None);
        let mut least = f64::INFINITY;
        for (id, piece) in pieces.into_iter().enumerate() {
            let id = id as u32;
            match piece.kind {
                PieceKind::Normal => {
                    least = least.min(f64::from(piece.score));
                    ids.insert(piece.text.into_bytes().into_boxed_slice(), id);
                }
                PieceKind::UserDefined | PieceKind::Control => special.push((piece.text, id)),
                PieceKind::Unknown => {
                    unknown = Some(id);
                    special.push((piece.text, id));
                }
                PieceKind::Byte => {
                    let byte = byte_of(&piece.text).ok_or_else(|| format!("'{}' is no byte", piece.text))?;
                    bytes[usize::from(byte)] = Some(id);
                }
                PieceKind::Unused => {}
            }
        }
        special.retain(|(text, _)| !text.is_empty());
        let longest = ids.keys().map(|piece| piece.len()).max().ok_or("it has no pieces for words")?;
        let unknown = unknown.ok_or("it has no piece for the unknown")?;
        let unknown_score = least - UNKNOWN_PENALTY;
        let bytes = bytes.into_iter().collect();
        Ok(Pieces { ids, scores, special, bytes, unknown, unknown_score, longest })
    }

    /// The first text that is one token: its place, length and id.
    fn first_special(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found = self.special.iter().filter_map(|(name, id)| Some((text.find(name)?, name.len(), *id)));
        found.min_by_key(|(at, len, _)| (*at, usize::MAX - len))
    }

    /// Adds the ids of the best cut, with scores summed in 64 bits.
    fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        self.encode_with(text, ids, f64::from, self.unknown_score, |a, b| a + b);
    }

    /// The same with sums in 32 bits, where near ties may fall otherwise.
    fn encode_f32(&self, text: &str, ids: &mut Vec<u32>) {
        self.encode_with(text, ids, |score| score, self.unknown_score as f32, |a, b| a + b);
    }

    fn encode_with<S: Copy + PartialOrd + Default>(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
        widen: impl Fn(f32) -> S,
        unknown_score: S,
        add: impl Fn(S, S) -> S,
    ) {
        let mut reached: Vec<Option<Reached<S>>> = vec![None; text.len() + 1];
        for (start, c) in text.char_indices() {
            let so_far = reached[start].map_or(S::default(), |r| r.score);
            let mut reach = |len: usize, id: u32, score: S| {
                let score = add(score, so_far);
                let place = &mut reached[start + len];
                if place.is_none_or(|best| score > best.score) {
                    *place = Some(Reached { from: start, id, score });
                }
            };
            let rest = &text.as_bytes()[start..];
            let mut single = false;
            for len in c.len_utf8()..=rest.len().min(self.longest) {
                if let Some(id) = self.ids.get(&rest[..len]) {
                    reach(len, *id, widen(self.scores[*id as usize]));
                    single |= len == c.len_utf8();
                }
            }
            if !single {
                reach(c.len_utf8(), self.unknown, unknown_score);
            }
        }
        self.collect(text.as_bytes(), &reached, ids);
    }

    /// Follows the best way back from the end. What no piece covers becomes its bytes, or one unknown token
    /// for each run of it.
    fn collect<S: Copy>(&self, text: &[u8], reached: &[Option<Reached<S>>], ids: &mut Vec<u32>) {
        let mut path = Vec::new();
        let mut end = text.len();
        while let Some(step) = reached[end].filter(|_| end > 0) {
            path.push((step.from..end, step.id));
            end = step.from;
        }
        let mut after_unknown = false;
        for (range, id) in path.into_iter().rev() {
            let unknown = id == self.unknown;
            match &self.bytes {
                Some(bytes) if unknown => ids.extend(text[range].iter().map(|b| bytes[usize::from(*b)])),
                _ if unknown && after_unknown => {}
                _ => ids.push(id),
            }
            after_unknown = unknown;
        }
    }
}
