//! From a call to the kernels that do it.

pub(crate) mod attention;
pub(crate) mod convolution;
pub(crate) mod elementwise;
pub(crate) mod layout;
pub(crate) mod noise;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod reduction;
pub(crate) mod resample;
pub(crate) mod rope;
pub(crate) mod unpack;

use device::{OpCall, Result};
use meta::DType;

use crate::kernel::{Launch, Variant};

/// Queues a valid call.
pub(crate) fn run(call: &OpCall, launch: &Launch<'_>) -> Result<()> {
    if call.output().count() == 0 {
        return Ok(());
    }
    match call {
        OpCall::Linear(call) => product::linear(call, launch),
        OpCall::Matmul(call) => product::matmul(call, launch),
        OpCall::Attention(call) => attention::attention(call, launch),
        OpCall::Convolution(call) => convolution::convolution(call, launch),
        OpCall::GroupNorm(call) => norm::group_norm(call, launch),
        OpCall::LayerNorm(call) => norm::layer_norm(call, launch),
        OpCall::ModulatedNorm(call) => norm::modulated_norm(call, launch),
        OpCall::RmsNorm(call) => norm::rms_norm(call, launch),
        OpCall::Rope(call) => rope::rope(call, launch),
        OpCall::NormedRope(call) => rope::normed_rope(call, launch),
        OpCall::Modulate(call) => elementwise::modulate(call, launch),
        OpCall::GatedAdd(call) => elementwise::gated_add(call, launch),
        OpCall::GatedActivation(call) => elementwise::gated_activation(call, launch),
        OpCall::Unary(call) => elementwise::unary(call, launch),
        OpCall::Binary(call) => elementwise::binary(call, launch),
        OpCall::Softmax(call) => reduction::softmax(call, launch),
        OpCall::Reduce(call) => reduction::reduce(call, launch),
        OpCall::Embedding(call) => layout::embedding(call, launch),
        OpCall::Copy(call) => layout::copy(call, launch),
        OpCall::Pad(call) => layout::pad(call, launch),
        OpCall::Resize(call) => resample::resize(call, launch),
        OpCall::NormalNoise(call) => noise::normal_noise(call, launch),
    }
}

/// Activations are bf16, f16 or f32; conversions take any plain type.
pub(crate) fn supports(call: &OpCall) -> Result<(), String> {
    let out = call.output();
    let activation = matches!(out.dtype(), Some(DType::BF16 | DType::F16 | DType::F32));
    if matches!(call, OpCall::Copy(_)) || activation {
        return Ok(());
    }
    Err(format!("activations are bf16, f16 or f32 on CUDA, not {}; cast them first", out.encoding()))
}

/// Every kernel with every set of definitions it is used with.
pub(crate) fn variants() -> impl Iterator<Item = &'static Variant> {
    [
        elementwise::VARIANTS,
        norm::VARIANTS,
        rope::VARIANTS,
        reduction::VARIANTS,
        layout::VARIANTS,
        resample::VARIANTS,
        unpack::VARIANTS,
        attention::VARIANTS,
        convolution::VARIANTS,
    ]
    .into_iter()
    .flatten()
}
