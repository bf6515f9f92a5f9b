//! The sequence: words, with pictures to look at among them, then the picture that is made. Words look back; a picture looks
//! back and at all of itself.

use std::ops::Range;

use residency::Lease;
use tensor::{Mask, Tensor};

use crate::Result;
use crate::diffusion::heads::Heads;
use crate::diffusion::modulation::Everywhere;

/// Added to the scores of hidden tokens: far below any score, and within every type of activation.
const HIDDEN: f32 = -30_000.0;

/// What stands before the picture that is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Words, by their places in the text.
    Words(Range<usize>),
    /// A picture to look at, by its place among them.
    Picture(usize),
}

/// So many words with pictures before some of them; pictures without a place stand behind all words.
pub(super) fn pieces(words: usize, pictures: usize, slots: &[usize]) -> Vec<Piece> {
    let (mut pieces, mut next) = (Vec::new(), 0);
    for picture in 0..pictures {
        let slot = slots.get(picture).copied().unwrap_or(words).clamp(next, words);
        if slot > next {
            pieces.push(Piece::Words(next..slot));
        }
        pieces.push(Piece::Picture(picture));
        next = slot;
    }
    if words > next {
        pieces.push(Piece::Words(next..words));
    }
    pieces
}

/// Tokens that look at all up to the last of them.
pub(super) struct Segment {
    tokens: Range<usize>,
    hides: Hiding,
}

/// What hides words from words before them.
enum Hiding {
    /// Nothing: this is a picture.
    Nothing,
    /// Words at the beginning of the sequence, for which devices have a mask.
    Later,
    /// Scores, `[1, 1, tokens, tokens up to the last]`.
    Scores(Everywhere),
}

/// The segments of a sequence: its pieces, each with whether it is words and how long it is, then the picture that is
/// made.
pub(super) fn segments(lease: &Lease<'_>, pieces: &[(bool, usize)], images: usize) -> Result<Vec<Segment>> {
    let mut start = 0;
    let segment = |(is_words, tokens): (bool, usize)| -> Result<Segment> {
        let tokens = start..start + tokens;
        start = tokens.end;
        let hides = match (is_words, tokens.start) {
            (false, _) => Hiding::Nothing,
            (true, 0) => Hiding::Later,
            (true, _) => {
                let end = tokens.end;
                let row = |word: usize| (0..end).map(move |key| if key <= word { 0.0 } else { HIDDEN });
                let scores: Vec<f32> = tokens.clone().flat_map(row).collect();
                let scores = lease.lane().tensor([1, 1, tokens.len(), end], &scores)?;
                Hiding::Scores(Everywhere::new(scores))
            }
        };
        Ok(Segment { tokens, hides })
    };
    pieces.iter().copied().chain([(false, images)]).map(segment).collect()
}

/// Attention of every segment over all up to its last token, `[batch, tokens, heads · size]`; so many keys stand before those
/// of the first segment.
pub(super) fn attend(
    lease: &Lease<'_>,
    heads: &Heads,
    before: usize,
    segments: &mut [Segment],
) -> Result<Tensor> {
    let scale = 1.0 / (heads.q.dim(3) as f32).sqrt();
    let out = heads.q.lane().empty_as(heads.q.dtype(), *heads.q.shape())?;
    for Segment { tokens, hides } in segments {
        let own = |x: &Tensor| x.slice(1, tokens.start, tokens.len());
        let seen = |x: &Tensor| x.slice(1, 0, before + tokens.end);
        let mask = match hides {
            Hiding::Nothing => Mask::None,
            Hiding::Later => Mask::Causal,
            Hiding::Scores(scores) => Mask::Additive(scores.on(lease)?),
        };
        own(&heads.q)?.attention_into(&seen(&heads.k)?, &seen(&heads.v)?, &mask, scale, &own(&out)?)?;
    }
    Ok(out.reshape([out.dim(0), out.dim(1), out.dim(2) * out.dim(3)])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_stand_among_the_words() {
        let words = |range| Piece::Words(range);
        assert_eq!(pieces(5, 0, &[]), [words(0..5)]);
        assert_eq!(pieces(5, 2, &[2, 2]), [words(0..2), Piece::Picture(0), Piece::Picture(1), words(2..5)]);
        assert_eq!(pieces(5, 1, &[]), [words(0..5), Piece::Picture(0)]);
        assert_eq!(pieces(3, 1, &[9]), [words(0..3), Piece::Picture(0)]);
    }
}
