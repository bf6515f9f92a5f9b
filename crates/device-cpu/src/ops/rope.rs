//! Rotary position embeddings.

use device::op::{self, RopeLayout};
use device::{Operand, Result};

use super::elementwise::traversal::{Target, check_distinct, in_tasks};
use super::vector_math::{Arithmetic, Kernel, dispatch};
use crate::access::Access;

/// Rotates pairs of values of each head by the angles of its position.
pub(crate) fn rope(call: &op::Rope, access: &Access<'_>) -> Result<()> {
    check_distinct("rope", &call.out)?;
    let (positions, heads, size) = (call.x.dim(1), call.x.dim(2), call.x.dim(3));
    let half = call.cos.dim(2);
    let (x, cos, sin) = (access.values(&call.x)?, access.values(&call.cos)?, access.values(&call.sin)?);
    let target = &Target::new(access.output(&call.out)?);
    let tables = call.cos.dim(0);
    in_tasks(call.x.dim(0) * positions * heads, size, |rows| {
        for row in rows {
            let index = [row / (heads * positions), row / heads % positions, row % heads];
            let at = row_start(&call.x, index);
            let table = (index[0] % tables * positions + index[1]) * half;
            dispatch(Head {
                layout: call.layout,
                x: &x[at..at + size],
                cos: &cos[table..table + half],
                sin: &sin[table..table + half],
                // SAFETY: the heads of an output that does not repeat are distinct parts of it.
                out: unsafe { target.part(row_start(&call.out, index), size) },
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
