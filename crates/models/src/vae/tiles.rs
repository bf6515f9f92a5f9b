//! Tiles: a large image computed in overlapping parts that fade into each other. Each tile's weight grows over
//! the overlap, so that a pixel is the weighted mean of all tiles that have it; and three passes with tiles of
//! different proportions are averaged, so that what is left of a seam in one is not in the others. Sizes, order
//! and weights are ComfyUI's, so that the pictures are the same.

use crate::{Error, Result};

/// The size of tiles and how far they overlap, in the values of what goes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Width and height of a tile.
    pub tile: usize,
    /// How many values two neighbours share.
    pub overlap: usize,
    /// The same of the frames of a video, unless all are in every tile.
    pub frames: Option<FrameTiles>,
}

/// How the frames of a video are spread over tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTiles {
    /// Frames of a tile.
    pub tile: usize,
    /// How many frames two neighbours share.
    pub overlap: usize,
}

impl Tiling {
    /// Tiles of a picture, or of all frames of a video.
    #[must_use]
    pub const fn square(tile: usize, overlap: usize) -> Tiling {
        Tiling { tile, overlap, frames: None }
    }

    /// Tiles of half the size with half the overlap, or none if they would be too small to make sense.
    pub(super) fn halved(self) -> Option<Tiling> {
        (self.tile >= 32).then_some(Tiling { tile: self.tile / 2, overlap: self.overlap / 2, ..self })
    }

    /// The sizes of the three passes: high, wide and square.
    fn passes(self) -> [(usize, usize); 3] {
        let Tiling { tile, .. } = self;
        [(tile * 2, tile / 2), (tile / 2, tile * 2), (tile, tile)]
    }
}

/// By how much a result is larger than what it is computed from: `up / down`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    pub(super) up: usize,
    pub(super) down: usize,
}

impl Ratio {
    /// A length of the input in the output.
    fn of(self, length: usize) -> usize {
        (length * self.up + self.down / 2) / self.down
    }
}

/// A rectangle of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) top: usize,
    pub(super) left: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

/// What is computed in tiles: the size of the input of one item, and of its output.
pub(super) struct Canvas {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) ratio: Ratio,
    /// Channels of the output.
    pub(super) channels: usize,
}

impl Canvas {
    /// Computes an item of `[channels, height, width]` by `tile`, which is given windows of the input and returns
    /// their output.
    pub(super) fn compute(
        &self,
        tiling: Tiling,
        mut tile: impl FnMut(Window) -> Result<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        if tiling.overlap >= tiling.tile / 2 || tiling.tile < 2 {
            return Err(Error::Input {
                what: "the overlap of tiles",
                expected: format!("less than half of a tile of {}", tiling.tile),
                got: tiling.overlap.to_string(),
            });
        }
        let passes = tiling.passes();
        let mut mean = vec![0f32; self.channels * self.out_height() * self.out_width()];
        for (height, width) in passes {
            let pass = self.pass((height, width), tiling.overlap, &mut tile)?;
            mean.iter_mut().zip(&pass).for_each(|(mean, value)| *mean += value);
        }
        mean.iter_mut().for_each(|value| *value /= passes.len() as f32);
        Ok(mean)
    }

    fn pass(
        &self,
        size: (usize, usize),
        overlap: usize,
        tile: &mut impl FnMut(Window) -> Result<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let (rows, columns) = (self.out_height(), self.out_width());
        let mut sum = vec![0f32; self.channels * rows * columns];
        let mut weight = vec![0f32; rows * columns];
        for (top, height) in spans(self.height, size.0, overlap) {
            for (left, width) in spans(self.width, size.1, overlap) {
                let part = tile(Window { top, left, height, width })?;
                let (top, left) = (self.ratio.of(top), self.ratio.of(left));
                let (height, width) = (self.ratio.of(height), self.ratio.of(width));
                let whole = height == rows && width == columns;
                let feather = if whole { 0 } else { self.ratio.of(overlap) };
                let (down, right) = (ramp(height, feather), ramp(width, feather));
                for y in 0..height {
                    for x in 0..width {
                        let w = down[y] * right[x];
                        let at = (top + y) * columns + left + x;
                        weight[at] += w;
                        for c in 0..self.channels {
                            sum[c * rows * columns + at] += part[(c * height + y) * width + x] * w;
                        }
                    }
                }
            }
        }
        for channel in sum.chunks_exact_mut(rows * columns) {
            channel.iter_mut().zip(&weight).for_each(|(value, weight)| *value /= weight);
        }
        Ok(sum)
    }

    /// The shape of the output of this many items.
    pub(super) fn shape(&self, batch: usize) -> [usize; 4] {
        [batch, self.channels, self.out_height(), self.out_width()]
    }

    fn out_height(&self) -> usize {
        self.ratio.of(self.height)
    }

    fn out_width(&self) -> usize {
        self.ratio.of(self.width)
    }
}

/// Starts and lengths of the tiles along one dimension.
pub(crate) fn spans(length: usize, tile: usize, overlap: usize) -> Vec<(usize, usize)> {
    if length <= tile {
        return vec![(0, length)];
    }
    let starts = (0..length - overlap).step_by(tile - overlap);
    starts.map(|start| (start, tile.min(length - start))).collect()
}

/// The weight of each value along one dimension of a tile: rising over `feather` values from both ends.
pub(crate) fn ramp(length: usize, feather: usize) -> Vec<f32> {
    let mut weights = vec![1f32; length];
    if feather < length {
        for step in 0..feather {
            let weight = (step + 1) as f32 / feather as f32;
            weights[step] *= weight;
            weights[length - 1 - step] *= weight;
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_everything_and_overlap() {
        assert_eq!(spans(12, 8, 2), [(0, 8), (6, 6)]);
        assert_eq!(spans(12, 4, 2), [(0, 4), (2, 4), (4, 4), (6, 4), (8, 4)]);
        assert_eq!(spans(12, 16, 2), [(0, 12)]);
        for (length, tile, overlap) in [(100, 64, 16), (65, 64, 16), (200, 17, 8), (128, 32, 1)] {
            let spans = spans(length, tile, overlap);
            assert_eq!(spans.last().map(|(start, len)| start + len), Some(length));
            for pair in spans.windows(2) {
                assert!(pair[0].0 + pair[0].1 >= pair[1].0 + overlap.min(pair[1].1), "{spans:?}");
            }
        }
    }

    #[test]
    fn tiles_of_an_enlarged_picture_give_the_picture() {
        // Each pixel of the input becomes 2 x 2 equal ones, which no tile changes.
        let (height, width) = (23, 37);
        let pixel = |y: usize, x: usize| (y * 100 + x) as f32;
        let canvas = Canvas { height, width, ratio: Ratio { up: 2, down: 1 }, channels: 1 };
        let tile = |w: Window| {
            let rows = (0..w.height * 2).flat_map(|y| (0..w.width * 2).map(move |x| (y / 2, x / 2)));
            Ok(rows.map(|(y, x)| pixel(w.top + y, w.left + x)).collect())
        };
        let image = canvas.compute(Tiling::square(8, 2), tile).unwrap();
        for y in 0..height * 2 {
            for x in 0..width * 2 {
                let got = image[y * width * 2 + x];
                assert!((got - pixel(y / 2, x / 2)).abs() < 1e-2, "{y} {x}: {got}");
            }
        }
    }

    #[test]
    fn an_overlap_that_leaves_nothing_is_refused() {
        let canvas = Canvas { height: 9, width: 9, ratio: Ratio { up: 1, down: 1 }, channels: 1 };
        let none = |_: Window| -> Result<Vec<f32>> { unreachable!("no tile is computed") };
        for tiling in [Tiling::square(8, 4), Tiling::square(1, 0), Tiling::square(0, 0)] {
            assert!(canvas.compute(tiling, none).is_err(), "{tiling:?}");
        }
    }
}
