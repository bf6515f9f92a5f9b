//! Latents along one axis: cut, joined, moved.

use sampling::Latent;

use crate::value::reserved;
use crate::{Error, Result};

/// The last axes by name: `x`, `y`, and `t` for the one before.
pub(super) fn named(latent: &Latent, name: &str) -> Result<usize> {
    let from_end = match name.trim_start_matches('-') {
        "x" => 1,
        "y" => 2,
        _ => 3,
    };
    let axes = latent.shape().len();
    axes.checked_sub(from_end)
        .ok_or_else(|| Error::Told(format!("a latent of {:?} values has no axis \"{name}\"", latent.shape())))
}

/// How many values lie before an axis, along it and after it.
fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// The part from `start` on along an axis.
pub(super) fn narrowed(latent: &Latent, axis: usize, start: usize, length: usize) -> Result<Latent> {
    taken(latent, axis, start..start + length)
}

/// The places along an axis, by their numbers, in that order; numbers that there are not are left out.
pub(super) fn taken(latent: &Latent, axis: usize, places: impl IntoIterator<Item = usize>) -> Result<Latent> {
    let (before, length, after) = around(latent.shape(), axis);
    let places: Vec<usize> = places.into_iter().filter(|place| *place < length).collect();
    let mut values = reserved(&[before, places.len(), after])?;
    for outer in 0..before {
        for place in &places {
            let start = (outer * length + place) * after;
            values.extend_from_slice(&latent.values()[start..start + after]);
        }
    }
    let mut shape = latent.shape().to_vec();
    shape[axis] = places.len();
    Ok(Latent::new(shape, values)?)
}

/// A batch of another size: cut, or begun again from the start.
pub(super) fn repeated_to(latent: &Latent, batch: usize) -> Result<Latent> {
    let length = latent.shape().first().copied().unwrap_or(0).max(1);
    taken(latent, 0, (0..batch).map(|item| item % length))
}

/// Two latents one after the other along an axis; the other axes must be equal.
pub(super) fn joined(first: &Latent, second: &Latent, axis: usize) -> Result<Latent> {
    let others = |latent: &Latent| {
        let mut shape = latent.shape().to_vec();
        shape.get_mut(axis).map(|length| *length = 0).map(|()| shape)
    };
    if others(first).is_none() || others(first) != others(second) {
        let text = format!(
            "latents of {:?} and {:?} values cannot be joined along axis {axis}; the others must be equal",
            first.shape(),
            second.shape()
        );
        return Err(Error::Told(text));
    }
    let (before, first_length, after) = around(first.shape(), axis);
    let second_length = second.shape()[axis];
    let mut values = reserved(&[before, first_length + second_length, after])?;
    for outer in 0..before {
        values.extend_from_slice(&first.values()[outer * first_length * after..][..first_length * after]);
        values.extend_from_slice(&second.values()[outer * second_length * after..][..second_length * after]);
    }
    let mut shape = first.shape().to_vec();
    shape[axis] = first_length + second_length;
    Ok(Latent::new(shape, values)?)
}

/// With one axis moved to another position.
pub(super) fn moved(latent: &Latent, from: usize, to: usize) -> Result<Latent> {
    let mut order: Vec<usize> = (0..latent.shape().len()).collect();
    let axis = order.remove(from);
    order.insert(to, axis);
    let shape: Vec<usize> = order.iter().map(|axis| latent.shape()[*axis]).collect();
    let strides: Vec<usize> = order.iter().map(|axis| around(latent.shape(), *axis).2).collect();
    let mut values = Vec::with_capacity(latent.values().len());
    let mut place = vec![0; shape.len()];
    for _ in 0..latent.values().len() {
        let at: usize = place.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
        values.push(latent.values()[at]);
        for axis in (0..shape.len()).rev() {
            place[axis] += 1;
            if place[axis] < shape[axis] {
                break;
            }
            place[axis] = 0;
        }
    }
    Ok(Latent::new(shape, values)?)
}

/// Each plane of height and width with its values taken from elsewhere: `from` gives the row and column for a place
/// of the new size.
pub(super) fn rearranged(
    latent: &Latent,
    (new_height, new_width): (usize, usize),
    from: impl Fn(usize, usize) -> (usize, usize),
) -> Result<Latent> {
    let (height, width) = size(latent)?;
    let mut values = Vec::with_capacity(latent.values().len());
    for plane in latent.values().chunks_exact((height * width).max(1)) {
        for (row, column) in (0..new_height).flat_map(|row| (0..new_width).map(move |column| (row, column))) {
            let (row, column) = from(row, column);
            values.push(plane[row * width + column]);
        }
    }
    let mut shape = latent.shape().to_vec();
    let axes = shape.len();
    shape[axes - 2] = new_height;
    shape[axes - 1] = new_width;
    Ok(Latent::new(shape, values)?)
}

/// The height and width.
pub(super) fn size(latent: &Latent) -> Result<(usize, usize)> {
    match latent.shape() {
        [_, _, .., height, width] => Ok((*height, *width)),
        shape => Err(Error::Told(format!("a latent of {shape:?} values has no height and width"))),
    }
}
