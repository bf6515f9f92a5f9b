//! The walk of elementwise operations: whatever the strides are, formulas see packed blocks.
//!
//! A packed operand is used where it lies. One that repeats a value, is strided, or is written over by
//! the output goes through a small block that stays in the nearest cache.

use std::ops::Range;

use device::{Operand, Result};

use super::traversal::{TASK, Traversal, check_distinct, in_tasks};
use crate::access::Access;
use crate::ops::vector_math::{Arithmetic, Kernel, dispatch};

/// Values of a block that an operand is copied through.
const BLOCK: usize = 512;

/// What is computed of `N` values.
pub(super) trait Formula<const N: usize>: Copy + Sync {
    /// Computes a block; all slices have the length of `out`. Must be `#[inline(always)]`.
    fn block<A: Arithmetic>(self, inputs: [&[f32]; N], out: &mut [f32]);
}

/// Computes the output of a formula; inputs repeat to its shape.
pub(super) fn run<const N: usize>(
    op: &'static str,
    formula: impl Formula<N>,
    inputs: [&Operand; N],
    out: &Operand,
    access: &Access<'_>,
) -> Result<()> {
    check_distinct(op, out)?;
    let mut sources = [Source { start: std::ptr::null(), over_output: false }; N];
    let mut repeated = Vec::with_capacity(N);
    for (source, input) in sources.iter_mut().zip(inputs) {
        *source = Source { start: access.pointer(input)?, over_output: input.overlaps(out) };
        repeated.push(input.broadcast(*out.shape())?);
    }
    let strides: Vec<&[usize]> =
        std::iter::once(out.strides()).chain(repeated.iter().map(Operand::strides)).collect();
    let traversal = Traversal::new(out.dims(), &strides);
    let (rows, row_len) = (traversal.rows(), traversal.row_len());
    let pieces_per_row = row_len.div_ceil(TASK);
    let walk = &Walk { formula, sources, target: access.pointer(out)?, traversal, pieces_per_row };
    in_tasks(rows * pieces_per_row, row_len.min(TASK), |pieces| dispatch(Pieces { walk, pieces }));
    Ok(())
}

/// An input.
#[derive(Clone, Copy)]
struct Source {
    start: *const f32,
    /// The output is written over this input, value by value.
    over_output: bool,
}

/// One elementwise call.
struct Walk<F, const N: usize> {
    formula: F,
    sources: [Source; N],
    target: *mut f32,
    /// The output is its first operand, input `k` its operand `k + 1`.
    traversal: Traversal,
    pieces_per_row: usize,
}

// SAFETY: threads write distinct pieces of the output (no dimension of it repeats), and read inputs that
// are only written where they are the output, at the very place that the same thread computes.
unsafe impl<F: Sync, const N: usize> Sync for Walk<F, N> {}

/// Some pieces of rows.
struct Pieces<'a, F, const N: usize> {
    walk: &'a Walk<F, N>,
    pieces: Range<usize>,
}

impl<F: Formula<N>, const N: usize> Kernel for Pieces<'_, F, N> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        let mut buffers = [[0.0; BLOCK]; N];
        let mut result = [0.0; BLOCK];
        for piece in self.pieces {
            self.walk.piece::<A>(piece, &mut buffers, &mut result);
        }
    }
}

impl<F: Formula<N>, const N: usize> Walk<F, N> {
    #[inline(always)]
    fn piece<A: Arithmetic>(&self, piece: usize, buffers: &mut [[f32; BLOCK]; N], result: &mut [f32; BLOCK]) {
        let t = &self.traversal;
        let (row, first) = (piece / self.pieces_per_row, piece % self.pieces_per_row * TASK);
        let len = (t.row_len() - first).min(TASK);
        let step = t.row_stride(0);
        // SAFETY: the traversal stays inside the operands, which lie inside their buffers.
        let target = unsafe { self.target.add(t.row_start(0, row) + first * step) };
        let mut starts = [std::ptr::null(); N];
        let mut packed = [true; N];
        for k in 0..N {
            let stride = t.row_stride(k + 1);
            // SAFETY: as above.
            starts[k] = unsafe { self.sources[k].start.add(t.row_start(k + 1, row) + first * stride) };
            packed[k] = stride == 1 && !self.sources[k].over_output;
            if stride == 0 {
                // SAFETY: as above; an input that repeats is not the output, so it is not written.
                buffers[k].fill(unsafe { *starts[k] });
            }
        }
        let whole = step == 1 && packed == [true; N];
        let block = if whole { len } else { BLOCK };
        let mut at = 0;
        while at < len {
            let n = block.min(len - at);
            let inputs = self.gather(&starts, &packed, at..at + n, buffers);
            if step == 1 {
                // SAFETY: inside the output; this thread alone writes it, and no slice in `inputs` is of
                // an operand that overlaps the output.
                let out = unsafe { std::slice::from_raw_parts_mut(target.add(at), n) };
                self.formula.block::<A>(inputs, out);
            } else {
                self.formula.block::<A>(inputs, &mut result[..n]);
                for (i, v) in result[..n].iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { *target.add((at + i) * step) = *v };
                }
            }
            at += n;
        }
    }

    /// The inputs of a block: where they lie, or in `buffers`.
    #[inline(always)]
    fn gather<'a>(
        &self,
        starts: &[*const f32; N],
        packed: &[bool; N],
        range: Range<usize>,
        buffers: &'a mut [[f32; BLOCK]; N],
    ) -> [&'a [f32]; N] {
        let (at, n) = (range.start, range.len());
        for k in 0..N {
            let stride = self.traversal.row_stride(k + 1);
            if packed[k] || stride == 0 {
                continue;
            }
            let buffer = &mut buffers[k][..n];
            if stride == 1 {
                // SAFETY: the range is inside the row, and the buffer is no operand.
                unsafe { std::ptr::copy_nonoverlapping(starts[k].add(at), buffer.as_mut_ptr(), n) };
                continue;
            }
            for (i, v) in buffer.iter_mut().enumerate() {
                // SAFETY: the range is inside the row.
                *v = unsafe { *starts[k].add((at + i) * stride) };
            }
        }
        let mut inputs: [&[f32]; N] = [&[]; N];
        for k in 0..N {
            inputs[k] = if packed[k] {
                // SAFETY: `n` packed values of an input that nobody writes during the call.
                unsafe { std::slice::from_raw_parts(starts[k].add(at), n) }
            } else {
                &buffers[k][..n]
            };
        }
        inputs
    }
}
