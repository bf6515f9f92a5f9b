//! From a call to the kernels that do it.

pub(crate) mod attention;
pub(crate) mod coding;
pub(crate) mod convolution;
pub(crate) mod elementwise;
pub(crate) mod layout;
pub(crate) mod noise;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod quantised;
pub(crate) mod reduction;
pub(crate) mod resample;
pub(crate) mod rope;
pub(crate) mod scaled;
pub(crate) mod unpack;

use device::{OpCall, Result};
use meta::DType;

use crate::kernel::{Launch, Variant};
use crate::pool;
use crate::runtime::Runtime;

/// Queues a valid call.
pub(crate) fn run(call: &OpCall, launch: &Launch<'_>) -> Result<()> {
    if call.output().count() == 0 {
        return Ok(());
    }
    match call {
        OpCall::Linear(call) => product::linear(call, launch),
        OpCall::QuantiseRows(call) => quantised::quantise_rows(call, launch),
        OpCall::QuantisedLinear(call) => quantised::quantised_linear(call, launch),
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
        OpCall::Unpack(call) => unpack::unpack(call, launch),
        OpCall::Encode(_) => Err(coding::no_encoder(launch)),
        OpCall::Decode(call) => coding::decode(call, launch),
        OpCall::Pad(call) => layout::pad(call, launch),
        OpCall::Resize(call) => resample::resize(call, launch),
        OpCall::NormalNoise(call) => noise::normal_noise(call, launch),
    }
}

/// Which kernels do an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A library's where it has them, as they are asked for first.
    Fastest,
    /// Our own, where there is no room for what the library's want.
    Own,
}

/// The most bytes that a valid call holds at a time beside its operands. Each operation sizes what it takes by the same
/// functions when it is launched.
pub(crate) fn scratch_bytes(call: &OpCall, runtime: &Runtime, way: Way) -> u64 {
    if call.output().count() == 0 {
        return 0;
    }
    match call {
        OpCall::Linear(call) => product::linear_scratch(call),
        OpCall::QuantisedLinear(call) => quantised::linear_scratch(call),
        OpCall::Matmul(call) => product::matmul_scratch(call),
        OpCall::Attention(call) => attention::scratch(call, runtime, way),
        OpCall::Convolution(call) => convolution::scratch(call, runtime, way),
        OpCall::GroupNorm(call) => held([norm::moments_bytes(call, runtime.context.properties())]),
        OpCall::Reduce(call) => held([reduction::parts_bytes(call, runtime.context.properties())]),
        OpCall::QuantiseRows(_)
        | OpCall::LayerNorm(_)
        | OpCall::ModulatedNorm(_)
        | OpCall::RmsNorm(_)
        | OpCall::Rope(_)
        | OpCall::NormedRope(_)
        | OpCall::Modulate(_)
        | OpCall::GatedAdd(_)
        | OpCall::GatedActivation(_)
        | OpCall::Unary(_)
        | OpCall::Binary(_)
        | OpCall::Softmax(_)
        | OpCall::Embedding(_)
        | OpCall::Copy(_)
        | OpCall::Unpack(_)
        | OpCall::Encode(_)
        | OpCall::Decode(_)
        | OpCall::Pad(_)
        | OpCall::Resize(_)
        | OpCall::NormalNoise(_) => 0,
    }
}

/// Bytes of the pool that these temporary blocks take together.
fn held(blocks: impl IntoIterator<Item = Option<usize>>) -> u64 {
    blocks.into_iter().flatten().map(pool::taken).fold(0, u64::saturating_add)
}

/// Activations are bf16, f16 or f32; conversions take any plain type.
pub(crate) fn supports(call: &OpCall) -> Result<(), String> {
    let out = call.output();
    let activation = matches!(out.dtype(), Some(DType::BF16 | DType::F16 | DType::F32));
    if matches!(call, OpCall::Encode(_)) {
        return Err(coding::NO_ENCODER.into());
    }
    if matches!(call, OpCall::Copy(_) | OpCall::Decode(_) | OpCall::QuantiseRows(_)) || activation {
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
        coding::VARIANTS,
        scaled::VARIANTS,
        quantised::VARIANTS,
        attention::VARIANTS,
        attention::MASK_VARIANTS,
        convolution::VARIANTS,
    ]
    .into_iter()
    .flatten()
}
