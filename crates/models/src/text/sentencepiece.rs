//! SentencePiece models as they are embedded in checkpoints: a protocol buffer with pieces, scores and how
//! text is made ready. Fields that tokenizers do not need are skipped.

use super::charsmap::CharsMap;

/// The most pieces of a model; the largest vocabulary in use has 262,144.
const MAX_PIECES: usize = 1 << 20;

/// The numbers of the kinds of models.
const UNIGRAM: u64 = 1;
const PAIRS: u64 = 2;

/// Stands for a space in pieces.
pub(crate) const SPACE: &str = "\u{2581}";

/// How a model cuts text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelKind {
    /// Into the pieces whose scores add up highest.
    Unigram,
    /// By joining the pair with the highest score again and again.
    Pairs,
}

/// What a piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceKind {
    /// A part of words.
    Normal,
    /// Stands for what no piece covers.
    Unknown,
    /// Never found in text, such as the end token.
    Control,
    /// One token wherever it stands in text.
    UserDefined,
    /// Not in use.
    Unused,
    /// A byte of what no piece covers.
    Byte,
}

/// One entry of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) score: f32,
    pub(crate) kind: PieceKind,
}

/// A parsed model.
#[derive(Clone, Debug)]
pub(crate) struct SentencePieceModel {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) charsmap: CharsMap,
    pub(crate) spacing: Spacing,
    /// 1 for unigram models, 2 for byte pairs.
    kind: u64,
}

/// What SentencePiece does about white space before a text is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spacing {
    /// A space is put in front.
    pub(crate) dummy_prefix: bool,
    /// Several spaces become one, and none is left at either end.
    pub(crate) collapse: bool,
}

impl Spacing {
    /// A text with mapped characters and marks for its spaces.
    pub(crate) fn ready(self, charsmap: &CharsMap, text: &str) -> String {
        let mut ready = String::with_capacity(text.len() + SPACE.len());
        if self.dummy_prefix {
            ready.push_str(SPACE);
        }
        let mut after_space = self.collapse;
        charsmap.normalize_longest(text, |mapped| {
            let kept = if after_space { mapped.trim_start_matches(' ') } else { mapped };
            if !kept.is_empty() {
                ready.push_str(&kept.replace(' ', SPACE));
                after_space = self.collapse && kept.ends_with(' ');
            }
        });
        if self.collapse {
            while ready.ends_with(SPACE) {
                ready.truncate(ready.len() - SPACE.len());
            }
        }
        ready
    }
}

impl SentencePieceModel {
    /// Reads a model, or says what is wrong with it.
    pub(crate) fn read(bytes: &[u8]) -> Result<SentencePieceModel, String> {
        let mut model = SentencePieceModel {
            pieces: Vec::new(),
            charsmap: CharsMap::default(),
            spacing: Spacing { dummy_prefix: true, collapse: true },
            kind: UNIGRAM,
        };
        for field in Fields::of(bytes) {
            match field? {
                (1, Value::Bytes(piece)) if model.pieces.len() < MAX_PIECES => {
                    model.pieces.push(read_piece(piece)?);
                }
                (1, Value::Bytes(_)) => return Err(format!("more than {MAX_PIECES} pieces")),
                (2, Value::Bytes(trainer)) => model.kind = read_kind(trainer)?,
                (3, Value::Bytes(normalizer)) => model.read_normalizer(normalizer)?,
                _ => {}
            }
        }
        if model.pieces.is_empty() { Err("it has no pieces".into()) } else { Ok(model) }
    }

    /// The model, if it is of a kind.
    pub(crate) fn of_kind(self, wanted: ModelKind) -> Result<SentencePieceModel, String> {
        let (number, name) = match wanted {
            ModelKind::Unigram => (UNIGRAM, "unigram"),
            ModelKind::Pairs => (PAIRS, "byte-pair"),
        };
        if self.kind == number {
            return Ok(self);
        }
        Err(format!("its model type is {}; only {name} models ({number}) are supported here", self.kind))
    }

    fn read_normalizer(&mut self, bytes: &[u8]) -> Result<(), String> {
        for field in Fields::of(bytes) {
            match field? {
                (2, Value::Bytes(map)) => {
                    self.charsmap = CharsMap::read(map).ok_or("its character map is damaged")?;
                }
                (3, Value::Number(flag)) => self.spacing.dummy_prefix = flag != 0,
                (4, Value::Number(flag)) => self.spacing.collapse = flag != 0,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The trainer's field says which kind of model it is; a unigram model without it.
fn read_kind(trainer: &[u8]) -> Result<u64, String> {
    let mut kind = UNIGRAM;
    for field in Fields::of(trainer) {
        if let (3, Value::Number(said)) = field? {
            kind = said;
        }
    }
    Ok(kind)
}

fn read_piece(bytes: &[u8]) -> Result<Piece, String> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: PieceKind::Normal };
    for field in Fields::of(bytes) {
        match field? {
            (1, Value::Bytes(text)) => {
                piece.text = String::from_utf8(text.to_vec()).map_err(|_| "a piece is not UTF-8")?;
            }
            (2, Value::Fixed32(score)) => piece.score = f32::from_le_bytes(score),
            (3, Value::Number(kind)) => piece.kind = PieceKind::numbered(kind)?,
            _ => {}
        }
    }
    Ok(piece)
}

impl PieceKind {
    /// The kind with this number, which other tables use as well.
    pub(crate) fn numbered(number: u64) -> Result<PieceKind, String> {
        Ok(match number {
            1 => PieceKind::Normal,
            2 => PieceKind::Unknown,
            3 => PieceKind::Control,
            4 => PieceKind::UserDefined,
            5 => PieceKind::Unused,
            6 => PieceKind::Byte,
            other => return Err(format!("a piece has the unknown kind {other}")),
        })
    }
}

/// The byte that a piece such as `<0x1F>` stands for.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

/// The value of a field.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
    Fixed64,
}

/// The fields of a message, in order.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn of(rest: &'a [u8]) -> Fields<'a> {
        Fields { rest }
    }

    fn read(&mut self) -> Option<(u64, Value<'a>)> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let len = usize::try_from(self.number()?).ok()?;
                Value::Bytes(self.take(len)?)
            }
            5 => Value::Fixed32(*self.take(4)?.first_chunk()?),
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or_else(|| "it is cut short or no protocol buffer".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_pieces_and_refuses_the_rest() {
        let piece = [&[10, 1, b'a', 21][..], &(-1.5f32).to_le_bytes()[..], &[24, 4][..]].concat();
        let model = [&[10, piece.len() as u8][..], &piece[..], &[26, 2, 24, 0][..]].concat();
        let parsed = SentencePieceModel::read(&model).unwrap();
        let expected = Piece { text: "a".into(), score: -1.5, kind: PieceKind::UserDefined };
        assert_eq!(parsed.pieces, [expected]);
        assert_eq!(parsed.spacing, Spacing { dummy_prefix: false, collapse: true });
        for cut in 1..model.len() {
            let prefix = SentencePieceModel::read(&model[..cut]);
            assert!(prefix.is_err() || cut == 2 + piece.len(), "{cut}");
        }
        let pairs = [&model[..], &[18, 2, 24, 2][..]].concat();
        let of_kind = |kind| SentencePieceModel::read(&pairs).unwrap().of_kind(kind);
        assert!(of_kind(ModelKind::Unigram).unwrap_err().contains("only unigram"));
        assert!(of_kind(ModelKind::Pairs).is_ok());
        assert!(SentencePieceModel::read(&[]).unwrap_err().contains("no pieces"));
        assert!(SentencePieceModel::read(&[0xFF; 20]).is_err());
    }
}
