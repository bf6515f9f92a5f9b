//! Operations that move, convert or make values: conversions in `convert`, moves between strides in
//! `strided`.

mod convert;
mod strided;

use device::noise::NormalGenerator;
use device::op::{self, Padding};
use device::{Error, Operand, Result};
use meta::DType;

pub(crate) use self::strided::Place;
use super::elementwise::traversal::{TASK, Target, check_distinct, in_tasks};
use super::gemm::Stored;
use super::product::scaling;
use super::unpack::pack_f32;
use crate::access::Access;
use crate::stop::Tasks;

/// Converts type and layout.
pub(crate) fn copy(call: &op::Copy, access: &Access<'_>) -> Result<()> {
    check_distinct("copy", &call.out)?;
    let (source, target) = (access.bytes(&call.x)?, Place::of(&call.out)?);
    let Some(to) = call.out.dtype() else {
        return Err(unsupported("copy", format!("nothing is written as {}", call.out.encoding())));
    };
    let packed = call.x.is_contiguous() && call.out.is_contiguous();
    if call.x.encoding() == call.out.encoding() {
        if packed {
            strided::copy_packed(source, &target);
        } else {
            strided::copy_elements(&call.x, &call.out, source, &target);
        }
    } else if packed {
        convert::convert_packed(call.x.encoding(), source, to, &target);
    } else if let Some(from) = call.x.dtype() {
        convert::convert_strided((from, &call.x, source), (to, &call.out, &target));
    } else {
        return Err(unsupported("copy", format!("{:?} is unpacked into contiguous memory only", call.x)));
    }
    Ok(())
}

/// The numbers of a weight with scales beside it, row by row.
pub(crate) fn unpack(call: &op::Unpack, access: &Access<'_>) -> Result<()> {
    let Some(to) = call.out.dtype() else {
        return Err(unsupported("unpack", format!("nothing is written as {}", call.out.encoding())));
    };
    let weight = &call.weight;
    let scaling = scaling(weight, &call.scales, to, access)?;
    let encoding = weight.encoding();
    let stored =
        Stored { bytes: access.bytes(weight)?, encoding, row: weight.shape().last(), scaling: Some(scaling) };
    let (columns, target) = (call.out.shape().last(), Place::of(&call.out)?);
    in_tasks(call.out.count() / columns, columns, |rows| {
        let mut values = vec![0.0; columns.next_multiple_of(encoding.block_len())];
        for row in rows {
            stored.unpack(row, &(0..columns), &mut values);
            // SAFETY: output rows are distinct parts of the output.
            let out = unsafe { target.part(row * columns * to.bytes(), columns * to.bytes()) };
            pack_f32(to, &values[..columns], out);
        }
    });
    Ok(())
}

/// Rows of a table.
pub(crate) fn embedding(call: &op::Embedding, access: &Access<'_>) -> Result<()> {
    let (entries, n) = (call.table.dim(0), call.out.shape().last());
    let ids = read_ids(&call.ids, access.bytes(&call.ids)?);
    if let Some(id) = ids.iter().find(|id| usize::try_from(**id).map_or(true, |id| id >= entries)) {
        return Err(Error::Operand {
            op: "embedding",
            operand: "ids",
            expected: format!("from 0 to {} for a table of {entries} rows", entries.saturating_sub(1)),
            got: format!("{id}"),
        });
    }
    let encoding = call.table.encoding();
    let scaling =
        call.scales.as_ref().map(|scales| scaling(&call.table, scales, DType::F32, access)).transpose()?;
    let table = Stored { bytes: access.bytes(&call.table)?, encoding, row: call.table.dim(1), scaling };
    let target = &Target::new(access.output(&call.out)?);
    in_tasks(ids.len(), n, |range| {
        let mut whole = vec![0.0; if n < table.row { table.row } else { 0 }];
        for i in range {
            // SAFETY: output rows are distinct parts of the output.
            let out = unsafe { target.part(i * n, n) };
            if whole.is_empty() {
                table.unpack(ids[i] as usize, &(0..n), out);
            } else {
                table.unpack(ids[i] as usize, &(0..n), &mut whole);
                out.copy_from_slice(&whole[..n]);
            }
        }
    });
    Ok(())
}

/// Ids of either integer type.
fn read_ids(operand: &Operand, bytes: &[u8]) -> Vec<i64> {
    if operand.dtype() == Some(DType::I32) {
        return bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect();
    }
    bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
}

/// A border around a tensor.
pub(crate) fn pad(call: &op::Pad, access: &Access<'_>) -> Result<()> {
    let (x, out) = (&call.x, &call.out);
    let (values, target) = (access.values::<f32>(x)?, &Target::new(access.output(out)?));
    let Some(last) = out.rank().checked_sub(1) else {
        // SAFETY: the only part.
        unsafe { target.part(0, 1) }.copy_from_slice(&values[..1]);
        return Ok(());
    };
    let constant = if let Padding::Constant(value) = call.padding { value } else { 0.0 };
    // For each index of each output dimension, where its values start in the input.
    let sources: Vec<Vec<Option<usize>>> = (0..=last)
        .map(|axis| {
            let index = |i: usize| i as isize - call.before[axis] as isize;
            let start = |i| call.padding.source(index(i), x.dim(axis)).map(|s| s * x.strides()[axis]);
            (0..out.dim(axis)).map(start).collect()
        })
        .collect();
    let row_len = out.dim(last);
    let inner = call.before[last]..call.before[last] + x.dim(last);
    in_tasks(out.count() / row_len, row_len, |rows| {
        for row in rows {
            // SAFETY: output rows are distinct parts of the output.
            let out = unsafe { target.part(row * row_len, row_len) };
            let Some(start) = row_source(&sources[..last], row) else {
                out.fill(constant);
                continue;
            };
            let at = |source: Option<usize>| source.map_or(constant, |s| values[start + s]);
            let packed = x.strides()[last] == 1 && !inner.is_empty();
            let middle = if packed { inner.clone() } else { 0..0 };
            if packed {
                out[middle.clone()].copy_from_slice(&values[start..start + middle.len()]);
            }
            for i in (0..middle.start).chain(middle.end..row_len) {
                out[i] = at(sources[last][i]);
            }
        }
    });
    Ok(())
}

/// Where the row with this flat index over the outer dimensions starts in the input, unless it is all
/// border.
fn row_source(sources: &[Vec<Option<usize>>], row: usize) -> Option<usize> {
    let (mut rest, mut start) = (row, 0);
    for axis in sources.iter().rev() {
        start += axis[rest % axis.len()]?;
        rest /= axis.len();
    }
    Some(start)
}

/// Normal noise from a seed. The generator is one sequence, so this is not parallel.
pub(crate) fn normal_noise(call: &op::NormalNoise, access: &Access<'_>) -> Result<()> {
    let job = Tasks::of_this_job();
    // What is not filled is found to be cancelled after the operation.
    let wanted = || !job.is_cancelled();
    NormalGenerator::new(call.seed).fill_while(access.output(&call.out)?, wanted);
    Ok(())
}

fn unsupported(op: &'static str, reason: String) -> Error {
    Error::Unsupported { device: meta::DeviceId::CPU, op, reason }
}

/// Values that one task converts at once, a multiple of every block length.
const PIECE: usize = TASK / 4;
