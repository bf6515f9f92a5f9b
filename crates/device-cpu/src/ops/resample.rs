//! Image resizing by the formulas of PyTorch's `interpolate`.
//!
//! An output row is blended from input rows first, then along itself. Source positions are computed in
//! f32 with one rounding, as PyTorch does: in a large image another rounding would move them visibly.

use device::op::{self, ResizeMode};
use device::{Operand, Result};

use super::elementwise::traversal::{Target, in_tasks};
use super::vector_math::{Arithmetic, Kernel, dispatch};
use crate::access::Access;

/// Another size for the last two dimensions.
pub(crate) fn resize(call: &op::Resize, access: &Access<'_>) -> Result<()> {
    let (x, out) = (access.values::<f32>(&call.x)?, access.output::<f32>(&call.out)?);
    let size = |operand: &Operand| {
        let rank = operand.rank();
        (operand.dim(rank - 2), operand.dim(rank - 1))
    };
    let (from, to) = (size(&call.x), size(&call.out));
    let (rows, columns) = (Axis::new(call.mode, from.0, to.0), Axis::new(call.mode, from.1, to.1));
    let target = &Target::new(out);
    let planes = call.x.count() / (from.0 * from.1);
    in_tasks(planes * to.0, from.1.max(to.1), |range| {
        let mut blended = vec![0.0; from.1];
        for row in range {
            let plane = row / to.0 * from.0 * from.1;
            let x = &x[plane..plane + from.0 * from.1];
            // SAFETY: output rows are distinct parts of the output.
            let out = unsafe { target.part(row * to.1, to.1) };
            let source = rows.blend(x, row % to.0, &mut blended);
            columns.sample(source, out);
        }
    });
    Ok(())
}

/// For each output index of one dimension, the input indices it is made of.
enum Axis {
    /// One index each.
    Pick(Vec<usize>),
    /// Two indices each, with weights: lines between neighbours.
    Linear(Taps<2>),
    /// Four indices each, with weights: curves through neighbours.
    Cubic(Taps<4>),
    /// The mean over a range.
    Mean(Vec<(usize, usize)>),
}

/// Input indices and their weights, for all indices of an output dimension.
struct Taps<const N: usize> {
    /// For each tap, the input index of each output index; all are below `size`.
    at: [Vec<u32>; N],
    weight: [Vec<f32>; N],
    size: usize,
}

impl<const N: usize> Taps<N> {
    fn new(size: usize, to: usize, tap: impl Fn(usize) -> [(usize, f32); N]) -> Taps<N> {
        let mut taps = Taps { at: [const { vec![] }; N], weight: [const { vec![] }; N], size };
        for i in 0..to {
            for (k, (at, weight)) in tap(i).into_iter().enumerate() {
                assert!(at < size, "index {at} of {size}");
                taps.at[k].push(at as u32);
                taps.weight[k].push(weight);
            }
        }
        taps
    }

    /// One row made of rows of an image.
    fn blend(&self, image: &[f32], row: usize, out: &mut [f32]) {
        let width = out.len();
        let rows = self.at.each_ref().map(|at| &image[at[row] as usize * width..][..width]);
        let weight = self.weight.each_ref().map(|weight| weight[row]);
        dispatch(Rows { rows, weight, out });
    }
}

impl Axis {
    fn new(mode: ResizeMode, from: usize, to: usize) -> Axis {
        let scale = from as f32 / to as f32;
        let pick = |offset: f32| {
            let source = |i: usize| (((i as f32 + offset) * scale).floor() as usize).min(from - 1);
            Axis::Pick((0..to).map(source).collect())
        };
        let center = |i: usize| (i as f32 + 0.5).mul_add(scale, -0.5);
        match mode {
            _ if from == to => Axis::Pick((0..to).collect()),
            ResizeMode::Nearest => pick(0.0),
            ResizeMode::NearestExact => pick(0.5),
            ResizeMode::Bilinear => Axis::Linear(Taps::new(from, to, |i| linear_taps(center(i), from))),
            ResizeMode::Bicubic => Axis::Cubic(Taps::new(from, to, |i| cubic_taps(center(i), from))),
            ResizeMode::Area => {
                Axis::Mean((0..to).map(|i| (i * from / to, ((i + 1) * from).div_ceil(to))).collect())
            }
        }
    }

    /// One row made of the rows of an image: itself, or in `blended`.
    fn blend<'a>(&self, image: &'a [f32], row: usize, blended: &'a mut [f32]) -> &'a [f32] {
        let width = blended.len();
        let of = |row: usize| &image[row * width..(row + 1) * width];
        match self {
            Axis::Pick(at) => return of(at[row]),
            Axis::Linear(taps) => taps.blend(image, row, blended),
            Axis::Cubic(taps) => taps.blend(image, row, blended),
            Axis::Mean(ranges) => {
                let (first, end) = ranges[row];
                let weight = 1.0 / (end - first) as f32;
                blended.fill(0.0);
                for row in first..end {
                    blended.iter_mut().zip(of(row)).for_each(|(sum, v)| *sum += v * weight);
                }
            }
        }
        blended
    }

    /// The values of an output row.
    fn sample(&self, x: &[f32], out: &mut [f32]) {
        match self {
            Axis::Pick(at) => out.iter_mut().zip(at).for_each(|(out, at)| *out = x[*at]),
            Axis::Linear(taps) => dispatch(Sample { taps, x, out }),
            Axis::Cubic(taps) => dispatch(Sample { taps, x, out }),
            Axis::Mean(ranges) => {
                for (out, &(first, end)) in out.iter_mut().zip(ranges) {
                    let sum: f64 = x[first..end].iter().map(|v| f64::from(*v)).sum();
                    *out = (sum / (end - first) as f64) as f32;
                }
            }
        }
    }
}

/// The two neighbours of a position.
fn linear_taps(center: f32, size: usize) -> [(usize, f32); 2] {
    let center = center.max(0.0);
    let at = (center as usize).min(size - 1);
    let next = (at + 1).min(size - 1);
    let part = (center - at as f32).clamp(0.0, 1.0);
    [(at, 1.0 - part), (next, part)]
}

/// The four neighbours of a position, by cubic convolution with a = -¾; beyond the border, its value.
fn cubic_taps(center: f32, size: usize) -> [(usize, f32); 4] {
    const A: f64 = -0.75;
    let inner = |d: f64| ((A + 2.0) * d - (A + 3.0)) * d * d + 1.0;
    let outer = |d: f64| ((A * d - 5.0 * A) * d + 8.0 * A) * d - 4.0 * A;
    let floor = center.floor();
    let part = f64::from((center - floor).clamp(0.0, 1.0));
    let index = |k: isize| (floor as isize + k).clamp(0, size as isize - 1) as usize;
    [
        (index(-1), outer(part + 1.0) as f32),
        (index(0), inner(part) as f32),
        (index(1), inner(1.0 - part) as f32),
        (index(2), outer(2.0 - part) as f32),
    ]
}

/// Weighted sums along a row.
struct Sample<'a, const N: usize> {
    taps: &'a Taps<N>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl<const N: usize> Kernel for Sample<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        assert_eq!(self.x.len(), self.taps.size, "the taps are of another size");
        let len = self.out.len();
        let (mut at, mut weight): ([&[u32]; N], [&[f32]; N]) = ([&[]; N], [&[]; N]);
        for k in 0..N {
            (at[k], weight[k]) = (&self.taps.at[k][..len], &self.taps.weight[k][..len]);
        }
        for i in 0..len {
            let mut sum = 0.0;
            for k in 0..N {
                // SAFETY: every index has been checked to be below `size`, which is the row's length.
                let value = unsafe { *self.x.get_unchecked(at[k][i] as usize) };
                sum = A::mul_add(value, weight[k][i], sum);
            }
            self.out[i] = sum;
        }
    }
}

/// A weighted sum of rows.
struct Rows<'a, const N: usize> {
    rows: [&'a [f32]; N],
    weight: [f32; N],
    out: &'a mut [f32],
}

impl<const N: usize> Kernel for Rows<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        for (out, v) in self.out.iter_mut().zip(self.rows[0]) {
            *out = v * self.weight[0];
        }
        for k in 1..N {
            for (out, v) in self.out.iter_mut().zip(self.rows[k]) {
                *out = A::mul_add(*v, self.weight[k], *out);
            }
        }
    }
}
