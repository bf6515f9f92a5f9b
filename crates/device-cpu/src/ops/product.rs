//! Matrix products: activations with stored weights, and with each other.

#[cfg(test)]
pub(crate) mod tests;

use device::{Operand, Result, op};

use crate::access::Access;
use crate::ops::gemm::{Bias, Epilogue, FEW_ROWS, FewRows, Product, Stored, Strided, Target, for_each};
use crate::ops::unpack::unpack_f32;

/// `activation(x · weightᵀ · scale + bias)`.
pub(crate) fn linear(call: &op::Linear, access: &Access<'_>) -> Result<()> {
    let (depth, columns) = (call.weight.dim(1), call.weight.dim(0));
    let x = access.values::<f32>(&call.x)?;
    let weight = Stored { bytes: access.bytes(&call.weight)?, encoding: call.weight.encoding(), row: depth };
    let bias = call.bias.as_ref().map(|bias| parameter(bias, access)).transpose()?;
    let scale = match &call.weight_scale {
        Some(scale) => parameter(scale, access)?[0],
        None => 1.0,
    };
    let out = access.output::<f32>(&call.out)?.as_mut_ptr();
    let bias = bias.as_deref().map_or(Bias::None, Bias::Columns);
    let epilogue = Epilogue { scale, bias, activation: call.activation };
    let lead = call.x.rank() - 1;
    let strides = [&call.x.strides()[..lead], &call.out.strides()[..lead]];
    let runs = Runs::new(&call.x.dims()[..lead], strides);
    for index in 0..runs.count() {
        let [x_start, out_start] = runs.start(index);
        let (rows, [stride, out_stride]) = (runs.rows, runs.strides);
        // SAFETY: the output's rows lie inside its slice, and runs have rows of their own.
        let target = unsafe { Target::new(out.add(out_start), out_stride, 0) };
        // A weight without values leaves nothing to slice from.
        let values = x.get(x_start..).unwrap_or_default();
        if rows <= FEW_ROWS && depth > 0 {
            FewRows { values, stride, rows, weight, columns, epilogue }.run(target);
        } else {
            let left = &Strided::new(values, stride, 1);
            Product { rows, images: 1, columns, depth, left, right: &weight, epilogue }.run(target);
        }
    }
    Ok(())
}

/// `alpha · a · b` for every index of the leading dimensions.
pub(crate) fn matmul(call: &op::Matmul, access: &Access<'_>) -> Result<()> {
    let (a, b, out) = (&call.a, &call.b, &call.out);
    let lead = a.rank() - 2;
    let (depth, columns) = (a.dim(lead + 1), b.dim(lead + 1));
    let (left, right) = (access.values::<f32>(a)?, access.values::<f32>(b)?);
    let start = Start(access.output::<f32>(out)?.as_mut_ptr());
    // Where all share the right side, their rows are the rows of one product.
    let repeated = b.dims()[..lead].iter().zip(b.strides()).all(|(&dim, &stride)| dim == 1 || stride == 0);
    let batches = if repeated { 0 } else { lead };
    let runs =
        Runs::new(&a.dims()[batches..=lead], [&a.strides()[batches..=lead], &out.strides()[batches..=lead]]);
    let outer = Grid::new(&a.dims()[..batches], [a, b, out].map(|operand| &operand.strides()[..batches]));
    let products = outer.count() * runs.count();
    for_each(products, true, |index| {
        let [a_batch, b_batch, out_batch] = outer.start(index / runs.count());
        let [a_run, out_run] = runs.start(index % runs.count());
        // SAFETY: the output's rows lie inside its slice, and products have rows of their own.
        let target = unsafe { Target::new(start.at(out_batch + out_run), runs.strides[1], 0) };
        let left = left.get(a_batch + a_run..).unwrap_or_default();
        let right = right.get(b_batch..).unwrap_or_default();
        Product {
            rows: runs.rows,
            images: 1,
            columns,
            depth,
            left: &Strided::new(left, runs.strides[0], a.strides()[lead + 1]),
            right: &Strided::new(right, b.strides()[lead + 1], b.strides()[lead]),
            epilogue: Epilogue { scale: call.alpha, ..Epilogue::NONE },
        }
        .run(target);
    });
    Ok(())
}

/// The values of a parameter vector, which may be stored in any plain float type.
pub(crate) fn parameter(operand: &Operand, access: &Access<'_>) -> Result<Vec<f32>> {
    let mut values = vec![0.0; operand.count()];
    unpack_f32(operand.encoding(), access.bytes(operand)?, &mut values);
    Ok(values)
}

/// The address of an output that tasks share.
struct Start(*mut f32);

// SAFETY: tasks write at places of their own.
unsafe impl Sync for Start {}

impl Start {
    fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// All indices of some dimensions, with the offset of each in `N` tensors.
struct Grid<const N: usize> {
    dims: Vec<(usize, [usize; N])>,
}

impl<const N: usize> Grid<N> {
    fn new(dims: &[usize], strides: [&[usize]; N]) -> Grid<N> {
        let dims = dims.iter().enumerate().map(|(i, &dim)| (dim, strides.map(|strides| strides[i])));
        Grid { dims: dims.collect() }
    }

    fn count(&self) -> usize {
        self.dims.iter().map(|(dim, _)| dim).product()
    }

    fn start(&self, mut index: usize) -> [usize; N] {
        let mut offsets = [0; N];
        for (dim, strides) in self.dims.iter().rev() {
            for (offset, stride) in offsets.iter_mut().zip(strides) {
                *offset += index % dim * stride;
            }
            index /= dim;
        }
        offsets
    }
}

/// Rows of two tensors, in runs at constant distances that are as long as can be.
struct Runs {
    outer: Grid<2>,
    /// Rows in a run.
    rows: usize,
    /// From one row to the next.
    strides: [usize; 2],
}

impl Runs {
    fn new(dims: &[usize], strides: [&[usize]; 2]) -> Runs {
        let mut outer = Grid::new(dims, strides);
        outer.dims.retain(|(dim, _)| *dim != 1);
        let (mut rows, mut steps) = outer.dims.pop().unwrap_or((1, [0; 2]));
        while let Some(&(dim, next)) = outer.dims.last() {
            if next != steps.map(|step| step * rows) {
                break;
            }
            outer.dims.pop();
            rows *= dim;
        }
        if rows == 1 {
            steps = [0; 2];
        }
        Runs { outer, rows, strides: steps }
    }

    fn count(&self) -> usize {
        self.outer.count()
    }

    fn start(&self, index: usize) -> [usize; 2] {
        self.outer.start(index)
    }
}
