//! Patches merged into a weight where it lies on a device, as often as a copy of it arrives there.
//!
//! LoRA is added as one product: the device reads and writes the weight once, sums in f32 and rounds once. All other
//! forms are computed in f32 beside the weight and rounded into it. What it takes is on the device beforehand, so
//! merging moves nothing over the link.

use std::ops::Range;
use std::sync::Arc;

use device::{Device, Operand};
use meta::{DType, Encoding};
use tensor::{Lane, Tensor, Weight};

use crate::arithmetic::change_stored;
use crate::delta::{Bench, swap_halves};
use crate::factor::flat;
use crate::factors::{Allocate, Factors, Room, padded};
use crate::{Delta, Error, Factor, Patch, Result, Rows};

/// The patches of one weight, on a device, ready to be merged into copies of the weight there.
#[derive(Clone, Debug)]
pub struct Merge {
    /// Computes in f32.
    lane: Lane,
    patches: Vec<Patch>,
    form: Form,
    bytes: u64,
}

#[derive(Clone, Debug)]
enum Form {
    /// One product for each of these.
    Products(Vec<Step>),
    /// In f32 beside the weight.
    Apart(Arc<Factors>),
}

/// `rows of the weight += alpha · up · down`.
#[derive(Clone, Debug)]
struct Step {
    rows: Range<usize>,
    up: Operand,
    down: Operand,
    alpha: f32,
    /// The patch whose scale is `alpha`; none if the scales of several are in `up`.
    of: Option<usize>,
}

impl Merge {
    /// Brings the patches of a weight that is stored in `encoding`, without a scale of its own, to the lane's device, in
    /// memory that `allocate` gives: [`Merge::bytes_for`] in all.
    pub fn stage(
        lane: &Lane,
        encoding: Encoding,
        patches: &[Patch],
        allocate: &mut Allocate<'_>,
    ) -> Result<Merge> {
        let plan = plan_for(lane.device(), encoding, patches)?;
        Merge::stage_as(lane, plan, patches, allocate)
    }

    fn stage_as(
        lane: &Lane,
        plan: Option<Vec<Planned>>,
        patches: &[Patch],
        allocate: &mut Allocate<'_>,
    ) -> Result<Merge> {
        let lane = lane.with_dtype(DType::F32)?;
        let bytes = bytes_of(plan.as_deref(), patches);
        let form = match plan {
            None => Form::Apart(Arc::new(Factors::stage(&lane, patches, allocate)?)),
            Some(steps) => {
                let mut room = Room::new(bytes, allocate)?;
                let step = |planned: &Planned| planned.stage(&lane, patches, &mut room);
                Form::Products(steps.iter().map(step).collect::<Result<_>>()?)
            }
        };
        Ok(Merge { lane, patches: patches.to_vec(), form, bytes: bytes as u64 })
    }

    /// Bytes that the patches of a weight in this encoding take on a device.
    pub fn bytes_for(device: &Device, encoding: Encoding, patches: &[Patch]) -> Result<u64> {
        Ok(bytes_of(plan_for(device, encoding, patches)?.as_deref(), patches) as u64)
    }

    /// The most bytes that one merge into a weight in this encoding takes of a device for a moment. A product takes none.
    pub fn moment_bytes_for(device: &Device, encoding: Encoding, patches: &[Patch]) -> Result<u64> {
        if plan_for(device, encoding, patches)?.is_some() {
            return Ok(0);
        }
        let unpacked = patches.first().filter(|_| encoding != Encoding::F32);
        let unpacked = unpacked.map_or(0, |patch| 2 * patch.weight_shape().count());
        let most = patches.iter().map(Patch::values_at_once).max().unwrap_or(0);
        Ok(((unpacked + most) * DType::F32.bytes()) as u64)
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Merges the patches into a copy of the weight, where it is, in the order of the lane's stream. The copy must be as
    /// the file has it: merging twice would apply them twice.
    pub fn apply_to(&self, weight: &Weight) -> Result<()> {
        let shape = weight.operand().shape();
        for patch in &self.patches {
            if shape != patch.weight_shape() {
                return Err(Error::OtherWeight {
                    key: patch.key().to_owned(),
                    expected: Box::new(*patch.weight_shape()),
                    got: Box::new(*shape),
                });
            }
        }
        let steps = match &self.form {
            Form::Apart(factors) => return change_stored(&self.lane, factors, weight, &self.patches),
            Form::Products(steps) => steps,
        };
        let (rows, columns) = flat(shape);
        let matrix = weight.operand().reshape([rows, columns])?;
        let on_lane = |operand: &Operand| Tensor::new(operand.clone(), self.lane.clone());
        for Step { rows, up, down, alpha, .. } in steps {
            let target = on_lane(&matrix.slice(0, rows.start, rows.len())?);
            target.add_matmul(&on_lane(up), &on_lane(down), *alpha)?;
        }
        Ok(())
    }

    /// The same changes at other strengths, without staging anything again; none if these are other changes, or if the
    /// strengths are part of what was staged.
    pub fn with_strengths(&self, patches: &[Patch]) -> Option<Merge> {
        let same = patches.len() == self.patches.len()
            && self.patches.iter().zip(patches).all(|(own, other)| own.is_same_change(other));
        let rescaled = |step: &Step| {
            let alpha = patches.get(step.of?)?.scale() as f32;
            Some(Step { alpha, ..step.clone() })
        };
        let form = match &self.form {
            _ if !same => return None,
            Form::Products(steps) => Form::Products(steps.iter().map(rescaled).collect::<Option<_>>()?),
            Form::Apart(factors) => Form::Apart(Arc::new(factors.for_same(&self.patches, patches))),
        };
        Some(Merge { patches: patches.to_vec(), form, ..self.clone() })
    }
}

/// The weight with all patches applied, in the encoding it is stored in, as a new weight. Only plain floats can be
/// stored again; a quantised weight keeps its patches beside it.
///
/// Values are rounded to nearest, ties to even, and fp8 stays within its range. ComfyUI does the same except for fp8,
/// which it rounds at random by a seed made from the weight's name; rounding to nearest is closer to the merged weight
/// and needs no seed. A scaled fp8 weight keeps its scale.
pub fn merge_stored(lane: &Lane, weight: &Weight, patches: &[Patch]) -> Result<Weight> {
    let operand = weight.operand();
    let plan = match plan_for(lane.device(), operand.encoding(), patches)? {
        // What multiplies a weight is not known to a product.
        Some(_) if weight.scales().is_some() => None,
        plan => plan,
    };
    let buffer = lane.device().allocate(operand.extent())?;
    lane.stream().copy(&buffer.whole(), &operand.span())?;
    let mut copy = Weight::whole(buffer, operand.encoding(), *operand.shape())?;
    if let Some(scales) = weight.scales() {
        copy = copy.with_scales(scales.clone());
    }
    Merge::stage_as(lane, plan, patches, &mut |bytes| lane.device().allocate(bytes))?.apply_to(&copy)?;
    Ok(copy)
}

/// The steps in which patches are merged into a weight; none if they are merged apart from it.
fn plan_for(device: &Device, encoding: Encoding, patches: &[Patch]) -> Result<Option<Vec<Planned>>> {
    let Encoding::Plain(dtype) = encoding else { return Err(Error::NotPlain { encoding }) };
    if !dtype.is_float() {
        return Err(Error::NotPlain { encoding });
    }
    let multiplies = device.description().activations.contains(&dtype);
    let low_rank = patches.iter().all(|patch| Sides::of(patch).is_some());
    Ok(match dtype {
        _ if !multiplies || !low_rank => None,
        DType::F32 => Some(one_by_one(patches)),
        DType::BF16 | DType::F16 => by_rows(dtype, patches),
        _ => None,
    })
}

/// Bytes of what is staged.
fn bytes_of(plan: Option<&[Planned]>, patches: &[Patch]) -> usize {
    match plan {
        None => Factors::bytes_for(patches),
        Some(steps) => steps.iter().map(Planned::bytes).sum(),
    }
}

/// The factors of a patch that is a product of low rank.
#[derive(Clone, Copy)]
struct Sides<'a> {
    up: &'a Factor,
    down: &'a Factor,
    mid: Option<&'a Factor>,
}

impl<'a> Sides<'a> {
    fn of(patch: &'a Patch) -> Option<Sides<'a>> {
        match (&patch.adapter().delta, &patch.adapter().dora) {
            (Delta::Lora { up, down, mid, .. }, None) => Some(Sides { up, down, mid: mid.as_ref() }),
            _ => None,
        }
    }

    /// Values summed in the product.
    fn rank(&self) -> usize {
        self.up.flat().1
    }
}

/// One product to come.
#[derive(Debug, PartialEq)]
struct Planned {
    dtype: DType,
    rows: Range<usize>,
    columns: usize,
    /// What stands side by side in the two matrices.
    terms: Vec<Term>,
    /// Values summed, with what is filled up.
    depth: usize,
    /// The patch whose scale is left to the product; none if scales become part of the matrices.
    of: Option<usize>,
}

/// One part of one patch's factors.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Term {
    patch: usize,
    up: Part,
    down: Part,
}

/// What of a factor stands in a matrix of fewer bits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// The values, rounded to the matrix's type.
    Upper,
    /// What that rounding left.
    Lower,
}

/// f32: each patch is a product of its own, in their order. Nothing is rounded between them.
fn one_by_one(patches: &[Patch]) -> Vec<Planned> {
    let step = |(index, patch): (usize, &Patch)| {
        let terms = vec![Term { patch: index, up: Part::Upper, down: Part::Upper }];
        Planned {
            dtype: DType::F32,
            rows: rows_of(patch),
            columns: flat(patch.weight_shape()).1,
            depth: Sides::of(patch).map_or(0, |sides| sides.rank()),
            terms,
            of: Some(index),
        }
    };
    patches.iter().enumerate().map(step).collect()
}

/// Depths and widths of 16-bit matrices are multiples of this, which every product can read at full speed.
const MULTIPLE: usize = 8;

/// 16 bits: all patches of a row are one product, so that it is rounded once. Factors that have more digits than the type
/// stand in it in two parts. None where the type could not hold them so.
fn by_rows(dtype: DType, patches: &[Patch]) -> Option<Vec<Planned>> {
    let columns = flat(patches.first()?.weight_shape()).1;
    if !columns.is_multiple_of(MULTIPLE) {
        return None;
    }
    let mut bounds: Vec<usize> =
        patches.iter().map(rows_of).flat_map(|rows| [rows.start, rows.end]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let mut steps = Vec::new();
    for (start, end) in bounds.iter().zip(bounds.iter().skip(1)) {
        let here = |(_, patch): &(usize, &Patch)| rows_of(patch).contains(start);
        let here: Vec<(usize, &Patch)> = patches.iter().enumerate().filter(here).collect();
        let alone = here.len() == 1;
        let (mut terms, mut depth) = (Vec::new(), 0);
        for (index, patch) in &here {
            let parts = terms_of(dtype, *index, patch, alone)?;
            depth += parts.len() * Sides::of(patch)?.rank();
            terms.extend(parts);
        }
        if let Some((index, _)) = here.first() {
            let (rows, depth) = (*start..*end, depth.next_multiple_of(MULTIPLE));
            steps.push(Planned { dtype, rows, columns, terms, depth, of: alone.then_some(*index) });
        }
    }
    Some(steps)
}

/// The parts of a patch's factors whose products together are its change, to more digits than the weight has.
fn terms_of(dtype: DType, patch: usize, of: &Patch, alone: bool) -> Option<Vec<Term>> {
    let Sides { up, down, mid } = Sides::of(of)?;
    let exact = |factor: &Factor| match factor.encoding() {
        Encoding::Plain(DType::F8E4M3 | DType::F8E5M2) => true,
        encoding => encoding == Encoding::Plain(dtype),
    };
    // A scale that is part of it gives `up` more digits, and so does the sum over `mid` to `down`.
    let (up_exact, down_exact) = (exact(up) && alone, exact(down) && mid.is_none());
    // What is left of a small value is out of f16's range.
    if dtype == DType::F16 && !(up_exact && down_exact) {
        return None;
    }
    let term = |up, down| Term { patch, up, down };
    let mut terms = vec![term(Part::Upper, Part::Upper)];
    if !down_exact {
        terms.push(term(Part::Upper, Part::Lower));
    }
    if !up_exact {
        terms.push(term(Part::Lower, Part::Upper));
    }
    Some(terms)
}

fn rows_of(patch: &Patch) -> Range<usize> {
    match patch.rows() {
        Some(Rows { start, len }) => start..start + len,
        None => 0..flat(patch.weight_shape()).0,
    }
}

impl Planned {
    fn bytes(&self) -> usize {
        let bytes = self.dtype.bytes();
        padded(self.rows.len() * self.depth * bytes) + padded(self.depth * self.columns * bytes)
    }

    /// Puts the two matrices into the room.
    fn stage(&self, lane: &Lane, patches: &[Patch], room: &mut Room) -> Result<Step> {
        let encoding = Encoding::Plain(self.dtype);
        let up = room.take(encoding, [self.rows.len(), self.depth])?;
        let down = room.take(encoding, [self.depth, self.columns])?;
        let [left, right] = [&up, &down].map(|operand| Tensor::new(operand.clone(), lane.clone()));
        let mut at = 0;
        let mut known: Option<(usize, [Tensor; 2])> = None;
        for term in &self.terms {
            let [above, beside] = match &known {
                Some((patch, sides)) if *patch == term.patch => sides.clone(),
                _ => self.sides(lane, &patches[term.patch])?,
            };
            let rank = beside.dim(0);
            part(&above, self.dtype, term.up)?.copy_into(&left.slice(1, at, rank)?)?;
            part(&beside, self.dtype, term.down)?.copy_into(&right.slice(0, at, rank)?)?;
            known = Some((term.patch, [above, beside]));
            at += rank;
        }
        let zeros = |rest: Tensor| -> Result<()> { Ok(lane.full(*rest.shape(), 0.0)?.copy_into(&rest)?) };
        if at < self.depth {
            zeros(left.slice(1, at, self.depth - at)?)?;
            zeros(right.slice(0, at, self.depth - at)?)?;
        }
        let alpha = self.of.map_or(1.0, |index| patches[index].scale() as f32);
        Ok(Step { rows: self.rows.clone(), up, down, alpha, of: self.of })
    }

    /// The factors of a patch in f32, for these rows, with its scale if that is not left to the product.
    fn sides(&self, lane: &Lane, patch: &Patch) -> Result<[Tensor; 2]> {
        let missing = || Error::NeedsWeight { key: patch.key().to_owned() };
        let Sides { up, down, mid } = Sides::of(patch).ok_or_else(missing)?;
        let bench = Bench { lane, factors: &Factors::default(), factor: 1.0 };
        let [mut up, down] = bench.lora_sides(up, down, mid)?;
        if patch.halves_swapped() {
            up = swap_halves(&up)?;
        }
        let first = self.rows.start - rows_of(patch).start;
        let up = up.slice(0, first, self.rows.len())?;
        let up = if self.of.is_some() { up } else { up.affine(patch.scale() as f32, 0.0)? };
        Ok([up, down])
    }
}

/// One part of a factor's values.
fn part(values: &Tensor, dtype: DType, part: Part) -> Result<Tensor> {
    let upper = values.cast(dtype)?;
    Ok(match part {
        Part::Upper => upper,
        Part::Lower => values.sub(&upper.cast(DType::F32)?)?.cast(dtype)?,
    })
}
