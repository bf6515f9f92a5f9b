//! Operations that treat every value by itself. Inputs repeat to the output's shape; the output may be
//! one of the inputs.

use super::{Operation, activations, check};
use crate::{Operand, Result};

/// A non-linearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · Φ(x)`, by the error function.
    Gelu,
    /// GELU by the tanh formula.
    GeluTanh,
    /// `x · sigmoid(1.702 x)`.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 5] =
        [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::QuickGelu, Activation::Relu];
}

/// `x · (1 + scale) + shift`.
#[derive(Clone, Debug)]
pub struct Modulate {
    /// Any shape.
    pub x: Operand,
    /// Repeats to the shape of `x`.
    pub scale: Operand,
    /// Repeats to the shape of `x`.
    pub shift: Operand,
    /// As `x`.
    pub out: Operand,
}

/// `x + gate · y`.
#[derive(Clone, Debug)]
pub struct GatedAdd {
    /// Any shape.
    pub x: Operand,
    /// Repeats to the shape of `x`.
    pub gate: Operand,
    /// Repeats to the shape of `x`.
    pub y: Operand,
    /// As `x`.
    pub out: Operand,
}

/// `activation(gate) · up`: with SiLU this is SwiGLU, with GELU GEGLU.
#[derive(Clone, Debug)]
pub struct GatedActivation {
    /// The activation of the gate.
    pub activation: Activation,
    /// Any shape.
    pub gate: Operand,
    /// Repeats to the shape of `gate`.
    pub up: Operand,
    /// As `gate`.
    pub out: Operand,
}

/// One value in, one value out.
#[derive(Clone, Debug)]
pub struct Unary {
    /// What is done.
    pub kind: UnaryKind,
    /// Any shape.
    pub x: Operand,
    /// As `x`.
    pub out: Operand,
}

/// What is done to each value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnaryKind {
    /// `-x`.
    Neg,
    /// `|x|`.
    Abs,
    /// `eˣ`.
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// `1 / sqrt(x)`.
    Rsqrt,
    /// `x²`.
    Square,
    /// `1 / x`.
    Reciprocal,
    /// Sine of radians.
    Sin,
    /// Cosine of radians.
    Cos,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// To the nearest integer, halves to even.
    Round,
    /// The largest integer not above.
    Floor,
    /// A non-linearity.
    Activation(Activation),
    /// `x · mul + add`.
    Affine {
        /// Factor.
        mul: f32,
        /// Summand.
        add: f32,
    },
    /// `x` where it is positive, `x · slope` elsewhere.
    LeakyRelu {
        /// Factor of what is negative.
        slope: f32,
    },
    /// Into a range.
    Clamp {
        /// Lower end.
        min: f32,
        /// Upper end.
        max: f32,
    },
}

/// Two values in, one value out.
#[derive(Clone, Debug)]
pub struct Binary {
    /// What is done.
    pub kind: BinaryKind,
    /// Repeats to the shape of `out`.
    pub a: Operand,
    /// Repeats to the shape of `out`.
    pub b: Operand,
    /// Any shape.
    pub out: Operand,
}

/// What is done to two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryKind {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`.
    Div,
    /// The smaller.
    Min,
    /// The larger.
    Max,
    /// `aᵇ`.
    Pow,
}

/// Operands that repeat to the output and have its type.
fn check_stretching(op: &'static str, named: &[(&'static str, &Operand)], out: &Operand) -> Result<()> {
    check::activation(op, "output", out)?;
    for (name, operand) in named {
        check::same_type(op, name, operand, out)?;
        check::stretches(op, name, operand, out.shape())?;
    }
    Ok(())
}

impl Operation for Modulate {
    const NAME: &'static str = "modulate";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        [&self.x, &self.scale, &self.shift].into_iter().for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, scale, shift, out);

    fn check(&self) -> Result<()> {
        check::shape(Self::NAME, "input", &self.x, self.out.shape())?;
        check_stretching(
            Self::NAME,
            &[("input", &self.x), ("scale", &self.scale), ("shift", &self.shift)],
            &self.out,
        )
    }
}

impl Operation for GatedAdd {
    const NAME: &'static str = "gated add";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        [&self.x, &self.gate, &self.y].into_iter().for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, gate, y, out);

    fn check(&self) -> Result<()> {
        check::shape(Self::NAME, "input", &self.x, self.out.shape())?;
        check_stretching(
            Self::NAME,
            &[("input", &self.x), ("gate", &self.gate), ("summand", &self.y)],
            &self.out,
        )
    }
}

impl Operation for GatedActivation {
    const NAME: &'static str = "gated activation";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        [&self.gate, &self.up].into_iter().for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(gate, up, out);

    fn check(&self) -> Result<()> {
        check::shape(Self::NAME, "gate", &self.gate, self.out.shape())?;
        check_stretching(Self::NAME, &[("gate", &self.gate), ("up", &self.up)], &self.out)
    }
}

impl Operation for Unary {
    const NAME: &'static str = "unary";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        visit(&self.x);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(x, out);

    fn check(&self) -> Result<()> {
        check::same_in_out(Self::NAME, &self.x, &self.out)
    }
}

impl Operation for Binary {
    const NAME: &'static str = "binary";

    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand)) {
        [&self.a, &self.b].into_iter().for_each(visit);
    }

    fn output(&self) -> &Operand {
        &self.out
    }

    activations!(a, b, out);

    fn check(&self) -> Result<()> {
        check_stretching(Self::NAME, &[("left", &self.a), ("right", &self.b)], &self.out)
    }
}
