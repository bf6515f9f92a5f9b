//! Byte-pair encoding: words as sequences of symbols, of which the pair that was learned first is joined
//! until no learned pair is left.

use std::collections::HashMap;

/// Learned pairs of symbols, and which symbol each becomes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Merges {
    /// Order of learning and resulting symbol, by pair.
    pairs: HashMap<(u32, u32), (u32, u32)>,
}

impl Merges {
    /// Adds the pair that was learned next.
    pub(crate) fn push(&mut self, left: u32, right: u32, joined: u32) {
        let rank = self.pairs.len() as u32;
        self.pairs.entry((left, right)).or_insert((rank, joined));
    }

    /// Joins pairs of a word, the earliest learned first.
    pub(crate) fn apply(&self, word: &mut Vec<u32>) {
        loop {
            let ranked = word.windows(2).enumerate().filter_map(|(at, pair)| {
                let (rank, joined) = self.pairs.get(&(pair[0], pair[1]))?;
                Some((*rank, at, *joined))
            });
            let Some((_, at, joined)) = ranked.min() else { return };
            word[at] = joined;
            word.remove(at + 1);
        }
    }
}

/// The printable character that stands for each byte in the vocabularies of byte-level tokenizers, in the
/// order in which those vocabularies begin: printable Latin-1 first, then the other bytes from U+0100 on.
pub(crate) fn byte_alphabet() -> Vec<(u8, char)> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let first = (0..=255u8).filter(printable).map(|byte| (byte, char::from(byte)));
    let others = (0..=255u8).filter(|byte| !printable(byte)).enumerate();
    let others = others.map(|(i, byte)| (byte, char::from_u32(0x100 + i as u32).unwrap_or('\u{FFFD}')));
    first.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_pair_goes_first() {
        let mut merges = Merges::default();
        merges.push(2, 3, 10);
        merges.push(1, 2, 11);
        merges.push(10, 10, 12);
        let mut word = vec![1, 2, 3, 2, 3, 1, 2];
        merges.apply(&mut word);
        assert_eq!(word, [1, 12, 11]);
        let mut single = vec![7];
        merges.apply(&mut single);
        assert_eq!(single, [7]);
    }

    #[test]
    fn every_byte_has_its_own_character() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet.len(), 256);
        assert_eq!((alphabet[0], alphabet[188]), ((b'!', '!'), (0, 'Ā')));
        let characters: std::collections::HashSet<char> = alphabet.iter().map(|(_, c)| *c).collect();
        assert_eq!(characters.len(), 256);
        assert!(alphabet.contains(&(b' ', 'Ġ')));
    }
}
