//! Matrix products.

use meta::DType;

use super::scales::{Scales, has_columns};
use super::{Activation, Operation, activations, check};
use crate::{Operand, Result};

/// `activation(x · weightᵀ · scale + bias)`: rows of activations times a weight as it is stored.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[…, in]`, packed rows.
    pub x: Operand,
    /// `[out, in]` in any float or quantised encoding, contiguous. Where its scheme fills rows up, the columns of the input
    /// count.
    pub weight: Operand,
    /// What multiplies it, if something does.
    pub scales: Option<Scales>,
    /// `[out]`.
    pub bias: Option<Operand>,
    /// Applied last.
    pub activation: Option<Activation>,
    /// `[…, out]`, packed rows.
    pub out: Operand,
}

impl Operation for Linear {
    const NAME: &'static str = "linear";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        visit(&self.weight);
        if let Some(scales) = &self.scales {
            scales.inputs(visit);
        }
        self.bias.iter().for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        let (op, x, w) = (Self::NAME, &self.x, &self.weight);
        check::activation(op, "input", x)?;
        check::packed_rows(op, "input", x)?;
        check::rank(op, "weight", w, 2)?;
        let readable = w.dtype().is_none_or(DType::is_float) && w.is_contiguous();
        check::that(op, "weight", readable, "a contiguous matrix of floats or quantised blocks", w)?;
        check::that(
            op,
            "input",
            x.rank() >= 1 && has_columns(w, x.shape().last()),
            format_args!("[…, {}]", w.dim(1)),
            x,
        )?;
        check::same_type(op, "output", &self.out, x)?;
        check::packed_rows(op, "output", &self.out)?;
        check::shape(op, "output", &self.out, &x.shape().with(x.rank() - 1, w.dim(0)))?;
        Scales::check(op, w, self.scales.as_ref())?;
        check::parameters(op, &[("bias", self.bias.as_ref())], w.dim(0))
    }

    fn flops(&self) -> u64 {
        2 * self.out.count() as u64 * self.weight.dim(1) as u64
    }
}

/// `out = alpha · a · b` for every index of the leading dimensions, or that added to what is there.
#[derive(Clone, Debug)]
pub struct Matmul {
    /// `[…, m, k]`; one of its last two dimensions packed.
    pub a: Operand,
    /// `[…, k, n]`; one of its last two dimensions packed. Leading dimensions as in `a` (repeat with
    /// [`Operand::broadcast`]).
    pub b: Operand,
    /// Factor of the product.
    pub alpha: f32,
    /// Whether the product is added to the values that the output has. The sum is made in f32 and rounded once.
    pub accumulate: bool,
    /// `[…, m, n]`, packed rows.
    pub out: Operand,
}

impl Operation for Matmul {
    const NAME: &'static str = "matmul";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.a);
        visit(&self.b);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(a, b, out);

    fn check(&self) -> Result<()> {
        let (op, a, b) = (Self::NAME, &self.a, &self.b);
        check::activation(op, "left", a)?;
        check::same_type(op, "right", b, a)?;
        check::same_type(op, "output", &self.out, a)?;
        check::that(op, "left", a.rank() >= 2, "of two or more dimensions", a)?;
        let r = a.rank();
        let inner = b.rank() == r && b.dim(r - 2) == a.dim(r - 1) && b.dims()[..r - 2] == a.dims()[..r - 2];
        check::that(op, "right", inner, format_args!("matching the left {}", a.shape()), b)?;
        for (name, operand) in [("left", a), ("right", b)] {
            let packed =
                operand.strides()[r - 1] == 1 || operand.strides()[r - 2] == 1 || operand.count() <= 1;
            check::that(
                op,
                name,
                packed || operand.shape().last() == 1,
                "packed in one of its last two dimensions",
                operand,
            )?;
        }
        check::packed_rows(op, "output", &self.out)?;
        check::shape(op, "output", &self.out, &a.shape().with(r - 1, b.dim(r - 1)))
    }

    fn flops(&self) -> u64 {
        2 * self.out.count() as u64 * self.a.shape().last() as u64
    }

    /// What a product is added to is read, too.
    fn bytes(&self) -> u64 {
        let read = self.a.stored_bytes() + self.b.stored_bytes();
        let times = if self.accumulate { 2 } else { 1 };
        read + times * self.out.stored_bytes()
    }
}
