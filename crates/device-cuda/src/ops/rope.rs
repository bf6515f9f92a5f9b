//! Rotary position embeddings.

use device::{Operand, Result, op};

use super::layout::geometry::{ACCESS_BYTES, THREADS, blocks, element, index_type, type_name};
use crate::kernel::{Args, KernelFile, Launch, Variant};

/// One layout in all types, aligned and not. `$single` is what a thread takes where nothing is aligned.
macro_rules! layouts {
    ($($half:literal $single:literal)*) => {
        &[$(
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "bf16"), ("HALF_SPLIT", $half), ("VECTOR", "8"), ("ALIGNED", "1"), ("INDEX", "u32")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "f16"), ("HALF_SPLIT", $half), ("VECTOR", "8"), ("ALIGNED", "1"), ("INDEX", "u32")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "f32"), ("HALF_SPLIT", $half), ("VECTOR", "4"), ("ALIGNED", "1"), ("INDEX", "u32")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "bf16"), ("HALF_SPLIT", $half), ("VECTOR", $single), ("ALIGNED", "0"), ("INDEX", "u32")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "f32"), ("HALF_SPLIT", $half), ("VECTOR", $single), ("ALIGNED", "0"), ("INDEX", "u64")] },
        )*]
    };
}

pub(crate) const VARIANTS: &[Variant] = layouts! { "0" "2" "1" "1" };

pub(crate) fn rope(call: &op::Rope, launch: &Launch<'_>) -> Result<()> {
    let (x, out) = (&call.x, &call.out);
    let dtype = element(launch, "rope", x)?;
    let (size, rotated) = (x.dim(3), 2 * call.cos.dim(2));
    let half_split = call.layout == op::RopeLayout::HalfSplit;
    let [from, to, cosines, sines] =
        [launch.pointer(x)?, launch.pointer(out)?, launch.pointer(&call.cos)?, launch.pointer(&call.sin)?];
    let whole = ACCESS_BYTES / dtype.bytes();
    let step = if half_split { 2 * whole } else { whole };
    let aligned = size.is_multiple_of(whole)
        && rotated.is_multiple_of(step)
        && [from, to, cosines, sines].iter().all(|p| p.is_multiple_of(ACCESS_BYTES as u64))
        && [x, out].iter().all(|o| leading_strides(o).iter().all(|s| s.is_multiple_of(whole)));
    let pack = match (aligned, half_split) {
        (true, _) => whole,
        (false, true) => 1,
        (false, false) => 2,
    };
    // The halves of a head are taken together, so that only half of the rotated values is counted.
    let pieces =
        if half_split { rotated / 2 / pack + (size - rotated).div_ceil(pack) } else { size.div_ceil(pack) };
    let count = x.dim(0) * x.dim(1) * x.dim(2) * pieces;
    let defines = [
        ("T", type_name(dtype)),
        ("HALF_SPLIT", if half_split { "1" } else { "0" }),
        ("VECTOR", ["", "1", "2", "", "4", "", "", "", "8"][pack]),
        ("ALIGNED", if aligned { "1" } else { "0" }),
        ("INDEX", index_type(count)),
    ];
    let tables = usize::from(call.cos.dim(0) > 1);
    let mut sizes = Vec::with_capacity(72);
    for value in [x.dim(1), x.dim(2), size, rotated, pieces, tables] {
        sizes.extend((value as u32).to_ne_bytes());
    }
    for operand in [x, out] {
        leading_strides(operand).iter().for_each(|s| sizes.extend((*s as i64).to_ne_bytes()));
    }
    let mut args = Args::new().ptr(from).ptr(cosines).ptr(sines).ptr(to).bytes(&sizes).i64(count as i64);
    let kernel = launch.kernel(KernelFile::Rope, "rope", &defines)?;
    kernel.launch(launch, blocks(launch, "rope", count)?, [THREADS, 1, 1], 0, &mut args)
}

/// Strides of batch, position and head; 0 where there is only one index.
fn leading_strides(operand: &Operand) -> [usize; 3] {
    [0, 1, 2].map(|axis| if operand.dim(axis) == 1 { 0 } else { operand.strides()[axis] })
}
