//! The numbers by which GGUF names a tensor's type.

use meta::{DType, Encoding, QuantFormat};

use crate::TensorFault;

/// The encoding with this number.
pub(super) fn encoding(id: u32) -> Result<Encoding, TensorFault> {
    Ok(match id {
        0 => Encoding::Plain(DType::F32),
        1 => Encoding::Plain(DType::F16),
        2 => Encoding::Quant(QuantFormat::Q4_0),
        3 => Encoding::Quant(QuantFormat::Q4_1),
        6 => Encoding::Quant(QuantFormat::Q5_0),
        7 => Encoding::Quant(QuantFormat::Q5_1),
        8 => Encoding::Quant(QuantFormat::Q8_0),
        10 => Encoding::Quant(QuantFormat::Q2_K),
        11 => Encoding::Quant(QuantFormat::Q3_K),
        12 => Encoding::Quant(QuantFormat::Q4_K),
        13 => Encoding::Quant(QuantFormat::Q5_K),
        14 => Encoding::Quant(QuantFormat::Q6_K),
        16 => Encoding::Quant(QuantFormat::IQ2_XXS),
        17 => Encoding::Quant(QuantFormat::IQ2_XS),
        18 => Encoding::Quant(QuantFormat::IQ3_XXS),
        19 => Encoding::Quant(QuantFormat::IQ1_S),
        20 => Encoding::Quant(QuantFormat::IQ4_NL),
        21 => Encoding::Quant(QuantFormat::IQ3_S),
        22 => Encoding::Quant(QuantFormat::IQ2_S),
        23 => Encoding::Quant(QuantFormat::IQ4_XS),
        24 => Encoding::Plain(DType::I8),
        25 => Encoding::Plain(DType::I16),
        26 => Encoding::Plain(DType::I32),
        27 => Encoding::Plain(DType::I64),
        28 => Encoding::Plain(DType::F64),
        30 => Encoding::Plain(DType::BF16),
        _ => return Err(TensorFault::UnknownType { id, name: unsupported_name(id) }),
    })
}

/// The name of a type that exists but is not read here.
fn unsupported_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return None,
    })
}
