//! Rotary position embeddings.

use device::op::{self, RopeLayout};
use device::{Operand, Result};

use super::elementwise::traversal::{Target, check_distinct, in_tasks};
use super::norm::RootMeanSquare;
use super::vector_math::{Arithmetic, Kernel, dispatch};
use crate::access::Access;

/// Rotates pairs of values of each head by the angles of its position.
pub(crate) fn rope(call: &op::Rope, access: &Access<'_>) -> Result<()> {
    let angles = Angles { cos: &call.cos, sin: &call.sin, layout: call.layout };
    each_head("rope", [&call.x, &call.out], &angles, access, |x, _| x)
}

/// Root mean square 1 over each head, scaled, then rotated.
pub(crate) fn normed_rope(call: &op::NormedRope, access: &Access<'_>) -> Result<()> {
    let norm = RootMeanSquare::new(Some(&call.weight), call.x.dim(3), call.eps, access)?;
    let angles = Angles { cos: &call.cos, sin: &call.sin, layout: call.layout };
    each_head("normed rope", [&call.x, &call.out], &angles, access, |x, normed| {
        norm.row(x, normed);
        normed
    })
}

/// By how much the pairs of each position are turned.
struct Angles<'a> {
    cos: &'a Operand,
    sin: &'a Operand,
    layout: RopeLayout,
}

/// Rotates what `before` makes of each head; it is given room for a head to write into.
fn each_head(
    op: &'static str,
    [x, out]: [&Operand; 2],
    angles: &Angles<'_>,
    access: &Access<'_>,
    before: impl for<'a> Fn(&'a [f32], &'a mut [f32]) -> &'a [f32] + Sync,
) -> Result<()> {
    check_distinct(op, out)?;
    let (positions, heads, size) = (x.dim(1), x.dim(2), x.dim(3));
    let (half, tables) = (angles.cos.dim(2), angles.cos.dim(0));
    let (values, cos, sin) =
        (access.values::<f32>(x)?, access.values(angles.cos)?, access.values(angles.sin)?);
    let target = &Target::new(access.output(out)?);
    in_tasks(x.dim(0) * positions * heads, size, |rows| {
        let mut room = vec![0.0; size];
        for row in rows {
            let index = [row / (heads * positions), row / heads % positions, row % heads];
            let at = row_start(x, index);
            let table = (index[0] % tables * positions + index[1]) * half;
            dispatch(Head {
                layout: angles.layout,
                x: before(&values[at..at + size], &mut room),
                cos: &cos[table..table + half],
                sin: &sin[table..table + half],
                // SAFETY: the heads of an output that does not repeat are distinct parts of it.
                out: unsafe { target.part(row_start(out, index), size) },
            });
        }
    });
    Ok(())
}

/// Where a head of `[batch, positions, heads, size]` starts.
fn row_start(operand: &Operand, index: [usize; 3]) -> usize {
    index.iter().zip(operand.strides()).map(|(i, s)| i * s).sum()
}

/// One head at one position.
struct Head<'a> {
    layout: RopeLayout,
    x: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<A: Arithmetic>(self) {
        let half = self.cos.len();
        let (x, rest) = self.x.split_at(2 * half);
        let (out, out_rest) = self.out.split_at_mut(2 * half);
        out_rest.copy_from_slice(rest);
        let angles = self.cos.iter().zip(self.sin);
        match self.layout {
            RopeLayout::Interleaved => {
                let pairs = out.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0);
                for ((out, [a, b]), (cos, sin)) in pairs.zip(angles) {
                    *out = rotate::<A>(*a, *b, *cos, *sin);
                }
            }
            RopeLayout::HalfSplit => {
                let (first, second) = out.split_at_mut(half);
                let pairs = first.iter_mut().zip(second).zip(x[..half].iter().zip(&x[half..]));
                for (((first, second), (a, b)), (cos, sin)) in pairs.zip(angles) {
                    [*first, *second] = rotate::<A>(*a, *b, *cos, *sin);
                }
            }
        }
    }
}

#[inline(always)]
fn rotate<A: Arithmetic>(a: f32, b: f32, cos: f32, sin: f32) -> [f32; 2] {
    [A::mul_add(a, cos, -(b * sin)), A::mul_add(a, sin, b * cos)]
}
