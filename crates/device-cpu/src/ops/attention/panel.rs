//! The arithmetic of one panel of queries against one tile of keys.
//!
//! Everything is stored with the queries side by side, so that each lane of a vector is a query of its
//! own: maxima, sums and rescaling go down the lanes and nothing is ever reduced across a vector. Both
//! products then are the same small kernel: broadcast numbers of the tile times vectors of the panel.

use super::vector::{Vector, exp2_nonpositive};

/// A panel's memory. `W` is its width, the number of queries side by side.
pub(super) struct Panel {
    /// `[size][W]`: queries times the scale of the scores, which are logarithms to base 2.
    pub(super) queries: *const f32,
    /// `[size rounded up][W]`: sums of values so far.
    pub(super) outputs: *mut f32,
    /// `[W]`: largest scores so far.
    pub(super) largest: *mut f32,
    /// `[W]`: sums of exponentials so far, relative to the largest.
    pub(super) sums: *mut f32,
    /// `[keys of a tile, rounded up][W]`: scores, then their exponentials.
    pub(super) scores: *mut f32,
}

/// A tile of keys and values.
pub(super) struct Tile {
    /// Groups of `ROWS` keys, each `[size][ROWS]`.
    pub(super) keys: *const f32,
    /// Groups of `ROWS` numbers of all values, each `[values_pitch][ROWS]`.
    pub(super) values: *const f32,
    /// Numbers per key and per value.
    pub(super) size: usize,
    /// Keys from one group of values to the next.
    pub(super) values_pitch: usize,
}

/// `ROWS` broadcast numbers times `WIDTH` vectors, summed over `count` steps. The numbers of the steps follow
/// each other, and so do the vectors.
///
/// # Safety
/// All that is readable, and the processor has the vector's instruction set.
#[inline(always)]
unsafe fn product<V: Vector, const ROWS: usize, const WIDTH: usize>(
    count: usize,
    numbers: *const f32,
    vectors: *const f32,
) -> [[V; WIDTH]; ROWS] {
    // SAFETY: the caller vouches for it.
    unsafe {
        let mut sums = [[V::splat(0.0); WIDTH]; ROWS];
        for i in 0..count {
            let mut step = [V::splat(0.0); WIDTH];
            for (v, vector) in step.iter_mut().enumerate() {
                *vector = V::load(vectors.add((i * WIDTH + v) * V::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let number = V::splat(*numbers.add(i * ROWS + r));
                for (sum, vector) in sums.iter_mut().zip(step) {
                    *sum = number.mul_add(vector, *sum);
                }
            }
        }
        sums
    }
}

/// Writes the scores of `count` keys of the tile, in whole `ROWS`.
///
/// # Safety
/// The memory of panel and tile is as described at their fields for `ROWS` and a panel `WIDTH` vectors
/// wide, and the processor has the vector's instruction set.
#[inline(always)]
pub(super) unsafe fn score<V: Vector, const ROWS: usize, const WIDTH: usize>(
    panel: &Panel,
    tile: &Tile,
    count: usize,
) {
    for group in 0..count.div_ceil(ROWS) {
        // SAFETY: the caller vouches for the memory; the last group is padded.
        unsafe {
            let keys = tile.keys.add(group * ROWS * tile.size);
            let rows = product::<V, ROWS, WIDTH>(tile.size, keys, panel.queries);
            for (r, row) in rows.into_iter().enumerate() {
                for (v, scores) in row.into_iter().enumerate() {
                    scores.store(panel.scores.add(((group * ROWS + r) * WIDTH + v) * V::LANES));
                }
            }
        }
    }
}

/// Turns the scores of `count` keys into exponentials relative to the new largest score, updates largest
/// and sums, and returns what earlier sums must be multiplied with.
///
/// # Safety
/// As for [`score`].
#[inline(always)]
pub(super) unsafe fn exponentiate<V: Vector, const WIDTH: usize>(panel: &Panel, count: usize) -> [V; WIDTH] {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        let nothing = V::splat(f32::NEG_INFINITY);
        let mut before = [nothing; WIDTH];
        for (v, before) in before.iter_mut().enumerate() {
            *before = V::load(panel.largest.add(v * V::LANES));
        }
        let mut largest = before;
        for i in 0..count {
            for (v, largest) in largest.iter_mut().enumerate() {
                *largest = largest.max(V::load(panel.scores.add((i * WIDTH + v) * V::LANES)));
            }
        }
        // A query that has seen nothing yet has no largest score to be relative to; any number will do.
        let mut factors = before;
        let mut anchors = largest;
        for v in 0..WIDTH {
            largest[v].store(panel.largest.add(v * V::LANES));
            anchors[v] = largest[v].replace(nothing, V::splat(0.0));
            factors[v] = exp2_nonpositive(before[v].sub(anchors[v]));
        }
        let mut sums = [V::splat(0.0); WIDTH];
        for i in 0..count {
            for v in 0..WIDTH {
                let at = panel.scores.add((i * WIDTH + v) * V::LANES);
                let exponential = exp2_nonpositive(V::load(at).sub(anchors[v]));
                exponential.store(at);
                sums[v] = sums[v].add(exponential);
            }
        }
        for v in 0..WIDTH {
            let at = panel.sums.add(v * V::LANES);
            V::load(at).mul_add(factors[v], sums[v]).store(at);
        }
        factors
    }
}

/// Adds the values of `count` keys, weighted by the exponentials, to the outputs so far times `factors`.
///
/// # Safety
/// As for [`score`].
#[inline(always)]
pub(super) unsafe fn accumulate<V: Vector, const ROWS: usize, const WIDTH: usize>(
    panel: &Panel,
    tile: &Tile,
    count: usize,
    factors: [V; WIDTH],
) {
    for group in 0..tile.size.div_ceil(ROWS) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            let values = tile.values.add(group * ROWS * tile.values_pitch);
            let rows = product::<V, ROWS, WIDTH>(count, values, panel.scores);
            for (r, row) in rows.into_iter().enumerate() {
                for (v, sum) in row.into_iter().enumerate() {
                    let at = panel.outputs.add(((group * ROWS + r) * WIDTH + v) * V::LANES);
                    V::load(at).mul_add(factors[v], sum).store(at);
                }
            }
        }
    }
}
