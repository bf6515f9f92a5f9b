//! Matrix products: activations with stored weights, and with each other.

#[cfg(test)]
pub(crate) mod tests;

use device::{Operand, Result, op};
use meta::DType;

use crate::access::Access;
use crate::ops::elementwise::traversal::in_tasks;
use crate::ops::gemm::{Bias, Epilogue, FEW_ROWS, FewRows, Product, Stored, Strided, Target, for_each};
use crate::ops::layout::Place;
use crate::ops::unpack::{Scaling, pack_f32, unpack_f32};

/// `activation(x · weightᵀ · scale + bias)`.
pub(crate) fn linear(call: &op::Linear, access: &Access<'_>) -> Result<()> {
    let (depth, columns) = (call.x.shape().last(), call.weight.dim(0));
    let x = access.values::<f32>(&call.x)?;
    let encoding = call.weight.encoding();
    let scaled = call.scales.as_ref().filter(|_| encoding.scheme().is_some());
    let scaling = scaled.map(|scales| scaling(&call.weight, scales, DType::F32, access)).transpose()?;
    let weight = Stored { bytes: access.bytes(&call.weight)?, encoding, row: call.weight.dim(1), scaling };
    let bias = call.bias.as_ref().map(|bias| parameter(bias, access)).transpose()?;
    // One number for the whole weight multiplies the sums instead.
    let scale = match &call.scales {
        Some(scales) if scaled.is_none() => parameter(&scales.values, access)?[0],
        _ => 1.0,
    };
    let bias = bias.as_deref().map_or(Bias::None, Bias::Columns);
    let epilogue = Epilogue { scale, bias, activation: call.activation };
    let strides = &call.x.strides()[..call.x.rank() - 1];
    Layer { values: x, strides, weight, depth, columns, epilogue }.run(&call.out, access)
}

/// Rows of values times a stored weight.
pub(super) struct Layer<'a> {
    pub(super) values: &'a [f32],
    /// Of the values, for each leading dimension of the output.
    pub(super) strides: &'a [usize],
    pub(super) weight: Stored<'a>,
    /// Values of a row, and how many a row of the output has.
    pub(super) depth: usize,
    pub(super) columns: usize,
    pub(super) epilogue: Epilogue<'a>,
}

impl Layer<'_> {
    /// Writes the products to the output of a call.
    pub(super) fn run(self, to: &Operand, access: &Access<'_>) -> Result<()> {
        let Layer { values: x, strides, weight, depth, columns, epilogue } = self;
        let out = access.output::<f32>(to)?.as_mut_ptr();
        let lead = to.rank() - 1;
        let runs = Runs::new(&to.dims()[..lead], [strides, &to.strides()[..lead]]);
        for index in 0..runs.count() {
            let [x_start, out_start] = runs.start(index);
            let (rows, [stride, out_stride]) = (runs.rows, runs.strides);
            // SAFETY: the output's rows lie inside its slice, and runs have rows of their own.
            let target = unsafe { Target::new(out.add(out_start), out_stride, 0) };
            // A weight without values leaves nothing to slice from.
            let values = x.get(x_start..).unwrap_or_default();
            if rows <= FEW_ROWS && depth > 0 {
                FewRows { values, stride, rows, weight, columns, depth, epilogue }.run(target);
            } else {
                let left = &Strided::new(values, stride, 1);
                Product { rows, images: 1, columns, depth, left, right: &weight, epilogue }.run(target);
            }
        }
        Ok(())
    }
}

/// `alpha · a · b` for every index of the leading dimensions, or that added to the output.
pub(crate) fn matmul(call: &op::Matmul, access: &Access<'_>) -> Result<()> {
    if call.accumulate {
        return add_matmul(call, access);
    }
    let lead = call.a.rank() - 2;
    let batch = Batch {
        dims: &call.a.dims()[..=lead],
        left: (access.values::<f32>(&call.a)?, call.a.strides()),
        right: (access.values::<f32>(&call.b)?, call.b.strides()),
        size: [call.a.dim(lead + 1), call.b.dim(lead + 1)],
        alpha: call.alpha,
        out_strides: call.out.strides(),
    };
    batch.run(&Start(access.output::<f32>(&call.out)?.as_mut_ptr()));
    Ok(())
}

/// Values of a product that are made beside the output before they are added to it.
const SUMMED_AT_ONCE: usize = 4 << 20;

/// The product added to the output, some rows at a time. It is made beside it, in f32, so that the bits are those of a
/// product and a sum one after the other. Both sides and the output may be of any float type, the same for all.
fn add_matmul(call: &op::Matmul, access: &Access<'_>) -> Result<()> {
    let (encoding, lead) = (call.out.encoding(), call.a.rank() - 2);
    let size @ [_, columns] = [call.a.dim(lead + 1), call.b.dim(lead + 1)];
    let values_of = |side: &Operand| -> Result<Vec<f32>> {
        let bytes = access.bytes(side)?;
        let mut values = vec![0.0; bytes.len() / encoding.block_bytes()];
        unpack_f32(encoding, bytes, &mut values);
        Ok(values)
    };
    let (left, right) = (values_of(&call.a)?, values_of(&call.b)?);
    let rows = call.a.dim(lead);
    let batches: usize = call.a.dims()[..lead].iter().product();
    let at_once = (SUMMED_AT_ONCE / (columns * batches).max(1)).clamp(1, rows.max(1));
    let mut summands = vec![0.0; batches * at_once * columns];
    for first in (0..rows).step_by(at_once) {
        let out = call.out.slice(lead, first, at_once.min(rows - first))?;
        let dims = &out.dims()[..=lead];
        let packed = packed_strides(dims, columns);
        let batch = Batch {
            dims,
            left: (left.get(first * call.a.strides()[lead]..).unwrap_or_default(), call.a.strides()),
            right: (&right, call.b.strides()),
            size,
            alpha: call.alpha,
            out_strides: &packed,
        };
        batch.run(&Start(summands.as_mut_ptr()));
        let (place, grid) = (Place::of(&out)?, Grid::new(dims, [&out.strides()[..=lead]]));
        in_tasks(grid.count(), columns, |range| {
            let mut sums = vec![0.0; columns];
            for row in range {
                let bytes = encoding.block_bytes();
                // SAFETY: rows of the output are distinct parts of it.
                let stored = unsafe { place.part(grid.start(row)[0] * bytes, columns * bytes) };
                unpack_f32(encoding, stored, &mut sums);
                sums.iter_mut().zip(&summands[row * columns..]).for_each(|(sum, summand)| *sum += summand);
                pack_f32(out.dtype().unwrap_or(DType::F32), &sums, stored);
            }
        });
    }
    Ok(())
}

/// The strides of these dimensions before rows of so many values, all one after the other.
pub(super) fn packed_strides(dims: &[usize], columns: usize) -> Vec<usize> {
    let mut strides = vec![columns; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// Products of the same size: values of both sides with their strides, and the strides of where they go.
struct Batch<'a> {
    /// The leading dimensions, then the rows.
    dims: &'a [usize],
    left: (&'a [f32], &'a [usize]),
    right: (&'a [f32], &'a [usize]),
    /// Values summed, and columns.
    size: [usize; 2],
    alpha: f32,
    out_strides: &'a [usize],
}

impl Batch<'_> {
    /// Writes the products.
    fn run(&self, start: &Start) {
        let lead = self.dims.len() - 1;
        let [depth, columns] = self.size;
        let ((left, a), (right, b), out) = (self.left, self.right, self.out_strides);
        // Where all share the right side, their rows are the rows of one product.
        let repeated = self.dims[..lead].iter().zip(b).all(|(&dim, &stride)| dim == 1 || stride == 0);
        let batches = if repeated { 0 } else { lead };
        let runs = Runs::new(&self.dims[batches..], [&a[batches..=lead], &out[batches..=lead]]);
        let outer = Grid::new(&self.dims[..batches], [a, b, out].map(|strides| &strides[..batches]));
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
                left: &Strided::new(left, runs.strides[0], a[lead + 1]),
                right: &Strided::new(right, b[lead + 1], b[lead]),
                epilogue: Epilogue { scale: self.alpha, ..Epilogue::NONE },
            }
            .run(target);
        });
    }
}

/// The scales of a weight whose numbers are rounded to a type.
pub(crate) fn scaling<'a>(
    weight: &Operand,
    scales: &'a op::Scales,
    rounded_to: DType,
    access: &'a Access<'_>,
) -> Result<Scaling<'a>> {
    let tensor = scales.tensor.as_ref().map(|one| parameter(one, access)).transpose()?;
    Ok(Scaling {
        encoding: weight.encoding(),
        values: access.bytes(&scales.values)?,
        tensor: tensor.map_or(1.0, |one| one[0]),
        first_row: scales.first_row,
        columns: weight.shape().last(),
        rounded_to,
    })
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
