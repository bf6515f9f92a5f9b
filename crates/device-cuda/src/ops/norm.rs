//! Normalisations.

use device::{Operand, Result, op};
use meta::DType;

use super::layout::geometry::{
    ACCESS_BYTES, THREADS, Walk, block_count, blocks, element, index_type, type_name, unsupported,
};
use crate::context::Properties;
use crate::kernel::{Args, KernelFile, Launch, Variant};

/// Norms over rows and groups with one pair of parameter types.
macro_rules! parameters {
    (modulated: $($element:literal $vector:literal)*; plain: $($weight:literal $bias:literal)*;) => {
        &[$(
            Variant { file: KernelFile::Norm, name: "norm_rows", defines: &[("T", $element), ("W", $element), ("B", $element), ("VECTOR", $vector), ("ROW_THREADS", "128"), ("CENTRED", "1"), ("MODULATED", "1"), ("HELD", "5"), ("REPEAT", "1")] },
            Variant { file: KernelFile::Norm, name: "norm_long_rows", defines: &[("T", $element), ("W", $element), ("B", $element), ("VECTOR", "1"), ("ROW_THREADS", "256"), ("CENTRED", "1"), ("MODULATED", "1")] },
        )* $(
            Variant { file: KernelFile::Norm, name: "norm_rows", defines: &[("T", "bf16"), ("W", $weight), ("B", $bias), ("VECTOR", "8"), ("ROW_THREADS", "256"), ("CENTRED", "1"), ("MODULATED", "0"), ("HELD", "8"), ("REPEAT", "1")] },
            Variant { file: KernelFile::Norm, name: "norm_rows", defines: &[("T", "f16"), ("W", $weight), ("B", $bias), ("VECTOR", "8"), ("ROW_THREADS", "64"), ("CENTRED", "0"), ("MODULATED", "0"), ("HELD", "3"), ("REPEAT", "1")] },
            Variant { file: KernelFile::Norm, name: "norm_long_rows", defines: &[("T", "f32"), ("W", $weight), ("B", $bias), ("VECTOR", "4"), ("ROW_THREADS", "256"), ("CENTRED", "1"), ("MODULATED", "0")] },
            Variant { file: KernelFile::Norm, name: "norm_rows", defines: &[("T", "bf16"), ("W", $weight), ("B", $bias), ("VECTOR", "1"), ("ROW_THREADS", "32"), ("CENTRED", "1"), ("MODULATED", "0"), ("HELD", "2"), ("REPEAT", "1")] },
            Variant { file: KernelFile::Norm, name: "norm_rows", defines: &[("T", "bf16"), ("W", $weight), ("B", $bias), ("VECTOR", "8"), ("ROW_THREADS", "8"), ("CENTRED", "0"), ("MODULATED", "0"), ("HELD", "1"), ("REPEAT", "4")] },
            Variant { file: KernelFile::Norm, name: "norm_across", defines: &[("T", "bf16"), ("W", $weight), ("B", "none"), ("VECTOR", "1"), ("ACROSS", "1")] },
            Variant { file: KernelFile::Norm, name: "group_apply", defines: &[("T", "bf16"), ("W", $weight), ("B", $bias), ("VECTOR", "8"), ("INDEX", "u32"), ("SILU", "1")] },
            Variant { file: KernelFile::Norm, name: "group_moments", defines: &[("T", "f16"), ("W", $weight), ("B", $bias), ("VECTOR", "1"), ("INDEX", "u64"), ("SILU", "0")] },
            Variant { file: KernelFile::Norm, name: "group_whole", defines: &[("T", "f32"), ("W", $weight), ("B", $bias), ("VECTOR", "4"), ("INDEX", "u32"), ("SILU", "0")] },
        )*]
    };
}

pub(crate) const VARIANTS: &[Variant] = parameters! {
    modulated: "bf16" "8" "f16" "8" "f32" "4";
    plain:
        "none" "none"
        "f32" "f32"
        "bf16" "bf16"
        "f16" "f16"
        "f64" "none"
        "f8e4m3" "none"
        "f8e5m2" "f8e5m2";
};

/// How the threads of a kernel share a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowShare {
    /// Threads of a row.
    threads: usize,
    /// Pieces of it that each keeps in registers; none where rows are too long and are read again.
    held: Option<usize>,
    /// Rows that each thread takes.
    repeat: usize,
}

impl RowShare {
    /// Threads that are enough for so many pieces, the fewest first. More pieces each keep more of a row under way, fewer
    /// leave room for more rows.
    const SHARES: [(usize, usize); 5] = [(8, 8), (32, 128), (64, 256), (128, 1024), (256, 2048)];
    /// Rows of the shortest that a thread takes.
    const REPEAT: usize = 4;

    fn of(pieces: usize) -> RowShare {
        let enough = RowShare::SHARES.into_iter().find(|(_, most)| pieces <= *most);
        match enough {
            Some((threads, _)) => RowShare {
                threads,
                held: Some(pieces.div_ceil(threads).max(1)),
                repeat: if threads == RowShare::SHARES[0].0 { RowShare::REPEAT } else { 1 },
            },
            None => RowShare { threads: THREADS as usize, held: None, repeat: 1 },
        }
    }

    /// Threads of a block.
    fn block(self) -> usize {
        if self.threads > 32 { self.threads } else { THREADS as usize }
    }

    /// Rows of a block.
    fn rows(self) -> usize {
        self.block() / self.threads * self.repeat
    }
}

pub(crate) fn layer_norm(call: &op::LayerNorm, launch: &Launch<'_>) -> Result<()> {
    let parameters = Parameters::of(launch, call.weight.as_ref(), call.bias.as_ref())?;
    Rows { op: "layer norm", operands: &[&call.out, &call.x], parameters, eps: call.eps }.run(launch)
}

pub(crate) fn modulated_norm(call: &op::ModulatedNorm, launch: &Launch<'_>) -> Result<()> {
    let shape = *call.x.shape();
    let (scale, shift) = (call.scale.broadcast(shape)?, call.shift.broadcast(shape)?);
    // The walk finds scales and shifts of each row; of the parameters only the types are wanted.
    let parameters = Parameters { pointers: [0; 2], types: [call.x.dtype(); 2] };
    let operands: &[&Operand] = &[&call.out, &call.x, &scale, &shift];
    Rows { op: "modulated norm", operands, parameters, eps: call.eps }.run(launch)
}

pub(crate) fn rms_norm(call: &op::RmsNorm, launch: &Launch<'_>) -> Result<()> {
    let parameters = Parameters::of(launch, call.weight.as_ref(), None)?;
    if call.axis + 1 < call.x.rank() {
        return rms_norm_across(call, launch, &parameters);
    }
    Rows { op: "rms norm", operands: &[&call.out, &call.x], parameters, eps: call.eps }.run(launch)
}

/// RMS norm over another dimension than the last one: a thread for each place.
fn rms_norm_across(call: &op::RmsNorm, launch: &Launch<'_>, parameters: &Parameters) -> Result<()> {
    let (op, x, size) = ("rms norm", &call.x, call.x.dim(call.axis));
    let inner: usize = x.dims()[call.axis + 1..].iter().product();
    let places = x.count() / size;
    let Ok(size) = u32::try_from(size) else {
        return Err(unsupported(launch, op, format!("a dimension of {size} values")));
    };
    let [weight, bias] = parameters.type_names();
    let defines = [
        ("T", type_name(element(launch, op, x)?)),
        ("W", weight),
        ("B", bias),
        ("VECTOR", "1"),
        ("ACROSS", "1"),
    ];
    let mut args = Args::new()
        .ptr(launch.pointer(x)?)
        .ptr(launch.pointer(&call.out)?)
        .ptr(parameters.pointers[0])
        .i64(places as i64)
        .i64(inner as i64)
        .u32(size)
        .f32(call.eps);
    let kernel = launch.kernel(KernelFile::Norm, "norm_across", &defines)?;
    kernel.launch(launch, blocks(launch, op, places)?, [THREADS, 1, 1], 0, &mut args)
}

/// Where weight and bias are and what they are.
struct Parameters {
    pointers: [u64; 2],
    types: [Option<DType>; 2],
}

impl Parameters {
    fn of(launch: &Launch<'_>, weight: Option<&Operand>, bias: Option<&Operand>) -> Result<Parameters> {
        let pointer = |o: Option<&Operand>| o.map_or(Ok(0), |o| launch.pointer(o));
        let dtype = |o: Option<&Operand>| o.and_then(Operand::dtype);
        Ok(Parameters { pointers: [pointer(weight)?, pointer(bias)?], types: [dtype(weight), dtype(bias)] })
    }

    fn type_names(&self) -> [&'static str; 2] {
        self.types.map(|dtype| dtype.map_or("none", type_name))
    }

    /// Whether pieces of `pack` values can be read at once.
    fn are_aligned(&self, pack: usize) -> bool {
        self.pointers.iter().zip(self.types).all(|(pointer, dtype)| {
            dtype.is_none_or(|dtype| pointer.is_multiple_of((pack * dtype.bytes()).min(ACCESS_BYTES) as u64))
        })
    }
}

/// The name of a pack of 1, 4 or 8 elements in definitions.
fn vector_name(pack: usize) -> &'static str {
    match pack {
        8 => "8",
        4 => "4",
        _ => "1",
    }
}

/// A small number in definitions.
fn number_name(number: usize) -> &'static str {
    match number {
        1 => "1",
        2 => "2",
        3 => "3",
        4 => "4",
        5 => "5",
        6 => "6",
        7 => "7",
        8 => "8",
        32 => "32",
        64 => "64",
        128 => "128",
        _ => "256",
    }
}

/// A norm over rows.
struct Rows<'a> {
    op: &'static str,
    /// Output and input, and what else changes from row to row.
    operands: &'a [&'a Operand],
    parameters: Parameters,
    eps: f32,
}

impl Rows<'_> {
    fn run(&self, launch: &Launch<'_>) -> Result<()> {
        let (op, x, parameters) = (self.op, self.operands[1], &self.parameters);
        let (dtype, size) = (element(launch, op, x)?, x.shape().last());
        let walk = Walk::over_rows(launch, self.operands)?;
        let whole = ACCESS_BYTES / dtype.bytes();
        let aligned = size.is_multiple_of(whole)
            && walk.rows_are_aligned(whole, dtype.bytes())
            && parameters.are_aligned(whole);
        let pack = if aligned { whole } else { 1 };
        let share = RowShare::of(size / pack);
        let kernel = if share.held.is_some() { "norm_rows" } else { "norm_long_rows" };
        let count = walk.count();
        let (Ok(count_u32), Ok(size_u32)) = (u32::try_from(count), u32::try_from(size)) else {
            return Err(unsupported(launch, op, format!("{count} rows of {size} values")));
        };
        let [weight, bias] = parameters.type_names();
        let mut defines = vec![
            ("T", type_name(dtype)),
            ("W", weight),
            ("B", bias),
            ("VECTOR", vector_name(pack)),
            ("ROW_THREADS", number_name(share.threads)),
            ("CENTRED", if op == "rms norm" { "0" } else { "1" }),
            ("MODULATED", if self.operands.len() > 2 { "1" } else { "0" }),
        ];
        if let Some(held) = share.held {
            defines.extend([("HELD", number_name(held)), ("REPEAT", number_name(share.repeat))]);
        }
        let grid = [block_count(launch, op, count.div_ceil(share.rows()))?, 1, 1];
        let [weight, bias] = parameters.pointers;
        let mut args =
            Args::new().bytes(&walk.bytes()).ptr(weight).ptr(bias).u32(count_u32).u32(size_u32).f32(self.eps);
        let block = [share.block() as u32, 1, 1];
        launch.kernel(KernelFile::Norm, kernel, &defines)?.launch(launch, grid, block, 0, &mut args)
    }
}

/// How the values of a group are shared out to blocks.
#[derive(Debug, PartialEq, Eq)]
struct Split {
    parts: usize,
    chunk: usize,
}

impl Split {
    /// Groups of up to this many values are left whole.
    const WHOLE: usize = 8192;
    /// Values that a block takes where there are enough groups to keep the card busy.
    const CHUNK: usize = 32768;
    /// Every block reads the results of all parts, so there must not be too many.
    const MOST_PARTS: usize = 1024;

    /// For `groups` groups of `length` values on a card of so many multiprocessors. Chunks are multiples
    /// of 8, so that packs stay aligned.
    fn new(groups: usize, length: usize, multiprocessors: usize) -> Split {
        if length <= Split::WHOLE {
            return Split { parts: 1, chunk: length };
        }
        let busy = (4 * multiprocessors).div_ceil(groups);
        let wanted = length.div_ceil(Split::CHUNK).max(busy.min(length.div_ceil(Split::WHOLE)));
        let chunk = length.div_ceil(wanted.min(Split::MOST_PARTS)).next_multiple_of(8);
        Split { parts: length.div_ceil(chunk), chunk }
    }
}

/// How many groups there are, how many values each has, and how those are shared out.
fn group_split(call: &op::GroupNorm, card: &Properties) -> (usize, usize, Split) {
    let groups = call.x.dim(0) * call.groups;
    let length = call.x.dims()[1..].iter().product::<usize>() / call.groups;
    (groups, length, Split::new(groups, length, card.multiprocessors as usize))
}

/// Bytes of what the parts of groups are summed to; none if groups are left whole.
pub(crate) fn moments_bytes(call: &op::GroupNorm, card: &Properties) -> Option<usize> {
    let (groups, _, split) = group_split(call, card);
    (split.parts > 1).then(|| groups * split.parts * 12)
}

pub(crate) fn group_norm(call: &op::GroupNorm, launch: &Launch<'_>) -> Result<()> {
    let (op, x, out) = ("group norm", &call.x, &call.out);
    let dtype = element(launch, op, x)?;
    let parameters = Parameters::of(launch, call.weight.as_ref(), call.bias.as_ref())?;
    let (channels, spatial) = (x.dim(1), x.dims()[2..].iter().product::<usize>());
    let (groups, length, split) = group_split(call, launch.properties());
    let (from, to) = (launch.pointer(x)?, launch.pointer(out)?);
    let whole = ACCESS_BYTES / dtype.bytes();
    let aligned = spatial.is_multiple_of(whole)
        && from.is_multiple_of(ACCESS_BYTES as u64)
        && to.is_multiple_of(ACCESS_BYTES as u64);
    let pack = if aligned { whole } else { 1 };
    let [weight, bias] = parameters.type_names();
    let defines = [
        ("T", type_name(dtype)),
        ("W", weight),
        ("B", bias),
        ("VECTOR", vector_name(pack)),
        ("INDEX", index_type(length)),
        ("SILU", if call.silu { "1" } else { "0" }),
    ];
    let mut sizes = Vec::with_capacity(40);
    [length, spatial, split.chunk].iter().for_each(|v| sizes.extend((*v as i64).to_ne_bytes()));
    for value in [channels / call.groups, call.groups, split.parts] {
        sizes.extend((value as u32).to_ne_bytes());
    }
    sizes.extend(call.eps.to_ne_bytes());
    let grid = [block_count(launch, op, groups)?, split.parts as u32, 1];
    let [weight, bias] = parameters.pointers;
    let run = |name: &'static str, mut args: Args| {
        launch.kernel(KernelFile::Norm, name, &defines)?.launch(launch, grid, [THREADS, 1, 1], 0, &mut args)
    };
    let Some(moments) = moments_bytes(call, launch.properties()) else {
        return run("group_whole", Args::new().ptr(from).ptr(to).ptr(weight).ptr(bias).bytes(&sizes));
    };
    let moments = launch.scratch(moments)?;
    run("group_moments", Args::new().ptr(from).ptr(moments.pointer()).bytes(&sizes))?;
    let args = Args::new().ptr(from).ptr(to).ptr(weight).ptr(bias).ptr(moments.pointer()).bytes(&sizes);
    run("group_apply", args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_threads_for_all_its_pieces() {
        for pieces in 1..=2048 {
            let share = RowShare::of(pieces);
            let held = share.held.unwrap();
            assert!(
                held * share.threads >= pieces && (held - 1) * share.threads < pieces,
                "{pieces}: {share:?}"
            );
            assert!(held <= 8 && number_name(held).parse() == Ok(held), "{pieces}: {share:?}");
            assert_eq!(number_name(share.threads).parse(), Ok(share.threads));
            assert_eq!(share.block() % share.threads, 0);
        }
        assert_eq!(RowShare::of(2049), RowShare { threads: 256, held: None, repeat: 1 });
    }

    #[test]
    fn groups_are_split_into_whole_chunks() {
        assert_eq!(Split::new(32, 4096, 132), Split { parts: 1, chunk: 4096 });
        for (groups, length) in [(32, 4 << 20), (64, 10_000), (1, 100_000_007), (3, 8193)] {
            let Split { parts, chunk } = Split::new(groups, length, 132);
            assert!(chunk.is_multiple_of(8) && (2..=1024).contains(&parts), "{parts} of {chunk}");
            assert!(
                parts * chunk >= length && (parts - 1) * chunk < length,
                "{parts} of {chunk} for {length}"
            );
        }
    }
}
