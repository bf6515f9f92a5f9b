//! Products of 8 bits: rows of activations as e4m3 codes with one scale each, times a weight of e4m3 as it is stored.
//!
//! A row's scale is its largest magnitude over the largest code, so that the largest value of a row becomes the largest
//! code. The product is the sum of products of codes, times the scale of the row and that of the weight.

use meta::{DType, Shape};

use super::{Activation, Operation, activations, check};
use crate::{Operand, Result};

/// The largest magnitude that an e4m3 code stands for.
pub const LARGEST_CODE: f32 = 448.0;
/// The smallest magnitude that the largest value of a row counts as: rows of nothing have a scale, too.
pub const SMALLEST_LARGEST: f32 = 1e-12;

/// Rows of codes in one place: the codes row by row, then one f32 for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedRows {
    /// How many.
    pub rows: usize,
    /// Codes of each.
    pub columns: usize,
}

impl QuantisedRows {
    /// Columns, and outputs of a product, come in multiples of this.
    pub const MULTIPLE: usize = 16;

    /// The rows of values of this shape.
    pub fn of(shape: &Shape) -> QuantisedRows {
        let columns = shape.last();
        QuantisedRows { rows: shape.count() / columns.max(1), columns }
    }

    /// Where the scales begin.
    pub fn scales_start(self) -> usize {
        self.rows * self.columns
    }

    /// Bytes of codes and scales.
    pub fn bytes(self) -> usize {
        self.scales_start() + self.rows * size_of::<f32>()
    }
}

/// Layer norm without parameters, then `x · (1 + scale) + shift`.
#[derive(Clone, Debug)]
pub struct RowModulation {
    /// Repeats to the shape of the input, with packed rows.
    pub scale: Operand,
    /// As `scale`.
    pub shift: Operand,
    /// Added to the variance.
    pub eps: f32,
}

/// What is done to rows before they are rounded, in f32: what lies between is not rounded.
#[derive(Clone, Debug)]
pub enum RowChange {
    /// Nothing.
    None,
    /// They are normalised, scaled and shifted.
    Norm(Box<RowModulation>),
    /// The values from a column on pass through the GELU that is approximated with tanh.
    GeluTanh {
        /// That column: a multiple of [`QuantisedRows::MULTIPLE`].
        first: usize,
    },
}

/// Rows of activations to codes and scales.
#[derive(Clone, Debug)]
pub struct QuantiseRows {
    /// `[…, n]`, packed rows, `n` a multiple of [`QuantisedRows::MULTIPLE`].
    pub x: Operand,
    /// What is done to them first.
    pub before: RowChange,
    /// u8, contiguous: [`QuantisedRows::bytes`] of the input.
    pub out: Operand,
}

impl Operation for QuantiseRows {
    const NAME: &'static str = "quantise rows";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        if let RowChange::Norm(by) = &self.before {
            visit(&by.scale);
            visit(&by.shift);
        }
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    // A conversion: every device reads all types of activations.
    activations!();

    fn check(&self) -> Result<()> {
        let (op, x) = (Self::NAME, &self.x);
        check::activation(op, "input", x)?;
        check::packed_rows(op, "input", x)?;
        let columns = if x.rank() == 0 { 0 } else { x.shape().last() };
        let whole = columns > 0 && columns.is_multiple_of(QuantisedRows::MULTIPLE);
        check::that(op, "input", whole, "rows of a multiple of 16 values", x)?;
        if let RowChange::GeluTanh { first } = self.before {
            let whole = first.is_multiple_of(QuantisedRows::MULTIPLE);
            check::that(op, "input", whole, "activated from a multiple of 16 on", x)?;
        }
        if let RowChange::Norm(by) = &self.before {
            for (name, operand) in [("scale", &by.scale), ("shift", &by.shift)] {
                check::same_type(op, name, operand, x)?;
                check::stretches(op, name, operand, x.shape())?;
                let whole = operand.rank() >= 1 && operand.shape().last() == columns;
                check::that(op, name, whole, "a value for each of a row", operand)?;
                check::packed_rows(op, name, operand)?;
            }
        }
        are_codes(op, "output", &self.out, QuantisedRows::of(x.shape()))
    }
}

/// `activation(x · weightᵀ · scale + bias)` of rows that are codes, and of a weight that is.
#[derive(Clone, Debug)]
pub struct QuantisedLinear {
    /// What [`QuantiseRows`] made of as many rows as the output has.
    pub x: Operand,
    /// `[out, in]` of e4m3, contiguous; both dimensions are multiples of [`QuantisedRows::MULTIPLE`].
    pub weight: Operand,
    /// One f32 that multiplies it, if something does.
    pub scale: Option<Operand>,
    /// `[out]`.
    pub bias: Option<Operand>,
    /// Applied last.
    pub activation: Option<Activation>,
    /// `[…, out]`, packed rows.
    pub out: Operand,
}

impl QuantisedLinear {
    /// The rows of codes.
    pub fn rows(&self) -> QuantisedRows {
        QuantisedRows { rows: QuantisedRows::of(self.out.shape()).rows, columns: self.weight.dim(1) }
    }
}

impl Operation for QuantisedLinear {
    const NAME: &'static str = "quantised linear";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        visit(&self.weight);
        self.scale.iter().chain(&self.bias).for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(out);

    fn check(&self) -> Result<()> {
        let (op, w, out) = (Self::NAME, &self.weight, &self.out);
        check::rank(op, "weight", w, 2)?;
        let whole = w.dims().iter().all(|dim| *dim > 0 && dim.is_multiple_of(QuantisedRows::MULTIPLE));
        let readable = w.dtype() == Some(DType::F8E4M3) && w.is_contiguous() && whole;
        check::that(op, "weight", readable, "a contiguous matrix of f8_e4m3, multiples of 16", w)?;
        check::activation(op, "output", out)?;
        check::packed_rows(op, "output", out)?;
        let wide = out.rank() >= 1 && out.shape().last() == w.dim(0);
        check::that(op, "output", wide, format_args!("[…, {}]", w.dim(0)), out)?;
        if let Some(scale) = &self.scale {
            let one = scale.dtype() == Some(DType::F32) && scale.count() == 1;
            check::that(op, "weight scale", one, "one f32", scale)?;
        }
        check::parameters(op, &[("bias", self.bias.as_ref())], w.dim(0))?;
        are_codes(op, "input", &self.x, self.rows())
    }

    fn flops(&self) -> u64 {
        2 * self.out.count() as u64 * self.weight.dim(1) as u64
    }
}

/// The operand must be the place of such rows.
fn are_codes(op: &'static str, name: &'static str, operand: &Operand, rows: QuantisedRows) -> Result<()> {
    let fits =
        operand.dtype() == Some(DType::U8) && operand.is_contiguous() && operand.count() == rows.bytes();
    let QuantisedRows { rows: count, columns } = rows;
    check::that(op, name, fits, format_args!("bytes (u8) of {count} rows of {columns} codes"), operand)
}
