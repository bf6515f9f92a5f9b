//! Operations that move, convert or make values.

use meta::{DType, Encoding};

use super::scales::{Scales, has_columns};
use super::{Operation, Padding, activations, check};
use crate::{Operand, Result};

/// Converts type and layout: a cast, a permutation made real, one part of a concatenation, or the
/// unpacking of a quantised weight.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Any plain type and strides; or quantised.
    pub x: Operand,
    /// The same shape; any plain type and strides. Floats become integers by truncation, and out of
    /// range they saturate.
    pub out: Operand,
}

impl Operation for Copy {
    const NAME: &'static str = "copy";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!();

    fn check(&self) -> Result<()> {
        let (op, x, out) = (Self::NAME, &self.x, &self.out);
        check::shape(op, "output", out, x.shape())?;
        check::that(
            op,
            "output",
            out.dtype().is_some(),
            "a plain type (quantised tensors are only read)",
            out,
        )?;
        let complete = !matches!(x.encoding(), Encoding::Scaled(_));
        check::that(op, "input", complete, "one that needs no scales beside it", x)?;
        if matches!(x.encoding(), Encoding::Quant(_)) {
            let floats = out.dtype().is_some_and(|d| check::ACTIVATIONS.contains(&d)) && out.is_contiguous();
            check::that(op, "output", floats, "contiguous f32, bf16 or f16 when unpacking", out)?;
        }
        Ok(())
    }
}

/// Rows of a table.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[entries, n]` in any float or quantised encoding, contiguous.
    pub table: Operand,
    /// What makes numbers of its codes, where they need scales beside them. One number for all values is the caller's to
    /// multiply with.
    pub scales: Option<Scales>,
    /// i32 or i64, any shape, contiguous. An id outside the table is an error on the CPU and gives NaN
    /// on devices that cannot stop.
    pub ids: Operand,
    /// `[ids…, n]`, contiguous.
    pub out: Operand,
}

impl Operation for Embedding {
    const NAME: &'static str = "embedding";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.table);
        if let Some(scales) = &self.scales {
            scales.inputs(visit);
        }
        visit(&self.ids);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(out);

    fn check(&self) -> Result<()> {
        let (op, table, ids, out) = (Self::NAME, &self.table, &self.ids, &self.out);
        check::rank(op, "table", table, 2)?;
        let readable = table.dtype().is_none_or(DType::is_float) && table.is_contiguous();
        check::that(op, "table", readable, "contiguous floats or quantised blocks", table)?;
        Scales::check(op, table, self.scales.as_ref())?;
        let scales = self.scales.is_none() || table.encoding().scheme().is_some();
        check::that(op, "table", scales, "codes, if it has scales", table)?;
        let whole = matches!(ids.dtype(), Some(DType::I32 | DType::I64)) && ids.is_contiguous();
        check::that(op, "ids", whole, "contiguous i32 or i64", ids)?;
        check::activation(op, "output", out)?;
        let fits =
            out.is_contiguous() && out.rank() == ids.rank() + 1 && out.dims()[..ids.rank()] == *ids.dims();
        check::that(
            op,
            "output",
            fits && has_columns(table, out.shape().last()),
            format_args!("{} and {} more", ids.shape(), table.dim(1)),
            out,
        )
    }

    /// Only the rows that are looked up are read.
    fn bytes(&self) -> u64 {
        let (rows, entries) = (self.ids.count() as u64, self.table.dim(0).max(1) as u64);
        let table = self.table.stored_bytes() / entries * rows.min(entries);
        table + self.ids.stored_bytes() + self.out.stored_bytes()
    }
}

/// A border around a tensor.
#[derive(Clone, Debug)]
pub struct Pad {
    /// Any shape.
    pub x: Operand,
    /// How many indices stand in front of each dimension; what the output has more stands behind.
    pub before: Vec<usize>,
    /// What stands in the border.
    pub padding: Padding,
    /// The larger tensor, contiguous.
    pub out: Operand,
}

impl Operation for Pad {
    const NAME: &'static str = "pad";

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
        check::that(op, "before", self.before.len() == x.rank(), "one number for each dimension", x)?;
        check::that(op, "output", out.is_contiguous(), "contiguous", out)?;
        for axis in 0..x.rank() {
            let (size, before) = (x.dim(axis), self.before[axis]);
            let after = out.dim(axis).checked_sub(size + before);
            check::that(
                op,
                "output",
                after.is_some(),
                format_args!("at least {} in dimension {axis}", size + before),
                out,
            )?;
            let border = before.max(after.unwrap_or(0));
            let enough = match self.padding {
                Padding::Constant(_) => true,
                Padding::Replicate => size > 0 || border == 0,
                Padding::Reflect | Padding::Circular => {
                    border == 0 || border < size + usize::from(self.padding == Padding::Circular)
                }
            };
            check::that(op, "input", enough, "large enough for its border", x)?;
        }
        Ok(())
    }
}

/// Standard normal values, equal on every device to what PyTorch's CPU generator gives for the seed.
#[derive(Clone, Debug)]
pub struct NormalNoise {
    /// The seed; only its low 32 bits count, as in PyTorch.
    pub seed: u64,
    /// f32, contiguous.
    pub out: Operand,
}

impl Operation for NormalNoise {
    const NAME: &'static str = "normal noise";

    fn inputs<'a>(&'a self, _visit: &mut dyn FnMut(&'a Operand)) {}

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(out);

    fn check(&self) -> Result<()> {
        let plain = self.out.dtype() == Some(DType::F32) && self.out.is_contiguous();
        check::that(Self::NAME, "output", plain, "contiguous f32", &self.out)
    }
}
