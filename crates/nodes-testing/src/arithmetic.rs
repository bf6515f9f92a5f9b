//! Arithmetic on pictures in f32, element by element, as the tests compare exact bytes.

use graph::Failure;

use nodes::value::{Image, Mask};
use runtime::host::{Host, Room, Values};

/// More values than any test needs; what asks for more is refused before memory is.
const MAX_VALUES: usize = 1 << 28;

/// A four-dimensional array that is read.
pub(crate) struct Operand<'a> {
    shape: [usize; 4],
    values: &'a Values,
}

impl<'a> From<&'a Image> for Operand<'a> {
    fn from(image: &'a Image) -> Operand<'a> {
        Operand { shape: [image.batch, image.height, image.width, image.channels], values: &image.values }
    }
}

impl<'a> From<&'a Mask> for Operand<'a> {
    fn from(mask: &'a Mask) -> Operand<'a> {
        Operand { shape: [mask.batch, mask.height, mask.width, 1], values: &mask.values }
    }
}

/// Joins two arrays value by value. An axis of length 1 is repeated; other lengths must be equal.
pub(crate) fn join<'a>(
    a: impl Into<Operand<'a>>,
    b: impl Into<Operand<'a>>,
    f: impl Fn(f32, f32) -> f32,
) -> Result<Image, Failure> {
    let (a, b) = (a.into(), b.into());
    let shape = joined_shape(a.shape, b.shape)?;
    let [batch, height, width, channels] = shape;
    let room = room(a.values.host(), shape)?;
    if a.shape == b.shape {
        let values = a.values.iter().zip(b.values).map(|(a, b)| f(*a, *b));
        return Ok(Image::of(shape, room.collect(values)?));
    }
    let mut values = room.vector()?;
    for item in 0..batch {
        for row in 0..height {
            for column in 0..width {
                for channel in 0..channels {
                    let index = [item, row, column, channel];
                    values.push(f(a.at(index), b.at(index)));
                }
            }
        }
    }
    Ok(Image::of(shape, room.hold(values)))
}

impl Operand<'_> {
    fn at(&self, index: [usize; 4]) -> f32 {
        let offset =
            index.iter().zip(self.shape).fold(0, |offset, (index, length)| offset * length + index % length);
        self.values[offset]
    }
}

fn joined_shape(a: [usize; 4], b: [usize; 4]) -> Result<[usize; 4], Failure> {
    let mut shape = a;
    for (length, other) in shape.iter_mut().zip(b) {
        match (*length, other) {
            (one, other) if one == other || other == 1 => {}
            (1, other) => *length = other,
            _ => {
                let text = format!(
                    "pictures of the sizes {a:?} and {b:?} cannot be joined; make them the same size"
                );
                return Err(Failure::error("RuntimeError", text));
            }
        }
    }
    Ok(shape)
}

/// The mean of pictures of one size.
pub(crate) fn mean(images: &[&Image]) -> Result<Image, Failure> {
    let Some((first, rest)) = images.split_first() else {
        return Err(Failure::value("there is no picture to average; link at least one"));
    };
    let mut sum = (*first).clone();
    for image in rest {
        if Operand::from(*image).shape != Operand::from(&sum).shape {
            let text = format!("{image:?} and {first:?} cannot be averaged; make them the same size");
            return Err(Failure::error("RuntimeError", text));
        }
        for (sum, value) in sum.values.to_mut()?.iter_mut().zip(&image.values) {
            *sum += value;
        }
    }
    let count = images.len() as f32;
    sum.values.to_mut()?.iter_mut().for_each(|value| *value /= count);
    Ok(sum)
}

/// A picture with every value multiplied.
pub(crate) fn scaled(image: &Image, factor: f64) -> Result<Image, Failure> {
    let factor = factor as f32;
    let values = image.values.iter().map(|value| value * factor);
    Ok(Image::collect(image.host(), image.shape(), values)?)
}

/// Pictures of one value.
pub(crate) fn constant(host: &Host, size: [usize; 3], value: f32) -> Result<Image, Failure> {
    filled(host, size, || value)
}

/// Pictures whose values come one by one.
pub(crate) fn filled(
    host: &Host,
    [batch, height, width]: [usize; 3],
    value: impl FnMut() -> f32,
) -> Result<Image, Failure> {
    let shape = [batch, height, width, 3];
    Ok(Image::of(shape, room(host, shape)?.collect(std::iter::repeat_with(value))?))
}

/// Masks of one value.
pub(crate) fn constant_mask(host: &Host, size: [usize; 3], value: f32) -> Result<Mask, Failure> {
    let [batch, height, width] = size;
    Ok(Mask::of(size, room(host, [batch, height, width, 1])?.filled(value)?))
}

/// The picture of 512 by 512 that many test nodes give. It is small, so nobody counts it.
pub(crate) fn square(value: f32) -> Result<Image, Failure> {
    constant(&Host::with_budget(1 << 30), [1, 512, 512], value)
}

/// Room for an array, or why there is none.
fn room(host: &Host, shape: [usize; 4]) -> Result<Room, Failure> {
    let count = shape.iter().try_fold(1_usize, |count, length| count.checked_mul(*length));
    match count {
        Some(count) if count <= MAX_VALUES => Ok(host.room(&shape)?),
        _ => Err(Failure::OutOfMemory(format!(
            "a picture of {shape:?} values does not fit in memory; ask for a smaller one"
        ))),
    }
}
