//! Rotary position embeddings.

use meta::DType;

use super::{Operation, activations, check};
use crate::{Operand, Result};

/// Rotates pairs of values of each head by the angles of its position: of a pair `(a, b)` comes
/// `(a·cos − b·sin, a·sin + b·cos)`. Values after the rotated ones pass through.
#[derive(Clone, Debug)]
pub struct Rope {
    /// `[batch, positions, heads, size]`, packed rows.
    pub x: Operand,
    /// `[1 or batch, positions, rotated / 2]`, f32, contiguous.
    pub cos: Operand,
    /// As `cos`.
    pub sin: Operand,
    /// Which values form a pair.
    pub layout: RopeLayout,
    /// As `x`.
    pub out: Operand,
}

/// Which values form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Neighbours: 0 and 1, 2 and 3.
    Interleaved,
    /// The first half with the second: 0 and n/2, 1 and n/2 + 1.
    HalfSplit,
}

impl Operation for Rope {
    const NAME: &'static str = "rope";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        visit(&self.cos);
        visit(&self.sin);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        check_turned(Self::NAME, [&self.x, &self.out], [&self.cos, &self.sin])
    }
}

/// Root mean square 1 over each head, scaled, then rotated as in [`Rope`].
#[derive(Clone, Debug)]
pub struct NormedRope {
    /// `[batch, positions, heads, size]`, packed rows.
    pub x: Operand,
    /// `[size]`.
    pub weight: Operand,
    /// Added to the mean square.
    pub eps: f32,
    /// `[1 or batch, positions, rotated / 2]`, f32, contiguous.
    pub cos: Operand,
    /// As `cos`.
    pub sin: Operand,
    /// Which values form a pair.
    pub layout: RopeLayout,
    /// As `x`.
    pub out: Operand,
}

impl Operation for NormedRope {
    const NAME: &'static str = "normed rope";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        visit(&self.weight);
        visit(&self.cos);
        visit(&self.sin);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        check_turned(Self::NAME, [&self.x, &self.out], [&self.cos, &self.sin])?;
        let filled = self.x.dim(3) > 0;
        check::that(Self::NAME, "input", filled, "heads that are not empty", &self.x)?;
        check::parameter(Self::NAME, "weight", &self.weight, self.x.dim(3))
    }
}

/// Heads in and heads out, and the angles of their positions.
fn check_turned(op: &'static str, [x, out]: [&Operand; 2], [cos, sin]: [&Operand; 2]) -> Result<()> {
    check::same_in_out(op, x, out)?;
    check::rank(op, "input", x, 4)?;
    check::packed_rows(op, "input", x)?;
    check::packed_rows(op, "output", out)?;
    check::rank(op, "cosines", cos, 3)?;
    let fits =
        (cos.dim(0) == 1 || cos.dim(0) == x.dim(0)) && cos.dim(1) == x.dim(1) && 2 * cos.dim(2) <= x.dim(3);
    let wanted = format!("[1 or {}, {}, up to {}]", x.dim(0), x.dim(1), x.dim(3) / 2);
    check::that(op, "cosines", fits, &wanted, cos)?;
    check::shape(op, "sines", sin, cos.shape())?;
    for (name, table) in [("cosines", cos), ("sines", sin)] {
        let plain = table.dtype() == Some(DType::F32) && table.is_contiguous();
        check::that(op, name, plain, "contiguous f32", table)?;
    }
    Ok(())
}
