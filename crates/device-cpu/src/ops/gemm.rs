//! Matrix products: one blocked, packed loop over small register tiles, fed by whatever can fill a panel.
//!
//! The depth is cut into blocks by its length alone, and every output value is the sum of its blocks in
//! order, each summed in order, so a value depends neither on the number of threads nor on how many
//! other rows and columns there are. The left side is packed once and shared; each piece of work then
//! packs its own part of the right side, which stays in the second-level cache while all rows pass by.

mod few_rows;
mod kernel;
mod packed;
mod panels;
mod scratch;
#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;

use device::op::Activation;
use rayon::prelude::*;

use crate::ops::elementwise::activate;
use crate::stop::Tasks;

pub(crate) use few_rows::{FEW_ROWS, FewRows};
pub(crate) use kernel::Kernel;
pub(crate) use packed::Packed;
pub(crate) use panels::{Panel, Panels, Stored, Strided};

pub(crate) use scratch::{MOST_VALUES, Scratch};

use kernel::Tile;

/// The longest block of the depth, in values: a left panel then fits the first-level cache.
const DEPTH_BLOCK: usize = 384;
/// The same for sources that are unpacked in blocks of many values.
const DEPTH_BLOCK_COARSE: usize = 256;
/// Rows packed at once.
const ROWS_AT_ONCE: usize = 4096;
/// The most values of the left side that are packed at once.
const LEFT_LIMIT: usize = 2 << 20;
/// The largest piece of work, in rows and columns.
const PIECE_ROWS: usize = 1024;
const PIECE_COLUMNS: usize = 256;
/// Pieces are made smaller until there are this many, if there can be.
const PIECES_WANTED: usize = 16;
/// Products below this many multiplications are not worth waking threads for.
const SERIAL_BELOW: usize = 1 << 19;

/// The widest instruction set that the kernels use here.
pub(crate) fn instruction_set() -> &'static str {
    Kernel::best().name
}

/// What is done to a value once it is summed: `activation(sum · scale + bias)`.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue<'a> {
    /// Factor of the sum.
    pub(crate) scale: f32,
    /// Added after scaling.
    pub(crate) bias: Bias<'a>,
    /// Applied last.
    pub(crate) activation: Option<Activation>,
}

/// What is added to the product.
#[derive(Clone, Copy)]
pub(crate) enum Bias<'a> {
    /// Nothing.
    None,
    /// One value for each row.
    Rows(&'a [f32]),
    /// One value for each column.
    Columns(&'a [f32]),
}

impl Epilogue<'_> {
    /// The plain product.
    pub(crate) const NONE: Epilogue<'static> = Epilogue { scale: 1.0, bias: Bias::None, activation: None };

    /// Finishes part of a row.
    fn apply(&self, row: usize, first_column: usize, values: &mut [f32]) {
        let scale = self.scale;
        match self.bias {
            Bias::None if scale == 1.0 => {}
            Bias::None => values.iter_mut().for_each(|v| *v *= scale),
            Bias::Rows(bias) => {
                let bias = bias[row];
                values.iter_mut().for_each(|v| *v = *v * scale + bias);
            }
            Bias::Columns(bias) => {
                values.iter_mut().zip(&bias[first_column..]).for_each(|(v, bias)| *v = *v * scale + bias);
            }
        }
        if let Some(activation) = self.activation {
            activate(activation, values);
        }
    }
}

/// Where a product goes: rows of packed values, in one or more images side by side.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    start: *mut f32,
    stride: usize,
    image_stride: usize,
}

// SAFETY: a target is an address; every piece of work writes its own rows and columns.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// A target whose first value is at `start`.
    ///
    /// # Safety
    /// While it is in use, the values that the product has (`image_stride` values from image to image,
    /// `stride` from row to row) may be written, and nobody else touches them.
    pub(crate) unsafe fn new(start: *mut f32, stride: usize, image_stride: usize) -> Target {
        Target { start, stride, image_stride }
    }

    /// The address of a value.
    pub(crate) fn at(&self, image: usize, row: usize, column: usize) -> *mut f32 {
        self.start.wrapping_add(image * self.image_stride + row * self.stride + column)
    }
}

/// A product of two sides, each of which fills panels.
pub(crate) struct Product<'a> {
    /// Lines of the left side.
    pub(crate) rows: usize,
    /// Matrices on the right that share the left side.
    pub(crate) images: usize,
    /// Lines of the right side in each image.
    pub(crate) columns: usize,
    /// Values summed.
    pub(crate) depth: usize,
    /// The left side.
    pub(crate) left: &'a dyn Panels,
    /// The right side; line `image * columns + column`.
    pub(crate) right: &'a dyn Panels,
    /// What is done to each sum.
    pub(crate) epilogue: Epilogue<'a>,
}

impl Product<'_> {
    /// Computes the product.
    pub(crate) fn run(&self, out: Target) {
        self.run_with(Kernel::best(), out);
    }

    /// Computes the product with one instruction set.
    fn run_with(&self, kernel: &'static Kernel, out: Target) {
        if self.depth == 0 {
            return self.run_empty(out);
        }
        let block = depth_block(self.depth, self.left.grain().max(self.right.grain()));
        for first in (0..self.rows).step_by(ROWS_AT_ONCE) {
            let rows = first..self.rows.min(first + ROWS_AT_ONCE);
            let group = (LEFT_LIMIT / (rows.len() * block)).max(1) * block;
            for start in (0..self.depth).step_by(group) {
                let depth = start..self.depth.min(start + group);
                Round { product: self, kernel, rows: rows.clone(), depth, block, out }.run();
            }
        }
    }

    /// A sum of nothing.
    fn run_empty(&self, out: Target) {
        for image in 0..self.images {
            for row in 0..self.rows {
                // SAFETY: a row of the target is writable, and this thread is the only one here.
                let values = unsafe { std::slice::from_raw_parts_mut(out.at(image, row, 0), self.columns) };
                values.fill(0.0);
                self.epilogue.apply(row, 0, values);
            }
        }
    }
}

/// How long the blocks of a depth are: about equal, and whole units of what is unpacked at once.
fn depth_block(depth: usize, grain: usize) -> usize {
    if grain > DEPTH_BLOCK / 4 {
        return DEPTH_BLOCK_COARSE.next_multiple_of(grain);
    }
    let blocks = depth.div_ceil(DEPTH_BLOCK);
    depth.div_ceil(blocks).next_multiple_of(grain.max(8))
}

/// Part of a product: rows and a run of depth blocks whose left side is packed at once.
struct Round<'a> {
    product: &'a Product<'a>,
    kernel: &'static Kernel,
    rows: Range<usize>,
    depth: Range<usize>,
    block: usize,
    out: Target,
}

/// Memory that tasks write at places of their own.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: every task writes its own panels, and reads only after all are written.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

impl Round<'_> {
    fn run(&self) {
        let work = self.rows.len() * self.depth.len() * self.product.columns * self.product.images;
        let parallel = work >= SERIAL_BELOW;
        let mut left = Scratch::take_left(self.rows.len() * self.depth.len());
        let shared = Shared(left.values().as_mut_ptr());
        let panels = self.rows.len().div_ceil(self.kernel.rows);
        // All blocks of a panel at once: its rows are then read from one end to the other.
        for_each(panels, parallel, |panel| {
            (0..self.blocks()).for_each(|block| self.pack_left(shared, &self.block_at(block), panel));
        });
        let (tall, wide) = self.piece();
        let down = self.rows.len().div_ceil(tall);
        let across = self.product.columns.div_ceil(wide);
        // Pieces that share columns are next to each other: their right side is fresh in the cache.
        for_each(down * across * self.product.images, parallel, |task| {
            let (image, task) = (task / (down * across), task % (down * across));
            let (column, row) = (task / down * wide, self.rows.start + task % down * tall);
            let piece = Piece {
                image,
                rows: row..self.rows.end.min(row + tall),
                columns: column..self.product.columns.min(column + wide),
            };
            self.compute(shared, &piece);
        });
        left.give_left();
    }

    /// Number of depth blocks.
    fn blocks(&self) -> usize {
        self.depth.len().div_ceil(self.block)
    }

    fn block_at(&self, index: usize) -> Range<usize> {
        let start = self.depth.start + index * self.block;
        start..self.depth.end.min(start + self.block)
    }

    /// Rows of a panel of the left side.
    fn panel_rows(&self, panel: usize) -> Range<usize> {
        let start = self.rows.start + panel * self.kernel.rows;
        start..self.rows.end.min(start + self.kernel.rows)
    }

    /// Where a panel of the left side is: blocks one after the other, in each the panels in order.
    fn left_offset(&self, block: &Range<usize>, row: usize) -> usize {
        self.rows.len() * (block.start - self.depth.start) + (row - self.rows.start) * block.len()
    }

    fn pack_left(&self, shared: Shared, block: &Range<usize>, panel: usize) {
        let rows = self.panel_rows(panel);
        let start = shared.at(self.left_offset(block, rows.start));
        // SAFETY: the panel lies inside the scratch memory, and only this task writes it.
        let values = unsafe { std::slice::from_raw_parts_mut(start, rows.len() * block.len()) };
        let mut panel = Panel { values, width: rows.len(), kernel: self.kernel };
        self.product.left.fill(&mut panel, rows, block.clone());
    }

    /// Rows and columns of a piece of work, from the sizes alone.
    fn piece(&self) -> (usize, usize) {
        let (rows, columns) = (self.rows.len(), self.product.columns);
        let (mut tall, mut wide) = (PIECE_ROWS.min(rows), PIECE_COLUMNS.min(columns));
        let pieces =
            |tall: usize, wide: usize| rows.div_ceil(tall) * columns.div_ceil(wide) * self.product.images;
        // Narrow pieces first: the right side is packed again for each piece that shares its columns.
        for (least_tall, least_wide) in [(PIECE_ROWS, 128), (256, 128), (256, 64), (96, 64)] {
            while pieces(tall, wide) < PIECES_WANTED && wide >= 2 * least_wide {
                wide = wide.div_ceil(2);
            }
            while pieces(tall, wide) < PIECES_WANTED && tall >= 2 * least_tall {
                tall = tall.div_ceil(2);
            }
        }
        // Even pieces of whole tiles.
        let tall = rows.div_ceil(rows.div_ceil(tall)).next_multiple_of(self.kernel.rows);
        let wide = columns.div_ceil(columns.div_ceil(wide)).next_multiple_of(self.kernel.columns);
        (tall, wide)
    }

    /// All depth blocks of one piece of the output.
    fn compute(&self, left: Shared, piece: &Piece) {
        let width = piece.columns.len().next_multiple_of(self.kernel.lanes);
        let mut scratch = Scratch::take_right(width * self.block);
        for index in 0..self.blocks() {
            let block = self.block_at(index);
            let right = &mut scratch.values()[..width * block.len()];
            self.pack_right(right, piece, &block);
            for row in piece.rows.clone().step_by(self.kernel.rows) {
                let rows = row..piece.rows.end.min(row + self.kernel.rows);
                let panel = left.at(self.left_offset(&block, row));
                self.compute_rows(panel, right, piece, &rows, &block);
                if block.end == self.product.depth {
                    self.finish(piece, rows);
                }
            }
        }
        scratch.give_right();
    }

    fn pack_right(&self, right: &mut [f32], piece: &Piece, block: &Range<usize>) {
        let mut rest = right;
        for column in piece.columns.clone().step_by(self.kernel.columns) {
            let columns = column..piece.columns.end.min(column + self.kernel.columns);
            let width = columns.len().next_multiple_of(self.kernel.lanes);
            let (values, after) = rest.split_at_mut(width * block.len());
            rest = after;
            let first = piece.image * self.product.columns;
            let mut panel = Panel { values, width, kernel: self.kernel };
            let lines = first + columns.start..first + columns.end;
            self.product.right.fill(&mut panel, lines, block.clone());
        }
    }

    /// One left panel against all right panels of a piece.
    fn compute_rows(
        &self,
        left: *const f32,
        right: &[f32],
        piece: &Piece,
        rows: &Range<usize>,
        block: &Range<usize>,
    ) {
        let mut rest = right;
        // The next left panel comes from the shared cache while this one is used.
        let tiles = piece.columns.len().div_ceil(self.kernel.columns);
        let share = (self.kernel.rows * block.len()).div_ceil(tiles);
        let mut next = left.wrapping_add(rows.len() * block.len());
        for column in piece.columns.clone().step_by(self.kernel.columns) {
            let columns = (piece.columns.end - column).min(self.kernel.columns);
            let width = columns.next_multiple_of(self.kernel.lanes);
            let (panel, after) = rest.split_at(width * block.len());
            rest = after;
            let tile = Tile {
                depth: block.len(),
                left,
                right: panel.as_ptr(),
                out: self.out.at(piece.image, rows.start, column),
                stride: self.out.stride,
                columns,
                add: block.start > 0,
                next,
                share,
            };
            next = next.wrapping_add(share);
            // SAFETY: both panels were packed with these sizes, and only this piece writes these rows
            // and columns of the target.
            unsafe { self.kernel.tile(rows.len(), width, &tile) };
        }
    }

    /// Scale, bias and activation of finished rows, while they are in the first-level cache.
    fn finish(&self, piece: &Piece, rows: Range<usize>) {
        for row in rows {
            let start = self.out.at(piece.image, row, piece.columns.start);
            // SAFETY: only this piece touches these values.
            let values = unsafe { std::slice::from_raw_parts_mut(start, piece.columns.len()) };
            self.product.epilogue.apply(row, piece.columns.start, values);
        }
    }
}

/// A rectangle of the output.
struct Piece {
    image: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Runs tasks, in other threads if that pays, until the job is cancelled. Each task does the same wherever it runs.
pub(crate) fn for_each(tasks: usize, parallel: bool, run: impl Fn(usize) + Sync + Send) {
    let job = Tasks::of_this_job();
    if parallel && tasks > 1 {
        (0..tasks).into_par_iter().with_max_len(1).for_each(|task| job.run(|| run(task)));
    } else {
        (0..tasks).take_while(|_| !job.is_cancelled()).for_each(run);
    }
}
