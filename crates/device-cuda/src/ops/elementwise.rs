//! Operations that treat every value by itself.

use device::{Operand, Result, op};
use op::{Activation, BinaryKind, UnaryKind};

use super::layout::geometry::{ACCESS_BYTES, Walk, blocks, element, index_type, type_name};
use crate::kernel::{Args, KernelFile, Launch, Variant};

/// Every function in every type.
macro_rules! functions {
    ($($inputs:literal: $($function:literal)*;)*) => {
        &[$($(
            Variant { file: KernelFile::Elementwise, name: "packed_values", defines: &[("T", "bf16"), ("FUNCTION", $function), ("INPUTS", $inputs), ("INDEX", "u32")] },
            Variant { file: KernelFile::Elementwise, name: "packed_values", defines: &[("T", "f16"), ("FUNCTION", $function), ("INPUTS", $inputs), ("INDEX", "u32")] },
            Variant { file: KernelFile::Elementwise, name: "single_values", defines: &[("T", "f32"), ("FUNCTION", $function), ("INPUTS", $inputs), ("INDEX", "u64")] },
        )*)*]
    };
}

pub(crate) const VARIANTS: &[Variant] = functions! {
    "1": "unary_neg" "unary_abs" "unary_exp" "unary_log" "unary_sqrt" "unary_rsqrt" "unary_square"
        "unary_reciprocal" "unary_sin" "unary_cos" "unary_tanh" "unary_sigmoid" "unary_round"
        "unary_floor" "unary_affine" "unary_leaky_relu" "unary_clamp"
        "unary_silu" "unary_gelu" "unary_gelu_tanh" "unary_quick_gelu" "unary_relu";
    "2": "binary_add" "binary_sub" "binary_mul" "binary_div" "binary_min" "binary_max" "binary_pow"
        "gated_silu" "gated_gelu" "gated_gelu_tanh" "gated_quick_gelu" "gated_relu";
    "3": "modulate" "gated_add";
};

pub(crate) fn modulate(call: &op::Modulate, launch: &Launch<'_>) -> Result<()> {
    run(launch, Function::plain("modulate"), &call.out, &[&call.x, &call.scale, &call.shift])
}

pub(crate) fn gated_add(call: &op::GatedAdd, launch: &Launch<'_>) -> Result<()> {
    run(launch, Function::plain("gated_add"), &call.out, &[&call.x, &call.gate, &call.y])
}

pub(crate) fn gated_activation(call: &op::GatedActivation, launch: &Launch<'_>) -> Result<()> {
    let function = match call.activation {
        Activation::Silu => "gated_silu",
        Activation::Gelu => "gated_gelu",
        Activation::GeluTanh => "gated_gelu_tanh",
        Activation::QuickGelu => "gated_quick_gelu",
        Activation::Relu => "gated_relu",
    };
    run(launch, Function::plain(function), &call.out, &[&call.gate, &call.up])
}

pub(crate) fn unary(call: &op::Unary, launch: &Launch<'_>) -> Result<()> {
    let function = match call.kind {
        UnaryKind::Neg => Function::plain("unary_neg"),
        UnaryKind::Abs => Function::plain("unary_abs"),
        UnaryKind::Exp => Function::plain("unary_exp"),
        UnaryKind::Log => Function::plain("unary_log"),
        UnaryKind::Sqrt => Function::plain("unary_sqrt"),
        UnaryKind::Rsqrt => Function::plain("unary_rsqrt"),
        UnaryKind::Square => Function::plain("unary_square"),
        UnaryKind::Reciprocal => Function::plain("unary_reciprocal"),
        UnaryKind::Sin => Function::plain("unary_sin"),
        UnaryKind::Cos => Function::plain("unary_cos"),
        UnaryKind::Tanh => Function::plain("unary_tanh"),
        UnaryKind::Sigmoid => Function::plain("unary_sigmoid"),
        UnaryKind::Round => Function::plain("unary_round"),
        UnaryKind::Floor => Function::plain("unary_floor"),
        UnaryKind::Activation(activation) => Function::plain(activation_function(activation)),
        UnaryKind::Affine { mul, add } => Function { name: "unary_affine", numbers: [mul, add] },
        UnaryKind::LeakyRelu { slope } => Function { name: "unary_leaky_relu", numbers: [slope, 0.0] },
        UnaryKind::Clamp { min, max } => Function { name: "unary_clamp", numbers: [min, max] },
    };
    run(launch, function, &call.out, &[&call.x])
}

pub(crate) fn binary(call: &op::Binary, launch: &Launch<'_>) -> Result<()> {
    let function = match call.kind {
        BinaryKind::Add => "binary_add",
        BinaryKind::Sub => "binary_sub",
        BinaryKind::Mul => "binary_mul",
        BinaryKind::Div => "binary_div",
        BinaryKind::Min => "binary_min",
        BinaryKind::Max => "binary_max",
        BinaryKind::Pow => "binary_pow",
    };
    run(launch, Function::plain(function), &call.out, &[&call.a, &call.b])
}

/// Applies an activation to every value of `out`.
pub(crate) fn activate_in_place(launch: &Launch<'_>, activation: Activation, out: &Operand) -> Result<()> {
    run(launch, Function::plain(activation_function(activation)), out, &[out])
}

fn activation_function(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "unary_silu",
        Activation::Gelu => "unary_gelu",
        Activation::GeluTanh => "unary_gelu_tanh",
        Activation::QuickGelu => "unary_quick_gelu",
        Activation::Relu => "unary_relu",
    }
}

/// A function of the kernel file with the numbers of the call.
#[derive(Clone, Copy)]
struct Function {
    name: &'static str,
    numbers: [f32; 2],
}

impl Function {
    const fn plain(name: &'static str) -> Function {
        Function { name, numbers: [0.0; 2] }
    }
}

fn run(launch: &Launch<'_>, function: Function, out: &Operand, inputs: &[&Operand]) -> Result<()> {
    let Function { name, numbers: [a, b] } = function;
    let dtype = element(launch, name, out)?;
    let walk = match inputs {
        // What is as large as the output need not be repeated.
        [x] if x.shape() == out.shape() => Walk::over(launch, &[out, x])?,
        _ => {
            let repeated =
                inputs.iter().map(|x| x.broadcast(*out.shape())).collect::<Result<Vec<Operand>>>()?;
            let operands: Vec<&Operand> = std::iter::once(out).chain(&repeated).collect();
            Walk::over(launch, &operands)?
        }
    };
    let (kernel, walk) = match walk.packed(ACCESS_BYTES / dtype.bytes(), &[dtype.bytes(); 4]) {
        Some(packed) => ("packed_values", packed),
        None => ("single_values", walk),
    };
    let count = walk.count();
    let inputs = ["0", "1", "2", "3"][inputs.len()];
    let defines =
        [("T", type_name(dtype)), ("FUNCTION", name), ("INPUTS", inputs), ("INDEX", index_type(count))];
    let mut args = Args::new().bytes(&walk.bytes()).i64(count as i64).f32(a).f32(b);
    let kernel = launch.kernel(KernelFile::Elementwise, kernel, &defines)?;
    kernel.launch(launch, blocks(launch, name, count)?, [256, 1, 1], 0, &mut args)
}
