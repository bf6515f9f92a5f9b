//! Reductions over dimensions.

use super::{Operation, activations, check};
use crate::{Operand, Result};

/// One value for all values along some dimensions.
#[derive(Clone, Debug)]
pub struct Reduce {
    /// What is computed.
    pub kind: ReduceKind,
    /// Any shape.
    pub x: Operand,
    /// As `x`, with 1 in each reduced dimension; contiguous.
    pub out: Operand,
}

/// What a reduction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceKind {
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// The largest value.
    Max,
    /// The smallest value.
    Min,
}

impl Operation for Reduce {
    const NAME: &'static str = "reduce";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        let (op, x, out) = (Self::NAME, &self.x, &self.out);
        check::activation(op, "input", x)?;
        check::same_type(op, "output", out, x)?;
        check::rank(op, "output", out, x.rank())?;
        let kept = x.dims().iter().zip(out.dims()).all(|(a, b)| a == b || *b == 1);
        check::that(
            op,
            "output",
            kept && out.is_contiguous(),
            format_args!("{} with 1 where reduced", x.shape()),
            out,
        )?;
        check::that(op, "input", x.count() > 0, "not empty", x)
    }

    fn flops(&self) -> u64 {
        self.x.count() as u64
    }
}

/// `exp(x - max) / sum` over the last dimension.
#[derive(Clone, Debug)]
pub struct Softmax {
    /// `[…, n]`, packed rows.
    pub x: Operand,
    /// As `x`.
    pub out: Operand,
}

impl Operation for Softmax {
    const NAME: &'static str = "softmax";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        check::same_in_out(Self::NAME, &self.x, &self.out)?;
        check::that(Self::NAME, "input", self.x.rank() >= 1, "of one or more dimensions", &self.x)?;
        check::packed_rows(Self::NAME, "input", &self.x)?;
        check::packed_rows(Self::NAME, "output", &self.out)
    }
}
