//! Operations that move and convert values.

pub(crate) mod geometry;

use device::{Result, op};
use meta::{DType, Encoding};
use op::Padding;

use self::geometry::{
    ACCESS_BYTES, THREADS, Walk, block_count, blocks, element, index_type, put_row, type_name, unsupported,
};
use super::scaled::Coded;
use super::unpack;
use crate::kernel::{Args, Definition, KernelFile, Launch, Variant};

/// Conversions between types of interest, tables and borders.
macro_rules! conversions {
    ($($source:literal $target:literal)*) => {
        &[
            $(Variant { file: KernelFile::Layout, name: "copy_packed", defines: &[("SOURCE", $source), ("TARGET", $target), ("INDEX", "u32")] },)*
            Variant { file: KernelFile::Layout, name: "copy_transposed", defines: &[("SOURCE", "u16"), ("TARGET", "u16"), ("INDEX", "u32")] },
            Variant { file: KernelFile::Layout, name: "copy_single", defines: &[("SOURCE", "f32"), ("TARGET", "bf16"), ("INDEX", "u64")] },
            Variant { file: KernelFile::Layout, name: "pad", defines: &[("PADDED", "bf16"), ("INDEX", "u32")] },
            Variant { file: KernelFile::Layout, name: "pad", defines: &[("PADDED", "f16"), ("INDEX", "u32")] },
            Variant { file: KernelFile::Layout, name: "pad", defines: &[("PADDED", "f32"), ("INDEX", "u64")] },
            Variant { file: KernelFile::Layout, name: "embedding", defines: &[("ENTRY", "bf16"), ("ID", "i32"), ("TARGET", "bf16")] },
            Variant { file: KernelFile::Layout, name: "embedding", defines: &[("ENTRY", "f8e4m3"), ("ID", "i64"), ("TARGET", "f16")] },
            Variant { file: KernelFile::Layout, name: "embedding", defines: &[("ENTRY", "f64"), ("ID", "i64"), ("TARGET", "f32")] },
        ]
    };
}

pub(crate) const VARIANTS: &[Variant] = conversions! {
    "f32" "bf16" "f32" "f16" "f32" "f64" "f32" "f8e4m3" "f32" "f8e5m2" "f32" "i64" "f32" "i32" "f32" "i16"
    "f32" "i8" "f32" "u64" "f32" "u32" "f32" "u16" "f32" "u8" "f32" "boolean"
    "bf16" "f32" "f16" "f32" "f64" "f32" "f8e4m3" "f32" "f8e5m2" "f32" "i64" "f32" "i32" "f32" "i16" "f32"
    "i8" "f32" "u64" "f32" "u32" "f32" "u16" "f32" "u8" "f32" "boolean" "f32"
    "bf16" "f16" "f16" "bf16" "f64" "bf16" "i64" "i32" "i32" "i64" "u8" "bf16" "f64" "i64" "u64" "i8"
    "boolean" "i64" "i64" "boolean" "f64" "u64" "bf16" "f64"
    "bf16" "f8e4m3" "bf16" "f8e5m2" "f16" "f8e4m3" "f16" "f8e5m2"
    "u8" "u8" "u16" "u16" "u32" "u32" "u64" "u64"
};

pub(crate) fn copy(call: &op::Copy, launch: &Launch<'_>) -> Result<()> {
    let (op, x, out) = ("copy", &call.x, &call.out);
    let target = element(launch, op, out)?;
    let Encoding::Plain(source) = x.encoding() else {
        return unpack::unpack_to(launch, x, target, None, launch.pointer(out)?);
    };
    let types = conversion_types(source, target);
    let walk = Walk::over(launch, &[out, x])?;
    if let Some(packed) = packs(&walk, [target.bytes(), source.bytes()]) {
        return copy_walk(launch, "copy_packed", types, &packed);
    }
    match transposition(&walk) {
        Some(row_axis) => copy_transposed(launch, types, &walk, row_axis),
        None => copy_walk(launch, "copy_single", types, &walk),
    }
}

/// The walk in packs, where both sides have them. The kernel has no way to repeat one value of the input.
fn packs(walk: &Walk, element_bytes: [usize; 2]) -> Option<Walk> {
    let side_by_side = walk.strides(1).last() == Some(&1);
    let pack = ACCESS_BYTES / element_bytes[0].max(element_bytes[1]);
    walk.packed(pack, &element_bytes).filter(|_| side_by_side)
}

/// Names of the types to convert between. Values that stay what they are move as integers of their size,
/// so that one kernel serves all types of a size.
fn conversion_types(source: DType, target: DType) -> [Definition; 2] {
    let name = |dtype: DType| match (source == target, dtype.bytes()) {
        (false, _) => type_name(dtype),
        (true, 1) => "u8",
        (true, 2) => "u16",
        (true, 4) => "u32",
        (true, _) => "u64",
    };
    [("SOURCE", name(source)), ("TARGET", name(target))]
}

fn copy_walk(
    launch: &Launch<'_>,
    kernel: &'static str,
    [source, target]: [Definition; 2],
    walk: &Walk,
) -> Result<()> {
    let count = walk.count();
    let defines = [source, target, ("INDEX", index_type(count))];
    let mut args = Args::new().bytes(&walk.bytes()).i64(count as i64);
    let kernel = launch.kernel(KernelFile::Layout, kernel, &defines)?;
    kernel.launch(launch, blocks(launch, "copy", count)?, [THREADS, 1, 1], 0, &mut args)
}

/// Side of the tiles that pass through shared memory.
const TILE: usize = 32;

/// The dimension in which the input is packed, where it is another than the output's, and both are long
/// enough for tiles.
fn transposition(walk: &Walk) -> Option<usize> {
    let last = walk.sizes().len() - 1;
    let row_axis = walk.strides(1).iter().position(|stride| *stride == 1)?;
    let worth = row_axis != last && walk.strides(0)[last] == 1;
    let long = walk.sizes()[row_axis].min(walk.sizes()[last]) >= TILE / 2;
    (worth && long).then_some(row_axis)
}

fn copy_transposed(
    launch: &Launch<'_>,
    [source, target]: [Definition; 2],
    walk: &Walk,
    row_axis: usize,
) -> Result<()> {
    let last = walk.sizes().len() - 1;
    let (rows, columns) = (walk.sizes()[row_axis], walk.sizes()[last]);
    let rest = walk.without(&[row_axis, last]);
    let (Ok(rows_u32), Ok(columns_u32)) = (u32::try_from(rows), u32::try_from(columns)) else {
        return Err(unsupported(launch, "copy", format!("a transposition of {rows} by {columns}")));
    };
    let tiles = rows.div_ceil(TILE) * columns.div_ceil(TILE) * rest.count();
    let mut args = Args::new()
        .bytes(&rest.bytes())
        .u32(rows_u32)
        .u32(columns_u32)
        .i64(walk.strides(0)[row_axis] as i64)
        .i64(walk.strides(1)[last] as i64);
    let grid = [block_count(launch, "copy", tiles)?, 1, 1];
    let kernel = launch.kernel(KernelFile::Layout, "copy_transposed", &[source, target, ("INDEX", "u32")])?;
    kernel.launch(launch, grid, [THREADS, 1, 1], 0, &mut args)
}

pub(crate) fn embedding(call: &op::Embedding, launch: &Launch<'_>) -> Result<()> {
    let (op, table, ids, out) = ("embedding", &call.table, &call.ids, &call.out);
    let entry = match table.encoding() {
        Encoding::Quant(format) => return unpack::unpack_rows(launch, format, table, ids, out),
        Encoding::Plain(entry) => entry,
        Encoding::Scaled(scheme) => {
            let Some(scales) = &call.scales else { return Err(unpack::no_scales(launch, op, table)) };
            return Coded { weight: table, scheme, scales, columns: out.shape().last() }
                .look_up(launch, ids, out);
        }
    };
    let defines = [
        ("ENTRY", type_name(entry)),
        ("ID", type_name(element(launch, op, ids)?)),
        ("TARGET", type_name(element(launch, op, out)?)),
    ];
    let mut args = Args::new()
        .ptr(launch.pointer(table)?)
        .ptr(launch.pointer(ids)?)
        .ptr(launch.pointer(out)?)
        .i64(table.dim(0) as i64)
        .i64(table.dim(1) as i64);
    let grid = [block_count(launch, op, ids.count())?, 1, 1];
    let kernel = launch.kernel(KernelFile::Layout, "embedding", &defines)?;
    kernel.launch(launch, grid, [THREADS, 1, 1], 0, &mut args)
}

/// One dimension of a tensor with a border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    out: usize,
    size: usize,
    before: usize,
    stride: usize,
}

/// The dimensions of a call; those without a border that are one in memory are merged.
fn sides(call: &op::Pad) -> Vec<Side> {
    let mut sides: Vec<Side> = Vec::new();
    for axis in 0..call.x.rank() {
        let (out, size) = (call.out.dim(axis), call.x.dim(axis));
        let side = Side { out, size, before: call.before[axis], stride: call.x.strides()[axis] };
        match sides.last_mut() {
            Some(last) if last.out == last.size && out == size && last.stride == side.stride * size => {
                last.out *= out;
                last.size *= size;
                last.stride = side.stride;
            }
            _ => sides.push(side),
        }
    }
    sides
}

pub(crate) fn pad(call: &op::Pad, launch: &Launch<'_>) -> Result<()> {
    let (x, out) = (&call.x, &call.out);
    let (mode, value) = match call.padding {
        Padding::Constant(value) => (0u32, value),
        Padding::Reflect => (1, 0.0),
        Padding::Replicate => (2, 0.0),
        Padding::Circular => (3, 0.0),
    };
    let sides = sides(call);
    let mut border = Vec::with_capacity(16 + 4 * 64);
    border.extend((sides.len() as u32).to_ne_bytes());
    border.extend(mode.to_ne_bytes());
    border.extend(value.to_ne_bytes());
    border.extend(0u32.to_ne_bytes());
    let mut put = |of: fn(&Side) -> usize| put_row(&mut border, &sides.iter().map(of).collect::<Vec<_>>());
    put(|side| side.out);
    put(|side| side.size);
    put(|side| side.before);
    put(|side| side.stride);
    let count = out.count();
    let defines = [("PADDED", type_name(element(launch, "pad", x)?)), ("INDEX", index_type(count))];
    let mut args =
        Args::new().ptr(launch.pointer(x)?).ptr(launch.pointer(out)?).bytes(&border).i64(count as i64);
    let kernel = launch.kernel(KernelFile::Layout, "pad", &defines)?;
    kernel.launch(launch, blocks(launch, "pad", count)?, [THREADS, 1, 1], 0, &mut args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_inputs_are_found() {
        // [batch, positions, channels] from [batch, channels, positions].
        let walk = Walk::new(&[2, 100, 64], &[&[6400, 64, 1], &[6400, 1, 100]], &[0, 0]);
        assert_eq!(transposition(&walk), Some(1));
        assert_eq!(walk.without(&[1, 2]).sizes(), [2]);
        // Images of three channels are too narrow, and packed inputs need no tiles.
        let narrow = Walk::new(&[500, 3], &[&[3, 1], &[1, 500]], &[0, 0]);
        assert_eq!(transposition(&narrow), None);
        let packed = Walk::new(&[500, 64], &[&[64, 1], &[80, 1]], &[0, 0]);
        assert_eq!(transposition(&packed), None);
    }

    #[test]
    fn repeated_inputs_are_not_read_in_packs() {
        assert!(packs(&Walk::new(&[4, 16], &[&[16, 1], &[16, 1]], &[0, 0]), [2, 4]).is_some());
        assert!(packs(&Walk::new(&[4, 16], &[&[16, 1], &[1, 0]], &[0, 0]), [2, 4]).is_none());
        assert!(packs(&Walk::new(&[4, 16], &[&[16, 1], &[1, 4]], &[0, 0]), [2, 4]).is_none());
    }

    #[test]
    fn equal_types_move_as_integers() {
        assert_eq!(conversion_types(DType::BF16, DType::BF16), [("SOURCE", "u16"), ("TARGET", "u16")]);
        assert_eq!(conversion_types(DType::BF16, DType::F16), [("SOURCE", "bf16"), ("TARGET", "f16")]);
    }
}
