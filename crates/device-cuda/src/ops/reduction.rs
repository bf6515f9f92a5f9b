//! Softmax over rows, and sums and extremes over dimensions.

use device::{Result, op};
use op::ReduceKind;

use super::layout::geometry::{
    ACCESS_BYTES, THREADS, Walk, block_count, element, index_type, type_name, unsupported,
};
use crate::context::Properties;
use crate::kernel::{Args, KernelFile, Launch, Scratch, Variant};

/// Softmax and reductions in one type.
macro_rules! types {
    ($($dtype:literal $vector:literal)*) => {
        &[$(
            Variant { file: KernelFile::Reduction, name: "softmax_rows", defines: &[("T", $dtype), ("VECTOR", $vector), ("ROW_THREADS", "32")] },
            Variant { file: KernelFile::Reduction, name: "softmax_long_rows", defines: &[("T", $dtype), ("VECTOR", $vector), ("ROW_THREADS", "256")] },
            Variant { file: KernelFile::Reduction, name: "softmax_rows", defines: &[("T", $dtype), ("VECTOR", "1"), ("ROW_THREADS", "256")] },
            Variant { file: KernelFile::Reduction, name: "reduce_by_warp", defines: &[("T", $dtype), ("KIND", "Sum"), ("INDEX", "u32")] },
            Variant { file: KernelFile::Reduction, name: "reduce_by_block", defines: &[("T", $dtype), ("KIND", "Sum"), ("INDEX", "u64")] },
            Variant { file: KernelFile::Reduction, name: "reduce_across", defines: &[("T", $dtype), ("KIND", "Largest"), ("INDEX", "u32")] },
            Variant { file: KernelFile::Reduction, name: "reduce_parts", defines: &[("T", $dtype), ("KIND", "Smallest"), ("INDEX", "u32")] },
        )*]
    };
}

pub(crate) const VARIANTS: &[Variant] = types! { "bf16" "8" "f16" "8" "f32" "4" };

/// Pieces of a row that a thread of the softmax kernel keeps in registers.
const HELD: usize = 4;

pub(crate) fn softmax(call: &op::Softmax, launch: &Launch<'_>) -> Result<()> {
    let (op, x, out) = ("softmax", &call.x, &call.out);
    let (dtype, size) = (element(launch, op, x)?, x.shape().last());
    let walk = Walk::over_rows(launch, &[out, x])?;
    let whole = ACCESS_BYTES / dtype.bytes();
    let aligned = size.is_multiple_of(whole) && walk.rows_are_aligned(whole, dtype.bytes());
    let pack = if aligned { whole } else { 1 };
    let pieces = size / pack;
    let row_threads = if pieces <= HELD * 32 { 32 } else { THREADS as usize };
    let kernel = if pieces <= HELD * row_threads { "softmax_rows" } else { "softmax_long_rows" };
    let rows = walk.count();
    let (Ok(rows_u32), Ok(size_u32)) = (u32::try_from(rows), u32::try_from(size)) else {
        return Err(unsupported(launch, op, format!("{rows} rows of {size} values")));
    };
    let defines = [
        ("T", type_name(dtype)),
        ("VECTOR", ["", "1", "", "", "4", "", "", "", "8"][pack]),
        ("ROW_THREADS", if row_threads == 32 { "32" } else { "256" }),
    ];
    let grid = [block_count(launch, op, rows.div_ceil(THREADS as usize / row_threads))?, 1, 1];
    let mut args = Args::new().bytes(&walk.bytes()).u32(rows_u32).u32(size_u32);
    let kernel = launch.kernel(KernelFile::Reduction, kernel, &defines)?;
    kernel.launch(launch, grid, [THREADS, 1, 1], 0, &mut args)
}

/// How a reduction is shared out: the kernel, how many results a block has, and into how many parts of
/// how many values each result is split.
#[derive(Debug, PartialEq, Eq)]
struct Split {
    kernel: &'static str,
    results: usize,
    parts: usize,
    chunk: usize,
}

impl Split {
    /// `across` where results stand side by side in the input, and the values of one do not.
    fn new(outputs: usize, length: usize, across: bool, multiprocessors: usize) -> Split {
        // A part should have enough values that adding the parts up is little beside it.
        let (kernel, results, least) = if across {
            ("reduce_across", 32, 128)
        } else if length <= 1024 {
            ("reduce_by_warp", THREADS as usize / 32, 1024)
        } else {
            ("reduce_by_block", 1, 4096)
        };
        let busy = (8 * multiprocessors).div_ceil(outputs.div_ceil(results));
        let parts = busy.min(length.div_ceil(least)).clamp(1, 1024);
        let chunk = length.div_ceil(parts);
        Split { kernel, results, parts: length.div_ceil(chunk), chunk }
    }

    /// Bytes of the sums of all parts; none if there is one part each.
    fn partial_bytes(&self, outputs: usize) -> Option<usize> {
        (self.parts > 1).then(|| outputs * self.parts * 4)
    }
}

/// Bytes of what the parts of results are summed to; none if no result is split.
pub(crate) fn parts_bytes(call: &op::Reduce, card: &Properties) -> Option<usize> {
    // Where the input lies makes no difference.
    let Parts { kept, split, .. } = Parts::of(call, 0, card);
    split.partial_bytes(kept.count())
}

/// The dimensions of a reduction that stay and that go, of an input at `base`, and how the work is shared out.
struct Parts {
    kept: Walk,
    reduced: Walk,
    split: Split,
}

impl Parts {
    fn of(call: &op::Reduce, base: u64, card: &Properties) -> Parts {
        let (x, out) = (&call.x, &call.out);
        let part_of = |reduced: bool| -> (Vec<usize>, Vec<usize>) {
            let axes = (0..x.rank()).filter(|&axis| (out.dim(axis) != x.dim(axis)) == reduced);
            axes.map(|axis| (x.dim(axis), x.strides()[axis])).unzip()
        };
        // Results are written in the order of the dimensions; values may be added in any.
        let (dims, strides) = part_of(false);
        let kept = Walk::in_order(&dims, &[&strides], &[base]);
        let (dims, strides) = part_of(true);
        let reduced = Walk::new(&dims, &[&strides], &[base]);
        let packed = |walk: &Walk| walk.strides(0).last() == Some(&1);
        let across = packed(&kept) && !packed(&reduced) && kept.sizes().last().is_some_and(|n| *n >= 8);
        let split = Split::new(kept.count(), reduced.count(), across, card.multiprocessors as usize);
        Parts { kept, reduced, split }
    }
}

pub(crate) fn reduce(call: &op::Reduce, launch: &Launch<'_>) -> Result<()> {
    let (op, x, out) = ("reduce", &call.x, &call.out);
    let dtype = element(launch, op, x)?;
    let Parts { kept, reduced, split } = Parts::of(call, launch.pointer(x)?, launch.properties());
    let (outputs, length) = (kept.count(), reduced.count());
    let (kind, factor) = match call.kind {
        ReduceKind::Sum => ("Sum", 1.0),
        ReduceKind::Mean => ("Sum", (1.0 / length as f64) as f32),
        ReduceKind::Max => ("Largest", 1.0),
        ReduceKind::Min => ("Smallest", 1.0),
    };
    let defines = [("T", type_name(dtype)), ("KIND", kind), ("INDEX", index_type(outputs.max(length)))];
    let partial = split.partial_bytes(outputs).map(|bytes| launch.scratch(bytes)).transpose()?;
    let mut sizes = Vec::with_capacity(48);
    [outputs, length, split.chunk].iter().for_each(|v| sizes.extend((*v as i64).to_ne_bytes()));
    sizes.extend(factor.to_ne_bytes());
    sizes.extend((split.parts as u32).to_ne_bytes());
    sizes.extend(launch.pointer(out)?.to_ne_bytes());
    sizes.extend(partial.as_ref().map_or(0, Scratch::pointer).to_ne_bytes());
    let grid = [block_count(launch, op, outputs.div_ceil(split.results))?, split.parts as u32, 1];
    let mut args = Args::new().bytes(&kept.bytes()).bytes(&reduced.bytes()).bytes(&sizes);
    let kernel = launch.kernel(KernelFile::Reduction, split.kernel, &defines)?;
    kernel.launch(launch, grid, [THREADS, 1, 1], 0, &mut args)?;
    if partial.is_some() {
        let grid = [block_count(launch, op, outputs.div_ceil(THREADS as usize))?, 1, 1];
        let kernel = launch.kernel(KernelFile::Reduction, "reduce_parts", &defines)?;
        kernel.launch(launch, grid, [THREADS, 1, 1], 0, &mut Args::new().bytes(&sizes))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_results_of_many_values_are_split() {
        let whole = Split::new(1, 10_000_000, false, 132);
        assert_eq!((whole.kernel, whole.parts), ("reduce_by_block", 1024));
        assert!(whole.parts * whole.chunk >= 10_000_000 && (whole.parts - 1) * whole.chunk < 10_000_000);
        assert_eq!(Split::new(100_000, 64, false, 132).parts, 1);
        let columns = Split::new(3072, 4096, true, 132);
        assert_eq!((columns.kernel, columns.results, columns.parts), ("reduce_across", 32, 11));
        assert_eq!(Split::new(5, 1, true, 132).parts, 1);
    }
}
