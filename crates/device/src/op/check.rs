//! Checks that operations share.

use std::fmt;

use meta::{DType, Shape};

use crate::{Error, Operand, Result};

/// Element types in which activations are kept.
pub(super) const ACTIVATIONS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// An operand that is not what it should be.
pub(super) fn error(op: &'static str, operand: &'static str, expected: String, got: String) -> Error {
    Error::Operand { op, operand, expected, got }
}

/// The shape must be this one.
pub(super) fn shape(op: &'static str, operand: &'static str, got: &Operand, want: &Shape) -> Result<()> {
    if got.shape() == want {
        return Ok(());
    }
    Err(error(op, operand, format!("of shape {want}"), format!("of shape {}", got.shape())))
}

/// The operand must have this many dimensions.
pub(super) fn rank(op: &'static str, operand: &'static str, got: &Operand, want: usize) -> Result<()> {
    if got.rank() == want {
        return Ok(());
    }
    Err(error(op, operand, format!("of {want} dimensions"), format!("of shape {}", got.shape())))
}

/// A condition on an operand's shape, told in words. They are put together only when it does not hold.
pub(super) fn that(
    op: &'static str,
    operand: &'static str,
    ok: bool,
    want: impl fmt::Display,
    got: &Operand,
) -> Result<()> {
    if ok { Ok(()) } else { Err(error(op, operand, want.to_string(), format!("{got:?}"))) }
}

/// The operand must be an activation.
pub(super) fn activation(op: &'static str, operand: &'static str, got: &Operand) -> Result<()> {
    let ok = got.dtype().is_some_and(|d| ACTIVATIONS.contains(&d));
    that(op, operand, ok, "f32, bf16 or f16", got)
}

/// The operand must have the element type of another.
pub(super) fn same_type(
    op: &'static str,
    operand: &'static str,
    got: &Operand,
    like: &Operand,
) -> Result<()> {
    if got.encoding() == like.encoding() {
        return Ok(());
    }
    Err(error(op, operand, format!("{}", like.encoding()), format!("{}", got.encoding())))
}

/// A parameter vector (bias, norm weight): plain floats of any type, side by side.
pub(super) fn parameter(op: &'static str, operand: &'static str, got: &Operand, len: usize) -> Result<()> {
    let ok = got.dtype().is_some_and(DType::is_float) && got.dims() == [len] && got.is_contiguous();
    if ok {
        return Ok(());
    }
    Err(error(op, operand, format!("{len} plain floats"), format!("{got:?}")))
}

/// Optional parameter vectors.
pub(super) fn parameters(
    op: &'static str,
    named: &[(&'static str, Option<&Operand>)],
    len: usize,
) -> Result<()> {
    named.iter().try_for_each(|(name, p)| p.map_or(Ok(()), |p| parameter(op, name, p, len)))
}

/// An activation in and one of the same type and shape out.
pub(super) fn same_in_out(op: &'static str, x: &Operand, out: &Operand) -> Result<()> {
    activation(op, "input", x)?;
    same_type(op, "output", out, x)?;
    shape(op, "output", out, x.shape())
}

/// The operand must stretch to a shape by repetition.
pub(super) fn stretches(op: &'static str, operand: &'static str, got: &Operand, to: &Shape) -> Result<()> {
    if got.broadcast(*to).is_ok() {
        return Ok(());
    }
    Err(error(op, operand, format!("repeatable to {to}"), format!("of shape {}", got.shape())))
}

/// Values of the last dimension must stand side by side.
pub(super) fn packed_rows(op: &'static str, operand: &'static str, got: &Operand) -> Result<()> {
    that(op, operand, got.has_packed_rows(), "packed in its last dimension", got)
}
