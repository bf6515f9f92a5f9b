//! The compiled character map of SentencePiece models: a trie of byte sequences and what each becomes.

use unicode_segmentation::UnicodeSegmentation;

/// Graphemes of fewer bytes are looked up whole by [`CharsMap::normalize_graphemes`].
const SHORT_GRAPHEME: usize = 6;

/// A trie in one array of units, and the texts that its leaves point to.
#[derive(Clone, Debug, Default)]
pub(crate) struct CharsMap {
    units: Vec<u32>,
    texts: Vec<u8>,
}

impl CharsMap {
    /// Reads a map: the trie's length in bytes, the trie, then texts that end in zero bytes. `None` if it
    /// is cut short or its texts are not UTF-8.
    pub(crate) fn read(bytes: &[u8]) -> Option<CharsMap> {
        if bytes.is_empty() {
            return Some(CharsMap::default());
        }
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (trie, texts) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        std::str::from_utf8(texts).ok()?;
        let (units, odd) = trie.as_chunks::<4>();
        let whole = odd.is_empty();
        whole.then(|| CharsMap {
            units: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(),
            texts: texts.to_vec(),
        })
    }

    /// Replaces the longest sequences that the map has, from left to right, and calls `push` with each result;
    /// a character that begins none of them stays.
    pub(crate) fn normalize_longest(&self, text: &str, mut push: impl FnMut(&str)) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let longest = self.matches(rest.as_bytes()).last().filter(|(len, _)| rest.is_char_boundary(*len));
            let len = match longest {
                Some((len, at)) => {
                    push(self.text(at));
                    len
                }
                None => {
                    push(&rest[..first.len_utf8()]);
                    first.len_utf8()
                }
            };
            rest = &rest[len..];
        }
    }

    /// Replaces grapheme by grapheme as the `tokenizers` library does, to which files with a
    /// `tokenizer.json` owe their ids: a short grapheme becomes what its shortest known beginning becomes,
    /// else each of its characters is looked up by itself.
    pub(crate) fn normalize_graphemes(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for grapheme in text.graphemes(true) {
            let short = grapheme.len() < SHORT_GRAPHEME;
            if let Some(text) = short.then(|| self.shortest(grapheme)).flatten() {
                out.push_str(text);
                continue;
            }
            for (at, c) in grapheme.char_indices() {
                let character = &grapheme[at..at + c.len_utf8()];
                out.push_str(self.shortest(character).unwrap_or(character));
            }
        }
        out
    }

    fn shortest(&self, text: &str) -> Option<&str> {
        self.matches(text.as_bytes()).next().map(|(_, at)| self.text(at))
    }

    /// Lengths of the beginnings of `bytes` that are in the map, and where their texts are, shortest first.
    fn matches<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = (usize, usize)> + 'a {
        let mut node = self.units.first().map(|unit| offset(*unit));
        let step = move |byte: &u8| -> Option<Option<usize>> {
            let place = node? ^ usize::from(*byte);
            let unit = *self.units.get(place).filter(|unit| **unit & LABEL == u32::from(*byte))?;
            let next = place ^ offset(unit);
            node = Some(next);
            let leaf = (unit & HAS_LEAF != 0).then(|| self.units.get(next)).flatten();
            Some(leaf.map(|leaf| (*leaf & VALUE) as usize))
        };
        let found = bytes.iter().take_while(|byte| **byte != 0).map_while(step).enumerate();
        found.filter_map(|(i, at)| Some((i + 1, at?)))
    }

    fn text(&self, at: usize) -> &str {
        let rest = self.texts.get(at..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        // All texts are UTF-8; a wrong place inside a character gives nothing.
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }
}

/// The byte that leads to a unit; the highest bit marks leaves, which no byte leads to.
const LABEL: u32 = 1 << 31 | 0xFF;
/// Whether a text ends at a unit.
const HAS_LEAF: u32 = 1 << 8;
/// What a leaf says.
const VALUE: u32 = (1 << 31) - 1;

/// How far a unit's children are, to be combined by exclusive or.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_maps_are_refused_and_wild_tries_do_no_harm() {
        assert!(CharsMap::read(&[1, 0]).is_none());
        assert!(CharsMap::read(&[8, 0, 0, 0, 1, 2, 3, 4]).is_none());
        assert!(CharsMap::read(&[3, 0, 0, 0, 1, 2, 3]).is_none());
        assert!(CharsMap::read(&[0, 0, 0, 0, 0xFF]).is_none());
        let empty = CharsMap::read(&[]).unwrap();
        assert_eq!(empty.normalize_graphemes("añ ﬁ"), "añ ﬁ");
        for seed in 0..50 {
            let mut bytes = vec![64, 0, 0, 0];
            bytes.extend((0..64u32).map(|i| (i.wrapping_mul(seed * 2 + 1) >> 1) as u8));
            bytes.extend(b"text\0");
            let map = CharsMap::read(&bytes).unwrap();
            let mut out = String::new();
            map.normalize_longest("some text \u{1}\u{2}", |text| out.push_str(text));
            map.normalize_graphemes("some text");
        }
    }
}
