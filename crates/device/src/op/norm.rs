//! Normalisations.

use super::{Operation, activations, check};
use crate::{Operand, Result};

/// Mean 0 and variance 1 over each group of channels, then scale and shift per channel, then perhaps SiLU.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// `[batch, channels, …]`, contiguous.
    pub x: Operand,
    /// `[channels]`.
    pub weight: Option<Operand>,
    /// `[channels]`.
    pub bias: Option<Operand>,
    /// Number of groups; divides the channels.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Whether SiLU is applied to what comes out.
    pub silu: bool,
    /// As `x`.
    pub out: Operand,
}

impl Operation for GroupNorm {
    const NAME: &'static str = "group norm";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        self.weight.iter().chain(&self.bias).for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        let (op, x) = (Self::NAME, &self.x);
        check::same_in_out(op, x, &self.out)?;
        check::that(op, "input", x.rank() >= 2 && x.is_contiguous(), "contiguous [batch, channels, …]", x)?;
        check::that(op, "output", self.out.is_contiguous(), "contiguous", &self.out)?;
        let whole = self.groups > 0 && x.dim(1).is_multiple_of(self.groups);
        check::that(op, "groups", whole, "a divisor of the channels", x)?;
        check::parameters(op, &[("weight", self.weight.as_ref()), ("bias", self.bias.as_ref())], x.dim(1))
    }
}

/// Mean 0 and variance 1 over the last dimension, then scale and shift.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// `[…, n]`, packed rows.
    pub x: Operand,
    /// `[n]`.
    pub weight: Option<Operand>,
    /// `[n]`.
    pub bias: Option<Operand>,
    /// Added to the variance.
    pub eps: f32,
    /// As `x`.
    pub out: Operand,
}

impl Operation for LayerNorm {
    const NAME: &'static str = "layer norm";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        self.weight.iter().chain(&self.bias).for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        check_rows(Self::NAME, &self.x, &self.out)?;
        let named = [("weight", self.weight.as_ref()), ("bias", self.bias.as_ref())];
        check::parameters(Self::NAME, &named, self.x.shape().last())
    }
}

/// Mean 0 and variance 1 over the last dimension, then `x · (1 + scale) + shift`.
#[derive(Clone, Debug)]
pub struct ModulatedNorm {
    /// `[…, n]`, packed rows.
    pub x: Operand,
    /// Repeats to the shape of `x`, with packed rows.
    pub scale: Operand,
    /// As `scale`.
    pub shift: Operand,
    /// Added to the variance.
    pub eps: f32,
    /// As `x`.
    pub out: Operand,
}

impl Operation for ModulatedNorm {
    const NAME: &'static str = "modulated norm";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        visit(&self.scale);
        visit(&self.shift);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, scale, shift, out);

    fn check(&self) -> Result<()> {
        check_rows(Self::NAME, &self.x, &self.out)?;
        for (name, operand) in [("scale", &self.scale), ("shift", &self.shift)] {
            check::same_type(Self::NAME, name, operand, &self.x)?;
            check::stretches(Self::NAME, name, operand, self.x.shape())?;
            let whole = operand.rank() >= 1 && operand.shape().last() == self.x.shape().last();
            check::that(Self::NAME, name, whole, "a value for each of a row", operand)?;
            check::packed_rows(Self::NAME, name, operand)?;
        }
        Ok(())
    }
}

/// Root mean square 1 over one dimension, then scale.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `[…, n, …]`: packed rows where the dimension is the last one, else contiguous.
    pub x: Operand,
    /// The dimension.
    pub axis: usize,
    /// `[n]`.
    pub weight: Option<Operand>,
    /// Added to the mean square.
    pub eps: f32,
    /// As `x`.
    pub out: Operand,
}

impl Operation for RmsNorm {
    const NAME: &'static str = "rms norm";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
        self.weight.iter().for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        let (op, x, out, axis) = (Self::NAME, &self.x, &self.out, self.axis);
        check::that(op, "input", axis < x.rank(), format_args!("of more than {axis} dimensions"), x)?;
        if axis + 1 == x.rank() {
            check_rows(op, x, out)?;
        } else {
            check::same_in_out(op, x, out)?;
            check::that(op, "input", x.dim(axis) > 0, "with values to norm", x)?;
            check::that(op, "input", x.is_contiguous(), "contiguous", x)?;
            check::that(op, "output", out.is_contiguous(), "contiguous", out)?;
        }
        check::parameters(op, &[("weight", self.weight.as_ref())], x.dim(axis))
    }
}

/// Rows in and rows out.
fn check_rows(op: &'static str, x: &Operand, out: &Operand) -> Result<()> {
    check::same_in_out(op, x, out)?;
    check::that(
        op,
        "input",
        x.rank() >= 1 && x.shape().last() > 0,
        "of one or more dimensions, rows not empty",
        x,
    )?;
    check::packed_rows(op, "input", x)?;
    check::packed_rows(op, "output", out)
}
