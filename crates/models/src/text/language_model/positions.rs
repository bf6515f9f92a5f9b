//! Positions: how tokens turn queries and keys. Words count up; the parts of a picture whose places count have a row and a
//! column of their own, and what follows goes on behind the longer side.

use tensor::{Lane, Tensor};

use super::LanguageModelConfig;
use super::config::{Frequency, LanguageKind};
use crate::Result;
use crate::text::encoder::{Batch, PictureTokens, pictures_in};
use crate::text::tokens::Token;

/// How many of the frequencies of a head, of each 64, are turned by the time, the row and the column of a part: one after
/// the other, or taking turns.
const SECTIONS: [usize; 3] = [16, 24, 24];
const SPREAD_SECTIONS: [usize; 3] = [24, 20, 20];

/// The cosines and sines of angles, in f32, `[1, tokens, head / 2]`.
pub(super) struct Rotation {
    cos: Tensor,
    sin: Tensor,
}

impl Rotation {
    /// Cosines and sines.
    pub(super) fn tables(&self) -> [&Tensor; 2] {
        [&self.cos, &self.sin]
    }

    /// Brings them to where they are needed.
    pub(super) fn bring(&mut self, lane: &Lane) -> Result<()> {
        self.cos = self.cos.to_device_of(lane)?;
        self.sin = self.sin.to_device_of(lane)?;
        Ok(())
    }
}

/// One rotation for each of the kind's frequencies.
pub(super) fn rotations(
    config: &LanguageModelConfig,
    lane: &Lane,
    batch: &Batch,
    pictures: &[PictureTokens],
) -> Result<Vec<Rotation>> {
    let mut positions = positions(&batch.rows[0], pictures);
    if config.kind == LanguageKind::Qwen3Vl {
        // What fills a prompt up is not counted: all of it stands at one place, and gives the same.
        let is_word = &batch.visible()[0];
        for (position, _) in positions.iter_mut().zip(is_word).filter(|(_, is_word)| !**is_word) {
            *position = [1; 3];
        }
    }
    rotations_at(config, lane, &positions)
}

/// The position of the token behind a prompt.
pub(super) fn next(batch: &Batch, pictures: &[PictureTokens]) -> usize {
    positions(&batch.rows[0], pictures).iter().flatten().max().map_or(0, |last| last + 1)
}

/// The rotations of tokens at times, rows and columns.
pub(super) fn rotations_at(
    config: &LanguageModelConfig,
    lane: &Lane,
    positions: &[[usize; 3]],
) -> Result<Vec<Rotation>> {
    let half = config.head / 2;
    let axis = if config.kind == LanguageKind::Qwen3Vl { spread_axis } else { axis };
    let rotation = |frequency: &Frequency| -> Result<Rotation> {
        let speeds: Vec<f32> = (0..half).map(|i| speed(frequency, i, half)).collect();
        let angles: Vec<f32> = positions
            .iter()
            .flat_map(|position| {
                speeds.iter().enumerate().map(move |(i, speed)| position[axis(i, half)] as f32 * speed)
            })
            .collect();
        let shape = [1, positions.len(), half];
        // The reference takes cosines of angles that were rounded to f32.
        let of = |f: fn(f64) -> f64| -> Vec<f32> { angles.iter().map(|a| f(f64::from(*a)) as f32).collect() };
        Ok(Rotation {
            cos: lane.tensor_f32(shape, &of(f64::cos))?,
            sin: lane.tensor_f32(shape, &of(f64::sin))?,
        })
    };
    config.kind.frequencies().iter().map(rotation).collect()
}

/// Radians per position of the `i`-th of `half` frequencies.
fn speed(frequency: &Frequency, i: usize, half: usize) -> f32 {
    let power = frequency.base.powf(i as f64 / half as f64) as f32;
    1.0 / power / frequency.divisor as f32
}

/// Which of time, row and column turns a frequency.
fn axis(i: usize, half: usize) -> usize {
    let [time, row, _] = SECTIONS.map(|section| section * half / SECTIONS.iter().sum::<usize>());
    match i {
        i if i < time => 0,
        i if i < time + row => 1,
        _ => 2,
    }
}

/// The same where time, row and column take turns until the sections of row and column are used up.
fn spread_axis(i: usize, half: usize) -> usize {
    let sections = SPREAD_SECTIONS.map(|section| section * half / SPREAD_SECTIONS.iter().sum::<usize>());
    let turn = i % 3;
    if i / 3 < sections[turn] { turn } else { 0 }
}

/// Time, row and column of each token.
fn positions(tokens: &[Token], pictures: &[PictureTokens]) -> Vec<[usize; 3]> {
    let mut positions = Vec::with_capacity(tokens.len());
    let mut next = 0;
    for (start, picture, parts) in pictures_in(tokens) {
        let Some([rows, columns]) = pictures.get(picture).and_then(|picture| picture.grid) else { continue };
        while positions.len() < start {
            positions.push([next; 3]);
            next += 1;
        }
        positions
            .extend(parts.map(|part| [next, next + part / columns.max(1), next + part % columns.max(1)]));
        next += rows.max(columns);
    }
    while positions.len() < tokens.len() {
        positions.push([next; 3]);
        next += 1;
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tokens::Symbol;

    #[test]
    fn frequencies_are_split_as_in_the_published_models() {
        let axes: Vec<usize> = (0..64).map(|i| axis(i, 64)).collect();
        assert_eq!([axes[15], axes[16], axes[39], axes[40], axes[63]], [0, 1, 1, 2, 2]);
        let axes: Vec<usize> = (0..64).map(|i| spread_axis(i, 64)).collect();
        assert_eq!(
            [axes[0], axes[1], axes[2], axes[58], axes[59], axes[60], axes[62]],
            [0, 1, 2, 1, 2, 0, 0]
        );
    }

    #[test]
    fn words_alone_count_up() {
        let token = Token { symbol: Symbol::Id(7), weight: 1.0 };
        assert_eq!(positions(&vec![token; 3], &[]), [[0; 3], [1; 3], [2; 3]]);
    }
}
