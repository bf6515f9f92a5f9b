//! What is known of a file that has come in part: which file it is, and which of its pieces are there.

use std::path::Path;

/// The pieces of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notes {
    /// Which file: its size, what its server calls it, and the size of pieces.
    identity: String,
    bytes: u64,
    /// Bytes of a piece: what one request asks for.
    piece: u64,
    /// Whether each piece is there.
    there: Vec<bool>,
}

impl Notes {
    /// A file of which nothing is there.
    pub(crate) fn new(bytes: u64, piece: u64, tag: &str) -> Notes {
        let pieces = usize::try_from(bytes.div_ceil(piece)).unwrap_or(usize::MAX);
        Notes { identity: format!("{bytes} {piece} {tag}"), bytes, piece, there: vec![false; pieces] }
    }

    /// What an earlier run left, if it was about the same file.
    pub(crate) fn read(path: &Path, new: Notes) -> Notes {
        let Ok(text) = std::fs::read_to_string(path) else { return new };
        let Some((identity, there)) = text.split_once('\n') else { return new };
        let there: Vec<bool> = there.trim_end().chars().map(|mark| mark == '1').collect();
        let is_same = identity == new.identity && there.len() == new.there.len();
        if is_same { Notes { there, ..new } } else { new }
    }

    pub(crate) fn to_text(&self) -> String {
        let there: String = self.there.iter().map(|there| if *there { '1' } else { '0' }).collect();
        format!("{}\n{there}\n", self.identity)
    }

    /// The pieces that are missing.
    pub(crate) fn missing(&self) -> Vec<usize> {
        (0..self.there.len()).filter(|piece| !self.there[*piece]).collect()
    }

    /// The first byte of a piece, and the one after its last.
    pub(crate) fn bounds(&self, piece: usize) -> (u64, u64) {
        let first = piece as u64 * self.piece;
        (first, (first + self.piece).min(self.bytes))
    }

    pub(crate) fn mark(&mut self, piece: usize) {
        self.there[piece] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 1000;

    #[test]
    fn notes_of_another_file_do_not_count() {
        let dir = testkit::ScratchDir::new().unwrap();
        let path = dir.join("notes");
        let mut notes = Notes::new(2999, PIECE, "a");
        assert_eq!(notes.missing(), [0, 1, 2]);
        notes.mark(1);
        std::fs::write(&path, notes.to_text()).unwrap();
        assert_eq!(Notes::read(&path, Notes::new(2999, PIECE, "a")).missing(), [0, 2]);
        for other in [Notes::new(2999, PIECE, "b"), Notes::new(3000, PIECE, "a")] {
            assert_eq!(Notes::read(&path, other).missing(), [0, 1, 2]);
        }
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(Notes::read(&path, Notes::new(PIECE, PIECE, "a")).missing(), [0]);
        assert_eq!(notes.bounds(2), (2000, 2999));
    }
}
