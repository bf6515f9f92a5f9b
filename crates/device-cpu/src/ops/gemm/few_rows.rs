//! Products with few rows (modulation vectors, embeddings): each weight is used a few times only, so it
//! is read once, in order, and multiplied without being packed.

use std::ops::Range;

use meta::Encoding;

use super::kernel::{DOT_LINES, Dots, Kernel, LANES};
use super::panels::Stored;
use super::{Epilogue, Target, for_each};

/// Up to this many rows, dot products are faster than packing.
pub(crate) const FEW_ROWS: usize = 8;
/// Values of each weight row that are unpacked at once; those of four rows fit the first-level cache.
const SEGMENT: usize = 1024;
/// Weight rows of one task.
const TASK_LINES: usize = 64;
/// Products below this many multiplications are not worth waking threads for.
const SERIAL_BELOW: usize = 1 << 17;

/// A few rows times a stored weight.
pub(crate) struct FewRows<'a> {
    /// The rows, from the first value on.
    pub(crate) values: &'a [f32],
    /// From one row to the next.
    pub(crate) stride: usize,
    /// How many, at most [`FEW_ROWS`].
    pub(crate) rows: usize,
    /// The weight, one row for each output column.
    pub(crate) weight: Stored<'a>,
    /// Rows of the weight.
    pub(crate) columns: usize,
    /// Values of each that count: all but what fills rows up.
    pub(crate) depth: usize,
    /// What is done to each sum.
    pub(crate) epilogue: Epilogue<'a>,
}

impl FewRows<'_> {
    /// Computes the product.
    pub(crate) fn run(&self, out: Target) {
        self.run_with(Kernel::best(), out);
    }

    /// Computes the product with one instruction set.
    pub(super) fn run_with(&self, kernel: &'static Kernel, out: Target) {
        let depth = self.depth;
        assert!(self.rows <= FEW_ROWS && (self.rows - 1) * self.stride + depth <= self.values.len());
        let parallel = self.rows * self.columns * depth >= SERIAL_BELOW;
        for_each(self.columns.div_ceil(TASK_LINES), parallel, |task| {
            let first = task * TASK_LINES;
            let lines = first..self.columns.min(first + TASK_LINES);
            let mut results = [[0.0; TASK_LINES]; FEW_ROWS];
            for start in lines.clone().step_by(DOT_LINES) {
                let four = start..lines.end.min(start + DOT_LINES);
                let sums = self.sums(kernel, &four);
                for (row, results) in results.iter_mut().enumerate().take(self.rows) {
                    for (i, line) in four.clone().enumerate() {
                        results[line - first] = total(&sums[row * DOT_LINES + i]);
                    }
                }
            }
            for (row, results) in results.iter_mut().enumerate().take(self.rows) {
                let results = &mut results[..lines.len()];
                self.epilogue.apply(row, first, results);
                // SAFETY: only this task writes these columns.
                let out = unsafe { std::slice::from_raw_parts_mut(out.at(0, row, first), lines.len()) };
                out.copy_from_slice(results);
            }
        });
    }

    /// Partial sums of all rows with up to four lines of the weight.
    fn sums(&self, kernel: &Kernel, lines: &Range<usize>) -> [[f32; LANES]; FEW_ROWS * DOT_LINES] {
        let mut sums = [[0.0; LANES]; FEW_ROWS * DOT_LINES];
        let whole = 0..self.depth;
        let mut part = Part { depth: whole.clone(), stride: whole.len(), lines: lines.len() };
        if let Some(values) = self.weight.as_values() {
            let values = &values[lines.start * whole.len()..lines.end * whole.len()];
            self.add(kernel, &mut sums, Weight::Values(values), &part);
            return sums;
        }
        if self.weight.encoding == Encoding::BF16 && kernel.takes_half(whole.len()) {
            let row = 2 * whole.len();
            let bytes = &self.weight.bytes[lines.start * row..lines.end * row];
            self.add(kernel, &mut sums, Weight::Halves(bytes), &part);
            return sums;
        }
        let mut unpacked = [0.0; DOT_LINES * SEGMENT];
        part.stride = SEGMENT;
        for start in whole.clone().step_by(SEGMENT) {
            part.depth = start..whole.end.min(start + SEGMENT);
            for (row, line) in unpacked.chunks_exact_mut(SEGMENT).zip(lines.clone()) {
                self.weight.unpack(line, &part.depth, row);
            }
            self.add(kernel, &mut sums, Weight::Values(&unpacked), &part);
        }
        sums
    }

    /// Adds the products of part of the depth.
    fn add(&self, kernel: &Kernel, sums: &mut [[f32; LANES]], weight: Weight<'_>, part: &Part) {
        for row in (0..self.rows).step_by(DOT_LINES) {
            let rows = (self.rows - row).min(DOT_LINES);
            let together = if part.lines == DOT_LINES { DOT_LINES } else { 1 };
            for line in (0..part.lines).step_by(together) {
                let mut partial = [[0.0; LANES]; DOT_LINES * DOT_LINES];
                for l in 0..rows {
                    for r in 0..together {
                        partial[l * together + r] = sums[(row + l) * DOT_LINES + line + r];
                    }
                }
                let (right, half) = weight.line(line * part.stride);
                let dots = Dots {
                    depth: part.depth.len(),
                    left: self.values[row * self.stride + part.depth.start..].as_ptr(),
                    left_stride: self.stride,
                    right,
                    half,
                    right_stride: part.stride,
                    sums: partial.as_mut_ptr().cast(),
                };
                // SAFETY: every row has the whole depth (checked at the start), every line of the weight
                // has this part of it, there are sums for all pairs, and halves come only where taken.
                unsafe { kernel.dots(rows, together, &dots) };
                for l in 0..rows {
                    for r in 0..together {
                        sums[(row + l) * DOT_LINES + line + r] = partial[l * together + r];
                    }
                }
            }
        }
    }
}

/// Part of the depth of a few lines of the weight.
struct Part {
    depth: Range<usize>,
    /// From one line to the next.
    stride: usize,
    /// How many.
    lines: usize,
}

/// Lines of the weight as dot products take them.
#[derive(Clone, Copy)]
enum Weight<'a> {
    /// f32.
    Values(&'a [f32]),
    /// Bytes of bf16.
    Halves(&'a [u8]),
}

impl Weight<'_> {
    /// The address of a value, and whether it is bf16.
    fn line(&self, value: usize) -> (*const f32, bool) {
        match self {
            Weight::Values(values) => (values[value..].as_ptr(), false),
            Weight::Halves(bytes) => (bytes[2 * value..].as_ptr().cast(), true),
        }
    }
}

/// The sum of partial sums, in one order.
fn total(lanes: &[f32; LANES]) -> f32 {
    let mut lanes = *lanes;
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}
