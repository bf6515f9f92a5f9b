//! Weights in other encodings to floats.

use device::{Error, Operand, Result, op};
use meta::{DType, Encoding, QuantFormat};

use super::layout::geometry::{THREADS, blocks, element, type_name, unsupported};
use super::scaled::Coded;
use crate::kernel::{Args, KernelFile, Launch, Variant};

/// Every format, and every float type, to one type or another.
macro_rules! encodings {
    (formats: $($format:literal $align:literal)*; plain: $($source:literal)*;) => {
        &[
            $(
                Variant { file: KernelFile::Unpack, name: "unpack_blocks", defines: &[("TARGET", "bf16"), ("FORMAT", $format), ("ALIGN", $align)] },
                Variant { file: KernelFile::Unpack, name: "unpack_blocks", defines: &[("TARGET", "f32"), ("FORMAT", $format), ("ALIGN", "2")] },
                Variant { file: KernelFile::Unpack, name: "unpack_rows", defines: &[("TARGET", "f16"), ("FORMAT", $format), ("ALIGN", "1"), ("ID", "i32")] },
            )*
            $(
                Variant { file: KernelFile::Unpack, name: "unpack_plain", defines: &[("TARGET", "bf16"), ("SOURCE", $source)] },
                Variant { file: KernelFile::Unpack, name: "unpack_plain", defines: &[("TARGET", "f16"), ("SOURCE", $source)] },
                Variant { file: KernelFile::Unpack, name: "unpack_plain", defines: &[("TARGET", "f32"), ("SOURCE", $source)] },
            )*
        ]
    };
}

pub(crate) const VARIANTS: &[Variant] = encodings! {
    formats: "Q4_0" "2" "Q4_1" "4" "Q5_0" "2" "Q5_1" "4" "Q8_0" "2" "Q2_K" "4" "Q3_K" "2" "Q4_K" "4" "Q5_K" "4"
        "Q6_K" "2" "IQ1_S" "2" "IQ2_XXS" "2" "IQ2_XS" "2" "IQ2_S" "2" "IQ3_XXS" "2" "IQ3_S" "2" "IQ4_NL" "2"
        "IQ4_XS" "4";
    plain: "f64" "f32" "f16" "bf16" "f8e4m3" "f8e5m2";
};

/// Values that each thread unpacks; a divisor of every block's length.
const GROUP: usize = 8;

/// The numbers of a weight with scales beside it.
pub(crate) fn unpack(call: &op::Unpack, launch: &Launch<'_>) -> Result<()> {
    let target = element(launch, "unpack", &call.out)?;
    let to = launch.pointer(&call.out)?;
    match call.weight.encoding() {
        Encoding::Scaled(scheme) => {
            let columns = call.out.shape().last();
            Coded { weight: &call.weight, scheme, scales: &call.scales, columns }
                .unpack_to(launch, target, to)
        }
        _ => unpack_to(launch, &call.weight, target, Some(&call.scales.values), to),
    }
}

/// The error for codes without the scales that they need.
pub(crate) fn no_scales(launch: &Launch<'_>, op: &'static str, weight: &Operand) -> Error {
    unsupported(launch, op, format!("{weight:?} without scales"))
}

/// Writes the values of a contiguous weight (floats or quantised) one after the other to the device
/// address `to` as f32, bf16 or f16, multiplied by the one f32 of `weight_scale` if there is one, which is rounded to that
/// type first as the reference does.
pub(crate) fn unpack_to(
    launch: &Launch<'_>,
    weight: &Operand,
    target: DType,
    weight_scale: Option<&Operand>,
    to: u64,
) -> Result<()> {
    let from = launch.pointer(weight)?;
    let scale = weight_scale.map_or(Ok(0), |scale| launch.pointer(scale))?;
    let target = ("TARGET", type_name(target));
    let args = Args::new().ptr(from).ptr(to).ptr(scale);
    let groups = weight.count().div_ceil(GROUP);
    let (kernel, mut args) = match weight.encoding() {
        Encoding::Plain(source) => {
            let defines = [target, ("SOURCE", type_name(source))];
            let kernel = launch.kernel(KernelFile::Unpack, "unpack_plain", &defines)?;
            (kernel, args.i64(weight.count() as i64))
        }
        Encoding::Quant(format) => {
            let defines = [target, ("FORMAT", format.name()), ("ALIGN", alignment(format, from))];
            let kernel = launch.kernel(KernelFile::Unpack, "unpack_blocks", &defines)?;
            (kernel, args.i64(groups as i64))
        }
        Encoding::Scaled(_) => return Err(no_scales(launch, "unpack", weight)),
    };
    kernel.launch(launch, blocks(launch, "unpack", groups)?, [THREADS, 1, 1], 0, &mut args)
}

/// Writes the rows of a quantised table that `ids` name to `out`.
pub(crate) fn unpack_rows(
    launch: &Launch<'_>,
    format: QuantFormat,
    table: &Operand,
    ids: &Operand,
    out: &Operand,
) -> Result<()> {
    let op = "embedding";
    let from = launch.pointer(table)?;
    let defines = [
        ("TARGET", type_name(element(launch, op, out)?)),
        ("FORMAT", format.name()),
        ("ALIGN", alignment(format, from)),
        ("ID", type_name(element(launch, op, ids)?)),
    ];
    let count = out.count() / GROUP;
    let mut args = Args::new()
        .ptr(from)
        .ptr(launch.pointer(ids)?)
        .ptr(launch.pointer(out)?)
        .i64(table.dim(0) as i64)
        .u32((table.dim(1) / GROUP) as u32)
        .i64(count as i64);
    let kernel = launch.kernel(KernelFile::Unpack, "unpack_rows", &defines)?;
    kernel.launch(launch, blocks(launch, op, count)?, [THREADS, 1, 1], 0, &mut args)
}

/// The alignment, up to 4 bytes, that all blocks of a tensor at this address have.
fn alignment(format: QuantFormat, address: u64) -> &'static str {
    let all = address | format.block_bytes() as u64;
    if all.is_multiple_of(4) {
        "4"
    } else if all.is_multiple_of(2) {
        "2"
    } else {
        "1"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_aligned_as_their_size_and_address() {
        assert_eq!(alignment(QuantFormat::Q4_K, 256), "4");
        assert_eq!(alignment(QuantFormat::Q4_K, 258), "2");
        assert_eq!(alignment(QuantFormat::Q4_K, 3), "1");
        assert_eq!(alignment(QuantFormat::Q8_0, 256), "2");
        assert!(QuantFormat::ALL.iter().all(|format| format.block_len().is_multiple_of(GROUP)));
    }
}
