//! Patches applied to weights, in f32.

use device::op::{Binary, BinaryKind, UnaryKind};
use meta::{DType, Encoding};
use tensor::{Lane, Tensor, Weight};

use crate::delta::{Bench, as_matrix, solid, swap_halves};
use crate::{Delta, Dora, DoraNorm, Error, Patch, Result};

/// The weight with all patches applied in order, in f32, as a new tensor. The weight itself stays as it is. Each
/// patch works on what the ones before it left, on its rows only.
pub fn apply(lane: &Lane, weight: &Tensor, patches: &[Patch]) -> Result<Tensor> {
    let lane = lane.with_dtype(DType::F32)?;
    let out = lane.empty(*weight.shape())?;
    weight.copy_into(&out)?;
    change(&lane, &out, patches)?;
    Ok(out)
}

/// The weight with all patches applied in f32, in the encoding it is stored in, as a new weight. Only plain floats
/// can be stored again; a quantised weight keeps its patches beside it.
///
/// Values are rounded to nearest, ties to even, and fp8 stays within its range. ComfyUI does the same except for fp8,
/// which it rounds at random by a seed made from the weight's name; rounding to nearest is closer to the merged weight
/// and needs no seed. A scaled fp8 weight keeps its scale.
pub fn merge_stored(lane: &Lane, weight: &Weight, patches: &[Patch]) -> Result<Weight> {
    let encoding = weight.operand().encoding();
    let Encoding::Plain(dtype) = encoding else { return Err(Error::NotPlain { encoding }) };
    if !dtype.is_float() {
        return Err(Error::NotPlain { encoding });
    }
    let lane = lane.with_dtype(DType::F32)?;
    let mut values = lane.unpack(weight)?;
    change(&lane, &values, patches)?;
    if let Some(scale) = weight.scale() {
        values = values.div(&Tensor::new(scale.clone(), lane.clone()))?;
    }
    // The 8-bit floats have no infinity worth keeping, so what passes their largest value becomes it.
    let largest = match dtype {
        DType::F8E4M3 => Some(448.0),
        DType::F8E5M2 => Some(57344.0),
        _ => None,
    };
    if let Some(largest) = largest {
        values = values.clamp(-largest, largest)?;
    }
    let merged = Weight::new(values.cast(dtype)?.operand().clone());
    Ok(match weight.scale() {
        Some(scale) => merged.scaled(scale.clone()),
        None => merged,
    })
}

/// Applies patches to a contiguous f32 weight, in place.
fn change(lane: &Lane, weight: &Tensor, patches: &[Patch]) -> Result<()> {
    for patch in patches {
        if weight.shape() != patch.weight_shape() {
            return Err(Error::OtherWeight {
                key: patch.key().to_owned(),
                expected: Box::new(*patch.weight_shape()),
                got: Box::new(*weight.shape()),
            });
        }
        match patch.rows() {
            None => change_rows(lane, weight, patch)?,
            Some(rows) => change_rows(lane, &weight.slice(0, rows.start, rows.len)?, patch)?,
        }
    }
    Ok(())
}

fn change_rows(lane: &Lane, weight: &Tensor, patch: &Patch) -> Result<()> {
    let adapter = patch.adapter();
    let ordered = |change: Tensor| if patch.halves_swapped() { swap_halves(&change) } else { Ok(change) };
    if let Delta::Replacement(values) = &adapter.delta {
        return Ok(ordered(values.matrix(lane)?)?.copy_into(&as_matrix(weight)?)?);
    }
    let scale = match adapter.dora {
        None => patch.scale(),
        // The strength comes last, between the weight and the decomposed one.
        Some(_) => adapter.delta.factor(&patch.target_shape()),
    };
    let change = Bench { lane, factor: scale as f32 }.change(&adapter.delta, Some(weight))?;
    let change = ordered(change.ok_or_else(|| Error::NeedsWeight { key: patch.key().to_owned() })?)?;
    match &adapter.dora {
        None => add_into(&as_matrix(weight)?, &change),
        Some(dora) => decompose(lane, weight, &change, dora, patch.strength() as f32),
    }
}

/// DoRA: the changed weight, with each row (or column) multiplied by its wanted over its present length. The strength
/// goes between the weight and that.
fn decompose(lane: &Lane, weight: &Tensor, change: &Tensor, dora: &Dora, strength: f32) -> Result<()> {
    let [outputs, inputs, kernel] = solid(weight);
    let old = weight.reshape([outputs, inputs, kernel])?;
    let new = old.add(&change.reshape([outputs, inputs, kernel])?)?;
    let per_output = dora.axis(weight.shape()) == Some(0);
    let (wanted, others): ([usize; 3], [usize; 2]) =
        if per_output { ([outputs, 1, 1], [1, 2]) } else { ([1, inputs, 1], [0, 2]) };
    let measured = if per_output && dora.norm == DoraNorm::ByAxis { &old } else { &new };
    let lengths = measured.unary(UnaryKind::Square)?.sum(&others)?.unary(UnaryKind::Sqrt)?;
    // A row of zeros has no direction; this keeps its factor finite.
    let lengths = lengths.affine(1.0, f32::EPSILON)?;
    let factors = dora.scale.tensor(lane)?.reshape(wanted)?.div(&lengths)?;
    let result = new.mul(&factors)?;
    if strength == 1.0 {
        return Ok(result.copy_into(&old)?);
    }
    add_into(&old, &result.sub(&old)?.affine(strength, 0.0)?)
}

/// `target += summand`, where `target` is.
pub(crate) fn add_into(target: &Tensor, summand: &Tensor) -> Result<()> {
    let (a, b) = (target.operand().clone(), summand.operand().clone());
    let call = Binary { kind: BinaryKind::Add, out: a.clone(), a, b };
    Ok(target.lane().stream().launch(&call.into())?)
}
