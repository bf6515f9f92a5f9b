//! Scaled dot-product attention.

use device::{Operand, Result, op};
use meta::{DType, Shape};
use op::AttentionMask;

use super::layout::geometry::{block_count, element, type_name, unsupported};
use super::{Way, held};
use crate::context::Properties;
use crate::cudnn::AttentionShape;
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
            )*
            $(
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "f32"), ("HEAD", $plain), ("MASK", "0"), ("TENSOR", "0")] },
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "f32"), ("HEAD", $plain), ("MASK", "1"), ("TENSOR", "0")] },
                Variant { file: KernelFile::Attention, name: "attention", defines: &[("T", "bf16"), ("HEAD", $plain), ("MASK", "2"), ("TENSOR", "0")] },
            )*
        ]
    };
}

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

/// The shape of a call that cuDNN is asked for first.
fn library_shape(call: &op::Attention, dtype: DType, card: &Properties) -> Option<AttentionShape> {
    if on_tensor_cores(dtype, card) { AttentionShape::of(call, dtype) } else { None }
}

/// The most bytes that an attention holds beside its operands: our own kernel needs none.
pub(crate) fn scratch(call: &op::Attention, runtime: &Runtime, way: Way) -> u64 {
    let dtype = call.q.dtype().filter(|_| way == Way::Fastest);
    let shape = dtype.and_then(|dtype| library_shape(call, dtype, runtime.context.properties()));
    held([shape.and_then(|shape| runtime.dnn.attention_workspace(&shape))])
}

pub(crate) fn attention(call: &op::Attention, launch: &Launch<'_>) -> Result<()> {
    let (op, q) = ("attention", &call.q);
    let dtype = element(launch, op, q)?;
    let size = q.dim(3);
    let tensor = on_tensor_cores(dtype, launch.properties());
    let plan = if tensor { Plan::tensor(size) } else { Plan::plain(size) };
    let plan = plan.ok_or_else(|| unsupported(launch, op, format!("heads of {size} values")))?;
    let mask = match &call.mask {
        AttentionMask::Additive(mask) => {
            Some(mask.broadcast(Shape::from([q.dim(0), q.dim(2), q.dim(1), call.k.dim(1)]))?)
        }
        _ => None,
    };
    let pointers = [&call.q, &call.k, &call.v, &call.out].map(|operand| launch.pointer(operand));
    let [q_at, k_at, v_at, out_at] = pointers;
    let pointers = [q_at?, k_at?, v_at?, out_at?];
    if let Some(shape) = library_shape(call, dtype, launch.properties())
        && launch.runtime.dnn.attention(launch, &shape, pointers, call.scale)?
    {
        return Ok(());
    }
    let scale_first = mask.is_some() || call.scale <= 0.0;
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
    ];
    // The plain kernel reads only the first four.
    let defines = if tensor { &defines[..] } else { &defines[..4] };
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
    bytes.extend(0i32.to_ne_bytes());
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
