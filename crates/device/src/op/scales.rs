//! What stands beside a stored weight and makes numbers of its codes.

use std::ops::Range;

use meta::{DType, Encoding, Scheme};

use super::{Operation, activations, check};
use crate::{Operand, Result};

/// The scales of a weight.
#[derive(Clone, Debug)]
pub struct Scales {
    /// One f32 for all values; for [`Scheme::Int8`] also one for each row; for schemes of blocks the bytes of their scales,
    /// in the order of [`meta::ScaleTiles`].
    pub values: Operand,
    /// One f32 that multiplies the scales of blocks ([`Scheme::Nvfp4`]).
    pub tensor: Option<Operand>,
    /// Rows that the scales of blocks have before the weight's first, where it is a part of what they are of.
    pub first_row: usize,
}

impl Scales {
    /// Scales of a whole weight.
    pub fn new(values: Operand, tensor: Option<Operand>) -> Scales {
        Scales { values, tensor, first_row: 0 }
    }

    /// The scales of some rows of a weight in this encoding.
    pub fn rows(&self, encoding: Encoding, rows: &Range<usize>) -> Result<Scales> {
        Ok(match encoding {
            Encoding::Scaled(Scheme::Int8 { .. }) if self.values.count() > 1 => {
                let flat = self.values.reshape([self.values.count()])?;
                Scales { values: flat.slice(0, rows.start, rows.len())?, ..self.clone() }
            }
            Encoding::Scaled(Scheme::Mxfp8 | Scheme::Nvfp4) => {
                Scales { first_row: self.first_row + rows.start, ..self.clone() }
            }
            _ => self.clone(),
        })
    }

    /// Calls `visit` with each operand.
    pub(super) fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.values);
        self.tensor.iter().for_each(visit);
    }

    /// Whether a weight has the scales that it needs.
    pub(super) fn check(op: &'static str, weight: &Operand, scales: Option<&Scales>) -> Result<()> {
        let Some(scheme) = weight.encoding().scheme() else {
            return scales.map_or(Ok(()), |scales| one(op, "weight scale", &scales.values));
        };
        check::rank(op, "weight", weight, 2)?;
        let Some(Scales { values, tensor, first_row }) = scales else {
            return check::that(op, "weight", false, "one with scales beside it", weight);
        };
        let (rows, solid) = (weight.dim(0), values.is_contiguous());
        match scheme.tiles(weight.dim(1)) {
            None => {
                let fits = solid
                    && values.dtype() == Some(DType::F32)
                    && (values.count() == 1 || values.count() == rows);
                check::that(op, "weight scale", fits, format_args!("one f32, or {rows}"), values)?;
            }
            Some(tiles) => {
                let [grid_rows, columns] = tiles.grid(first_row.saturating_add(rows));
                let bytes = solid && values.dtype().is_some_and(|dtype| dtype.bytes() == 1);
                let enough = values.count() as u64 >= (grid_rows as u64).saturating_mul(columns as u64);
                check::that(
                    op,
                    "weight scale",
                    bytes && enough,
                    format_args!("bytes of {grid_rows}x{columns}"),
                    values,
                )?;
            }
        }
        match (scheme, tensor) {
            (Scheme::Nvfp4, Some(tensor)) => one(op, "tensor scale", tensor),
            (Scheme::Nvfp4, None) => {
                check::that(op, "weight", false, "one with a scale of the whole tensor", weight)
            }
            _ => Ok(()),
        }
    }
}

/// The scale must be one f32.
fn one(op: &'static str, name: &'static str, scale: &Operand) -> Result<()> {
    let ok = scale.dtype() == Some(DType::F32) && scale.count() == 1;
    check::that(op, name, ok, "one f32", scale)
}

/// Whether a weight that is stored with `stored` columns has `columns`: some schemes fill rows up.
pub(super) fn has_columns(weight: &Operand, columns: usize) -> bool {
    let padding = weight.encoding().scheme().map_or(1, Scheme::padding);
    columns.checked_next_multiple_of(padding) == Some(weight.dim(1))
}

/// The numbers that a weight with scales stands for, rounded as the reference does that computes in the output's type.
#[derive(Clone, Debug)]
pub struct Unpack {
    /// Floats or quantised; contiguous.
    pub weight: Operand,
    /// What makes numbers of it.
    pub scales: Scales,
    /// The weight's shape without what fills it up; f32, bf16 or f16, contiguous.
    pub out: Operand,
}

impl Operation for Unpack {
    const NAME: &'static str = "unpack";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.weight);
        self.scales.inputs(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    // A conversion: every device rounds to the type that it is asked for.
    activations!();

    fn check(&self) -> Result<()> {
        let (op, weight, out) = (Self::NAME, &self.weight, &self.out);
        Scales::check(op, weight, Some(&self.scales))?;
        let readable = weight.dtype().is_none_or(DType::is_float) && weight.is_contiguous();
        check::that(op, "weight", readable, "contiguous floats or codes", weight)?;
        check::activation(op, "output", out)?;
        check::that(op, "output", out.is_contiguous(), "contiguous", out)?;
        if weight.encoding().scheme().is_none() {
            return check::shape(op, "output", out, weight.shape());
        }
        let fits = out.rank() == 2 && out.dim(0) == weight.dim(0) && has_columns(weight, out.dim(1));
        check::that(op, "output", fits, format_args!("as large as {}", weight.shape()), out)
    }
}
