//! Normalisations. Means and variances are found in f64, a piece at a time, and the pieces are joined
//! in order, so that they stay exact to f32 for any number of values.

use device::op::Activation;
use device::{Operand, Result, op};
use rayon::prelude::*;

use super::elementwise::activate;
use super::elementwise::traversal::{TASK, Target, Traversal, check_distinct, in_tasks};
use super::unpack::unpack_f32;
use super::vector_math::{Arithmetic, Kernel, dispatch};
use crate::access::Access;
use crate::stop::Tasks;

/// Accumulators side by side; one sum after the other would not vectorise.
const LANES: usize = 16;

/// Mean 0 and variance 1 over each group of channels, then scale and shift per channel, then perhaps SiLU.
pub(crate) fn group_norm(call: &op::GroupNorm, access: &Access<'_>) -> Result<()> {
    let (batch, channels) = (call.x.dim(0), call.x.dim(1));
    let plane: usize = call.x.dims()[2..].iter().product();
    let weight = parameter(call.weight.as_ref(), 1.0, channels, access)?;
    let bias = parameter(call.bias.as_ref(), 0.0, channels, access)?;
    let x = &access.values::<f32>(&call.x)?[..batch * channels * plane];
    let out = access.output::<f32>(&call.out)?;
    let group_len = channels / call.groups * plane;
    let scales = group_scales(x, group_len, call.eps);
    let target = &Target::new(out);
    let pieces_per_plane = plane.div_ceil(TASK);
    in_tasks(batch * channels * pieces_per_plane, plane.min(TASK), |pieces| {
        for piece in pieces {
            let (row, first) = (piece / pieces_per_plane, piece % pieces_per_plane * TASK);
            let (at, len) = (row * plane + first, (plane - first).min(TASK));
            let (scale, channel) = (scales[row * plane / group_len], row % channels);
            let factor = scale.factor * weight[channel];
            // SAFETY: pieces are distinct parts of the output.
            let out = unsafe { target.part(at, len) };
            dispatch(Plane {
                x: &x[at..at + len],
                mean: scale.mean,
                factor,
                shift: bias[channel],
                out: &mut *out,
            });
            if call.silu {
                activate(Activation::Silu, out);
            }
        }
    });
    Ok(())
}

/// Mean 0 and variance 1 over the last dimension, then scale and shift.
pub(crate) fn layer_norm(call: &op::LayerNorm, access: &Access<'_>) -> Result<()> {
    let n = call.x.shape().last();
    let weight = parameter(call.weight.as_ref(), 1.0, n, access)?;
    let bias = parameter(call.bias.as_ref(), 0.0, n, access)?;
    each_row("layer norm", &call.x, &call.out, access, |x, out| {
        let scale = Scale::of(&moments_in_pieces(x), call.eps);
        dispatch(Row { x, scale, more: 0.0, weight: &weight, bias: &bias, out });
    })
}

/// Mean 0 and variance 1 over the last dimension, then scale and shift that may differ from row to row.
pub(crate) fn modulated_norm(call: &op::ModulatedNorm, access: &Access<'_>) -> Result<()> {
    check_distinct("modulated norm", &call.out)?;
    let (shape, outer) = (call.x.shape(), call.x.rank() - 1);
    let (scale, shift) = (call.scale.broadcast(*shape)?, call.shift.broadcast(*shape)?);
    let strides = [&call.out, &call.x, &scale, &shift].map(|operand| &operand.strides()[..outer]);
    let rows = Traversal::new(&shape.dims()[..outer], &strides);
    let x = access.values::<f32>(&call.x)?;
    let (scales, shifts) = (access.values::<f32>(&call.scale)?, access.values::<f32>(&call.shift)?);
    let target = &Target::new(access.output::<f32>(&call.out)?);
    let n = shape.last();
    in_tasks(rows.count(), n, |range| {
        for row in range {
            let at = |operand: usize| rows.position(operand, row)..rows.position(operand, row) + n;
            // SAFETY: the rows of an output that does not repeat are distinct parts of it.
            let out = unsafe { target.part(rows.position(0, row), n) };
            modulate_row(&x[at(1)], [&scales[at(2)], &shifts[at(3)]], call.eps, out);
        }
    });
    Ok(())
}

/// One row with mean 0 and variance 1, then scaled by one more than `scale` and shifted.
pub(super) fn modulate_row(x: &[f32], [scale, shift]: [&[f32]; 2], eps: f32, out: &mut [f32]) {
    let moments = Scale::of(&moments_in_pieces(x), eps);
    dispatch(Row { x, scale: moments, more: 1.0, weight: scale, bias: shift, out });
}

/// Root mean square 1 over one dimension, then scale.
pub(crate) fn rms_norm(call: &op::RmsNorm, access: &Access<'_>) -> Result<()> {
    if call.axis + 1 < call.x.rank() {
        return rms_norm_across(call, access);
    }
    let n = call.x.shape().last();
    let norm = RootMeanSquare::new(call.weight.as_ref(), n, call.eps, access)?;
    each_row("rms norm", &call.x, &call.out, access, |x, out| norm.row(x, out))
}

/// The same over another dimension than the last one: places side by side are normed together.
fn rms_norm_across(call: &op::RmsNorm, access: &Access<'_>) -> Result<()> {
    /// Places that are normed together: their sums stay in the first cache.
    const PLACES: usize = 256;
    let (dims, n) = (call.x.dims(), call.x.dim(call.axis));
    let outer: usize = dims[..call.axis].iter().product();
    let inner: usize = dims[call.axis + 1..].iter().product();
    let weight = parameter(call.weight.as_ref(), 1.0, n, access)?;
    let x = &access.values::<f32>(&call.x)?[..outer * n * inner];
    let target = &Target::new(access.output::<f32>(&call.out)?);
    let pieces = inner.div_ceil(PLACES);
    in_tasks(outer * pieces, n * inner.min(PLACES), |range| {
        for piece in range {
            let first = piece % pieces * PLACES;
            let len = PLACES.min(inner - first);
            let at = |i: usize| (piece / pieces * n + i) * inner + first;
            let mut squares = [0f64; PLACES];
            for i in 0..n {
                for (sum, x) in squares.iter_mut().zip(&x[at(i)..at(i) + len]) {
                    *sum += f64::from(*x) * f64::from(*x);
                }
            }
            let factors = squares.map(|sum| (1.0 / (sum / n as f64 + f64::from(call.eps)).sqrt()) as f32);
            for (i, weight) in weight.iter().enumerate() {
                // SAFETY: pieces are distinct parts of the output, and so are their rows.
                let out = unsafe { target.part(at(i), len) };
                for ((out, x), factor) in out.iter_mut().zip(&x[at(i)..at(i) + len]).zip(&factors) {
                    *out = x * factor * weight;
                }
            }
        }
    });
    Ok(())
}

/// Root mean square 1 over a row, then scale.
pub(super) struct RootMeanSquare {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

impl RootMeanSquare {
    /// For rows of `n` values.
    pub(super) fn new(
        weight: Option<&Operand>,
        n: usize,
        eps: f32,
        access: &Access<'_>,
    ) -> Result<RootMeanSquare> {
        Ok(RootMeanSquare { weight: parameter(weight, 1.0, n, access)?, bias: vec![0.0; n], eps })
    }

    /// One row.
    pub(super) fn row(&self, x: &[f32], out: &mut [f32]) {
        let square = dispatch(Squares { x, around: 0.0 }) / x.len() as f64;
        let factor = (1.0 / (square + f64::from(self.eps)).sqrt()) as f32;
        let scale = Scale { mean: 0.0, factor };
        dispatch(Row { x, scale, more: 0.0, weight: &self.weight, bias: &self.bias, out });
    }
}

/// A parameter vector as f32, or the same value everywhere if there is none.
fn parameter(operand: Option<&Operand>, default: f32, len: usize, access: &Access<'_>) -> Result<Vec<f32>> {
    let mut values = vec![default; len];
    if let Some(operand) = operand {
        unpack_f32(operand.encoding(), access.bytes(operand)?, &mut values);
    }
    Ok(values)
}

/// Calls `work` with each row of the input and output, several rows to a task.
pub(super) fn each_row(
    op: &'static str,
    x: &Operand,
    out: &Operand,
    access: &Access<'_>,
    work: impl Fn(&[f32], &mut [f32]) + Sync,
) -> Result<()> {
    check_distinct(op, out)?;
    let outer = x.rank() - 1;
    let n = x.shape().last();
    let rows = Traversal::new(&x.dims()[..outer], &[&out.strides()[..outer], &x.strides()[..outer]]);
    let source = access.values::<f32>(x)?;
    let target = &Target::new(access.output::<f32>(out)?);
    in_tasks(rows.count(), n, |range| {
        for row in range {
            let at = rows.position(1, row);
            // SAFETY: the rows of an output that does not repeat are distinct parts of it.
            let out = unsafe { target.part(rows.position(0, row), n) };
            work(&source[at..at + n], out);
        }
    });
    Ok(())
}

/// Count, mean and sum of squared distances from the mean.
#[derive(Clone, Copy)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// Of a piece that fits into the caches.
    fn of(x: &[f32]) -> Moments {
        let count = x.len() as f64;
        let mean = dispatch(Sum { x }) / count;
        Moments { count, mean, squares: dispatch(Squares { x, around: mean }) }
    }

    /// Of two pieces together.
    fn join(self, other: Moments) -> Moments {
        let count = self.count + other.count;
        let apart = other.mean - self.mean;
        Moments {
            count,
            mean: self.mean + apart * other.count / count,
            squares: self.squares + other.squares + apart * apart * self.count * other.count / count,
        }
    }
}

fn moments_in_pieces(x: &[f32]) -> Moments {
    let (first, rest) = x.split_at(x.len().min(TASK));
    rest.chunks(TASK).fold(Moments::of(first), |all, piece| all.join(Moments::of(piece)))
}

/// What is subtracted and multiplied to get mean 0 and variance 1.
#[derive(Clone, Copy)]
struct Scale {
    mean: f32,
    factor: f32,
}

impl Scale {
    fn of(moments: &Moments, eps: f32) -> Scale {
        let variance = moments.squares / moments.count;
        Scale { mean: moments.mean as f32, factor: (1.0 / (variance + f64::from(eps)).sqrt()) as f32 }
    }
}

/// The scale of each group of `len` values; large groups are cut into pieces for the threads.
fn group_scales(x: &[f32], len: usize, eps: f32) -> Vec<Scale> {
    let groups = x.len() / len;
    let pieces_per_group = len.div_ceil(TASK);
    let job = Tasks::of_this_job();
    let moments_of = |piece: usize| {
        if job.is_cancelled() {
            return Moments { count: 1.0, mean: 0.0, squares: 0.0 };
        }
        let (group, first) = (piece / pieces_per_group, piece % pieces_per_group * TASK);
        let at = group * len + first;
        Moments::of(&x[at..at + (len - first).min(TASK)])
    };
    let pieces = 0..groups * pieces_per_group;
    let small = (TASK / len.min(TASK)).max(1);
    let moments: Vec<Moments> = pieces.into_par_iter().with_min_len(small).map(moments_of).collect();
    let join = |pieces: &[Moments]| pieces[1..].iter().fold(pieces[0], |all, piece| all.join(*piece));
    moments.chunks(pieces_per_group).map(|pieces| Scale::of(&join(pieces), eps)).collect()
}

/// The sum of values.
pub(super) struct Sum<'a> {
    pub(super) x: &'a [f32],
}

impl Kernel for Sum<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<A: Arithmetic>(self) -> f64 {
        let mut lanes = [0f64; LANES];
        let (chunks, rest) = self.x.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += f64::from(chunk[i]);
            }
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(*v);
        }
        lanes.iter().sum()
    }
}

/// The sum of squared distances from a value.
struct Squares<'a> {
    x: &'a [f32],
    around: f64,
}

impl Kernel for Squares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<A: Arithmetic>(self) -> f64 {
        let mut lanes = [0f64; LANES];
        let (chunks, rest) = self.x.as_chunks::<LANES>();
        for chunk in chunks {
            // In two steps: the compiler finds no vectors in one.
            let mut apart = [0f64; LANES];
            for i in 0..LANES {
                apart[i] = f64::from(chunk[i]) - self.around;
            }
            for i in 0..LANES {
                lanes[i] += apart[i] * apart[i];
            }
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            let d = f64::from(*v) - self.around;
            *lane += d * d;
        }
        lanes.iter().sum()
    }
}

/// One row with parameters for each value.
struct Row<'a> {
    x: &'a [f32],
    scale: Scale,
    /// Added to the weights: 1 where they say by how much a value changes, else 0.
    more: f32,
    weight: &'a [f32],
    bias: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        let Scale { mean, factor } = self.scale;
        for (((out, x), w), b) in self.out.iter_mut().zip(self.x).zip(self.weight).zip(self.bias) {
            *out = A::mul_add((x - mean) * factor, self.more + w, *b);
        }
    }
}

/// Part of one channel, with one scale and shift.
struct Plane<'a> {
    x: &'a [f32],
    mean: f32,
    factor: f32,
    shift: f32,
    out: &'a mut [f32],
}

impl Kernel for Plane<'_> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        for (out, x) in self.out.iter_mut().zip(self.x) {
            *out = A::mul_add(x - self.mean, self.factor, self.shift);
        }
    }
}
