//! Gemma's tokenizer: a SentencePiece model of byte pairs. Of two neighbours that are a piece together, those with the
//! highest score are joined, until there are none.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::charsmap::CharsMap;
use super::sentencepiece::{ModelKind, Piece, PieceKind, SentencePieceModel, Spacing, byte_of};
use super::tokens::{Frame, PromptOptions, Tokens, read_prompt};
use crate::{Error, Result};

/// Both are fixed in every Gemma.
const START: u32 = 2;
const PAD: u32 = 0;

/// The tokenizer of Gemma's models.
#[derive(Clone, Debug)]
pub struct SentencePairTokenizer {
    /// Ids and scores of pieces.
    pieces: HashMap<Box<str>, (u32, f32)>,
    /// Texts that are one token wherever they stand, the longest first.
    whole: Vec<(Box<str>, u32)>,
    /// The ids of the bytes of what no piece covers.
    bytes: HashMap<u8, u32>,
    unknown: u32,
    charsmap: CharsMap,
    spacing: Spacing,
    frame: Frame,
}

impl SentencePairTokenizer {
    /// The tokenizer of a SentencePiece model, such as one embedded in a checkpoint.
    pub fn from_sentencepiece(name: &str, model: &[u8]) -> Result<SentencePairTokenizer> {
        let fault = |reason| Error::Tokenizer { tokenizer: name.into(), reason };
        let model = SentencePieceModel::read(model).and_then(|model| model.of_kind(ModelKind::Pairs));
        let model = model.map_err(fault)?;
        SentencePairTokenizer::from_pieces(model.pieces, model.charsmap, model.spacing).map_err(fault)
    }

    /// The tokenizer of a table of pieces, as some files carry it in their metadata.
    pub(crate) fn from_pieces(
        pieces: Vec<Piece>,
        charsmap: CharsMap,
        spacing: Spacing,
    ) -> Result<SentencePairTokenizer, String> {
        let (mut known, mut whole, mut bytes) = (HashMap::new(), Vec::new(), HashMap::new());
        let mut unknown = None;
        for (piece, id) in pieces.into_iter().zip(0..) {
            match piece.kind {
                PieceKind::Normal | PieceKind::Unused => {
                    known.insert(piece.text.into_boxed_str(), (id, piece.score));
                }
                PieceKind::UserDefined => {
                    whole.push((piece.text.clone().into_boxed_str(), id));
                    known.insert(piece.text.into_boxed_str(), (id, piece.score));
                }
                PieceKind::Unknown => unknown = Some(id),
                PieceKind::Byte => {
                    let byte = byte_of(&piece.text).ok_or_else(|| format!("'{}' is no byte", piece.text))?;
                    bytes.insert(byte, id);
                }
                PieceKind::Control => {}
            }
        }
        whole.retain(|(text, _)| !text.is_empty());
        whole.sort_by_key(|(text, _)| usize::MAX - text.len());
        let unknown = unknown.ok_or("it has no piece for the unknown")?;
        let frame = Frame { start: Some(START), end: None, pad: PAD, max_len: None, min_len: 1 };
        Ok(SentencePairTokenizer { pieces: known, whole, bytes, unknown, charsmap, spacing, frame })
    }

    /// A prompt in one chunk of at least so many tokens.
    pub fn tokenize(&self, prompt: &str, options: PromptOptions<'_>, least: usize) -> Tokens {
        let frame = Frame { min_len: least.max(1), ..self.frame };
        read_prompt(prompt, options, frame, |text| self.encode(text))
    }

    /// The ids of a text, without start or filling.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let ready = self.spacing.ready(&self.charsmap, text);
        let mut ids = Vec::new();
        let mut rest = ready.as_str();
        let mut plain = 0;
        while let Some(c) = rest[plain..].chars().next() {
            match self.whole.iter().find(|(text, _)| rest[plain..].starts_with(&**text)) {
                Some((text, id)) => {
                    self.encode_plain(&rest[..plain], &mut ids);
                    ids.push(*id);
                    rest = &rest[plain + text.len()..];
                    plain = 0;
                }
                None => plain += c.len_utf8(),
            }
        }
        self.encode_plain(rest, &mut ids);
        ids
    }

    /// The text of tokens, without those that only mark turns and places.
    pub fn decode(&self, ids: &[u32]) -> String {
        let texts: HashMap<u32, &str> = self.pieces.iter().map(|(text, (id, _))| (*id, &**text)).collect();
        let bytes: HashMap<u32, u8> = self.bytes.iter().map(|(byte, id)| (*id, *byte)).collect();
        let mut out = Vec::new();
        for id in ids {
            let is_mark = |text: &&str| !(text.starts_with("<") && text.ends_with("_of_turn>"));
            match (texts.get(id).copied().filter(is_mark), bytes.get(id)) {
                (Some(text), _) => out.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
                (None, Some(byte)) => out.push(*byte),
                (None, None) => {}
            }
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Joins the characters of a text to pieces.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let mut spans: Vec<Span> = text.char_indices().map(|(at, c)| Span::new(at, c.len_utf8())).collect();
        let last = spans.len().saturating_sub(1);
        for (i, span) in spans.iter_mut().enumerate() {
            (span.before, span.after) = (i.checked_sub(1), (i < last).then_some(i + 1));
        }
        let mut queue: BinaryHeap<Pair> =
            (0..spans.len()).filter_map(|i| self.pair(text, &spans, i)).collect();
        while let Some(Pair { left, len, .. }) = queue.pop() {
            let Some(right) = spans[left].after else { continue };
            // One of the two was joined to another meanwhile.
            if spans[left].len == 0 || spans[left].len + spans[right].len != len {
                continue;
            }
            let after = spans[right].after;
            spans[right].len = 0;
            (spans[left].len, spans[left].after) = (len, after);
            if let Some(after) = after {
                spans[after].before = Some(left);
            }
            queue.extend(self.pair(text, &spans, left));
            queue.extend(spans[left].before.and_then(|before| self.pair(text, &spans, before)));
        }
        for span in spans.iter().filter(|span| span.len > 0) {
            let piece = &text[span.start..span.start + span.len];
            match self.pieces.get(piece) {
                Some((id, _)) => ids.push(*id),
                None if self.bytes.is_empty() => ids.push(self.unknown),
                None => {
                    ids.extend(piece.bytes().map(|b| self.bytes.get(&b).copied().unwrap_or(self.unknown)));
                }
            }
        }
    }

    /// A piece and its neighbour, if they are a piece together.
    fn pair(&self, text: &str, spans: &[Span], left: usize) -> Option<Pair> {
        let (first, second) = (&spans[left], &spans[spans[left].after?]);
        let len = first.len + second.len;
        let (_, score) = self.pieces.get(&text[first.start..first.start + len])?;
        Some(Pair { score: *score, left, len })
    }
}

/// A piece of the text, and its neighbours; without length if it was joined to the one before.
struct Span {
    start: usize,
    len: usize,
    before: Option<usize>,
    after: Option<usize>,
}

impl Span {
    fn new(start: usize, len: usize) -> Span {
        Span { start, len, before: None, after: None }
    }
}

/// Two neighbours that are a piece together: those with the highest score go first, of equal ones the leftmost.
struct Pair {
    score: f32,
    left: usize,
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_pair_is_joined_first_and_marks_stay_whole() {
        let piece = |text: &str, score: f32, kind| Piece { text: text.into(), score, kind };
        let normal = |text: &str, score: f32| piece(text, score, PieceKind::Normal);
        let mut pieces = vec![
            piece("<pad>", 0.0, PieceKind::Control),
            piece("<unk>", 0.0, PieceKind::Unknown),
            piece("<turn>", 0.0, PieceKind::UserDefined),
        ];
        pieces.extend([normal("a", -9.0), normal("b", -9.0), normal("ab", -2.0), normal("ba", -1.0)]);
        pieces.extend([normal("\u{2581}", -9.0), normal("aba", -3.0)]);
        let spacing = Spacing { dummy_prefix: false, collapse: false };
        let tokenizer = SentencePairTokenizer::from_pieces(pieces, CharsMap::default(), spacing).unwrap();
        assert_eq!(tokenizer.encode("ab aba"), [5, 7, 8]);
        assert_eq!(tokenizer.encode("b<turn>a?"), [4, 2, 3, 1]);
        assert_eq!(tokenizer.encode(""), [0u32; 0]);
    }
}
