//! Turning rows into columns, eight by eight where the processor can.

use super::vector::Vector;

/// Where turned rows go: number `i` of row `r` to `start + i · pitch + r`.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) start: *mut f32,
    pub(super) pitch: usize,
}

/// Turns `count` rows, with number `i` of each multiplied by `factors[i]`; rows are as long as `factors`.
///
/// # Safety
/// The rows are readable, all places they go to are writable and overlap nothing else, and the processor
/// has the vector's instruction set.
#[inline(always)]
pub(super) unsafe fn turn<V: Vector>(
    row: impl Fn(usize) -> *const f32,
    count: usize,
    factors: &[f32],
    target: Columns,
) {
    let (whole_rows, whole_columns) = (count / 8 * 8, factors.len() / 8 * 8);
    for r in (0..whole_rows).step_by(8) {
        let rows =
            [row(r), row(r + 1), row(r + 2), row(r + 3), row(r + 4), row(r + 5), row(r + 6), row(r + 7)];
        for i in (0..whole_columns).step_by(8) {
            // SAFETY: the block lies inside what the caller vouches for.
            unsafe {
                let rows = rows.map(|row| row.add(i));
                let start = target.start.add(i * target.pitch + r);
                V::turn_block(rows, factors.as_ptr().add(i), Columns { start, ..target });
            }
        }
    }
    for r in 0..count {
        let first = if r < whole_rows { whole_columns } else { 0 };
        for (i, factor) in factors.iter().enumerate().skip(first) {
            // SAFETY: as above.
            unsafe { *target.start.add(i * target.pitch + r) = *row(r).add(i) * factor };
        }
    }
}
