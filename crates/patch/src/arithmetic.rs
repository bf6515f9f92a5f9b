//! Patches applied to weights, in f32.

use device::op::{Binary, BinaryKind, UnaryKind};
use meta::DType;
use tensor::{Lane, Tensor, Weight};

use crate::delta::{Bench, as_matrix, solid, swap_halves};
use crate::factors::Factors;
use crate::{Delta, Dora, DoraNorm, Error, Patch, Result};

/// The weight with all patches applied in order, in f32, as a new tensor. The weight itself stays as it is. Each
/// patch works on what the ones before it left, on its rows only.
pub fn apply(lane: &Lane, weight: &Tensor, patches: &[Patch]) -> Result<Tensor> {
    patched(&lane.with_dtype(DType::F32)?, &Factors::default(), weight, patches)
}

/// The same on an f32 lane, with tensors that are there already.
pub(crate) fn patched(lane: &Lane, factors: &Factors, weight: &Tensor, patches: &[Patch]) -> Result<Tensor> {
    let out = lane.empty(*weight.shape())?;
    weight.copy_into(&out)?;
    change(lane, factors, &out, patches)?;
    Ok(out)
}

/// Applies patches to a stored weight where it lies: in f32 beside it if it is not f32 itself, then rounded to nearest,
/// ties to even. What passes the range of an 8-bit float becomes its largest value, since those have no infinity worth
/// keeping; a scaled weight keeps its scale.
pub(crate) fn change_stored(
    lane: &Lane,
    factors: &Factors,
    weight: &Weight,
    patches: &[Patch],
) -> Result<()> {
    let stored = Tensor::new(weight.operand().clone(), lane.clone());
    if stored.dtype() == DType::F32 && weight.scales().is_none() {
        return change(lane, factors, &stored, patches);
    }
    let mut values = lane.unpack(weight)?;
    change(lane, factors, &values, patches)?;
    if let Some(scales) = weight.scales() {
        values = values.div(&Tensor::new(scales.values.clone(), lane.clone()))?;
    }
    let largest = match stored.dtype() {
        DType::F8E4M3 => Some(448.0),
        DType::F8E5M2 => Some(57344.0),
        _ => None,
    };
    if let Some(largest) = largest {
        values = values.clamp(-largest, largest)?;
    }
    Ok(values.copy_into(&stored)?)
}

/// Applies patches to a contiguous f32 weight, in place.
fn change(lane: &Lane, factors: &Factors, weight: &Tensor, patches: &[Patch]) -> Result<()> {
    for patch in patches {
        if weight.shape() != patch.weight_shape() {
            return Err(Error::OtherWeight {
                key: patch.key().to_owned(),
                expected: Box::new(*patch.weight_shape()),
                got: Box::new(*weight.shape()),
            });
        }
        match patch.rows() {
            None => change_rows(lane, factors, weight, patch)?,
            Some(rows) => change_rows(lane, factors, &weight.slice(0, rows.start, rows.len)?, patch)?,
        }
    }
    Ok(())
}

fn change_rows(lane: &Lane, factors: &Factors, weight: &Tensor, patch: &Patch) -> Result<()> {
    let adapter = patch.adapter();
    if patch.keeps() != 1.0 {
        weight.affine(patch.keeps() as f32, 0.0)?.copy_into(weight)?;
    }
    if matches!(adapter.delta, Delta::Nothing) {
        return Ok(());
    }
    let ordered = |change: Tensor| if patch.halves_swapped() { swap_halves(&change) } else { Ok(change) };
    if let Delta::Replacement(values) = &adapter.delta {
        return Ok(ordered(factors.matrix(lane, values)?)?.copy_into(&as_matrix(weight)?)?);
    }
    let scale = match adapter.dora {
        None => patch.scale(),
        // The strength comes last, between the weight and the decomposed one.
        Some(_) => adapter.delta.factor(&patch.target_shape()),
    };
    let change = Bench { lane, factors, factor: scale as f32 }.change(&adapter.delta, Some(weight))?;
    let change = ordered(change.ok_or_else(|| Error::NeedsWeight { key: patch.key().to_owned() })?)?;
    match &adapter.dora {
        None => add_into(&as_matrix(weight)?, &change),
        Some(dora) => {
            let lengths = factors.tensor(lane, &dora.scale)?;
            decompose(weight, &change, (dora, &lengths), patch.strength() as f32)
        }
    }
}

/// DoRA: the changed weight, with each row (or column) multiplied by its wanted over its present length. The strength
/// goes between the weight and that.
fn decompose(
    weight: &Tensor,
    change: &Tensor,
    (dora, wanted_lengths): (&Dora, &Tensor),
    strength: f32,
) -> Result<()> {
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
    let factors = wanted_lengths.reshape(wanted)?.div(&lengths)?;
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
