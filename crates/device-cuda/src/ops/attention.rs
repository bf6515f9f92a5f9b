//! Scaled dot-product attention.

use device::{Buffer, Error, Operand, Result, op};
use meta::{DType, Encoding, Shape};
use op::AttentionMask;

use super::layout::geometry::{block_count, element, type_name, unsupported};
use super::{Way, held, layout};
use crate::context::Properties;
use crate::cudnn::{AttentionShape, MaskShape};
use crate::kernel::{Args, KernelFile, Launch, Variant};
use crate::runtime::Runtime;

/// Head sizes of the tensor-core kernel with each mask, aligned and not, and of the plain kernel.
macro_rules! heads {
    (tensor: $($head:literal)*; plain: $($plain:literal)*;) => {
        &[
            $(
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "bf16"), ("HEAD", $head), ("MASK", "0"), ("TENSOR", "1"), ("ALIGNED", "1"), ("SCALE_FIRST", "0")] },
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "f16"), ("HEAD", $head), ("MASK", "1"), ("TENSOR", "1"), ("ALIGNED", "0"), ("SCALE_FIRST", "0")] },
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "bf16"), ("HEAD", $head), ("MASK", "2"), ("TENSOR", "1"), ("ALIGNED", "1"), ("SCALE_FIRST", "1")] },
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "bf16"), ("HEAD", $head), ("MASK", "1"), ("TENSOR", "1"), ("ALIGNED", "1"), ("SCALE_FIRST", "1"), ("CAP", "1")] },
            )*
            $(
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "f32"), ("HEAD", $plain), ("MASK", "0"), ("TENSOR", "0")] },
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "f32"), ("HEAD", $plain), ("MASK", "1"), ("TENSOR", "0")] },
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "bf16"), ("HEAD", $plain), ("MASK", "2"), ("TENSOR", "0")] },
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "f32"), ("HEAD", $plain), ("MASK", "2"), ("TENSOR", "0"), ("CAP", "1")] },
            )*
        ]
    };
}

/// What masks ask for beside cuDNN's kernels.
pub(crate) const MASK_VARIANTS: &[Variant] = &[
    Variant { file: KernelFile::Mask, name: "clear_blind", defines: &[("T", "bf16")] },
    Variant { file: KernelFile::Mask, name: "clear_blind", defines: &[("T", "f16")] },
];

/// Those that need tensor cores compile for compute capability 8.0 and later only.
pub(crate) const VARIANTS: &[Variant] = heads! {
    tensor: "32" "64" "96" "128" "160" "192" "256";
    plain: "64" "128" "192" "256";
};

/// One way to run an attention: a kernel for heads of up to a size, and what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// The compiled head size and its name in definitions.
    head: (usize, &'static str),
    /// Queries of a block.
    rows: usize,
    threads: u32,
    shared_bytes: usize,
}

impl Plan {
    const TENSOR_HEADS: [(usize, &'static str); 7] =
        [(32, "32"), (64, "64"), (96, "96"), (128, "128"), (160, "160"), (192, "192"), (256, "256")];
    const PLAIN_HEADS: [(usize, &'static str); 4] = [(64, "64"), (128, "128"), (192, "192"), (256, "256")];

    /// The tensor-core kernel: queries of the block and 64 keys and values in shared memory.
    fn tensor(size: usize) -> Option<Plan> {
        let head = Plan::TENSOR_HEADS.into_iter().find(|head| size <= head.0)?;
        let rows = if head.0 <= 128 { 128 } else { 64 };
        Some(Plan { head, rows, threads: 128, shared_bytes: (rows + 2 * 64) * head.0 * 2 })
    }

    /// The plain kernel: queries, keys or values, and weights in shared memory, all f32.
    fn plain(size: usize) -> Option<Plan> {
        let head = Plan::PLAIN_HEADS.into_iter().find(|head| size <= head.0)?;
        let (rows, keys) = if head.0 <= 128 { (64, 32) } else { (32, 16) };
        let values = (rows + keys) * (head.0 + 4) + rows * (keys + 1);
        Some(Plan { head, rows, threads: 256, shared_bytes: values * 4 })
    }
}

/// Whether the card computes attention in this type with its tensor cores.
fn on_tensor_cores(dtype: DType, card: &Properties) -> bool {
    dtype != DType::F32 && card.capability >= (8, 0)
}

/// The most bytes that an attention holds beside its operands: our own kernel needs none.
pub(crate) fn scratch(call: &op::Attention, runtime: &Runtime, way: Way) -> u64 {
    let dtype = call.q.dtype().filter(|_| way == Way::Fastest);
    // A mask that does not repeat to the scores is refused when it is launched.
    let library =
        dtype.and_then(|dtype| Library::of(call, dtype, runtime.context.properties()).ok().flatten());
    let Some(library) = library else { return 0 };
    let workspace = |shape| runtime.dnn.attention_workspace(&shape);
    if let Some(bytes) = library.direct().and_then(workspace) {
        return held([Some(bytes)]);
    }
    let Some((shape, mask)) = library.written_out() else { return 0 };
    workspace(shape).map_or(0, |bytes| held([Some(mask.bytes()), Some(bytes)]))
}

/// An attention that cuDNN is asked for first.
struct Library {
    /// Without the mask.
    shape: AttentionShape,
    /// Seen as `[batch, heads, queries, keys]`.
    mask: Option<Operand>,
}

impl Library {
    fn of(call: &op::Attention, dtype: DType, card: &Properties) -> Result<Option<Library>> {
        let shape = if on_tensor_cores(dtype, card) { AttentionShape::of(call, dtype) } else { None };
        let Some(shape) = shape else { return Ok(None) };
        Ok(Some(Library { shape, mask: repeated_mask(call)? }))
    }

    /// The shape with the mask as it is; none if its rows cannot be read so.
    fn direct(&self) -> Option<AttentionShape> {
        match &self.mask {
            None => Some(self.shape),
            Some(mask) => MaskShape::of(mask).map(|mask| AttentionShape { mask: Some(mask), ..self.shape }),
        }
    }

    /// The shape with the mask written out for every query and key, in rows that can be read: not every kernel repeats
    /// them.
    fn written_out(&self) -> Option<(AttentionShape, WrittenMask)> {
        let mask = self.mask.as_ref()?;
        let own = |axis: usize| if mask.strides()[axis] == 0 { 1 } else { mask.dim(axis) };
        let written = WrittenMask {
            dims: [own(0), own(1), mask.dim(2), mask.dim(3)],
            row: mask.dim(3).next_multiple_of(8),
            dtype: mask.dtype()?,
        };
        Some((AttentionShape { mask: Some(written.shape()), ..self.shape }, written))
    }

    /// Queues the attention and what the mask asks for beside it; whether cuDNN could.
    fn run(&self, call: &op::Attention, launch: &Launch<'_>, pointers: [u64; 4]) -> Result<bool> {
        let [q, k, v, out] = pointers;
        let dnn = &launch.runtime.dnn;
        let mask_at = self.mask.as_ref().map_or(Ok(0), |mask| launch.pointer(mask))?;
        if let Some(shape) = self.direct()
            && dnn.attention(launch, &shape, [q, k, v, out, mask_at], call.scale)?
        {
            return self.clear_blind(call, launch);
        }
        let Some((shape, written)) = self.written_out() else { return Ok(false) };
        // The copy is made only if there is a kernel to read it.
        if dnn.attention_workspace(&shape).is_none() {
            return Ok(false);
        }
        let scratch = match launch.scratch_buffer(written.bytes()) {
            Err(Error::OutOfMemory(_)) => return Ok(false),
            other => other?,
        };
        let copy = written.operand(scratch)?;
        self.copy_mask(launch, &written, &copy)?;
        if !dnn.attention(launch, &shape, [q, k, v, out, launch.pointer(&copy)?], call.scale)? {
            return Ok(false);
        }
        self.clear_blind(call, launch)
    }

    fn copy_mask(&self, launch: &Launch<'_>, written: &WrittenMask, copy: &Operand) -> Result<()> {
        let Some(mask) = &self.mask else { return Ok(()) };
        let mut x = mask.clone();
        for axis in [0, 1] {
            x = x.slice(axis, 0, written.dims[axis])?;
        }
        layout::copy(&op::Copy { x, out: copy.clone() }, launch)
    }

    /// A query that sees no key gets zeros, whatever the library makes of it.
    fn clear_blind(&self, call: &op::Attention, launch: &Launch<'_>) -> Result<bool> {
        const ROWS: usize = 8;
        let Some(mask) = &self.mask else { return Ok(true) };
        let (op, q) = ("attention", &call.q);
        let mut sizes = Vec::with_capacity(72);
        for value in [q.dim(1), call.k.dim(1), q.dim(2), q.dim(3)] {
            sizes.extend((value as i32).to_ne_bytes());
        }
        for stride in strides(mask, &[0, 1, 2, 3]).into_iter().chain(strides(&call.out, &[0, 1, 2])) {
            sizes.extend((stride as i64).to_ne_bytes());
        }
        let defines = [("T", type_name(element(launch, op, q)?))];
        let mut args = Args::new().ptr(launch.pointer(mask)?).ptr(launch.pointer(&call.out)?).bytes(&sizes);
        let grid = [block_count(launch, op, q.dim(1).div_ceil(ROWS))?, q.dim(2) as u32, q.dim(0) as u32];
        let kernel = launch.kernel(KernelFile::Mask, "clear_blind", &defines)?;
        kernel.launch(launch, grid, [ROWS as u32 * 32, 1, 1], 0, &mut args)?;
        Ok(true)
    }
}

/// A mask with a value for every query and key, in rows of whole 16 bytes.
struct WrittenMask {
    /// Of batch and heads those that do not repeat.
    dims: [usize; 4],
    /// Values from one row to the next.
    row: usize,
    dtype: DType,
}

impl WrittenMask {
    fn bytes(&self) -> usize {
        self.dims[..3].iter().product::<usize>() * self.row * self.dtype.bytes()
    }

    fn shape(&self) -> MaskShape {
        let [_, heads, queries, _] = self.dims;
        let strides = [heads * queries * self.row, queries * self.row, self.row, 1];
        MaskShape { dims: self.dims.map(|dim| dim as i64), strides: strides.map(|stride| stride as i64) }
    }

    fn operand(&self, buffer: Buffer) -> Result<Operand> {
        let [batch, heads, queries, keys] = self.dims;
        let rows = [batch, heads, queries, self.row];
        Operand::new(buffer, Encoding::Plain(self.dtype), rows, 0)?.slice(3, 0, keys)
    }
}

/// The mask that is added, seen as `[batch, heads, queries, keys]`.
fn repeated_mask(call: &op::Attention) -> Result<Option<Operand>> {
    match &call.mask {
        AttentionMask::Additive(mask) => {
            let (q, k) = (&call.q, &call.k);
            Ok(Some(mask.broadcast(Shape::from([q.dim(0), q.dim(2), q.dim(1), k.dim(1)]))?))
        }
        _ => Ok(None),
    }
}

pub(crate) fn attention(call: &op::Attention, launch: &Launch<'_>) -> Result<()> {
    let (op, q) = ("attention", &call.q);
    let dtype = element(launch, op, q)?;
    let size = q.dim(3);
    let tensor = on_tensor_cores(dtype, launch.properties());
    let plan = if tensor { Plan::tensor(size) } else { Plan::plain(size) };
    let plan = plan.ok_or_else(|| unsupported(launch, op, format!("heads of {size} values")))?;
    let mask = repeated_mask(call)?;
    let pointers = [&call.q, &call.k, &call.v, &call.out].map(|operand| launch.pointer(operand));
    let [q_at, k_at, v_at, out_at] = pointers;
    let pointers = [q_at?, k_at?, v_at?, out_at?];
    if let Some(library) = Library::of(call, dtype, launch.properties())?
        && library.run(call, launch, pointers)?
    {
        return Ok(());
    }
    let scale_first = mask.is_some() || call.scale <= 0.0 || call.soft_cap.is_some();
    let aligned = size.is_multiple_of(8)
        && pointers.iter().all(|pointer| pointer.is_multiple_of(16))
        && [&call.q, &call.k, &call.v, &call.out]
            .iter()
            .all(|operand| strides(operand, &[0, 1, 2]).iter().all(|stride| stride.is_multiple_of(8)));
    let flag = |set: bool| if set { "1" } else { "0" };
    let defines = [
        ("T", type_name(dtype)),
        ("HEAD", plan.head.1),
        ("MASK", mask_name(&call.mask)),
        ("TENSOR", flag(tensor)),
        ("ALIGNED", flag(aligned)),
        ("SCALE_FIRST", flag(scale_first)),
        ("CAP", "1"),
    ];
    // The plain kernel does not read what is about tensor cores, and most scores have no cap.
    let plain = [defines[0], defines[1], defines[2], defines[3], defines[6]];
    let defines = match (tensor, call.soft_cap) {
        (true, None) => &defines[..6],
        (true, Some(_)) => &defines[..],
        (false, None) => &plain[..4],
        (false, Some(_)) => &plain[..],
    };
    let [q_at, k_at, v_at, out_at] = pointers;
    let mask_at = mask.as_ref().map_or(Ok(0), |mask| launch.pointer(mask))?;
    let mut args =
        Args::new().ptr(q_at).ptr(k_at).ptr(v_at).ptr(mask_at).ptr(out_at).bytes(&sizes(call, mask.as_ref()));
    let grid = [block_count(launch, op, q.dim(1).div_ceil(plan.rows))?, q.dim(2) as u32, q.dim(0) as u32];
    let kernel = launch.kernel(KernelFile::Attention, "attention", defines)?;
    kernel.launch(launch, grid, [plan.threads, 1, 1], plan.shared_bytes as u32, &mut args)
}

fn mask_name(mask: &AttentionMask) -> &'static str {
    match mask {
        AttentionMask::None => "0",
        AttentionMask::Causal => "1",
        AttentionMask::Additive(_) => "2",
    }
}

/// The kernel's `Call` structure.
fn sizes(call: &op::Attention, mask: Option<&Operand>) -> Vec<u8> {
    let (q, k) = (&call.q, &call.k);
    let mut bytes = Vec::with_capacity(152);
    for value in [q.dim(1), k.dim(1), q.dim(2) / k.dim(2), q.dim(3)] {
        bytes.extend((value as i32).to_ne_bytes());
    }
    bytes.extend(call.scale.to_ne_bytes());
    bytes.extend(call.soft_cap.unwrap_or(0.0).to_ne_bytes());
    let mut put = |values: Vec<usize>| values.iter().for_each(|v| bytes.extend((*v as i64).to_ne_bytes()));
    for operand in [q, k, &call.v, &call.out] {
        put(strides(operand, &[0, 1, 2]));
    }
    put(mask.map_or(vec![0; 4], |mask| strides(mask, &[0, 1, 2, 3])));
    bytes
}

/// Strides along some dimensions; 0 where there is only one index, since any value may stand there.
fn strides(operand: &Operand, axes: &[usize]) -> Vec<usize> {
    axes.iter().map(|&axis| if operand.dim(axis) == 1 { 0 } else { operand.strides()[axis] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_fit_into_the_shared_memory_of_their_cards() {
        for size in 1..=256 {
            let (tensor, plain) = (Plan::tensor(size).unwrap(), Plan::plain(size).unwrap());
            assert!(tensor.head.0 >= size && plain.head.0 >= size);
            // 99 KiB are what a block may have on the smallest cards with tensor cores for bf16, 64 KiB
            // on those before.
            assert!(tensor.shared_bytes <= 99 << 10, "{tensor:?}");
            assert!(plain.shared_bytes <= 64 << 10, "{plain:?}");
        }
        assert_eq!(Plan::tensor(257), None);
        assert_eq!(Plan::tensor(128).unwrap().shared_bytes, 64 << 10);
    }
}
