//! Byte-pair encoding: words as sequences of symbols, of which the pair that was learned first is joined
//! until no learned pair is left.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

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

    /// The symbols of a text whose alphabet is bytes: cut into words, of which `word_len` tells the first one's length,
    /// and joined within each.
    pub(crate) fn encode(
        &self,
        text: &str,
        word_len: impl Fn(&str) -> usize,
        symbols: &HashMap<u8, u32>,
    ) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (word, after) = rest.split_at(word_len(rest));
            // Every byte has a symbol; the map was made from all of them.
            let mut joined = word.bytes().filter_map(|byte| symbols.get(&byte).copied()).collect();
            self.apply(&mut joined);
            ids.extend(joined);
            rest = after;
        }
        ids
    }

    /// Joins pairs of a word, the earliest learned first and of equal ones the leftmost. Takes time in
    /// proportion to the word's length, but for a logarithm.
    pub(crate) fn apply(&self, word: &mut Vec<u32>) {
        let mut chain = Chain::new(word);
        let mut queue = BinaryHeap::new();
        for left in 0..word.len() {
            queue.extend(self.candidate(&chain, left));
        }
        while let Some(Reverse(Candidate { left, pair, joined, .. })) = queue.pop() {
            if chain.pair(left) != Some(pair) {
                continue;
            }
            chain.join(left, joined);
            queue.extend(self.candidate(&chain, left));
            queue.extend(chain.before(left).and_then(|before| self.candidate(&chain, before)));
        }
        *word = chain.symbols();
    }

    fn candidate(&self, chain: &Chain, left: usize) -> Option<Reverse<Candidate>> {
        let pair = chain.pair(left)?;
        let (rank, joined) = *self.pairs.get(&pair)?;
        Some(Reverse(Candidate { rank, left, pair, joined }))
    }
}

/// A pair that may be joined, ordered by when it was learned, then by place.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    pair: (u32, u32),
    joined: u32,
}

/// The symbols of a word, linked so that two become one without moving the others.
struct Chain {
    /// A symbol and its neighbours; none where a symbol was joined to the one before.
    links: Vec<Option<Link>>,
}

#[derive(Clone, Copy)]
struct Link {
    symbol: u32,
    before: Option<usize>,
    after: Option<usize>,
}

impl Chain {
    fn new(word: &[u32]) -> Chain {
        let link = |(i, symbol): (usize, &u32)| {
            let after = (i + 1 < word.len()).then_some(i + 1);
            Some(Link { symbol: *symbol, before: i.checked_sub(1), after })
        };
        Chain { links: word.iter().enumerate().map(link).collect() }
    }

    /// The symbols at a place and after it.
    fn pair(&self, left: usize) -> Option<(u32, u32)> {
        let link = self.links[left]?;
        Some((link.symbol, self.links[link.after?]?.symbol))
    }

    fn before(&self, place: usize) -> Option<usize> {
        self.links[place]?.before
    }

    /// Puts one symbol in place of the pair at `left`.
    fn join(&mut self, left: usize, joined: u32) {
        let Some(link) = self.links[left] else { return };
        let Some(right) = link.after else { return };
        let after = self.links[right].take().and_then(|right| right.after);
        self.links[left] = Some(Link { symbol: joined, after, ..link });
        if let Some(Some(next)) = after.map(|after| &mut self.links[after]) {
            next.before = Some(left);
        }
    }

    fn symbols(self) -> Vec<u32> {
        self.links.into_iter().flatten().map(|link| link.symbol).collect()
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

/// Turns texts of byte-level vocabularies back into bytes.
pub(crate) struct ByteTexts {
    of_character: HashMap<char, u8>,
}

impl ByteTexts {
    pub(crate) fn new() -> ByteTexts {
        ByteTexts { of_character: byte_alphabet().into_iter().map(|(byte, c)| (c, byte)).collect() }
    }

    /// The bytes of a text; characters that stand for none are left out.
    pub(crate) fn of(&self, text: &str) -> Vec<u8> {
        text.chars().filter_map(|c| self.of_character.get(&c).copied()).collect()
    }
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
    fn long_words_take_no_longer_than_they_must() {
        let mut merges = Merges::default();
        merges.push(1, 1, 2);
        merges.push(2, 2, 3);
        let mut word = vec![1; 400_001];
        merges.apply(&mut word);
        assert_eq!(word.len(), 100_001);
        assert_eq!(word.last(), Some(&1));
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
