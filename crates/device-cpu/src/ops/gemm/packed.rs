//! A product of two sides that are packed already.

use super::DEPTH_BLOCK;
use super::kernel::{Kernel, Tile};

/// Two packed sides. The left one has panels of [`Kernel::rows`] rows (the last may have fewer), each
/// `[depth][rows]`; the right one whole panels of [`Kernel::columns`] columns, each `[depth][columns]`.
pub(crate) struct Packed<'a> {
    /// Whose panels they are.
    pub(crate) kernel: &'static Kernel,
    /// Rows of the left side.
    pub(crate) rows: usize,
    /// Columns of the right side, whole panels.
    pub(crate) columns: usize,
    /// Values summed.
    pub(crate) depth: usize,
    /// The left panels, one after the other.
    pub(crate) left: &'a [f32],
    /// The right panels, one after the other.
    pub(crate) right: &'a [f32],
}

impl Packed<'_> {
    /// Writes the product, its rows one after the other.
    pub(crate) fn run(&self, out: &mut [f32]) {
        let Packed { kernel, rows, columns, depth, left, right } = *self;
        assert!(columns.is_multiple_of(kernel.columns), "{columns} columns are no whole panels");
        assert!(left.len() >= rows * depth && right.len() >= columns * depth && out.len() >= rows * columns);
        if depth == 0 {
            out[..rows * columns].fill(0.0);
        }
        let tiles = columns / kernel.columns;
        // The left panel stays in the first-level cache while it meets all columns.
        let block = depth.div_ceil(depth.div_ceil(DEPTH_BLOCK).max(1)).max(1);
        for start in (0..depth).step_by(block) {
            let len = block.min(depth - start);
            for row in (0..rows).step_by(kernel.rows) {
                let height = kernel.rows.min(rows - row);
                let from = left.as_ptr().wrapping_add(row * depth + start * height);
                // What this thread needs next comes meanwhile: the same depths of the next rows.
                let mut next = from.wrapping_add(height * depth);
                let share = (height * len).div_ceil(tiles);
                for column in (0..columns).step_by(kernel.columns) {
                    let tile = Tile {
                        depth: len,
                        left: from,
                        right: right.as_ptr().wrapping_add(column * depth + start * kernel.columns),
                        out: out.as_mut_ptr().wrapping_add(row * columns + column),
                        stride: columns,
                        columns: kernel.columns,
                        add: start > 0,
                        next,
                        share,
                    };
                    next = next.wrapping_add(share);
                    // SAFETY: the assertions hold both panels and the tile inside their slices.
                    unsafe { kernel.tile(height, kernel.columns, &tile) };
                }
            }
        }
    }
}
