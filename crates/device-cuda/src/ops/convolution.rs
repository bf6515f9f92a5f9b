//! Convolutions as matrix products.
//!
//! The windows of the input are laid out as a matrix with a row for each channel and tap and a column
//! for each output position, in pieces of bounded size; the weight times that matrix is the output as
//! it is stored. A kernel of size 1 needs no such layout: the input is that matrix. A transposed
//! convolution gathers: each output position reads the inputs that reach it. cuDNN is asked first for large ones.

use device::op::{self, Padding};
use device::{Error, Result};
use meta::{DType, Encoding};

use super::product::{self, Along, BiasedMatrix, SCRATCH_LIMIT};
use super::{Way, held, unpack};
use crate::blas::{Epilogue, Matrix, Places, Product, WORKSPACE_BYTES};
use crate::cudnn::ConvolutionShape;
use crate::kernel::{Args, KernelFile, Launch, Scratch, Variant};
use crate::runtime::Runtime;

/// The kernels of this file for each type of activations.
pub(crate) const VARIANTS: &[Variant] = &[
    variant("windows_to_columns", &[("VALUE", "f32")]),
    variant("windows_to_columns", &[("VALUE", "bf16")]),
    variant("windows_to_columns", &[("VALUE", "f16")]),
    variant("reorder_weight", &[("VALUE", "f32")]),
    variant("reorder_weight", &[("VALUE", "bf16")]),
    variant("reorder_weight", &[("VALUE", "f16")]),
    variant("add_bias", &[("VALUE", "f32")]),
    variant("add_bias", &[("VALUE", "bf16")]),
    variant("add_bias", &[("VALUE", "f16")]),
];

const fn variant(name: &'static str, defines: &'static [(&'static str, &'static str)]) -> Variant {
    Variant { file: KernelFile::Convolution, name, defines }
}

/// Threads of a block.
const THREADS: u32 = 256;
/// Rows of the matrix of windows start at multiples of this many values.
const ROW_MULTIPLE: usize = 64;
/// The most blocks along the second and third dimension of a grid.
const MAX_BLOCKS: usize = 65_535;

pub(crate) fn convolution(call: &op::Convolution, launch: &Launch<'_>) -> Result<()> {
    let dtype = product::activation_type(&call.x)?;
    let plan = Plan::of(call).ok_or_else(|| Error::Unsupported {
        device: launch.runtime.context.id(),
        op: "convolution",
        reason: "an image has more than 2³¹ positions, or no channels".into(),
    })?;
    let weight = Weight::ready(call, &plan, launch, dtype)?;
    if plan.pointwise {
        multiply_input(call, &plan, launch, weight.address)?;
    } else if !through_cudnn(call, launch, dtype, weight.address)? {
        multiply_windows(call, &plan, launch, weight.address)?;
    }
    let Some(bias) = &call.bias else { return Ok(()) };
    let bias = product::readable_bias(launch, bias, dtype)?;
    let matrix = BiasedMatrix {
        address: launch.pointer(&call.out)?,
        rows: plan.images * plan.groups * plan.out_per_group,
        columns: plan.positions,
        row_stride: plan.positions,
        along: Along::Rows(plan.groups * plan.out_per_group),
    };
    product::add_bias(launch, dtype, &matrix, launch.pointer(&bias)?)
}

/// The most bytes that a convolution holds beside its operands: a weight that is made ready, and then what the product
/// takes, or the bias that is added after it.
pub(crate) fn scratch(call: &op::Convolution, runtime: &Runtime, way: Way) -> u64 {
    // A call that has no plan or element type is refused when it is launched.
    let (Some(dtype), Some(plan)) = (call.x.dtype(), Plan::of(call)) else { return 0 };
    let shape = ConvolutionShape::of(call, dtype).filter(|_| way == Way::Fastest && !plan.pointwise);
    let workspace = shape.and_then(|shape| runtime.dnn.convolution_workspace(&shape));
    let product = if plan.pointwise {
        held([Some(WORKSPACE_BYTES)])
    } else if workspace.is_some() {
        held([workspace])
    } else {
        held([Some(plan.columns_bytes(dtype.bytes())), Some(WORKSPACE_BYTES)])
    };
    let [unpacked, reordered] = Weight::bytes(call, dtype);
    let weight = held([reordered.or(unpacked)]);
    let bias = held([call.bias.as_ref().and_then(|bias| product::bias_copy_bytes(bias, dtype))]);
    held([unpacked, reordered]).max(weight.saturating_add(product.max(bias)))
}

/// Leaves the product to cuDNN, if it is there and can do it.
fn through_cudnn(call: &op::Convolution, launch: &Launch<'_>, dtype: DType, weight: u64) -> Result<bool> {
    let Some(shape) = ConvolutionShape::of(call, dtype) else { return Ok(false) };
    let addresses = [launch.pointer(&call.x)?, weight, launch.pointer(&call.out)?];
    launch.runtime.dnn.convolution(launch, &shape, addresses)
}

/// The sizes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    images: usize,
    groups: usize,
    in_per_group: usize,
    out_per_group: usize,
    taps: usize,
    /// Output positions of one image.
    positions: usize,
    /// Input positions of one image.
    inputs: usize,
    /// Whether the input is the matrix of windows already.
    pointwise: bool,
}

impl Plan {
    /// None if the kernels' numbers are too small for it.
    fn of(call: &op::Convolution) -> Option<Plan> {
        let (x, out) = (&call.x, &call.out);
        let positions: usize = out.dims()[2..].iter().product();
        let inputs: usize = x.dims()[2..].iter().product();
        let plain = call.window.iter().all(|w| w.stride == 1 && w.pad_before == 0 && w.pad_after == 0);
        let plan = Plan {
            images: x.dim(0),
            groups: call.groups,
            in_per_group: x.dim(1) / call.groups,
            out_per_group: call.channels_out() / call.groups,
            taps: call.kernel().iter().product(),
            positions,
            inputs,
            pointwise: !call.transposed && plain && call.kernel().iter().all(|k| *k == 1),
        };
        // Indices before wrapping stay below this, with padding and dilation.
        let reach = call.window.iter().zip(call.kernel()).zip(&out.dims()[2..]);
        let reach = reach.map(|((w, kernel), out)| {
            (out * w.stride).max(w.pad_before + w.pad_after + kernel * w.dilation) as u64 * 2
        });
        let small = positions.max(inputs) < 1 << 31 && reach.max().unwrap_or(0) < 1 << 31;
        (small && plan.in_per_group > 0 && plan.taps > 0).then_some(plan)
    }

    /// Rows of the matrix of windows that belong to one group.
    fn rows(&self) -> usize {
        self.in_per_group * self.taps
    }

    fn channels_in(&self) -> usize {
        self.groups * self.in_per_group
    }

    fn channels_out(&self) -> usize {
        self.groups * self.out_per_group
    }

    /// How many images, and how many positions of each, one matrix of windows covers.
    fn piece(&self, value_bytes: usize) -> (usize, usize) {
        let column_bytes = self.groups * self.rows() * value_bytes;
        let fitting = (SCRATCH_LIMIT / column_bytes.max(1)).max(ROW_MULTIPLE) / ROW_MULTIPLE * ROW_MULTIPLE;
        let padded = self.positions.next_multiple_of(ROW_MULTIPLE);
        if padded > fitting {
            return (1, fitting);
        }
        // Groups use the batch of the product themselves.
        let images = if self.groups == 1 { (fitting / padded).clamp(1, MAX_BLOCKS) } else { 1 };
        (images.min(self.images.max(1)), self.positions)
    }

    /// Positions from one row of the matrix of windows to the next.
    fn leading(&self, value_bytes: usize) -> usize {
        self.piece(value_bytes).1.next_multiple_of(ROW_MULTIPLE)
    }

    /// Bytes of one matrix of windows.
    fn columns_bytes(&self, value_bytes: usize) -> usize {
        let image_bytes = self.groups * self.rows() * self.leading(value_bytes) * value_bytes;
        self.piece(value_bytes).0 * image_bytes
    }

    /// `out[o, p] = Σ weight[o, r] · columns[r, p]` in the library's columns: both matrices and the
    /// output are stored by rows, so positions come first and nothing is transposed.
    fn product(&self, dtype: DType, positions: usize, leading: usize) -> Product {
        let matrix = |leading: usize, batch_stride: usize| Matrix {
            transposed: false,
            leading: leading as i64,
            batch_stride: batch_stride as i64,
        };
        Product {
            dtype,
            codes: None,
            rows: positions as u64,
            columns: self.out_per_group as u64,
            inner: self.rows() as u64,
            a: matrix(leading, self.rows() * leading),
            b: matrix(self.rows(), self.out_per_group * self.rows()),
            d: matrix(self.positions, self.out_per_group * self.positions),
            batch: self.groups as i32,
            epilogue: Epilogue::None,
        }
    }

    /// The same for several images at once, where there is one group.
    fn product_of_images(&self, dtype: DType, images: usize, leading: usize) -> Product {
        let one = self.product(dtype, self.positions, leading);
        Product { batch: images as i32, b: Matrix { batch_stride: 0, ..one.b }, ..one }
    }
}

/// A weight in the activations' type and in the order `[out, in / groups, taps]`.
struct Weight {
    address: u64,
    _unpacked: Option<Scratch>,
}

impl Weight {
    /// Bytes of the weight in the activations' type, and of the same in the other order, where those are made. The
    /// first is let go when there is the second.
    fn bytes(call: &op::Convolution, dtype: DType) -> [Option<usize>; 2] {
        let bytes = call.weight.count() * dtype.bytes();
        let plain = call.weight.encoding() == Encoding::Plain(dtype);
        [(!plain).then_some(bytes), call.transposed.then_some(bytes)]
    }

    fn ready(call: &op::Convolution, plan: &Plan, launch: &Launch<'_>, dtype: DType) -> Result<Weight> {
        let [unpacked, reordered] = Weight::bytes(call, dtype);
        let mut weight = match unpacked {
            None => Weight { address: launch.pointer(&call.weight)?, _unpacked: None },
            Some(bytes) => {
                let scratch = launch.scratch(bytes)?;
                unpack::unpack_to(launch, &call.weight, dtype, None, scratch.pointer())?;
                Weight { address: scratch.pointer(), _unpacked: Some(scratch) }
            }
        };
        if let Some(bytes) = reordered {
            let scratch = launch.scratch(bytes)?;
            let kernel =
                launch.kernel(KernelFile::Convolution, "reorder_weight", &[("VALUE", dtype.name())])?;
            let count = call.weight.count();
            let mut args = Args::new()
                .ptr(weight.address)
                .ptr(scratch.pointer())
                .i64(plan.in_per_group as i64)
                .i64(plan.out_per_group as i64)
                .i64(plan.taps as i64)
                .i64(count as i64);
            let blocks = count.div_ceil(THREADS as usize).min(1 << 16) as u32;
            kernel.launch(launch, [blocks, 1, 1], [THREADS, 1, 1], 0, &mut args)?;
            weight = Weight { address: scratch.pointer(), _unpacked: Some(scratch) };
        }
        Ok(weight)
    }
}

/// The input is the matrix of windows.
fn multiply_input(call: &op::Convolution, plan: &Plan, launch: &Launch<'_>, weight: u64) -> Result<()> {
    let dtype = product::activation_type(&call.x)?;
    let (x, out) = (launch.pointer(&call.x)?, launch.pointer(&call.out)?);
    let (images, product) = if plan.groups == 1 {
        (1, plan.product_of_images(dtype, plan.images, plan.positions))
    } else {
        (plan.images, plan.product(dtype, plan.positions, plan.positions))
    };
    for image in 0..images {
        let places = Places {
            a: x + (image * plan.channels_in() * plan.inputs * dtype.bytes()) as u64,
            b: weight,
            d: out + (image * plan.channels_out() * plan.positions * dtype.bytes()) as u64,
            bias: 0,
            scales: [0; 2],
            alpha: 1.0,
            beta: 0.0,
        };
        launch.runtime.blas.run(launch, &product, &places)?;
    }
    Ok(())
}

/// Lays windows out piece by piece and multiplies each.
fn multiply_windows(call: &op::Convolution, plan: &Plan, launch: &Launch<'_>, weight: u64) -> Result<()> {
    let dtype = product::activation_type(&call.x)?;
    let (x, out) = (launch.pointer(&call.x)?, launch.pointer(&call.out)?);
    let kernel = launch.kernel(KernelFile::Convolution, "windows_to_columns", &[("VALUE", dtype.name())])?;
    let (images_at_once, positions_at_once) = plan.piece(dtype.bytes());
    let leading = plan.leading(dtype.bytes());
    let columns = launch.scratch(plan.columns_bytes(dtype.bytes()))?;
    let window = window_bytes(call);
    for image in (0..plan.images).step_by(images_at_once) {
        let images = images_at_once.min(plan.images - image);
        let from = x + (image * plan.channels_in() * plan.inputs * dtype.bytes()) as u64;
        let to = out + (image * plan.channels_out() * plan.positions * dtype.bytes()) as u64;
        for first in (0..plan.positions).step_by(positions_at_once) {
            let count = positions_at_once.min(plan.positions - first);
            let mut args = Args::new()
                .ptr(from)
                .ptr(columns.pointer())
                .bytes(&window)
                .i32(plan.channels_in() as i32)
                .i32(first as i32)
                .i32(count as i32)
                .i64(leading as i64);
            let blocks = [
                count.div_ceil(THREADS as usize) as u32,
                plan.channels_in().min(MAX_BLOCKS) as u32,
                images as u32,
            ];
            kernel.launch(launch, blocks, [THREADS, 1, 1], 0, &mut args)?;
            let product = if images_at_once > 1 {
                plan.product_of_images(dtype, images, leading)
            } else {
                plan.product(dtype, count, leading)
            };
            let places = Places {
                a: columns.pointer(),
                b: weight,
                d: to + (first * dtype.bytes()) as u64,
                bias: 0,
                scales: [0; 2],
                alpha: 1.0,
                beta: 0.0,
            };
            launch.runtime.blas.run(launch, &product, &places)?;
        }
    }
    Ok(())
}

/// The kernel's `Window`: sizes of each dimension, filled up in front to three.
fn window_bytes(call: &op::Convolution) -> Vec<u8> {
    let n = call.window.len();
    let fill = |value: usize, of: &dyn Fn(usize) -> usize| -> [i32; 3] {
        std::array::from_fn(|axis| (axis + n).checked_sub(3).map_or(value, of) as i32)
    };
    let fields = [
        fill(1, &|i| call.x.dim(i + 2)),
        fill(1, &|i| call.out.dim(i + 2)),
        fill(1, &|i| call.kernel()[i]),
        fill(1, &|i| call.window[i].stride),
        fill(0, &|i| call.window[i].pad_before),
        fill(1, &|i| call.window[i].dilation),
    ];
    let mode = match call.padding {
        Padding::Constant(_) => 0,
        Padding::Reflect => 1,
        Padding::Replicate => 2,
        Padding::Circular => 3,
    };
    let numbers = fields.into_iter().flatten().chain([mode, i32::from(call.transposed)]);
    numbers.flat_map(i32::to_ne_bytes).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::op::Window;
    use device::{Buffer, Operand};

    use super::*;

    fn operand(dims: &[usize]) -> Operand {
        let shape = meta::Shape::new(dims).unwrap();
        let buffer = Buffer::over(Arc::new(vec![0u8; shape.count() * 2]));
        Operand::new(buffer, Encoding::BF16, shape, 0).unwrap()
    }

    fn call(x: &[usize], weight: &[usize], out: &[usize], window: Window) -> op::Convolution {
        op::Convolution {
            x: operand(x),
            weight: operand(weight),
            bias: None,
            window: vec![window; x.len() - 2],
            padding: Padding::Reflect,
            groups: 1,
            transposed: false,
            out: operand(out),
        }
    }

    #[test]
    fn the_window_is_filled_up_in_front() {
        let call = call(&[1, 4, 8, 10], &[6, 4, 3, 5], &[1, 6, 8, 8], Window::padded(1));
        let numbers: Vec<i32> = window_bytes(&call)
            .chunks_exact(4)
            .map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap()))
            .collect();
        let expected = [1, 8, 10, 1, 8, 8, 1, 3, 5, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn pieces_stay_inside_the_scratch_limit() {
        for (positions, rows, groups, images) in [
            (1 << 20, 1152, 1, 1),
            (4096, 2880, 1, 4),
            (100, 9, 64, 3),
            (1 << 22, 1 << 20, 1, 1),
            (49, 27, 1, 70_000),
        ] {
            let plan = Plan {
                images,
                groups,
                in_per_group: rows,
                out_per_group: 8,
                taps: 1,
                positions,
                inputs: positions,
                pointwise: false,
            };
            let (at_once, count) = plan.piece(2);
            let column = groups * rows * 2;
            let bytes = at_once * count.next_multiple_of(ROW_MULTIPLE) * column;
            assert!(bytes <= SCRATCH_LIMIT || count <= ROW_MULTIPLE, "{plan:?}: {bytes}");
            assert!(at_once == 1 || (count == positions && groups == 1 && at_once <= images));
            assert!(count > 0 && count <= positions);
        }
    }

    #[test]
    fn only_plain_kernels_of_one_are_pointwise() {
        let plan = |kernel: usize, window: Window, out: usize| {
            Plan::of(&call(&[2, 4, 8, 8], &[6, 4, kernel, kernel], &[2, 6, out, out], window)).unwrap()
        };
        assert!(plan(1, Window::padded(0), 8).pointwise);
        assert!(!plan(3, Window::padded(1), 8).pointwise);
        assert!(!plan(1, Window { stride: 2, ..Window::padded(0) }, 4).pointwise);
    }
}
