//! Matrix products: linear layers over weights as they are stored, and batches of plain products.
//!
//! cuBLASLt thinks in columns: a row-major matrix is to it the transpose. So `y = x · wᵀ` is asked for
//! as `yᵀ = w · xᵀ`, where `w` is stored transposed and `x` is not.

use device::op::{self, Activation};
use device::{Error, Operand, Result};
use meta::{DType, Encoding, MAX_RANK};

use super::scaled::Coded;
use super::{elementwise, held, layout, quantised, unpack};
use crate::blas::{Epilogue, Matrix, Places, Product, WORKSPACE_BYTES};
use crate::kernel::{Args, KernelFile, Launch};

/// The most temporary memory that unpacked weights and convolution windows take.
pub(crate) const SCRATCH_LIMIT: usize = 256 << 20;
/// Alignment of the bias that every algorithm can read.
pub(super) const BIAS_ALIGNMENT: usize = 16;

/// `activation(x · weightᵀ · scale + bias)`.
pub(crate) fn linear(call: &op::Linear, launch: &Launch<'_>) -> Result<()> {
    let dtype = activation_type(&call.x)?;
    let (n, k) = (call.weight.dim(0), call.x.shape().last());
    if k == 0 {
        return Err(unsupported(launch, "linear", "the weight has no columns"));
    }
    if quantised::few_rows(call, launch)? {
        return Ok(());
    }
    let bias = call.bias.as_ref().map(|bias| readable_bias(launch, bias, dtype)).transpose()?;
    let rows = Rows::of(launch, &call.x, &call.out)?;
    let step = unpacked_rows(call, dtype).unwrap_or(n);
    let scratch = unpacked_bytes(call, dtype).map(|bytes| launch.scratch(bytes)).transpose()?;
    let mut first = 0;
    while first < n {
        let len = step.min(n - first);
        let weight_rows = call.weight.slice(0, first, len)?;
        let weight = match &scratch {
            None => launch.pointer(&weight_rows)?,
            Some(scratch) => {
                unpack_rows(call, (&weight_rows, first), launch, dtype, scratch.pointer())?;
                scratch.pointer()
            }
        };
        let bias = bias.as_ref().map(|bias| bias.slice(0, first, len)).transpose()?;
        let part = Part {
            rows: &rows,
            weight,
            k,
            bias: bias.map(|bias| launch.pointer(&bias)).transpose()?,
            out: call.out.slice(call.out.rank() - 1, first, len)?,
        };
        part.run(launch, dtype, call.activation)?;
        first += len;
    }
    Ok(())
}

/// The most bytes that a linear layer holds beside its operands: copies that last as long as it does, and the
/// workspace of a product.
pub(crate) fn linear_scratch(call: &op::Linear) -> u64 {
    // A call whose input has no element type is refused when it is launched.
    let Some(dtype) = call.x.dtype() else { return 0 };
    let bias = call.bias.as_ref().and_then(|bias| bias_copy_bytes(bias, dtype));
    let repeat = Batches::of_rows(&call.x, &call.out).repeat_rows(call.x.shape().last());
    let rows = repeat.then(|| copy_bytes(&call.x, dtype));
    held([bias, rows, unpacked_bytes(call, dtype), Some(WORKSPACE_BYTES)])
}

/// Unpacks some rows of the weight, of which the first is this one, to a device address.
fn unpack_rows(
    call: &op::Linear,
    (rows, first): (&Operand, usize),
    launch: &Launch<'_>,
    dtype: DType,
    to: u64,
) -> Result<()> {
    match (rows.encoding(), &call.scales) {
        (Encoding::Scaled(scheme), Some(scales)) => {
            let scales = &scales.rows(rows.encoding(), &(first..first + rows.dim(0)))?;
            let columns = call.x.shape().last();
            Coded { weight: rows, scheme, scales, columns }.unpack_to(launch, dtype, to)
        }
        (_, scales) => {
            unpack::unpack_to(launch, rows, dtype, scales.as_ref().map(|scales| &scales.values), to)
        }
    }
}

/// Rows of the weight that are unpacked at once; none if the product can read it as it is.
fn unpacked_rows(call: &op::Linear, dtype: DType) -> Option<usize> {
    let ready = call.weight.encoding() == Encoding::Plain(dtype) && call.scales.is_none();
    (!ready).then(|| chunk_rows(call.weight.dim(0), call.x.shape().last() * dtype.bytes()))
}

/// Bytes of those rows.
fn unpacked_bytes(call: &op::Linear, dtype: DType) -> Option<usize> {
    unpacked_rows(call, dtype).map(|rows| rows * call.x.shape().last() * dtype.bytes())
}

/// Rows of a weight that are unpacked at once.
fn chunk_rows(rows: usize, row_bytes: usize) -> usize {
    let fitting = (SCRATCH_LIMIT / row_bytes.max(1)).max(1);
    if fitting >= rows {
        return rows;
    }
    if fitting > 128 { fitting / 128 * 128 } else { fitting }
}

/// The rows of input and output: runs of rows at one distance, mostly a single one.
struct Rows {
    x: Operand,
    /// Rows of a run.
    count: usize,
    x_stride: usize,
    out_stride: usize,
    /// Where each run starts, in elements of the input and of the output.
    starts: Vec<[usize; 3]>,
}

impl Rows {
    fn of(launch: &Launch<'_>, x: &Operand, out: &Operand) -> Result<Rows> {
        let (k, n) = (x.shape().last(), out.shape().last());
        let batches = Batches::of_rows(x, out);
        let (x, batches) = if batches.repeat_rows(k) {
            let copy = packed_copy(launch, x)?;
            let batches = Batches::of_rows(&copy, out);
            (copy, batches)
        } else {
            (x.clone(), batches)
        };
        let (count, [x_stride, out_stride, _]) = batches.inner();
        if count > 1 && out_stride < n {
            return Err(unsupported(launch, "linear", "the rows of the output overlap"));
        }
        // The distance of a single row says nothing, but must not be too small.
        let (x_stride, out_stride) = if count > 1 { (x_stride, out_stride) } else { (k, n) };
        Ok(Rows { x, count, x_stride, out_stride, starts: batches.outer() })
    }
}

/// The product with some rows of the weight.
struct Part<'a> {
    rows: &'a Rows,
    /// `[n, k]` in the activations' type, contiguous.
    weight: u64,
    k: usize,
    /// `[n]` in the activations' type.
    bias: Option<u64>,
    /// `[…, n]`.
    out: Operand,
}

impl Part<'_> {
    fn run(&self, launch: &Launch<'_>, dtype: DType, activation: Option<Activation>) -> Result<()> {
        let (rows, n, blas) = (self.rows, self.out.shape().last(), &launch.runtime.blas);
        let matrix =
            |transposed, leading: usize| Matrix { transposed, leading: leading as i64, batch_stride: 0 };
        let product = Product {
            dtype,
            codes: None,
            rows: n as u64,
            columns: rows.count as u64,
            inner: self.k as u64,
            a: matrix(true, self.k),
            b: matrix(false, rows.x_stride),
            d: matrix(false, rows.out_stride),
            batch: 1,
            epilogue: fused(self.bias.is_some(), activation),
        };
        let (x, out) = (launch.pointer(&rows.x)?, launch.pointer(&self.out)?);
        let places = |[x_start, out_start, _]: &[usize; 3]| Places {
            a: self.weight,
            b: x + (x_start * dtype.bytes()) as u64,
            d: out + (out_start * dtype.bytes()) as u64,
            bias: self.bias.unwrap_or(0),
            scales: [0; 2],
            alpha: 1.0,
            beta: 0.0,
        };
        let mut whole = self.bias.is_none_or(|bias| bias.is_multiple_of(BIAS_ALIGNMENT as u64));
        if let ([start], true) = (&rows.starts[..], whole)
            && let Some(plan) = blas.plan(&product, &places(start))?
        {
            // What nearly all layers are: one product that does it all.
            blas.run_plan(launch, &plan, &places(start))?;
            return self.activate(launch, activation.filter(|activation| !is_fused(*activation)));
        }
        for start in &rows.starts {
            whole = whole && blas.plan(&product, &places(start))?.is_some();
        }
        let epilogue = if whole { product.epilogue } else { Epilogue::None };
        for start in &rows.starts {
            blas.run(launch, &Product { epilogue, ..product }, &places(start))?;
            if let Some(bias) = self.bias.filter(|_| !whole) {
                let matrix = BiasedMatrix {
                    address: places(start).d,
                    rows: rows.count,
                    columns: n,
                    row_stride: rows.out_stride,
                    along: Along::Columns,
                };
                add_bias(launch, dtype, &matrix, bias)?;
            }
        }
        self.activate(launch, activation.filter(|activation| !(whole && is_fused(*activation))))
    }

    /// What is left to do to the outputs.
    fn activate(&self, launch: &Launch<'_>, activation: Option<Activation>) -> Result<()> {
        activation.map_or(Ok(()), |activation| elementwise::activate_in_place(launch, activation, &self.out))
    }
}

/// Whether an activation is part of the product.
pub(super) fn is_fused(activation: Activation) -> bool {
    matches!(activation, Activation::GeluTanh | Activation::Relu)
}

/// What the product does besides multiplying.
pub(super) fn fused(bias: bool, activation: Option<Activation>) -> Epilogue {
    match (activation, bias) {
        (Some(Activation::GeluTanh), true) => Epilogue::GeluTanhBias,
        (Some(Activation::GeluTanh), false) => Epilogue::GeluTanh,
        (Some(Activation::Relu), true) => Epilogue::ReluBias,
        (Some(Activation::Relu), false) => Epilogue::Relu,
        (_, true) => Epilogue::Bias,
        (_, false) => Epilogue::None,
    }
}

/// The bias in the activations' type and aligned, copied if it is not.
pub(crate) fn readable_bias(launch: &Launch<'_>, bias: &Operand, dtype: DType) -> Result<Operand> {
    if bias_copy_bytes(bias, dtype).is_some() { copied(launch, bias, dtype) } else { Ok(bias.clone()) }
}

/// Bytes of the copy that a bias is read from; none if it is read where it is.
pub(crate) fn bias_copy_bytes(bias: &Operand, dtype: DType) -> Option<usize> {
    // Buffers start at multiples of 256, so that offsets are as aligned as addresses.
    let aligned = bias.offset().is_multiple_of(BIAS_ALIGNMENT);
    let readable = bias.dtype() == Some(dtype) && aligned && bias.is_contiguous();
    (!readable).then(|| copy_bytes(bias, dtype))
}

/// The same values, contiguous.
fn packed_copy(launch: &Launch<'_>, x: &Operand) -> Result<Operand> {
    copied(launch, x, activation_type(x)?)
}

/// The same values in this type, contiguous, in temporary memory.
fn copied(launch: &Launch<'_>, x: &Operand, dtype: DType) -> Result<Operand> {
    let buffer = launch.scratch_buffer(copy_bytes(x, dtype))?;
    let out = Operand::new(buffer, Encoding::Plain(dtype), *x.shape(), 0)?;
    layout::copy(&op::Copy { x: x.clone(), out: out.clone() }, launch)?;
    Ok(out)
}

/// Bytes of such a copy.
fn copy_bytes(x: &Operand, dtype: DType) -> usize {
    x.count() * dtype.bytes()
}

/// Along which direction of a matrix a bias has its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    /// One value for each column.
    Columns,
    /// One value for each row, repeating after this many.
    Rows(usize),
}

/// A matrix to which a bias is added.
pub(crate) struct BiasedMatrix {
    pub(crate) address: u64,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_stride: usize,
    pub(crate) along: Along,
}

/// Adds a bias in place, where the product cannot.
pub(crate) fn add_bias(launch: &Launch<'_>, dtype: DType, matrix: &BiasedMatrix, bias: u64) -> Result<()> {
    const THREADS: u32 = 256;
    let kernel = launch.kernel(KernelFile::Convolution, "add_bias", &[("VALUE", dtype.name())])?;
    let across = matrix.columns.div_ceil(THREADS as usize).min(1 << 20) as u32;
    let down = matrix.rows.min(65_535) as u32;
    let period = match matrix.along {
        Along::Columns => 0,
        Along::Rows(period) => period,
    };
    let mut args = Args::new()
        .ptr(matrix.address)
        .ptr(bias)
        .i64(matrix.rows as i64)
        .i64(matrix.columns as i64)
        .i64(matrix.row_stride as i64)
        .i64(period as i64);
    kernel.launch(launch, [across, down, 1], [THREADS, 1, 1], 0, &mut args)
}

/// `out = alpha · a · b` for every index of the leading dimensions, or that added to what is there.
pub(crate) fn matmul(call: &op::Matmul, launch: &Launch<'_>) -> Result<()> {
    let dtype = activation_type(&call.a)?;
    let r = call.a.rank();
    let (m, k, n) = (call.a.dim(r - 2), call.a.dim(r - 1), call.b.dim(r - 1));
    if k == 0 && call.accumulate {
        return Ok(());
    }
    if k == 0 {
        return Err(unsupported(launch, "matmul", "the inner dimension is empty"));
    }
    // To the library the right matrix comes first, and both stand transposed.
    let (left, left_side) = usable_side(launch, &call.b, k, n)?;
    let (right, right_side) = usable_side(launch, &call.a, m, k)?;
    let out_rows = if m > 1 { call.out.strides()[r - 2] } else { n };
    if out_rows < n {
        return Err(unsupported(launch, "matmul", "the rows of the output overlap"));
    }
    let batches = Batches::of([&left, &right, &call.out]);
    let (count, strides) = batches.inner();
    let matrix = |side: Side, batch: usize| Matrix {
        transposed: side.transposed,
        leading: side.leading as i64,
        batch_stride: batch as i64,
    };
    let product = Product {
        dtype,
        codes: None,
        rows: n as u64,
        columns: m as u64,
        inner: k as u64,
        a: matrix(left_side, strides[0]),
        b: matrix(right_side, strides[1]),
        d: matrix(Side { transposed: false, leading: out_rows }, strides[2]),
        batch: i32::try_from(count).map_err(|_| unsupported(launch, "matmul", "the batch is too large"))?,
        epilogue: Epilogue::None,
    };
    let bases = [launch.pointer(&left)?, launch.pointer(&right)?, launch.pointer(&call.out)?];
    let beta = if call.accumulate { 1.0 } else { 0.0 };
    for offsets in batches.outer() {
        let at = |i: usize| bases[i] + (offsets[i] * dtype.bytes()) as u64;
        let places =
            Places { a: at(0), b: at(1), d: at(2), bias: 0, scales: [0; 2], alpha: call.alpha, beta };
        launch.runtime.blas.run(launch, &product, &places)?;
    }
    Ok(())
}

/// The most bytes that a product holds beside its operands.
pub(crate) fn matmul_scratch(call: &op::Matmul) -> u64 {
    let Some(dtype) = call.a.dtype() else { return 0 };
    let r = call.a.rank();
    let (m, k, n) = (call.a.dim(r - 2), call.a.dim(r - 1), call.b.dim(r - 1));
    if k == 0 {
        return 0;
    }
    let copy = |operand: &Operand, rows: usize, columns: usize| {
        side_of(operand, rows, columns).is_none().then(|| copy_bytes(operand, dtype))
    };
    held([copy(&call.b, k, n), copy(&call.a, m, k), Some(WORKSPACE_BYTES)])
}

/// How one side of a product is stored: by rows (which to the library is not transposed) or by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    transposed: bool,
    leading: usize,
}

/// How the last two dimensions, `rows` and `columns`, with these strides can be read as they are.
fn side(rows: usize, columns: usize, [row, column]: [usize; 2]) -> Option<Side> {
    // The stride of a dimension of size 1 says nothing.
    if column == 1 || columns == 1 {
        let leading = if rows > 1 { row } else { columns };
        if leading >= columns {
            return Some(Side { transposed: false, leading });
        }
    }
    if row == 1 || rows == 1 {
        let leading = if columns > 1 { column } else { rows };
        if leading >= rows {
            return Some(Side { transposed: true, leading });
        }
    }
    None
}

/// How an operand can be read as it is.
fn side_of(operand: &Operand, rows: usize, columns: usize) -> Option<Side> {
    let r = operand.rank();
    side(rows, columns, [operand.strides()[r - 2], operand.strides()[r - 1]])
}

/// An operand that can be read as it is, copied if it cannot.
fn usable_side(
    launch: &Launch<'_>,
    operand: &Operand,
    rows: usize,
    columns: usize,
) -> Result<(Operand, Side)> {
    match side_of(operand, rows, columns) {
        Some(side) => Ok((operand.clone(), side)),
        None => Ok((packed_copy(launch, operand)?, Side { transposed: false, leading: columns })),
    }
}

/// The leading dimensions of three operands, merged where all three step evenly.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batches {
    rank: usize,
    /// Size and the strides of each operand, innermost first.
    dims: [(usize, [usize; 3]); MAX_RANK],
}

impl Batches {
    fn of(operands: [&Operand; 3]) -> Batches {
        let leading = operands[2].rank() - 2;
        let dim = |i: usize| (operands[2].dim(i), operands.map(|operand| operand.strides()[i]));
        Batches::merged((0..leading).map(dim))
    }

    /// The rows of a linear layer's input and output.
    fn of_rows(x: &Operand, out: &Operand) -> Batches {
        Batches::merged((0..x.rank() - 1).map(|i| (x.dim(i), [x.strides()[i], out.strides()[i], 0])))
    }

    pub(super) fn merged(dims: impl DoubleEndedIterator<Item = (usize, [usize; 3])>) -> Batches {
        let mut merged = Batches { rank: 0, dims: [(1, [0; 3]); MAX_RANK] };
        for (size, strides) in dims.rev().filter(|(size, _)| *size != 1) {
            match merged.dims[..merged.rank].last_mut() {
                Some((outer, steps)) if (0..3).all(|i| strides[i] == steps[i] * *outer) => *outer *= size,
                _ => {
                    merged.dims[merged.rank] = (size, strides);
                    merged.rank += 1;
                }
            }
        }
        merged
    }

    /// The innermost dimension, which one call does.
    pub(super) fn inner(&self) -> (usize, [usize; 3]) {
        self.dims[0]
    }

    /// Whether rows of so many values repeat or overlap in the first operand: they are no matrix to the library.
    fn repeat_rows(&self, values: usize) -> bool {
        let (count, [stride, ..]) = self.inner();
        count > 1 && stride < values
    }

    /// Offsets of every index of the others.
    pub(super) fn outer(&self) -> Vec<[usize; 3]> {
        let mut offsets = vec![[0; 3]];
        for (size, strides) in self.dims[..self.rank].iter().skip(1).rev() {
            offsets = offsets
                .iter()
                .flat_map(|base: &[usize; 3]| {
                    (0..*size).map(|i| std::array::from_fn(|operand| base[operand] + i * strides[operand]))
                })
                .collect();
        }
        offsets
    }
}

/// The element type of an activation.
pub(crate) fn activation_type(operand: &Operand) -> Result<DType> {
    operand.dtype().ok_or_else(|| Error::Operand {
        op: "matrix product",
        operand: "input",
        expected: "bf16, f16 or f32".into(),
        got: operand.encoding().to_string(),
    })
}

fn unsupported(launch: &Launch<'_>, op: &'static str, reason: &str) -> Error {
    Error::Unsupported { device: launch.runtime.context.id(), op, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_read_as_they_are_stored() {
        let plain = |leading| Some(Side { transposed: false, leading });
        let turned = |leading| Some(Side { transposed: true, leading });
        assert_eq!(side(4, 8, [8, 1]), plain(8));
        assert_eq!(side(4, 8, [20, 1]), plain(20), "a slice of wider rows");
        assert_eq!(side(4, 8, [1, 4]), turned(4));
        assert_eq!(side(4, 8, [0, 1]), None, "rows that repeat must be copied");
        assert_eq!(side(1, 8, [0, 1]), plain(8), "a single row has no stride");
        assert_eq!(side(4, 1, [3, 77]), plain(3), "nor has a single column");
        assert_eq!(side(1, 8, [5, 2]), turned(2), "one row of spread values is a column of a matrix");
    }

    #[test]
    fn batches_merge_where_all_operands_step_evenly() {
        let even = Batches::merged([(2, [24, 12, 6]), (3, [8, 4, 2])].into_iter());
        assert_eq!(even.inner(), (6, [8, 4, 2]));
        assert_eq!(even.outer(), [[0; 3]]);
        let repeated = Batches::merged([(2, [0, 12, 6]), (3, [8, 4, 2])].into_iter());
        assert_eq!(repeated.inner(), (3, [8, 4, 2]));
        assert_eq!(repeated.outer(), [[0, 0, 0], [0, 12, 6]]);
        let none = Batches::merged([(1, [5, 5, 5])].into_iter());
        assert_eq!((none.inner(), none.outer().len()), ((1, [0; 3]), 1));
        let three = Batches::merged([(2, [100, 0, 60]), (2, [0, 7, 30]), (5, [1, 1, 6])].into_iter());
        assert_eq!(three.inner().0, 5);
        assert_eq!(three.outer(), [[0, 0, 0], [0, 7, 30], [100, 0, 60], [100, 7, 90]]);
    }

    #[test]
    fn weights_are_unpacked_in_bounded_pieces() {
        assert_eq!(chunk_rows(3072, 6144), 3072, "a small weight in one piece");
        let rows = chunk_rows(1 << 20, 8192);
        assert!(rows * 8192 <= SCRATCH_LIMIT && rows.is_multiple_of(128));
        assert_eq!(chunk_rows(10, SCRATCH_LIMIT * 2), 1, "rows larger than the limit one by one");
    }

    #[test]
    fn the_product_fuses_what_it_can() {
        assert_eq!(fused(true, Some(Activation::GeluTanh)), Epilogue::GeluTanhBias);
        assert_eq!(fused(true, Some(Activation::Silu)), Epilogue::Bias);
        assert_eq!(fused(false, Some(Activation::Gelu)), Epilogue::None);
        assert!(Activation::ALL.iter().all(|a| is_fused(*a) == (fused(false, Some(*a)) != Epilogue::None)));
    }
}
