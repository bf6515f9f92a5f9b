//! Patches of the towers beside language models: how a picture is cut, in which order the patches stand, and where each
//! is. Each four neighbours end as one token.

use crate::{Error, Result};

/// The fewest and the most pixels of a picture.
const PIXELS: [f64; 2] = [3136.0, 12_845_056.0];
/// The lowest frequency of positions.
const BASE: f64 = 10_000.0;

/// How a tower cuts pictures.
#[derive(Debug)]
pub(super) struct Cut {
    /// Pixels along a side of a patch.
    pub(super) patch: usize,
    /// Tokens along a side of a window, of towers whose patches stand window by window.
    pub(super) window: Option<usize>,
    /// What brings channels to a mean of 0 and a spread of 1.
    pub(super) mean: [f32; 3],
    pub(super) spread: [f32; 3],
}

impl Cut {
    /// Pixels along a side of the four patches that become one token.
    const fn cell(&self) -> usize {
        2 * self.patch
    }

    /// Values of a patch: three channels of two frames, which are the same in a picture.
    pub(super) const fn values(&self) -> usize {
        3 * 2 * self.patch * self.patch
    }

    /// The size that a picture is scaled to before the tower looks at it: multiples of a cell, neither too small nor too
    /// large.
    pub(super) fn fitting_size(&self, [height, width]: [usize; 2]) -> [usize; 2] {
        let cell = self.cell() as f64;
        let sides = [height as f64, width as f64];
        let near = sides.map(|side| (side / cell).round_ties_even() * cell);
        let pixels = near[0] * near[1];
        let fitted = if pixels > PIXELS[1] {
            let shrink = (sides[0] * sides[1] / PIXELS[1]).sqrt();
            sides.map(|side| ((side / shrink / cell).floor() * cell).max(cell))
        } else if pixels < PIXELS[0] {
            let grow = (PIXELS[0] / (sides[0] * sides[1]).max(1.0)).sqrt();
            sides.map(|side| (side * grow / cell).ceil() * cell)
        } else {
            near
        };
        fitted.map(|side| (side as usize).max(self.cell()))
    }
}

/// Where the patches of a picture are, in the order in which they stand: window by window, cell by cell.
pub(super) struct Layout {
    cut: &'static Cut,
    /// Rows and columns of cells.
    cells: [usize; 2],
    width: usize,
    /// The row and the column of each cell.
    order: Vec<[usize; 2]>,
    /// Cells of each window.
    lengths: Vec<usize>,
}

impl Layout {
    /// The layout of a picture of so many rows and columns of pixels, with so many values.
    pub(super) fn new(cut: &'static Cut, [height, width]: [usize; 2], values: usize) -> Result<Layout> {
        let cell = cut.cell();
        let fits = height >= cell && width >= cell && height % cell == 0 && width % cell == 0;
        if !fits || values != height * width * 3 {
            return Err(Error::Input {
                what: "a picture among the words",
                expected: format!("of three channels and sides that are multiples of {cell}"),
                got: format!("{width}x{height} with {values} values"),
            });
        }
        let cells = [height / cell, width / cell];
        let window = cut.window.unwrap_or(cells[0].max(cells[1]));
        let (mut order, mut lengths) = (Vec::new(), Vec::new());
        for top in (0..cells[0]).step_by(window) {
            for left in (0..cells[1]).step_by(window) {
                let before = order.len();
                for row in top..(top + window).min(cells[0]) {
                    order.extend((left..(left + window).min(cells[1])).map(|column| [row, column]));
                }
                lengths.push(order.len() - before);
            }
        }
        Ok(Layout { cut, cells, width, order, lengths })
    }

    /// Patches.
    pub(super) fn count(&self) -> usize {
        4 * self.order.len()
    }

    /// Rows and columns of tokens.
    pub(super) fn grid(&self) -> [usize; 2] {
        self.cells
    }

    /// How many windows of how many patches follow each other.
    pub(super) fn windows(&self) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for length in self.lengths.iter().map(|cells| 4 * cells) {
            match runs.last_mut() {
                Some((count, of)) if *of == length => *count += 1,
                _ => runs.push((1, length)),
            }
        }
        runs
    }

    /// The row and the column of each patch.
    pub(super) fn places(&self) -> impl Iterator<Item = [usize; 2]> {
        let patches = [[0, 0], [0, 1], [1, 0], [1, 1]];
        self.order.iter().flat_map(move |[row, column]| patches.map(|[y, x]| [2 * row + y, 2 * column + x]))
    }

    /// The values of each patch: channel by channel, each frame by frame.
    pub(super) fn patches(&self, pixels: &[f32]) -> Vec<f32> {
        let Cut { patch, mean, spread, .. } = *self.cut;
        let mut values = Vec::with_capacity(self.count() * self.cut.values());
        for [row, column] in self.places() {
            for channel in 0..3 {
                for _frame in 0..2 {
                    for y in row * patch..(row + 1) * patch {
                        let start = (y * self.width + column * patch) * 3 + channel;
                        let line = pixels[start..].iter().step_by(3).take(patch);
                        values.extend(line.map(|value| (value - mean[channel]) / spread[channel]));
                    }
                }
            }
        }
        values
    }

    /// The cosines and sines of the angles that patches are turned by: half of them by the row, half by the column.
    pub(super) fn turns(&self, half: usize) -> [Vec<f32>; 2] {
        let quarter = half / 2;
        let speed = |i: usize| 1.0 / BASE.powf(i as f64 / quarter as f64) as f32;
        let speeds: Vec<f32> = (0..quarter).map(speed).collect();
        let angle = |place: usize| speeds.iter().map(move |speed| f64::from(place as f32 * speed));
        let angles: Vec<f64> =
            self.places().flat_map(|[row, column]| angle(row).chain(angle(column))).collect();
        let of = |f: fn(f64) -> f64| angles.iter().map(|angle| f(*angle) as f32).collect();
        [of(f64::cos), of(f64::sin)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Cut = Cut { patch: 14, window: Some(4), mean: [0.5; 3], spread: [0.5; 3] };
    const WHOLE: Cut = Cut { patch: 16, window: None, mean: [0.5; 3], spread: [0.5; 3] };

    #[test]
    fn sizes_are_multiples_within_limits() {
        assert_eq!(WINDOWS.fitting_size([1024, 1024]), [1036, 1036]);
        assert_eq!(WINDOWS.fitting_size([252, 196]), [252, 196]);
        assert_eq!(WINDOWS.fitting_size([20, 20]), [56, 56]);
        assert_eq!(WINDOWS.fitting_size([8000, 4000]), [5068, 2520]);
        // Half of a multiple is rounded to the even one.
        assert_eq!(WINDOWS.fitting_size([14 * 5, 140]), [56, 140]);
        assert_eq!(WHOLE.fitting_size([1000, 100]), [992, 96]);
    }

    #[test]
    fn windows_are_whole_but_for_the_last_of_a_row() {
        let cell = WINDOWS.cell();
        let layout = Layout::new(&WINDOWS, [5 * cell, 6 * cell], 5 * 6 * cell * cell * 3).unwrap();
        assert_eq!(layout.windows(), [(1, 64), (1, 32), (1, 16), (1, 8)]);
        assert_eq!(layout.order[16], [0, 4]);
        assert_eq!((layout.count(), layout.grid()), (120, [5, 6]));
        assert!(Layout::new(&WINDOWS, [30, 28], 30 * 28 * 3).is_err());
    }

    #[test]
    fn without_windows_rows_follow_each_other() {
        let layout = Layout::new(&WHOLE, [64, 96], 64 * 96 * 3).unwrap();
        assert_eq!((layout.windows(), layout.grid()), (vec![(1, 24)], [2, 3]));
        assert_eq!(layout.order, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
    }
}
