//! Losslessly coded weights to floats.

use codec::{Format, Layout};
use device::{Error, Result, op};

use super::layout::geometry::{block_count, element, unsupported};
use crate::kernel::{Args, KernelFile, Launch, Variant};

pub(crate) const VARIANTS: &[Variant] = &[
    Variant { file: KernelFile::Coding, name: "decode_tiles", defines: &[("FORMAT", "BF16")] },
    Variant { file: KernelFile::Coding, name: "decode_tiles", defines: &[("FORMAT", "F16")] },
    Variant { file: KernelFile::Coding, name: "decode_tiles", defines: &[("FORMAT", "F8E4M3")] },
];

/// Why nothing is encoded here.
pub(crate) const NO_ENCODER: &str = "weights are coded on the host; there is no kernel for it";

pub(crate) fn no_encoder(launch: &Launch<'_>) -> Error {
    unsupported(launch, "encode", NO_ENCODER.into())
}

/// Threads that decode a tile together.
const WARP: u32 = 32;
/// Threads of a block: few, so that the last blocks of a weight leave no part of the device idle for long.
const BLOCK: u32 = 128;

/// What the coded bytes must be aligned to, for accesses of eight.
const ALIGNMENT: u64 = 16;

pub(crate) fn decode(call: &op::Decode, launch: &Launch<'_>) -> Result<()> {
    let op = "decode";
    let (from, to) = (launch.pointer(&call.coded)?, launch.pointer(&call.out)?);
    let dtype = element(launch, op, &call.out)?;
    let layout =
        Layout::new(dtype, call.out.count()).map_err(|error| unsupported(launch, op, error.to_string()))?;
    let aligned_out = to.is_multiple_of(layout.format().element_bytes() as u64);
    if !from.is_multiple_of(ALIGNMENT) || !aligned_out {
        return Err(unsupported(launch, op, format!("{:?} or {:?} is not aligned", call.coded, call.out)));
    }
    let format = match layout.format() {
        Format::Bf16 => "BF16",
        Format::F16 => "F16",
        Format::F8E4M3 => "F8E4M3",
    };
    let at = |offset: usize| from + offset as u64;
    let variable_bytes = call.coded.count() - layout.variable_start();
    let mut args = Args::new()
        .ptr(at(layout.table().start))
        .ptr(at(layout.fixed().start))
        .ptr(at(layout.variable_start()))
        .i64(variable_bytes as i64)
        .ptr(to)
        .i64(layout.elements() as i64);
    let tiles_per_block = (BLOCK / WARP) as usize;
    let grid = [block_count(launch, op, layout.tiles().div_ceil(tiles_per_block))?, 1, 1];
    let kernel = launch.kernel(KernelFile::Coding, "decode_tiles", &[("FORMAT", format)])?;
    kernel.launch(launch, grid, [BLOCK, 1, 1], 0, &mut args)
}
