//! Tiles of videos: parts in time and space that overlap and fade into each other. Sizes, order and weights are ComfyUI's,
//! so that the videos are the same.

use super::tiles::{ramp, spans};
use crate::{Error, Result};

/// How a length of the input becomes one of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// So many values for one.
    Up(usize),
    /// One value for so many.
    Down(usize),
    /// The first frame stays one, each behind it becomes so many.
    FramesUp(usize),
    /// The reverse.
    FramesDown(usize),
}

impl Scale {
    /// A length in the output.
    pub(super) fn length(self, length: usize) -> usize {
        match self {
            Scale::Up(by) => length * by,
            Scale::Down(by) => rounded(length, by),
            Scale::FramesUp(by) => (length * by).saturating_sub(by - 1),
            Scale::FramesDown(by) => length.div_ceil(by),
        }
    }

    /// Where a tile that starts here starts in the output.
    fn place(self, start: usize) -> usize {
        match self {
            Scale::Up(by) | Scale::FramesUp(by) => start * by,
            Scale::Down(by) | Scale::FramesDown(by) => rounded(start, by),
        }
    }
}

/// A quotient, rounded to even in the middle.
fn rounded(length: usize, by: usize) -> usize {
    (length as f64 / by as f64).round_ties_even() as usize
}

/// One dimension: time, height or width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) length: usize,
    pub(super) tile: usize,
    pub(super) overlap: usize,
    pub(super) scale: Scale,
}

/// Start and length along time, height and width.
pub(super) type Block = [(usize, usize); 3];

/// What is computed in tiles.
pub(super) struct Volume {
    /// Time, height and width of the input.
    pub(super) sides: [Side; 3],
    /// Channels of the output.
    pub(super) channels: usize,
}

/// Sums of tiles by their weights.
pub(super) struct Blend<'a> {
    volume: &'a Volume,
    sum: Vec<f32>,
    weights: Vec<f32>,
}

/// A piece of a tile's output, `[channels, frames, height, width]`.
pub(super) struct Piece<'a> {
    /// Its first frame, counted from the tile's first.
    pub(super) frame: usize,
    /// Frames, height and width.
    pub(super) size: [usize; 3],
    pub(super) values: &'a [f32],
}

impl Volume {
    /// The output, `[channels, frames, height, width]`. `tile` is given parts of the input, and gives the pieces of their
    /// output to [`Blend::add`].
    pub(super) fn compute(
        &self,
        mut tile: impl FnMut(&Block, &mut Blend<'_>) -> Result<()>,
    ) -> Result<Vec<f32>> {
        for Side { tile, overlap, .. } in self.sides {
            if overlap >= tile {
                return Err(Error::Input {
                    what: "the overlap of tiles",
                    expected: format!("less than a tile of {tile}"),
                    got: overlap.to_string(),
                });
            }
        }
        let size = self.size();
        let places: usize = size.iter().product();
        let mut blend =
            Blend { volume: self, sum: vec![0.0; self.channels * places], weights: vec![0.0; places] };
        let [times, rows, columns] = self.sides.map(|side| spans(side.length, side.tile, side.overlap));
        for time in &times {
            for row in &rows {
                for column in &columns {
                    tile(&[*time, *row, *column], &mut blend)?;
                }
            }
        }
        let Blend { mut sum, weights, .. } = blend;
        for channel in sum.chunks_exact_mut(places.max(1)) {
            channel.iter_mut().zip(&weights).for_each(|(value, weight)| *value /= weight);
        }
        Ok(sum)
    }

    /// Frames, height and width of the output.
    pub(super) fn size(&self) -> [usize; 3] {
        self.sides.map(|side| side.scale.length(side.length))
    }
}

impl Blend<'_> {
    /// Adds a piece of the output of a tile.
    pub(super) fn add(&mut self, block: &Block, piece: &Piece<'_>) {
        let Volume { sides, channels } = self.volume;
        let [frames, height, width] = self.volume.size();
        let whole = sides.iter().zip(block).all(|(side, (_, length))| side.length == *length);
        let ramps: [Vec<f32>; 3] = std::array::from_fn(|axis| {
            let side = &sides[axis];
            // The time of a tile comes in pieces, each other side at once.
            let length = if axis == 0 { side.scale.length(block[0].1) } else { piece.size[axis] };
            ramp(length, if whole { 0 } else { side.scale.length(side.overlap) })
        });
        let [first, top, left] = std::array::from_fn(|axis| sides[axis].scale.place(block[axis].0));
        let [times, rows, columns] = piece.size;
        for t in 0..times {
            for y in 0..rows {
                let over = ramps[0][piece.frame + t] * ramps[1][y];
                let to = ((first + piece.frame + t) * height + top + y) * width + left;
                let weights = self.weights[to..to + columns].iter_mut().zip(&ramps[2]);
                weights.for_each(|(sum, weight)| *sum += over * weight);
                for channel in 0..*channels {
                    let from = &piece.values[((channel * times + t) * rows + y) * columns..][..columns];
                    let to = &mut self.sum[channel * frames * height * width + to..][..columns];
                    let values = to.iter_mut().zip(from).zip(&ramps[2]);
                    values.for_each(|((to, from), weight)| *to += from * (over * weight));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_an_enlarged_video_give_the_video() {
        // Each value becomes 2 x 2 equal ones; frames behind the first become two.
        let (frames, height, width) = (7, 9, 11);
        let value = |t: usize, y: usize, x: usize| (t * 100 + y * 10 + x) as f32;
        let side = |length: usize, tile: usize, scale: Scale| Side { length, tile, overlap: 1, scale };
        let volume = Volume {
            sides: [
                side(frames, 3, Scale::FramesUp(2)),
                side(height, 4, Scale::Up(2)),
                side(width, 20, Scale::Up(2)),
            ],
            channels: 2,
        };
        let got = volume.compute(|block, blend| {
            let [(first, times), (top, rows), (left, columns)] = *block;
            // The first frame of a tile is one, as the first of a video is, and lies where its first would.
            for (frame, t) in (0..2 * times - 1).map(|frame| (frame, frame / 2)) {
                let mut values = Vec::new();
                for channel in 0..2 {
                    for (y, x) in (0..2 * rows).flat_map(|y| (0..2 * columns).map(move |x| (y, x))) {
                        values.push(value(first + t, top + y / 2, left + x / 2) * (1 + channel) as f32);
                    }
                }
                blend.add(block, &Piece { frame, size: [1, 2 * rows, 2 * columns], values: &values });
            }
            Ok(())
        });
        let (got, [out_frames, out_height, out_width]) = (got.unwrap(), volume.size());
        assert_eq!([out_frames, out_height, out_width], [13, 18, 22]);
        for (at, got) in got.iter().enumerate() {
            let (x, y, t) = (at % 22, at / 22 % 18, at / (22 * 18) % 13);
            let channel = at / (22 * 18 * 13);
            let want = value(t / 2, y / 2, x / 2) * (1 + channel) as f32;
            assert!((got - want).abs() < 1e-2, "{channel} {t} {y} {x}: {got}, not {want}");
        }
    }

    #[test]
    fn lengths_and_places_are_those_of_the_reference() {
        assert_eq!([1, 2, 4].map(|length| Scale::FramesUp(4).length(length)), [1, 5, 13]);
        assert_eq!([1, 2, 5, 13].map(|length| Scale::FramesDown(4).length(length)), [1, 1, 2, 4]);
        assert_eq!((Scale::Down(8).length(96), Scale::FramesDown(4).place(4)), (12, 1));
        let side = Side { length: 9, tile: 2, overlap: 2, scale: Scale::Up(1) };
        let volume = Volume { sides: [side; 3], channels: 1 };
        assert!(
            volume
                .compute(|_, _| Ok(()))
                .is_err_and(|error| error.to_string().contains("less than a tile of 2"))
        );
    }
}
