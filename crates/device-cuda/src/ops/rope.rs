//! Rotary position embeddings.

use device::{Operand, Result, op};
use meta::DType;

use super::layout::geometry::{ACCESS_BYTES, THREADS, blocks, element, index_type, type_name};
use super::norm;
use crate::kernel::{Args, KernelFile, Launch, Variant};

/// One layout in all types, aligned and not. `$single` is what a thread takes where nothing is aligned.
macro_rules! layouts {
    ($($half:literal $single:literal)*) => {
        &[$(
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "bf16"), ("HALF_SPLIT", $half), ("VECTOR", "8"), ("ALIGNED", "1"), ("INDEX", "u32"), ("W", "none")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "f16"), ("HALF_SPLIT", $half), ("VECTOR", "8"), ("ALIGNED", "1"), ("INDEX", "u32"), ("W", "none")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "f32"), ("HALF_SPLIT", $half), ("VECTOR", "4"), ("ALIGNED", "1"), ("INDEX", "u32"), ("W", "none")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "bf16"), ("HALF_SPLIT", $half), ("VECTOR", $single), ("ALIGNED", "0"), ("INDEX", "u32"), ("W", "none")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "f32"), ("HALF_SPLIT", $half), ("VECTOR", $single), ("ALIGNED", "0"), ("INDEX", "u64"), ("W", "none")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "bf16"), ("HALF_SPLIT", $half), ("VECTOR", "8"), ("ALIGNED", "1"), ("INDEX", "u32"), ("W", "bf16")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "f16"), ("HALF_SPLIT", $half), ("VECTOR", "8"), ("ALIGNED", "1"), ("INDEX", "u32"), ("W", "f8e4m3")] },
            Variant { file: KernelFile::Rope, name: "rope", defines: &[("T", "f32"), ("HALF_SPLIT", $half), ("VECTOR", "4"), ("ALIGNED", "1"), ("INDEX", "u64"), ("W", "f32")] },
        )*]
    };
}

pub(crate) const VARIANTS: &[Variant] = layouts! { "0" "2" "1" "1" };

pub(crate) fn rope(call: &op::Rope, launch: &Launch<'_>) -> Result<()> {
    let angles = Angles { cos: &call.cos, sin: &call.sin, layout: call.layout };
    Turn::new(launch, [&call.x, &call.out], &angles)?.run(launch, None)
}

pub(crate) fn normed_rope(call: &op::NormedRope, launch: &Launch<'_>) -> Result<()> {
    let angles = Angles { cos: &call.cos, sin: &call.sin, layout: call.layout };
    let turn = Turn::new(launch, [&call.x, &call.out], &angles)?;
    let norm = Norm { weight: &call.weight, eps: call.eps };
    if turn.can_norm(launch, &norm)? {
        return turn.run(launch, Some(&norm));
    }
    let (x, out) = (call.x.clone(), call.out.clone());
    let (axis, weight) = (x.rank() - 1, Some(call.weight.clone()));
    norm::rms_norm(&op::RmsNorm { x, axis, weight, eps: call.eps, out }, launch)?;
    // Each thread reads its pairs before it writes them, so this may be in place.
    Turn::new(launch, [&call.out, &call.out], &angles)?.run(launch, None)
}

/// By how much the pairs of each position are turned.
struct Angles<'a> {
    cos: &'a Operand,
    sin: &'a Operand,
    layout: op::RopeLayout,
}

/// How heads are normalised before they are turned.
struct Norm<'a> {
    weight: &'a Operand,
    eps: f32,
}

/// One rotation: how heads are shared out to threads.
struct Turn<'a> {
    /// Input and output.
    heads: [&'a Operand; 2],
    angles: &'a Angles<'a>,
    dtype: DType,
    /// Input, output, cosines and sines.
    pointers: [u64; 4],
    aligned: bool,
    /// Values that a thread takes at once.
    pack: usize,
    /// Threads of a head.
    pieces: usize,
}

impl<'a> Turn<'a> {
    fn new(launch: &Launch<'_>, heads: [&'a Operand; 2], angles: &'a Angles<'a>) -> Result<Turn<'a>> {
        let [x, out] = heads;
        let dtype = element(launch, "rope", x)?;
        let (size, rotated) = (x.dim(3), 2 * angles.cos.dim(2));
        let half_split = angles.layout == op::RopeLayout::HalfSplit;
        let pointers = [
            launch.pointer(x)?,
            launch.pointer(out)?,
            launch.pointer(angles.cos)?,
            launch.pointer(angles.sin)?,
        ];
        let whole = ACCESS_BYTES / dtype.bytes();
        let step = if half_split { 2 * whole } else { whole };
        let aligned = size.is_multiple_of(whole)
            && rotated.is_multiple_of(step)
            && pointers.iter().all(|p| p.is_multiple_of(ACCESS_BYTES as u64))
            && heads.iter().all(|o| leading_strides(o).iter().all(|s| s.is_multiple_of(whole)));
        let pack = match (aligned, half_split) {
            (true, _) => whole,
            (false, true) => 1,
            (false, false) => 2,
        };
        // The halves of a head are taken together, so that only half of the rotated values is counted.
        let pieces = if half_split {
            rotated / 2 / pack + (size - rotated).div_ceil(pack)
        } else {
            size.div_ceil(pack)
        };
        Ok(Turn { heads, angles, dtype, pointers, aligned, pack, pieces })
    }

    /// Whether the threads of a head can add up its squares.
    fn can_norm(&self, launch: &Launch<'_>, norm: &Norm<'_>) -> Result<bool> {
        let weight = launch.pointer(norm.weight)?;
        let bytes = element(launch, "normed rope", norm.weight)?.bytes();
        Ok(self.aligned
            && self.heads[0].dim(3) == 2 * self.angles.cos.dim(2)
            && self.pieces.is_power_of_two()
            && self.pieces <= 32
            && weight.is_multiple_of((self.pack * bytes).min(ACCESS_BYTES) as u64))
    }

    fn run(&self, launch: &Launch<'_>, norm: Option<&Norm<'_>>) -> Result<()> {
        let [x, out] = self.heads;
        let weight_type = norm.and_then(|norm| norm.weight.dtype());
        let count = x.dim(0) * x.dim(1) * x.dim(2) * self.pieces;
        let flag = |set: bool| if set { "1" } else { "0" };
        let defines = [
            ("T", type_name(self.dtype)),
            ("HALF_SPLIT", flag(self.angles.layout == op::RopeLayout::HalfSplit)),
            ("VECTOR", ["", "1", "2", "", "4", "", "", "", "8"][self.pack]),
            ("ALIGNED", flag(self.aligned)),
            ("INDEX", index_type(count)),
            ("W", weight_type.map_or("none", type_name)),
        ];
        let (rotated, tables) = (2 * self.angles.cos.dim(2), usize::from(self.angles.cos.dim(0) > 1));
        let mut sizes = Vec::with_capacity(72);
        for value in [x.dim(1), x.dim(2), x.dim(3), rotated, self.pieces, tables] {
            sizes.extend((value as u32).to_ne_bytes());
        }
        for operand in [x, out] {
            leading_strides(operand).iter().for_each(|s| sizes.extend((*s as i64).to_ne_bytes()));
        }
        let weight = norm.map_or(Ok(0), |norm| launch.pointer(norm.weight))?;
        let [from, to, cosines, sines] = self.pointers;
        let mut args = Args::new()
            .ptr(from)
            .ptr(weight)
            .ptr(cosines)
            .ptr(sines)
            .ptr(to)
            .bytes(&sizes)
            .i64(count as i64)
            .f32(norm.map_or(0.0, |norm| norm.eps));
        let kernel = launch.kernel(KernelFile::Rope, "rope", &defines)?;
        kernel.launch(launch, blocks(launch, "rope", count)?, [THREADS, 1, 1], 0, &mut args)
    }
}

/// Strides of batch, position and head; 0 where there is only one index.
fn leading_strides(operand: &Operand) -> [usize; 3] {
    [0, 1, 2].map(|axis| if operand.dim(axis) == 1 { 0 } else { operand.strides()[axis] })
}
