//! Patches that run beside a layer whose weight stays as it is stored.

use meta::{DType, Encoding, Shape, SizeError};
use tensor::{Lane, Tensor, Weight};

use crate::arithmetic::{add_into, apply};
use crate::delta::{Bench, swap_halves};
use crate::factors::Factors;
use crate::{Allocate, Delta, Error, Patch, Result, Rows};

/// The patches of one linear layer, on a device, ready to add to its output.
#[derive(Clone, Debug)]
pub struct Beside {
    parts: Vec<Part>,
}

/// One summand of the output: `x · matrixᵀ`, or of low rank `scale · (x · downᵀ) · matrixᵀ`.
#[derive(Clone, Debug)]
struct Part {
    /// The columns of the output that it is added to; all if there is no such.
    columns: Option<Rows>,
    matrix: Weight,
    inner: Option<Inner>,
}

/// The first factor of a product of low rank.
#[derive(Clone, Debug)]
struct Inner {
    down: Weight,
    scale: f32,
}

/// `y` with the share of the patches of a linear layer added, as a new tensor: `x` is the layer's input, `y` its
/// output without them. Stages the patches for this one call; [`Beside`] keeps them for many.
pub fn beside(lane: &Lane, x: &Tensor, y: &Tensor, patches: &[Patch]) -> Result<Tensor> {
    let out = y.lane().empty_as(y.dtype(), *y.shape())?;
    y.copy_into(&out)?;
    Beside::stage(lane, patches, None)?.add_to(x, &out)?;
    Ok(out)
}

impl Beside {
    /// Brings the patches of one matrix onto the lane's device. LoRA stays in its two factors, in the file's
    /// encoding; other forms become a matrix of the lane's type.
    ///
    /// Forms that depend on the weight's values (DoRA, GLoRA, replacements) need `weight`, which may be quantised. As
    /// soon as one patch is of such a form, all together become one matrix: the patched minus the unpatched weight.
    pub fn stage(lane: &Lane, patches: &[Patch], weight: Option<&Weight>) -> Result<Beside> {
        Beside::stage_in(lane, patches, weight, &mut |bytes| lane.device().allocate(bytes))
    }

    /// The same in memory that `allocate` gives: [`Beside::bytes_for`] in all.
    pub fn stage_in(
        lane: &Lane,
        patches: &[Patch],
        weight: Option<&Weight>,
        allocate: &mut Allocate<'_>,
    ) -> Result<Beside> {
        for patch in patches {
            if patch.weight_shape().rank() != 2 {
                let shape = Box::new(*patch.weight_shape());
                return Err(Error::NotAMatrix { key: patch.key().to_owned(), shape });
            }
        }
        let parts = match patches.iter().find(|patch| patch.needs_weight()) {
            Some(patch) => {
                let weight = weight.ok_or_else(|| Error::NeedsWeight { key: patch.key().to_owned() })?;
                let matrix = difference(lane, patches, weight, allocate)?;
                vec![Part { columns: None, matrix, inner: None }]
            }
            None => patches.iter().map(|patch| part(lane, patch, allocate)).collect::<Result<_>>()?,
        };
        Ok(Beside { parts })
    }

    /// Bytes that the patches of a matrix take on a device whose lane computes in `dtype`.
    pub fn bytes_for(dtype: DType, patches: &[Patch]) -> u64 {
        let matrix = |shape: &Shape| (shape.count() * dtype.bytes()) as u64;
        if let Some(patch) = patches.iter().find(|patch| patch.needs_weight()) {
            return matrix(patch.weight_shape());
        }
        let of = |patch: &Patch| match &patch.adapter().delta {
            Delta::Lora { up, down, mid: None, .. } => {
                let up = if patch.halves_swapped() { matrix(up.shape()) } else { up.weight_bytes() as u64 };
                up + down.weight_bytes() as u64
            }
            _ => matrix(&patch.target_shape()),
        };
        patches.iter().map(of).sum()
    }

    /// Adds the share of every patch to `y`, in place and in order: `x` is the layer's input `[…, in]`, `y` its
    /// output `[…, out]`.
    pub fn add_to(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        for part in &self.parts {
            let share = match &part.inner {
                None => x.linear(&part.matrix, None)?,
                Some(Inner { down, scale }) => {
                    let inner = x.linear(down, None)?;
                    let inner = if *scale == 1.0 { inner } else { inner.affine(*scale, 0.0)? };
                    inner.linear(&part.matrix, None)?
                }
            };
            let axis = y.rank().saturating_sub(1);
            let target = part.columns.map_or(Ok(y.clone()), |c| y.slice(axis, c.start, c.len))?;
            add_into(&target, &share)?;
        }
        Ok(())
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> Result<u64> {
        let weights = self.parts.iter().flat_map(|part| {
            [Some(&part.matrix), part.inner.as_ref().map(|inner| &inner.down)].into_iter().flatten()
        });
        let sizes = weights.map(|weight| weight.operand().encoding().bytes(weight.operand().shape()));
        Ok(sizes.sum::<Result<u64, SizeError>>().map_err(device::Error::from)?)
    }
}

/// The share of a patch that does not depend on the weight.
fn part(lane: &Lane, patch: &Patch, allocate: &mut Allocate<'_>) -> Result<Part> {
    let columns = patch.rows();
    let scale = patch.scale() as f32;
    let precise = lane.with_dtype(DType::F32)?;
    if let Delta::Lora { up, down, mid: None, .. } = &patch.adapter().delta {
        let matrix = if patch.halves_swapped() {
            let values = Factors::default().matrix(&precise, up)?;
            as_weight(lane, &swap_halves(&values)?, allocate)?
        } else {
            up.weight(lane, allocate)?
        };
        return Ok(Part {
            columns,
            matrix,
            inner: Some(Inner { down: down.weight(lane, allocate)?, scale }),
        });
    }
    let bench = Bench { lane: &precise, factors: &Factors::default(), factor: scale };
    let change = bench.change(&patch.adapter().delta, None)?;
    let change = change.ok_or_else(|| Error::NeedsWeight { key: patch.key().to_owned() })?;
    let change = if patch.halves_swapped() { swap_halves(&change)? } else { change };
    Ok(Part { columns, matrix: as_weight(lane, &change, allocate)?, inner: None })
}

/// What all patches together add to a weight, as one matrix.
fn difference(
    lane: &Lane,
    patches: &[Patch],
    weight: &Weight,
    allocate: &mut Allocate<'_>,
) -> Result<Weight> {
    let before = lane.with_dtype(DType::F32)?.unpack(weight)?;
    let after = apply(lane, &before, patches)?;
    as_weight(lane, &after.sub(&before)?, allocate)
}

fn as_weight(lane: &Lane, values: &Tensor, allocate: &mut Allocate<'_>) -> Result<Weight> {
    let buffer = allocate(values.shape().count() * lane.dtype().bytes())?;
    let weight = Weight::whole(buffer, Encoding::Plain(lane.dtype()), *values.shape())?;
    values.copy_into(&Tensor::new(weight.operand().clone(), lane.clone()))?;
    Ok(weight)
}
