//! Masks: made, loaded, grown, mixed and turned into pictures and back.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome};

use crate::class::class;
use crate::image::{Method, Target, growing, grown, pixels, scale_mask};
use crate::value::{Image, Mask};
use crate::{Result, Runtime};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(SolidMask(Arc::clone(runtime)));
    catalogue.add(InvertMask(Arc::clone(runtime)));
    catalogue.add(CropMask(Arc::clone(runtime)));
    catalogue.add(MaskComposite(Arc::clone(runtime)));
    catalogue.add(FeatherMask(Arc::clone(runtime)));
    catalogue.add(GrowMask(Arc::clone(runtime)));
    catalogue.add(ThresholdMask(Arc::clone(runtime)));
    catalogue.add(MaskToImage(Arc::clone(runtime)));
    catalogue.add(ImageToMask(Arc::clone(runtime)));
    catalogue.add(ImageColorToMask(Arc::clone(runtime)));
    catalogue.add(BatchMasksNode(Arc::clone(runtime)));
}

/// Masks as grey pictures.
pub(crate) fn to_image(mask: &Mask) -> Result<Image> {
    let values = mask.values.iter().flat_map(|value| [*value; 3]);
    Image::collect(mask.host(), [mask.batch, mask.height, mask.width, 3], values)
}

class! {
    SolidMask in "mask";
    |schema| schema
        .about("Makes a mask that is the same everywhere.")
        .input(Input::float("value", 1.0, 0.0, 1.0, 0.01))
        .input(pixels("width", 512, 1, 1))
        .input(pixels("height", 512, 1, 1))
        .output("MASK");
    |runtime, call| {
        let shape = [1, call.size("height")?, call.size("width")?];
        Ok(Outcome::object(Mask::filled(&runtime.host, shape, call.float("value")? as f32)?))
    }
}

class! {
    InvertMask in "mask";
    |schema| schema.about("Turns 0 into 1 and 1 into 0.").input(Input::socket("mask", "MASK")).output("MASK");
    |runtime, call| Ok(Outcome::object(call.object::<Mask>("mask")?.map(|value| 1.0 - value)?))
}

class! {
    ThresholdMask in "mask";
    |schema| schema
        .about("Makes a mask 1 where it is above a value, and 0 elsewhere.")
        .input(Input::socket("mask", "MASK"))
        .input(Input::float("value", 0.5, 0.0, 1.0, 0.01))
        .output("MASK");
    |runtime, call| {
        let limit = call.float("value")?;
        let above = |value: f32| f32::from(u8::from(f64::from(value) > limit));
        Ok(Outcome::object(call.object::<Mask>("mask")?.map(above)?))
    }
}

class! {
    CropMask in "mask";
    |schema| schema
        .about("Cuts a part out of masks.")
        .input(Input::socket("mask", "MASK"))
        .input(pixels("x", 0, 0, 1))
        .input(pixels("y", 0, 0, 1))
        .input(pixels("width", 512, 1, 1))
        .input(pixels("height", 512, 1, 1))
        .output("MASK");
    |runtime, call| {
        let mask = call.object::<Mask>("mask")?;
        let (x, y) = (call.size("x")?.min(mask.width), call.size("y")?.min(mask.height));
        let (width, height) = (call.size("width")?.min(mask.width - x), call.size("height")?.min(mask.height - y));
        let frame_height = mask.height;
        let rows = (0..mask.batch).flat_map(|item| (y..y + height).map(move |row| item * frame_height + row));
        let values = rows.flat_map(|row| &mask.values[row * mask.width + x..][..width]).copied();
        Ok(Outcome::object(Mask::collect(mask.host(), [mask.batch, height, width], values)?))
    }
}

class! {
    MaskComposite in "mask";
    |schema| schema
        .about("Lays masks over others and combines the two.")
        .input(Input::socket("destination", "MASK"))
        .input(Input::socket("source", "MASK"))
        .input(pixels("x", 0, 0, 1))
        .input(pixels("y", 0, 0, 1))
        .input(Input::choice("operation", ["multiply", "add", "subtract", "and", "or", "xor"]))
        .output("MASK");
    |runtime, call| {
        let destination = call.object::<Mask>("destination")?;
        let source = call.object::<Mask>("source")?;
        if source.batch != destination.batch && source.batch != 1 {
            let text = format!("there are {} masks for {} destinations", source.batch, destination.batch);
            return Err(Failure::value(text + "; give one, or as many"));
        }
        let operation = call.text("operation")?;
        let (left, top) = (call.size("x")?, call.size("y")?);
        let source = source.repeated_to(destination.batch)?;
        let mut out = Mask::clone(&destination);
        let places = out.values.to_mut()?;
        let width = source.width.min(out.width.saturating_sub(left));
        let height = if width == 0 { 0 } else { source.height.min(out.height.saturating_sub(top)) };
        for (item, row) in (0..out.batch).flat_map(|item| (0..height).map(move |row| (item, row))) {
            let to = (item * out.height + top + row) * out.width + left;
            let from = (item * source.height + row) * source.width;
            let values = places[to..to + width].iter_mut().zip(&source.values[from..from + width]);
            values.for_each(|(value, source)| *value = combined(operation, *value, *source));
        }
        places.iter_mut().for_each(|value| *value = value.clamp(0.0, 1.0));
        Ok(Outcome::object(out))
    }
}

fn combined(operation: &str, a: f32, b: f32) -> f32 {
    let is_set = |value: f32| value.round_ties_even() != 0.0;
    let flag = |flag: bool| f32::from(u8::from(flag));
    match operation {
        "add" => a + b,
        "subtract" => a - b,
        "and" => flag(is_set(a) && is_set(b)),
        "or" => flag(is_set(a) || is_set(b)),
        "xor" => flag(is_set(a) != is_set(b)),
        _ => a * b,
    }
}

class! {
    FeatherMask in "mask";
    |schema| schema
        .about("Lets masks fade toward their edges.")
        .input(Input::socket("mask", "MASK"))
        .input(pixels("left", 0, 0, 1))
        .input(pixels("top", 0, 0, 1))
        .input(pixels("right", 0, 0, 1))
        .input(pixels("bottom", 0, 0, 1))
        .output("MASK");
    |runtime, call| {
        let mut mask = Mask::clone(&*call.object("mask")?);
        let (width, height) = (mask.width, mask.height);
        let columns = edge_factors(call.size("left")?, call.size("right")?, width);
        let rows = edge_factors(call.size("top")?, call.size("bottom")?, height);
        for (place, value) in mask.values.to_mut()?.iter_mut().enumerate() {
            let (column, row) = (place % width, place / width % height);
            let factors = columns[column].iter().chain(&rows[row]);
            *value = factors.fold(*value, |value, factor| value * factor);
        }
        Ok(Outcome::object(mask))
    }
}

/// The factors of every position along an axis that fades over `start` and `end` positions. From the end the reference
/// counts -0, -1, -2, and -0 is the first position; that is kept, as workflows were tuned with it.
fn edge_factors(start: usize, end: usize, length: usize) -> Vec<Vec<f32>> {
    let mut factors = vec![Vec::new(); length];
    let (start, end) = (start.min(length), end.min(length));
    let share = |place: usize, of: usize| ((place as f64 + 1.0) / of as f64) as f32;
    for (place, factors) in factors.iter_mut().take(start).enumerate() {
        factors.push(share(place, start));
    }
    for place in 0..end {
        factors[(length - place) % length].push(share(place, end));
    }
    factors
}

class! {
    GrowMask in "mask";
    |schema| schema
        .title("Grow Mask")
        .about("Makes what a mask marks larger, or smaller with a number below 0.")
        .input(Input::socket("mask", "MASK"))
        .input(Input::int("expand", 0, -16_384, 16_384).with("step", 1))
        .input(Input::boolean("tapered_corners", true))
        .output("MASK");
    |runtime, call| {
        let mut mask = Mask::clone(&*call.object("mask")?);
        let expand = call.int("expand")?;
        let is_tapered = call.boolean("tapered_corners")?;
        // After as many steps as it is long, a mask changes no more.
        let steps = expand.unsigned_abs().min((mask.width + mask.height) as u64);
        for _ in 0..steps {
            call.check()?;
            mask = grown_once(&mask, is_tapered, expand > 0)?;
        }
        Ok(Outcome::object(mask))
    }
}

/// The largest value of each place and its neighbours, or the smallest. Beyond the edge nothing counts that the mask
/// does not have there itself.
fn grown_once(mask: &Mask, is_tapered: bool, is_larger: bool) -> Result<Mask> {
    let Mask { batch, height, width, .. } = *mask;
    let pick = |a: f32, b: f32| if is_larger { a.max(b) } else { a.min(b) };
    let room = mask.host().room(&mask.shape())?;
    let mut values = room.vector()?;
    for item in 0..batch {
        let at = |row: usize, column: usize| mask.values[(item * height + row) * width + column];
        for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
            let (above, below) = (row.saturating_sub(1), (row + 1).min(height - 1));
            let (left, right) = (column.saturating_sub(1), (column + 1).min(width - 1));
            let mut value = at(row, column);
            for near in [at(above, column), at(below, column), at(row, left), at(row, right)] {
                value = pick(value, near);
            }
            if !is_tapered {
                for near in [at(above, left), at(above, right), at(below, left), at(below, right)] {
                    value = pick(value, near);
                }
            }
            values.push(value);
        }
    }
    Ok(Mask::of(mask.shape(), room.hold(values)))
}

class! {
    MaskToImage in "mask";
    |schema| schema
        .title("Convert Mask to Image")
        .about("Makes grey pictures of masks.")
        .input(Input::socket("mask", "MASK"))
        .output("IMAGE");
    |runtime, call| Ok(Outcome::object(to_image(&*call.object("mask")?)?))
}

class! {
    ImageToMask in "mask";
    |schema| schema
        .title("Convert Image to Mask")
        .about("Takes one channel of pictures as masks.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::choice("channel", ["red", "green", "blue", "alpha"]))
        .output("MASK");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let name = call.text("channel")?;
        let channel = ["red", "green", "blue", "alpha"].iter().position(|channel| *channel == name);
        match channel.filter(|channel| *channel < image.channels) {
            Some(channel) => Ok(Outcome::object(image.channel(channel)?)),
            None => Err(Failure::value(format!("the picture has no channel \"{name}\"; it has {}", image.channels))),
        }
    }
}

class! {
    ImageColorToMask in "mask";
    |schema| schema
        .about("Marks the places of pictures that have a colour.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::int("color", 0, 0, 0xFF_FFFF).with("step", 1).with("display", "number"))
        .output("MASK");
    |runtime, call| {
        let image = call.object::<Image>("image")?.with_channels(3)?;
        let colour = call.int("color")?;
        let byte = |value: f32| (value.clamp(0.0, 1.0) * 255.0).round_ties_even() as i64;
        let is_colour = |pixel: &[f32]| pixel.iter().fold(0, |sum, value| (sum << 8) + byte(*value)) == colour;
        let values = image.values.chunks_exact(3).map(|pixel| f32::from(u8::from(is_colour(pixel))));
        let shape = [image.batch, image.height, image.width];
        Ok(Outcome::object(Mask::collect(image.host(), shape, values)?))
    }
}

class! {
    BatchMasksNode in "mask";
    |schema| schema
        .title("Batch Masks")
        .about("Joins any number of batches. All are scaled and cut to the size of the first.")
        .input(growing("masks", "MASK", "mask", 2))
        .output("MASK");
    |runtime, call| {
        let masks = grown::<Mask>(call, "masks")?;
        let (width, height) = (masks[0].width, masks[0].height);
        let fitted = masks.iter().map(|mask| match (mask.width, mask.height) == (width, height) {
            true => Ok(Mask::clone(mask)),
            false => scale_mask(mask, Target::cropped(width, height), Method::Bilinear),
        });
        let fitted: Vec<Mask> = fitted.collect::<Result<_>>()?;
        let shape = [fitted.iter().map(|mask| mask.batch).sum(), height, width];
        let values = fitted.iter().flat_map(|mask| &mask.values).copied();
        Ok(Outcome::object(Mask::collect(masks[0].host(), shape, values)?))
    }
}
