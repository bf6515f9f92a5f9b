//! Other image sizes.

use device::{Result, op};
use op::ResizeMode;

use super::layout::geometry::{THREADS, block_count, element, type_name, unsupported};
use crate::kernel::{Args, KernelFile, Launch, Variant};

/// Every mode in every type.
macro_rules! modes {
    ($($mode:literal)*) => {
        &[$(
            Variant { file: KernelFile::Resample, name: "resize", defines: &[("T", "bf16"), ("MODE", $mode)] },
            Variant { file: KernelFile::Resample, name: "resize", defines: &[("T", "f16"), ("MODE", $mode)] },
            Variant { file: KernelFile::Resample, name: "resize", defines: &[("T", "f32"), ("MODE", $mode)] },
        )*]
    };
}

pub(crate) const VARIANTS: &[Variant] = modes! { "0" "1" "2" "3" "4" };

pub(crate) fn resize(call: &op::Resize, launch: &Launch<'_>) -> Result<()> {
    let (op, x, out, rank) = ("resize", &call.x, &call.out, call.x.rank());
    let mode = match call.mode {
        ResizeMode::Nearest => "0",
        ResizeMode::NearestExact => "1",
        ResizeMode::Bilinear => "2",
        ResizeMode::Bicubic => "3",
        ResizeMode::Area => "4",
    };
    let sizes = [x.dim(rank - 2), x.dim(rank - 1), out.dim(rank - 2), out.dim(rank - 1)];
    let [in_height, in_width, out_height, out_width] = sizes;
    let mut bytes = Vec::with_capacity(24);
    for size in sizes {
        let fits = i32::try_from(size).map_err(|_| unsupported(launch, op, format!("a side of {size}")))?;
        bytes.extend(fits.to_ne_bytes());
    }
    for (size_in, size_out) in [(in_height, out_height), (in_width, out_width)] {
        bytes.extend((size_in as f32 / size_out as f32).to_ne_bytes());
    }
    let rows = out.count() / out_width;
    let grid = [block_count(launch, op, rows)?, out_width.div_ceil(THREADS as usize) as u32, 1];
    let defines = [("T", type_name(element(launch, op, x)?)), ("MODE", mode)];
    let mut args = Args::new().ptr(launch.pointer(x)?).ptr(launch.pointer(out)?).bytes(&bytes);
    let kernel = launch.kernel(KernelFile::Resample, "resize", &defines)?;
    kernel.launch(launch, grid, [THREADS, 1, 1], 0, &mut args)
}
