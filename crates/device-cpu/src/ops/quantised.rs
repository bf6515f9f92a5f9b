//! Products of 8 bits as devices do them that have them: rows rounded to e4m3 with a scale each, and sums of products of
//! what the codes stand for, in f32.

use std::ops::Range;

use device::op::{self, Activation, LARGEST_CODE, QuantisedRows, RowChange, SMALLEST_LARGEST};
use device::{Operand, Result};
use meta::{DType, Encoding};

use super::elementwise::activate;
use super::elementwise::traversal::{Traversal, in_tasks};
use super::gemm::{Bias, Epilogue, Stored};
use super::layout::Place;
use super::norm::modulate_row;
use super::product::{Layer, packed_strides, parameter};
use super::unpack::{pack_f32, unpack_f32};
use crate::access::Access;

/// Bytes of a scale.
const SCALE: usize = size_of::<f32>();

/// Rows of activations, of any of their types, to codes and scales.
pub(crate) fn quantise_rows(call: &op::QuantiseRows, access: &Access<'_>) -> Result<()> {
    let (shape, outer) = (call.x.shape(), call.x.rank() - 1);
    let rows = QuantisedRows::of(shape);
    let mut operands = vec![call.x.clone()];
    if let RowChange::Norm(by) = &call.before {
        operands.extend([by.scale.broadcast(*shape)?, by.shift.broadcast(*shape)?]);
    }
    let strides: Vec<&[usize]> = operands.iter().map(|operand| &operand.strides()[..outer]).collect();
    // Codes stand in the order of the rows, whatever the order of the input in memory is.
    let order: Vec<usize> = (0..outer).filter(|axis| shape.dims()[*axis] != 1).collect();
    let walk = Traversal::in_order(&shape.dims()[..outer], &strides, &order);
    let bytes = operands.iter().map(|operand| access.bytes(operand)).collect::<Result<Vec<_>>>()?;
    let (encoding, target) = (call.x.encoding(), Place::of(&call.out)?);
    in_tasks(rows.rows, rows.columns, |range: Range<usize>| {
        let mut values = vec![vec![0.0; rows.columns]; operands.len()];
        let mut codes = vec![0.0; rows.columns];
        for row in range {
            for (operand, values) in values.iter_mut().enumerate() {
                let start = walk.position(operand, row) * encoding.block_bytes();
                let own = &bytes[operand][start..start + rows.columns * encoding.block_bytes()];
                unpack_f32(encoding, own, values);
            }
            match (&call.before, &values[..]) {
                (RowChange::Norm(by), [x, scale, shift]) => {
                    modulate_row(x, [scale, shift], by.eps, &mut codes);
                }
                _ => codes.copy_from_slice(&values[0]),
            }
            if let RowChange::GeluTanh { first } = call.before {
                activate(Activation::GeluTanh, codes.get_mut(first..).unwrap_or_default());
            }
            let scale = to_codes(&mut codes);
            // SAFETY: the codes of rows are distinct parts of the output.
            pack_f32(DType::F8E4M3, &codes, unsafe { target.part(row * rows.columns, rows.columns) });
            // SAFETY: so are their scales, which stand behind all codes.
            let place = unsafe { target.part(rows.scales_start() + row * SCALE, SCALE) };
            place.copy_from_slice(&scale.to_le_bytes());
        }
    });
    Ok(())
}

/// Divides a row by its scale, which is returned. A row with a NaN becomes NaN.
fn to_codes(row: &mut [f32]) -> f32 {
    let join = |most: f32, value: &f32| {
        if value.abs() > most || value.is_nan() { value.abs() } else { most }
    };
    let most = row.iter().fold(0.0, join);
    let most = if most < SMALLEST_LARGEST { SMALLEST_LARGEST } else { most };
    let by = LARGEST_CODE / most;
    row.iter_mut().for_each(|value| *value *= by);
    most / LARGEST_CODE
}

/// `activation(x · weightᵀ · scale + bias)` of codes.
pub(crate) fn quantised_linear(call: &op::QuantisedLinear, access: &Access<'_>) -> Result<()> {
    let rows = call.rows();
    let values = values_of(&call.x, rows, access)?;
    let encoding = call.weight.encoding();
    let weight = Stored { bytes: access.bytes(&call.weight)?, encoding, row: rows.columns, scaling: None };
    let scale = call.scale.as_ref().map(|scale| parameter(scale, access)).transpose()?;
    let bias = call.bias.as_ref().map(|bias| parameter(bias, access)).transpose()?;
    let epilogue = Epilogue {
        scale: scale.map_or(1.0, |scale| scale[0]),
        bias: bias.as_deref().map_or(Bias::None, Bias::Columns),
        activation: call.activation,
    };
    let strides = packed_strides(&call.out.dims()[..call.out.rank() - 1], rows.columns);
    let (depth, columns) = (rows.columns, call.weight.dim(0));
    Layer { values: &values, strides: &strides, weight, depth, columns, epilogue }.run(&call.out, access)
}

/// What codes stand for, row by row.
fn values_of(codes: &Operand, rows: QuantisedRows, access: &Access<'_>) -> Result<Vec<f32>> {
    let bytes = access.bytes(codes)?;
    let (codes, scales) = bytes.split_at(rows.scales_start());
    let mut values = vec![0.0; codes.len()];
    unpack_f32(Encoding::Plain(DType::F8E4M3), codes, &mut values);
    let (scales, _) = scales.as_chunks::<SCALE>();
    for (row, scale) in values.chunks_exact_mut(rows.columns).zip(scales) {
        let scale = f32::from_le_bytes(*scale);
        row.iter_mut().for_each(|value| *value *= scale);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_of_a_row_becomes_the_largest_code() {
        let mut row = [0.5, -7.0, 3.5];
        assert_eq!(to_codes(&mut row), 7.0 / 448.0);
        assert_eq!(row, [32.0, -448.0, 224.0]);
        let mut nothing = [0.0; 3];
        assert!(to_codes(&mut nothing) > 0.0 && nothing == [0.0; 3]);
        let mut tiny = [1e-40, -1e-42];
        assert!(to_codes(&mut tiny).is_finite() && tiny.iter().all(|code| code.is_finite()));
        let mut broken = [1.0, f32::NAN, 2.0];
        assert!(to_codes(&mut broken).is_nan() && broken.iter().all(|code| code.is_nan()));
    }
}
