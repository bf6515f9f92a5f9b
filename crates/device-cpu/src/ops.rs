//! From a call to its kernel.

pub(crate) mod attention;
pub(crate) mod coding;
pub(crate) mod convolution;
pub(crate) mod elementwise;
pub(crate) mod gemm;
pub(crate) mod layout;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod quantised;
pub(crate) mod reduction;
pub(crate) mod resample;
pub(crate) mod rope;
pub(crate) mod unpack;
pub(crate) mod vector_math;

use device::{OpCall, Result};
use meta::DType;

use crate::access::Access;

/// Runs a valid call to its end.
pub(crate) fn run(call: &OpCall) -> Result<()> {
    if call.output().count() == 0 {
        return Ok(());
    }
    let access = &Access::to(call)?;
    match call {
        OpCall::Linear(call) => product::linear(call, access),
        OpCall::QuantiseRows(call) => quantised::quantise_rows(call, access),
        OpCall::QuantisedLinear(call) => quantised::quantised_linear(call, access),
        OpCall::Matmul(call) => product::matmul(call, access),
        OpCall::Attention(call) => attention::attention(call, access),
        OpCall::Convolution(call) => convolution::convolution(call, access),
        OpCall::GroupNorm(call) => norm::group_norm(call, access),
        OpCall::LayerNorm(call) => norm::layer_norm(call, access),
        OpCall::ModulatedNorm(call) => norm::modulated_norm(call, access),
        OpCall::RmsNorm(call) => norm::rms_norm(call, access),
        OpCall::Rope(call) => rope::rope(call, access),
        OpCall::NormedRope(call) => rope::normed_rope(call, access),
        OpCall::Modulate(call) => elementwise::modulate(call, access),
        OpCall::GatedAdd(call) => elementwise::gated_add(call, access),
        OpCall::GatedActivation(call) => elementwise::gated_activation(call, access),
        OpCall::Unary(call) => elementwise::unary(call, access),
        OpCall::Binary(call) => elementwise::binary(call, access),
        OpCall::Softmax(call) => reduction::softmax(call, access),
        OpCall::Reduce(call) => reduction::reduce(call, access),
        OpCall::Embedding(call) => layout::embedding(call, access),
        OpCall::Copy(call) => layout::copy(call, access),
        OpCall::Unpack(call) => layout::unpack(call, access),
        OpCall::Encode(call) => coding::encode(call, access),
        OpCall::Decode(call) => coding::decode(call, access),
        OpCall::Pad(call) => layout::pad(call, access),
        OpCall::Resize(call) => resample::resize(call, access),
        OpCall::NormalNoise(call) => layout::normal_noise(call, access),
    }
}

/// The CPU keeps activations in f32; conversions take any plain type, and what is added to a weight may be of its type.
pub(crate) fn supports(call: &OpCall) -> Result<(), String> {
    let out = call.output();
    let any_type = match call {
        OpCall::Copy(_)
        | OpCall::Unpack(_)
        | OpCall::Encode(_)
        | OpCall::Decode(_)
        | OpCall::QuantiseRows(_) => true,
        OpCall::Matmul(call) => call.accumulate,
        _ => false,
    };
    if any_type || out.dtype() == Some(DType::F32) {
        return Ok(());
    }
    Err(format!("activations are f32 on the CPU, not {}; cast them first", out.encoding()))
}

/// The widest instruction set that the kernels use here.
pub(crate) fn instruction_set() -> &'static str {
    gemm::instruction_set()
}
