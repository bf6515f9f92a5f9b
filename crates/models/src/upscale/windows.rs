//! Attention within the windows of a picture, which may be shifted: then those at the far borders hold what is at both ends,
//! and what comes from one does not see the other.
//!
//! Windows that have the same mask are put side by side, so that each of the at most four kinds is one call of attention. Where
//! a window wraps around the border, it is put together of its parts; nothing is rolled.

use tensor::{Lane, Mask, Tensor, Weight};

use crate::Result;

/// What is added to scores between what does not see each other.
const UNSEEN: f32 = -100.0;

/// How a picture is cut into windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    /// Rows and columns of a window.
    pub(super) window: [usize; 2],
    /// How far the first window is from the corner.
    pub(super) shift: [usize; 2],
}

/// Windows along one axis that are cut alike.
#[derive(Clone, Debug)]
struct Run {
    count: usize,
    parts: Vec<Part>,
    /// Where two ends of the picture meet within a window, if they do.
    seam: Option<usize>,
}

/// What windows of a run take from the picture: from `from` on, `length` values, that stand at `at` in the window.
#[derive(Clone, Debug)]
struct Part {
    from: usize,
    at: usize,
    length: usize,
}

impl Partition {
    /// The windows of a picture `[rows, columns, width]`, whose sides are multiples of theirs, as `[windows, places, width]`.
    pub(super) fn gather(self, picture: &Tensor) -> Result<Tensor> {
        let places = self.window[0] * self.window[1];
        let count = picture.dim(0) * picture.dim(1) / places;
        let windows = picture.lane().empty([count, places, picture.dim(2)])?;
        self.each_part(picture, &windows, |picture, window| Ok(picture.copy_into(&window)?))?;
        Ok(windows)
    }

    /// The picture of so many rows and columns that windows are of.
    pub(super) fn scatter(self, windows: &Tensor, [rows, columns]: [usize; 2]) -> Result<Tensor> {
        let picture = windows.lane().empty([rows, columns, windows.dim(2)])?;
        self.each_part(&picture, windows, |picture, window| Ok(window.copy_into(&picture)?))?;
        Ok(picture)
    }

    /// Attention within windows of a picture of this size: queries, keys and values are `[windows, places, heads, size]`, and
    /// the bias `[1, heads, places, places]`.
    pub(super) fn attend(self, [q, k, v]: [&Tensor; 3], bias: &Tensor, size: [usize; 2]) -> Result<Tensor> {
        let lane = q.lane();
        let seen = lane.empty(*q.shape())?;
        let scale = 1.0 / (q.dim(3) as f32).sqrt();
        let mut start = 0;
        for (down, right) in self.runs(size) {
            let count = down.count * right.count;
            let mask = match self.seams(lane, down.seam, right.seam)? {
                Some(unseen) => Mask::Additive(bias.add(&unseen)?),
                None => Mask::Additive(bias.clone()),
            };
            let of = |x: &Tensor| x.slice(0, start, count);
            of(q)?.attention_into(&of(k)?, &of(v)?, &mask, scale, &of(&seen)?)?;
            start += count;
        }
        Ok(seen)
    }

    /// What is added to the scores of pairs with a seam between them; nothing if there is none.
    fn seams(self, lane: &Lane, down: Option<usize>, right: Option<usize>) -> Result<Option<Tensor>> {
        if down.is_none() && right.is_none() {
            return Ok(None);
        }
        let (wide, places) = (self.window[1], self.window[0] * self.window[1]);
        let side = |at: usize, seam: Option<usize>| seam.is_some_and(|seam| at >= seam);
        let sides = |place: usize| (side(place / wide, down), side(place % wide, right));
        let score = |at: usize| if sides(at / places) == sides(at % places) { 0.0 } else { UNSEEN };
        let scores: Vec<f32> = (0..places * places).map(score).collect();
        Ok(Some(lane.tensor([1, 1, places, places], &scores)?))
    }

    /// Calls `copy` with every part of the picture and the same part of its windows.
    fn each_part(
        self,
        picture: &Tensor,
        windows: &Tensor,
        copy: impl Fn(Tensor, Tensor) -> Result<()>,
    ) -> Result<()> {
        let ([high, wide], width) = (self.window, picture.dim(2));
        let mut start = 0;
        for (down, right) in self.runs([picture.dim(0), picture.dim(1)]) {
            let count = down.count * right.count;
            let of_run = windows.slice(0, start, count)?;
            let of_run = of_run.reshape([down.count, right.count, high, wide, width])?;
            for y in &down.parts {
                for x in &right.parts {
                    let part = picture.slice(0, y.from, down.count * y.length)?;
                    let part = part.slice(1, x.from, right.count * x.length)?;
                    let part = part.reshape([down.count, y.length, right.count, x.length, width])?;
                    let window = of_run.slice(2, y.at, y.length)?.slice(3, x.at, x.length)?;
                    copy(part.permute(&[0, 2, 1, 3, 4])?, window)?;
                }
            }
            start += count;
        }
        Ok(())
    }

    /// The kinds of windows: runs of rows with runs of columns.
    fn runs(self, [rows, columns]: [usize; 2]) -> Vec<(Run, Run)> {
        let across = self.along(1, columns);
        let with_all = |down: Run| across.iter().map(move |right| (down.clone(), right.clone()));
        self.along(0, rows).into_iter().flat_map(with_all).collect()
    }

    /// The runs along an axis of this length.
    fn along(self, axis: usize, length: usize) -> Vec<Run> {
        let (window, shift) = (self.window[axis], self.shift[axis]);
        let count = length / window;
        if shift == 0 {
            return vec![Run { count, parts: vec![Part { from: 0, at: 0, length: window }], seam: None }];
        }
        let seam = window - shift;
        let inner =
            Run { count: count - 1, parts: vec![Part { from: shift, at: 0, length: window }], seam: None };
        let ends = vec![
            Part { from: length - seam, at: 0, length: seam },
            Part { from: 0, at: seam, length: shift },
        ];
        let runs = [inner, Run { count: 1, parts: ends, seam: Some(seam) }];
        runs.into_iter().filter(|run| run.count > 0).collect()
    }
}

/// Which row of a table of distances each pair of places in a window has.
pub(super) struct Places {
    count: usize,
    rows: Tensor,
}

impl Places {
    pub(super) fn new(lane: &Lane, [high, wide]: [usize; 2]) -> Result<Places> {
        let count = high * wide;
        let row = |at: usize| {
            let (a, b) = (at / count, at % count);
            let down = a / wide + high - 1 - b / wide;
            let right = a % wide + wide - 1 - b % wide;
            // A window has few places: its pairs can be counted in 32 bits.
            (down * (2 * wide - 1) + right) as i32
        };
        let rows: Vec<i32> = (0..count * count).map(row).collect();
        Ok(Places { count, rows: lane.ids([count * count], &rows)? })
    }

    /// What is added to the scores of every pair of places, `[1, heads, places, places]`, by a table `[distances, heads]`.
    pub(super) fn bias(&self, lane: &Lane, table: &Weight) -> Result<Tensor> {
        let bias = lane.embedding(table, &self.rows)?;
        let heads = bias.dim(1);
        let bias = bias.reshape([self.count, self.count, heads])?.permute(&[2, 0, 1])?.contiguous()?;
        Ok(bias.reshape([1, heads, self.count, self.count])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which row of the picture stands at each place of the windows along an axis.
    fn rows(partition: Partition, length: usize) -> Vec<usize> {
        let mut rows = Vec::new();
        for run in partition.along(0, length) {
            for window in 0..run.count {
                for part in &run.parts {
                    rows.extend((0..part.length).map(|i| part.from + window * part.length + i));
                }
            }
        }
        rows
    }

    #[test]
    fn windows_have_every_place_once_and_wrap_around() {
        assert_eq!(rows(Partition { window: [4, 1], shift: [0, 0] }, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(rows(Partition { window: [4, 1], shift: [2, 0] }, 8), [2, 3, 4, 5, 6, 7, 0, 1]);
        assert_eq!(rows(Partition { window: [4, 1], shift: [1, 0] }, 4), [1, 2, 3, 0]);
        assert_eq!(rows(Partition { window: [7, 1], shift: [3, 0] }, 21).len(), 21);
    }
}
