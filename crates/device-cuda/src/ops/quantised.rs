//! Products of 8 bits: activations rounded to e4m3 row by row, times a weight of e4m3 as it is stored.
//!
//! Each row of activations has a scale of its own. A library that can multiply rows and columns by vectors does so inside of
//! the product (Hopper, since cuBLASLt 12.9); where it cannot, the product is of the codes alone and the rows are scaled
//! behind it. Where there are no products of codes at all, which only the self-test asks for, both sides are unpacked. The
//! numbers are the same up to rounding.

use device::op::{self, QuantisedRows, RowChange};
use device::{Operand, Result};
use meta::{DType, Encoding};

use super::layout::geometry::{
    ACCESS_BYTES, THREADS, Walk, block_count, blocks, element, type_name, unsupported,
};
use super::product::{BIAS_ALIGNMENT, Batches, activation_type, fused, is_fused};
use super::{elementwise, held, unpack};
use crate::blas::{CodeScales, Epilogue, Matrix, Places, Product, WORKSPACE_BYTES};
use crate::kernel::{Args, KernelFile, Launch, Variant};

/// Rows of every type, short to long, with all that is done to them before; and what is done behind products.
macro_rules! variants {
    (
        rows: $($element:literal $vector:literal $threads:literal $long:literal)*;
        scaled: $($target:literal $bias:literal)*;
        few: $($few:literal $own:literal $added:literal)*;
    ) => {
        &[$(
            Variant { file: KernelFile::Quantised, name: "quantise_rows", defines: &[("T", $element), ("VECTOR", $vector), ("ROW_THREADS", $threads), ("LONG", $long), ("BEFORE", "NOTHING")] },
            Variant { file: KernelFile::Quantised, name: "quantise_rows", defines: &[("T", $element), ("VECTOR", $vector), ("ROW_THREADS", $threads), ("LONG", $long), ("BEFORE", "NORM")] },
            Variant { file: KernelFile::Quantised, name: "quantise_rows", defines: &[("T", $element), ("VECTOR", $vector), ("ROW_THREADS", $threads), ("LONG", $long), ("BEFORE", "GELU")] },
        )* $(
            Variant { file: KernelFile::Quantised, name: "scale_rows", defines: &[("T", $target), ("B", $bias)] },
            Variant { file: KernelFile::Quantised, name: "fill_columns", defines: &[("TARGET", $target), ("B", $bias)] },
        )* $(
            Variant { file: KernelFile::Quantised, name: "few_rows", defines: &[("T", $own), ("B", $added), ("ROWS", $few)] },
        )*]
    };
}

pub(crate) const VARIANTS: &[Variant] = variants! {
    rows:
        "bf16" "8" "32" "0" "bf16" "8" "128" "0" "bf16" "8" "512" "0" "bf16" "8" "512" "1" "bf16" "1" "512" "1"
        "f16" "8" "128" "0" "f16" "8" "512" "1" "f32" "4" "128" "0" "f32" "4" "512" "0" "f32" "4" "512" "1";
    scaled: "bf16" "none" "bf16" "bf16" "bf16" "f8e4m3" "bf16" "f32" "f16" "none" "f16" "f16" "f32" "none"
        "f32" "f32";
    few:
        "1" "bf16" "none" "1" "bf16" "bf16" "2" "bf16" "bf16" "4" "bf16" "bf16" "1" "f16" "f16" "4" "f16" "none"
        "1" "bf16" "f32" "2" "f16" "f16";
};

/// Pieces of a row that a thread keeps in registers.
const HELD: usize = 4;
/// Codes are written in pieces of so many at addresses that are multiples of it.
const CODE_ALIGNMENT: u64 = 16;

/// Rows to codes and scales.
pub(crate) fn quantise_rows(call: &op::QuantiseRows, launch: &Launch<'_>) -> Result<()> {
    let (op, x) = ("quantise rows", &call.x);
    let (dtype, rows, lead) = (element(launch, op, x)?, QuantisedRows::of(x.shape()), x.rank() - 1);
    let mut operands = vec![x.clone()];
    let (before, eps, first) = match &call.before {
        RowChange::None => ("NOTHING", 0.0, 0),
        RowChange::Norm(by) => ("NORM", by.eps, 0),
        // Columns beyond 32 bits are refused below.
        RowChange::GeluTanh { first } => ("GELU", 0.0, u32::try_from(*first).unwrap_or(u32::MAX)),
    };
    if let RowChange::Norm(by) = &call.before {
        operands.extend([by.scale.broadcast(*x.shape())?, by.shift.broadcast(*x.shape())?]);
    }
    let bases = operands.iter().map(|operand| launch.pointer(operand)).collect::<Result<Vec<u64>>>()?;
    let strides: Vec<&[usize]> = operands.iter().map(|operand| &operand.strides()[..lead]).collect();
    // Codes stand in the order of the rows, whatever the order of the input in memory is.
    let walk = Walk::in_order(&x.dims()[..lead], &strides, &bases);
    let codes = launch.pointer(&call.out)?;
    if !codes.is_multiple_of(CODE_ALIGNMENT) {
        return Err(unsupported(launch, op, format!("{:?} is not aligned to {CODE_ALIGNMENT}", call.out)));
    }
    let whole = ACCESS_BYTES / dtype.bytes();
    let is_aligned = walk.rows_are_aligned(whole, dtype.bytes());
    let shape = RowShape::of(rows.columns, if is_aligned { whole } else { 1 });
    let Ok(size) = u32::try_from(rows.columns) else {
        return Err(unsupported(launch, op, format!("a row of {} values", rows.columns)));
    };
    let defines = [
        ("T", type_name(dtype)),
        ("VECTOR", shape.vector_name()),
        ("ROW_THREADS", shape.threads_name()),
        ("LONG", if shape.is_long { "1" } else { "0" }),
        ("BEFORE", before),
    ];
    let mut args = Args::new()
        .bytes(&walk.bytes())
        .ptr(codes)
        .ptr(codes + rows.scales_start() as u64)
        .u32(size)
        .u32(first)
        .f32(eps);
    let grid = [block_count(launch, op, rows.rows)?, 1, 1];
    let kernel = launch.kernel(KernelFile::Quantised, "quantise_rows", &defines)?;
    kernel.launch(launch, grid, [shape.threads, 1, 1], 0, &mut args)
}

/// How a block of threads goes through a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowShape {
    /// Values that a thread takes at once.
    vector: usize,
    threads: u32,
    /// Whether the row is read again and again, because the threads cannot hold it.
    is_long: bool,
}

impl RowShape {
    fn of(columns: usize, vector: usize) -> RowShape {
        let fits = |threads: &u32| vector > 1 && columns <= *threads as usize * HELD * vector;
        match [32, 128, 512].into_iter().find(fits) {
            Some(threads) => RowShape { vector, threads, is_long: false },
            None => RowShape { vector, threads: 512, is_long: true },
        }
    }

    fn vector_name(self) -> &'static str {
        match self.vector {
            8 => "8",
            4 => "4",
            _ => "1",
        }
    }

    fn threads_name(self) -> &'static str {
        match self.threads {
            32 => "32",
            128 => "128",
            _ => "512",
        }
    }
}

/// The most rows that are multiplied with a weight of e4m3 as it is stored.
const MOST_FEW_ROWS: usize = 4;

/// An exact linear layer of few rows with a weight of e4m3, which is then not unpacked first; false if that is not what
/// the call is. The numbers of the weight are those that unpacking it gives.
pub(crate) fn few_rows(call: &op::Linear, launch: &Launch<'_>) -> Result<bool> {
    let (dtype, k, n) = (activation_type(&call.x)?, call.x.shape().last(), call.weight.dim(0));
    let rows = QuantisedRows::of(call.x.shape()).rows;
    let is_ours = call.weight.encoding() == Encoding::Plain(DType::F8E4M3)
        && dtype != DType::F32
        && (1..=MOST_FEW_ROWS).contains(&rows)
        && k.is_multiple_of(QuantisedRows::MULTIPLE)
        && call.bias.as_ref().is_none_or(|bias| bias.dtype().is_some_and(DType::is_float));
    let lead = call.x.rank() - 1;
    let strides = |i: usize| (call.x.dim(i), [call.x.strides()[i], call.out.strides()[i], 0]);
    let batches = Batches::merged((0..lead).map(strides));
    let (count, [x_stride, out_stride, _]) = batches.inner();
    let (x, weight) = (launch.pointer(&call.x)?, launch.pointer(&call.weight)?);
    let is_aligned = x.is_multiple_of(CODE_ALIGNMENT)
        && weight.is_multiple_of(CODE_ALIGNMENT)
        && (count == 1 || x_stride.is_multiple_of(ACCESS_BYTES / dtype.bytes()));
    let (Ok(columns), Ok(size)) = (u32::try_from(n), u32::try_from(k)) else { return Ok(false) };
    if !is_ours || !is_aligned || count != rows {
        return Ok(false);
    }
    let address = |operand: Option<&Operand>| operand.map_or(Ok(0), |operand| launch.pointer(operand));
    let bias = call.bias.as_ref().and_then(Operand::dtype).map_or("none", type_name);
    let defines = [("T", type_name(dtype)), ("B", bias), ("ROWS", few_name(rows))];
    let mut args = Args::new()
        .ptr(x)
        .ptr(weight)
        .ptr(address(call.scales.as_ref().map(|scales| &scales.values))?)
        .ptr(address(call.bias.as_ref())?)
        .ptr(launch.pointer(&call.out)?)
        .i64(x_stride as i64)
        .i64(out_stride as i64)
        .u32(rows as u32)
        .u32(columns)
        .u32(size);
    /// Outputs of a block, one for each of its warps.
    const OUTPUTS: usize = THREADS as usize / 32;
    let grid = [block_count(launch, launch.op, n.div_ceil(OUTPUTS))?, 1, 1];
    let kernel = launch.kernel(KernelFile::Quantised, "few_rows", &defines)?;
    kernel.launch(launch, grid, [THREADS, 1, 1], 0, &mut args)?;
    if let Some(activation) = call.activation {
        elementwise::activate_in_place(launch, activation, &call.out)?;
    }
    Ok(true)
}

/// The number of rows that the kernel is compiled for.
fn few_name(rows: usize) -> &'static str {
    match rows {
        1 => "1",
        2 => "2",
        _ => "4",
    }
}

/// `activation(x · weightᵀ · scale + bias)` of codes.
pub(crate) fn quantised_linear(call: &op::QuantisedLinear, launch: &Launch<'_>) -> Result<()> {
    let (dtype, rows, lead) = (activation_type(&call.out)?, call.rows(), call.out.rank() - 1);
    let mut step = rows.columns;
    let mut dims: Vec<(usize, [usize; 3])> = Vec::with_capacity(lead);
    for axis in (0..lead).rev() {
        dims.push((call.out.dim(axis), [step, call.out.strides()[axis], 0]));
        step *= call.out.dim(axis);
    }
    let batches = Batches::merged(dims.into_iter().rev());
    let (count, [_, out_stride, _]) = batches.inner();
    let out_stride = if count > 1 { out_stride } else { call.weight.dim(0) };
    if out_stride < call.weight.dim(0) {
        return Err(unsupported(launch, "quantised linear", "the rows of the output overlap".into()));
    }
    let address = |operand: Option<&Operand>| operand.map_or(Ok(0), |operand| launch.pointer(operand));
    let layer = Layer {
        call,
        launch,
        dtype,
        rows,
        count,
        out_stride,
        weight: launch.pointer(&call.weight)?,
        scale: address(call.scale.as_ref())?,
        bias: address(call.bias.as_ref())?,
        bias_type: call.bias.as_ref().and_then(Operand::dtype),
    };
    let (codes, out) = (launch.pointer(&call.x)?, launch.pointer(&call.out)?);
    let run = |[x_start, out_start, _]: [usize; 3]| Run {
        codes: codes + x_start as u64,
        scales: codes + (rows.scales_start() + x_start / rows.columns * size_of::<f32>()) as u64,
        out: out + (out_start * dtype.bytes()) as u64,
    };
    let runs: Vec<Run> = batches.outer().into_iter().map(run).collect();
    let left = layer.run(&runs)?;
    left.map_or(Ok(()), |activation| elementwise::activate_in_place(launch, activation, &call.out))
}

/// The most bytes that such a layer holds beside its operands where there are products of codes.
pub(crate) fn linear_scratch(call: &op::QuantisedLinear) -> u64 {
    let Some(dtype) = call.out.dtype() else { return 0 };
    held([Some(columns_bytes(call, dtype)), Some(WORKSPACE_BYTES)])
}

/// Bytes of what the library reads once for each output: the weight's scale, and behind it the bias in the output's type.
fn columns_bytes(call: &op::QuantisedLinear, dtype: DType) -> usize {
    let bias = if call.bias.is_some() { dtype.bytes() } else { 0 };
    call.weight.dim(0) * (size_of::<f32>() + bias)
}

/// A layer, found in memory.
struct Layer<'a> {
    call: &'a op::QuantisedLinear,
    launch: &'a Launch<'a>,
    /// Of the output.
    dtype: DType,
    rows: QuantisedRows,
    /// Rows of each run, and the distance of those of the output.
    count: usize,
    out_stride: usize,
    weight: u64,
    /// The weight's one f32; 0 if there is none.
    scale: u64,
    /// 0 if there is none.
    bias: u64,
    bias_type: Option<DType>,
}

/// Some rows of it at one distance.
#[derive(Clone, Copy)]
struct Run {
    codes: u64,
    scales: u64,
    out: u64,
}

/// How a product of codes gets the scales of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In the product, which does this, too.
    Inside(Epilogue),
    /// Behind the product.
    Behind,
    /// Behind a product of what the codes stand for.
    Unpacked,
}

/// A product whose rows are scaled behind it gives values that are smaller by this, so that f16 can hold them.
const MADE_SMALLER: f32 = 1.0 / op::LARGEST_CODE;

impl Layer<'_> {
    /// Does all runs; what activation is left to do.
    fn run(&self, runs: &[Run]) -> Result<Option<op::Activation>> {
        let way = self.way(runs);
        match way {
            Way::Inside(epilogue) => self.inside(runs, epilogue)?,
            Way::Behind => self.behind(runs)?,
            Way::Unpacked => self.unpacked(runs)?,
        }
        let is_done = matches!(way, Way::Inside(epilogue) if epilogue.activates());
        Ok(self.call.activation.filter(|_| !is_done))
    }

    /// The best way that the library has for all runs.
    fn way(&self, runs: &[Run]) -> Way {
        let (has_bias, blas) = (self.bias != 0, &self.launch.runtime.blas);
        // The library gives the types of 16 bits only.
        if self.dtype == DType::F32 || !self.weight.is_multiple_of(CODE_ALIGNMENT) {
            return Way::Unpacked;
        }
        let has = |codes: CodeScales, epilogue: Epilogue| {
            let product = self.product(Some(codes), epilogue);
            runs.iter().all(|run| blas.plan_of_codes(&product, &self.places(run)).is_some())
        };
        let aligned = |address: u64| address.is_multiple_of(BIAS_ALIGNMENT as u64);
        if runs.iter().all(|run| aligned(run.scales)) {
            let activated = self.call.activation.filter(|activation| is_fused(*activation));
            let whole = fused(has_bias, activated);
            let plain = fused(has_bias, None);
            for epilogue in [whole, plain] {
                if has(CodeScales::Vectors, epilogue) {
                    return Way::Inside(epilogue);
                }
                blas.say_once(&format!(
                    "8-bit products with scaled rows are not done together with {epilogue:?}"
                ));
            }
        }
        if has(CodeScales::One, Epilogue::None) {
            blas.say_once("8-bit products get the scales of their rows behind them");
            return Way::Behind;
        }
        blas.say_once("this card has no 8-bit products: both sides are unpacked");
        Way::Unpacked
    }

    fn bias_name(&self) -> &'static str {
        self.bias_type.map_or("none", type_name)
    }

    fn product(&self, codes: Option<CodeScales>, epilogue: Epilogue) -> Product {
        let (n, k) = (self.call.weight.dim(0), self.rows.columns);
        let matrix =
            |transposed, leading: usize| Matrix { transposed, leading: leading as i64, batch_stride: 0 };
        Product {
            dtype: self.dtype,
            codes,
            rows: n as u64,
            columns: self.count as u64,
            inner: k as u64,
            a: matrix(true, k),
            b: matrix(false, k),
            d: matrix(false, self.out_stride),
            batch: 1,
            epilogue,
        }
    }

    fn places(&self, run: &Run) -> Places {
        Places {
            a: self.weight,
            b: run.codes,
            d: run.out,
            bias: self.bias,
            scales: [self.scale, 0],
            alpha: 1.0,
            beta: 0.0,
        }
    }

    fn inside(&self, runs: &[Run], epilogue: Epilogue) -> Result<()> {
        let (launch, product) = (self.launch, self.product(Some(CodeScales::Vectors), epilogue));
        let columns = launch.scratch(columns_bytes(self.call, self.dtype))?;
        let count = self.call.weight.dim(0);
        let (scales, bias) = (columns.pointer(), columns.pointer() + (count * size_of::<f32>()) as u64);
        let defines = [("TARGET", type_name(self.dtype)), ("B", self.bias_name())];
        let kernel = launch.kernel(KernelFile::Quantised, "fill_columns", &defines)?;
        let mut args = Args::new().ptr(scales).ptr(bias).ptr(self.scale).ptr(self.bias).i64(count as i64);
        kernel.launch(launch, blocks(launch, launch.op, count)?, [THREADS, 1, 1], 0, &mut args)?;
        runs.iter().try_for_each(|run| {
            let places = Places { bias, scales: [scales, run.scales], ..self.places(run) };
            launch.runtime.blas.run(launch, &product, &places)
        })
    }

    fn behind(&self, runs: &[Run]) -> Result<()> {
        let (launch, product) = (self.launch, self.product(Some(CodeScales::One), Epilogue::None));
        runs.iter().try_for_each(|run| {
            let places = Places { alpha: MADE_SMALLER, ..self.places(run) };
            launch.runtime.blas.run(launch, &product, &places)?;
            self.scale_rows(run, 0)
        })
    }

    /// Both sides as what their codes stand for; of the rows' scales nothing.
    fn unpacked(&self, runs: &[Run]) -> Result<()> {
        let (launch, call, product) = (self.launch, self.call, self.product(None, Epilogue::None));
        let QuantisedRows { rows, columns } = self.rows;
        let weight = launch.scratch(call.weight.count() * self.dtype.bytes())?;
        unpack::unpack_to(launch, &call.weight, self.dtype, None, weight.pointer())?;
        let codes = Operand::new(
            call.x.buffer().clone(),
            Encoding::Plain(DType::F8E4M3),
            [rows, columns],
            call.x.offset(),
        )?;
        let x = launch.scratch(codes.count() * self.dtype.bytes())?;
        unpack::unpack_to(launch, &codes, self.dtype, None, x.pointer())?;
        let first = launch.pointer(&call.x)?;
        runs.iter().try_for_each(|run| {
            let b = x.pointer() + (run.codes - first) * self.dtype.bytes() as u64;
            let places =
                Places { a: weight.pointer(), b, alpha: MADE_SMALLER, scales: [0; 2], ..self.places(run) };
            launch.runtime.blas.run(launch, &product, &places)?;
            self.scale_rows(run, self.scale)
        })
    }

    /// Multiplies each row of the output by its scale, and all by that of the weight if it is given; then adds the bias.
    fn scale_rows(&self, run: &Run, weight_scale: u64) -> Result<()> {
        /// The most blocks side by side in the second dimension.
        const MOST: usize = 65_535;
        let (launch, columns) = (self.launch, self.call.weight.dim(0));
        let defines = [("T", type_name(self.dtype)), ("B", self.bias_name())];
        let mut args = Args::new()
            .ptr(run.out)
            .ptr(run.scales)
            .ptr(weight_scale)
            .ptr(self.bias)
            .i64(self.count as i64)
            .i64(columns as i64)
            .i64(self.out_stride as i64);
        let [across, ..] = blocks(launch, launch.op, columns)?;
        let kernel = launch.kernel(KernelFile::Quantised, "scale_rows", &defines)?;
        kernel.launch(launch, [across, self.count.min(MOST) as u32, 1], [THREADS, 1, 1], 0, &mut args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_as_many_threads_as_can_hold_it() {
        let shape = |columns, vector| {
            let RowShape { threads, is_long, .. } = RowShape::of(columns, vector);
            (threads, is_long)
        };
        assert_eq!(shape(1024, 8), (32, false));
        assert_eq!(shape(3072, 8), (128, false));
        assert_eq!(shape(15360, 8), (512, false));
        assert_eq!(shape(16400, 8), (512, true));
        assert_eq!(shape(3072, 4), (512, false));
        assert_eq!(shape(16, 1), (512, true), "rows that are not aligned are gone through value by value");
    }
}
