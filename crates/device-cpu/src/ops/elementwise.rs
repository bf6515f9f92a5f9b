//! Operations that treat every value by itself: formulas here, the walk over strided operands in
//! `blocks`, the order of that walk in `traversal`.

mod blocks;
pub(crate) mod traversal;

use device::Result;
use device::op::{self, Activation, BinaryKind, UnaryKind};

use self::blocks::{Formula, run};
use super::vector_math::{Arithmetic, Kernel, dispatch, erf, exp, sigmoid, tanh};
use crate::access::Access;

/// A loop over blocks of one length: `each!(out; a, b => a + b)`. A macro, because a closure might not
/// be compiled for the instruction set of the loop around it.
macro_rules! each {
    ($out:ident; $($x:ident),+ => $value:expr) => {{
        let len = $out.len();
        $(let $x = &$x[..len];)+
        for i in 0..len {
            $(let $x = $x[i];)+
            $out[i] = $value;
        }
    }};
}

/// Repeats a loop for each activation, so that the choice is made outside of it.
macro_rules! by_activation {
    ($activation:expr, $f:ident => $body:expr) => {
        match $activation {
            Activation::Silu => {
                use silu as $f;
                $body
            }
            Activation::Gelu => {
                use gelu as $f;
                $body
            }
            Activation::GeluTanh => {
                use gelu_tanh as $f;
                $body
            }
            Activation::QuickGelu => {
                use quick_gelu as $f;
                $body
            }
            Activation::Relu => {
                use relu as $f;
                $body
            }
        }
    };
}

/// Applies a non-linearity to each value, in the caller's thread.
pub(crate) fn activate(activation: Activation, values: &mut [f32]) {
    struct InPlace<'a>(Activation, &'a mut [f32]);

    impl Kernel for InPlace<'_> {
        type Output = ();

        #[inline(always)]
        fn run<A: Arithmetic>(self) {
            by_activation!(self.0, f => for v in self.1 {
                *v = f::<A>(*v);
            });
        }
    }

    dispatch(InPlace(activation, values));
}

/// `x · (1 + scale) + shift`.
pub(crate) fn modulate(call: &op::Modulate, access: &Access<'_>) -> Result<()> {
    run("modulate", ModulateFormula, [&call.x, &call.scale, &call.shift], &call.out, access)
}

/// `x + gate · y`.
pub(crate) fn gated_add(call: &op::GatedAdd, access: &Access<'_>) -> Result<()> {
    run("gated add", GatedAddFormula, [&call.x, &call.gate, &call.y], &call.out, access)
}

/// `activation(gate) · up`.
pub(crate) fn gated_activation(call: &op::GatedActivation, access: &Access<'_>) -> Result<()> {
    run("gated activation", GatedFormula(call.activation), [&call.gate, &call.up], &call.out, access)
}

/// One value in, one value out.
pub(crate) fn unary(call: &op::Unary, access: &Access<'_>) -> Result<()> {
    run("unary", call.kind, [&call.x], &call.out, access)
}

/// Two values in, one value out.
pub(crate) fn binary(call: &op::Binary, access: &Access<'_>) -> Result<()> {
    run("binary", call.kind, [&call.a, &call.b], &call.out, access)
}

#[inline(always)]
fn silu<A: Arithmetic>(x: f32) -> f32 {
    x * sigmoid::<A>(x)
}

#[inline(always)]
fn gelu<A: Arithmetic>(x: f32) -> f32 {
    0.5 * x * (1.0 + erf::<A>(x * std::f32::consts::FRAC_1_SQRT_2))
}

#[inline(always)]
fn gelu_tanh<A: Arithmetic>(x: f32) -> f32 {
    // sqrt(2 / pi)
    const SCALE: f32 = 0.797_884_6;
    let inner = SCALE * A::mul_add(0.044_715 * x * x, x, x);
    0.5 * x * (1.0 + tanh::<A>(inner))
}

#[inline(always)]
fn quick_gelu<A: Arithmetic>(x: f32) -> f32 {
    x * sigmoid::<A>(1.702 * x)
}

/// NaN stays NaN.
#[inline(always)]
fn relu<A: Arithmetic>(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// The larger; NaN if either is, as in PyTorch.
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The smaller; NaN if either is, as in PyTorch.
#[inline(always)]
pub(crate) fn smaller(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

#[derive(Clone, Copy)]
struct ModulateFormula;

impl Formula<3> for ModulateFormula {
    #[inline(always)]
    fn block<A: Arithmetic>(self, [x, scale, shift]: [&[f32]; 3], out: &mut [f32]) {
        each!(out; x, scale, shift => A::mul_add(x, 1.0 + scale, shift));
    }
}

#[derive(Clone, Copy)]
struct GatedAddFormula;

impl Formula<3> for GatedAddFormula {
    #[inline(always)]
    fn block<A: Arithmetic>(self, [x, gate, y]: [&[f32]; 3], out: &mut [f32]) {
        each!(out; x, gate, y => A::mul_add(gate, y, x));
    }
}

#[derive(Clone, Copy)]
struct GatedFormula(Activation);

impl Formula<2> for GatedFormula {
    #[inline(always)]
    fn block<A: Arithmetic>(self, [gate, up]: [&[f32]; 2], out: &mut [f32]) {
        by_activation!(self.0, f => each!(out; gate, up => f::<A>(gate) * up));
    }
}

impl Formula<1> for UnaryKind {
    #[inline(always)]
    fn block<A: Arithmetic>(self, [x]: [&[f32]; 1], out: &mut [f32]) {
        match self {
            UnaryKind::Neg => each!(out; x => -x),
            UnaryKind::Abs => each!(out; x => x.abs()),
            UnaryKind::Exp => each!(out; x => exp::<A>(x)),
            UnaryKind::Log => each!(out; x => x.ln()),
            UnaryKind::Sqrt => each!(out; x => x.sqrt()),
            UnaryKind::Rsqrt => each!(out; x => 1.0 / x.sqrt()),
            UnaryKind::Square => each!(out; x => x * x),
            UnaryKind::Reciprocal => each!(out; x => 1.0 / x),
            UnaryKind::Sin => each!(out; x => x.sin()),
            UnaryKind::Cos => each!(out; x => x.cos()),
            UnaryKind::Tanh => each!(out; x => tanh::<A>(x)),
            UnaryKind::Sigmoid => each!(out; x => sigmoid::<A>(x)),
            UnaryKind::Round => each!(out; x => x.round_ties_even()),
            UnaryKind::Floor => each!(out; x => x.floor()),
            UnaryKind::Activation(a) => by_activation!(a, f => each!(out; x => f::<A>(x))),
            UnaryKind::Affine { mul, add } => each!(out; x => A::mul_add(x, mul, add)),
            UnaryKind::LeakyRelu { slope } => each!(out; x => if x < 0.0 { x * slope } else { x }),
            UnaryKind::Clamp { min, max } => each!(out; x => smaller(larger(x, min), max)),
        }
    }
}

impl Formula<2> for BinaryKind {
    #[inline(always)]
    fn block<A: Arithmetic>(self, [a, b]: [&[f32]; 2], out: &mut [f32]) {
        match self {
            BinaryKind::Add => each!(out; a, b => a + b),
            BinaryKind::Sub => each!(out; a, b => a - b),
            BinaryKind::Mul => each!(out; a, b => a * b),
            BinaryKind::Div => each!(out; a, b => a / b),
            BinaryKind::Min => each!(out; a, b => smaller(a, b)),
            BinaryKind::Max => each!(out; a, b => larger(a, b)),
            BinaryKind::Pow => each!(out; a, b => a.powf(b)),
        }
    }
}
