//! Softmax, sums, means and extremes. Sums are kept in f64.
//!
//! A reduction is cut into items: a block of neighbouring outputs, and a piece of the values that each
//! of them covers. The cut depends on the sizes alone, and the pieces of an output are joined in order.

use std::marker::PhantomData;
use std::ops::Range;

use device::Result;
use device::op::{self, ReduceKind};
use rayon::prelude::*;

use super::elementwise::larger;
use super::elementwise::traversal::{TASK, Target, Traversal, in_tasks};
use super::norm::{Sum, each_row};
use super::vector_math::{Arithmetic, Kernel, dispatch, exp};
use crate::access::Access;
use crate::stop::Tasks;

/// Accumulators side by side.
const LANES: usize = 16;

/// Most outputs of a block.
const BLOCK: usize = 1024;

/// `exp(x - max) / sum` over the last dimension.
pub(crate) fn softmax(call: &op::Softmax, access: &Access<'_>) -> Result<()> {
    each_row("softmax", &call.x, &call.out, access, |x, out| {
        let largest = dispatch(Largest { x });
        dispatch(ExpBelow { x, largest, out });
        let factor = (1.0 / dispatch(Sum { x: out })) as f32;
        dispatch(Times { values: out, factor });
    })
}

/// The largest value; NaN if any is.
struct Largest<'a> {
    x: &'a [f32],
}

impl Kernel for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<A: Arithmetic>(self) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (chunks, rest) = self.x.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = larger(chunk[i], lanes[i]);
            }
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane = larger(*v, *lane);
        }
        lanes.iter().fold(f32::NEG_INFINITY, |a, b| larger(a, *b))
    }
}

/// `exp(x - largest)`.
struct ExpBelow<'a> {
    x: &'a [f32],
    largest: f32,
    out: &'a mut [f32],
}

impl Kernel for ExpBelow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        for (out, x) in self.out.iter_mut().zip(self.x) {
            *out = exp::<A>(*x - self.largest);
        }
    }
}

/// All values times a factor.
struct Times<'a> {
    values: &'a mut [f32],
    factor: f32,
}

impl Kernel for Times<'_> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        for v in self.values {
            *v *= self.factor;
        }
    }
}

/// One value for all values along some dimensions.
pub(crate) fn reduce(call: &op::Reduce, access: &Access<'_>) -> Result<()> {
    let x = access.values(&call.x)?;
    let out = access.output(&call.out)?;
    match call.kind {
        ReduceKind::Sum | ReduceKind::Mean => Reduction::<Add>::new(call, x).run(out),
        ReduceKind::Max => Reduction::<Max>::new(call, x).run(out),
        ReduceKind::Min => Reduction::<Min>::new(call, x).run(out),
    }
    Ok(())
}

/// How two values become one.
trait Join: Sync {
    const START: f64;

    /// `v` into `sum`. Must be `#[inline(always)]`.
    fn join(sum: f64, v: f64) -> f64;
}

struct Add;
struct Max;
struct Min;

impl Join for Add {
    const START: f64 = 0.0;

    #[inline(always)]
    fn join(sum: f64, v: f64) -> f64 {
        sum + v
    }
}

impl Join for Max {
    const START: f64 = f64::NEG_INFINITY;

    #[inline(always)]
    fn join(sum: f64, v: f64) -> f64 {
        if v > sum || v.is_nan() { v } else { sum }
    }
}

impl Join for Min {
    const START: f64 = f64::INFINITY;

    #[inline(always)]
    fn join(sum: f64, v: f64) -> f64 {
        if v < sum || v.is_nan() { v } else { sum }
    }
}

/// One call, with the dimensions sorted into those that stay and those that go.
struct Reduction<'a, J> {
    kind: ReduceKind,
    x: &'a [f32],
    /// Dimensions of the output: operand 0 is the output, operand 1 the input.
    kept: Traversal,
    /// Dimensions that are reduced, of the input alone.
    reduced: Traversal,
    /// Outputs of a block: neighbours in both operands, or one.
    block: usize,
    /// Reduced values of a piece.
    piece: usize,
    join: PhantomData<J>,
}

impl<'a, J: Join> Reduction<'a, J> {
    fn new(call: &op::Reduce, values: &'a [f32]) -> Reduction<'a, J> {
        let (x, out) = (&call.x, &call.out);
        let (mut kept, mut gone) = ([vec![], vec![], vec![]], [vec![], vec![]]);
        let mut step = out.count();
        for (axis, (&size, &stride)) in x.dims().iter().zip(x.strides()).enumerate() {
            // The output is contiguous; strides of its dimensions of size 1 mean nothing.
            step /= out.dim(axis);
            if out.dim(axis) == size {
                kept[0].push(size);
                kept[1].push(step);
                kept[2].push(stride);
            } else {
                gone[0].push(size);
                gone[1].push(stride);
            }
        }
        let kept = Traversal::new(&kept[0], &[&kept[1], &kept[2]]);
        let reduced = Traversal::new(&gone[0], &[&gone[1]]);
        let wide = kept.row_stride(1) == 1 && kept.row_len() > 1;
        let block = if wide { kept.row_len().min(BLOCK) } else { 1 };
        Reduction {
            kind: call.kind,
            x: values,
            kept,
            reduced,
            block,
            piece: 8 * TASK / block,
            join: PhantomData,
        }
    }

    fn run(&self, out: &mut [f32]) {
        let covered = self.reduced.count();
        let finish = |sum: f64| match self.kind {
            ReduceKind::Mean => (sum / covered as f64) as f32,
            _ => sum as f32,
        };
        let blocks = self.kept.rows() * self.blocks_per_row();
        if covered <= self.piece {
            let target = &Target::new(out);
            in_tasks(blocks, self.block * covered, |range| {
                let mut sums = [J::START; BLOCK];
                for block in range {
                    let (at, len) = self.outputs_of(block);
                    self.item(at, 0..covered, &mut sums[..len]);
                    // SAFETY: blocks are distinct parts of the output.
                    let out = unsafe { target.part(at, len) };
                    out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = finish(*sum));
                }
            });
            return;
        }
        let pieces = covered.div_ceil(self.piece);
        let mut sums = vec![J::START; blocks * pieces * self.block];
        let job = Tasks::of_this_job();
        sums.par_chunks_mut(self.block).enumerate().for_each(|(item, sums)| {
            if job.is_cancelled() {
                return;
            }
            let ((at, len), first) = (self.outputs_of(item / pieces), item % pieces * self.piece);
            self.item(at, first..covered.min(first + self.piece), &mut sums[..len]);
        });
        for (block, sums) in sums.chunks(pieces * self.block).enumerate() {
            let (at, len) = self.outputs_of(block);
            for (i, out) in out[at..at + len].iter_mut().enumerate() {
                *out = finish(sums.iter().skip(i).step_by(self.block).copied().fold(J::START, J::join));
            }
        }
    }

    fn blocks_per_row(&self) -> usize {
        self.kept.row_len().div_ceil(self.block)
    }

    /// The first output of a block, and how many there are.
    fn outputs_of(&self, block: usize) -> (usize, usize) {
        let (row, first) = (block / self.blocks_per_row(), block % self.blocks_per_row() * self.block);
        (row * self.kept.row_len() + first, (self.kept.row_len() - first).min(self.block))
    }

    /// A piece of what the outputs from `at` cover, as many as `sums` has.
    fn item(&self, at: usize, covered: Range<usize>, sums: &mut [f64]) {
        let start = self.kept.position(1, at);
        let (row_len, stride) = (self.reduced.row_len(), self.reduced.row_stride(0));
        sums.fill(J::START);
        let mut index = covered.start;
        while index < covered.end {
            let n = (row_len - index % row_len).min(covered.end - index);
            let first = start + self.reduced.position(0, index);
            let x = &self.x[first..first + (n - 1) * stride + sums.len()];
            match (&mut *sums, stride) {
                ([sum], 1) => *sum = J::join(*sum, dispatch(Along { x, join: self.join })),
                ([sum], _) => *sum = (0..n).fold(*sum, |sum, i| J::join(sum, f64::from(x[i * stride]))),
                (sums, _) => dispatch(Across { x, n, stride, sums, join: self.join }),
            }
            index += n;
        }
    }
}

/// Packed values into one.
struct Along<'a, J> {
    x: &'a [f32],
    join: PhantomData<J>,
}

impl<J: Join> Kernel for Along<'_, J> {
    type Output = f64;

    #[inline(always)]
    fn run<A: Arithmetic>(self) -> f64 {
        let mut lanes = [J::START; LANES];
        let (chunks, rest) = self.x.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = J::join(lanes[i], f64::from(chunk[i]));
            }
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane = J::join(*lane, f64::from(*v));
        }
        let mut sum = J::START;
        for lane in lanes {
            sum = J::join(sum, lane);
        }
        sum
    }
}

/// `n` rows, `stride` apart, into as many values as `sums` has.
struct Across<'a, J> {
    x: &'a [f32],
    n: usize,
    stride: usize,
    sums: &'a mut [f64],
    join: PhantomData<J>,
}

impl<J: Join> Kernel for Across<'_, J> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        let len = self.sums.len();
        let row = |i: usize| &self.x[i * self.stride..][..len];
        let mut i = 0;
        // Four rows at a time, because the sums take longer to fetch than a row; the order stays.
        while i + 4 <= self.n {
            let (a, b, c, d) = (row(i), row(i + 1), row(i + 2), row(i + 3));
            for k in 0..len {
                let sum = J::join(J::join(self.sums[k], f64::from(a[k])), f64::from(b[k]));
                self.sums[k] = J::join(J::join(sum, f64::from(c[k])), f64::from(d[k]));
            }
            i += 4;
        }
        while i < self.n {
            for (sum, v) in self.sums.iter_mut().zip(row(i)) {
                *sum = J::join(*sum, f64::from(*v));
            }
            i += 1;
        }
    }
}
