//! Latents scaled, turned, cut and laid over each other.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome};
use sampling::Latent;

use super::axes;
use crate::class::class;
use crate::image::{
    CROPS, LATENT_METHODS, MAX_RESOLUTION, Method, Patch, Target, composite, pixels, scale_latent,
};
use crate::value::{LatentImage, Mask};
use crate::{Error, Result, Runtime};
use runtime::host::Host;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(LatentUpscale(Arc::clone(runtime)));
    catalogue.add(LatentUpscaleBy(Arc::clone(runtime)));
    catalogue.add(LatentComposite(Arc::clone(runtime)));
    catalogue.add(LatentCompositeMasked(Arc::clone(runtime)));
    catalogue.add(LatentRotate(Arc::clone(runtime)));
    catalogue.add(LatentFlip(Arc::clone(runtime)));
    catalogue.add(LatentCrop(Arc::clone(runtime)));
    catalogue.add(LatentConcat(Arc::clone(runtime)));
    catalogue.add(LatentCut(Arc::clone(runtime)));
    catalogue.add(LatentCutToBatch(Arc::clone(runtime)));
}

/// Pixels of one value that these nodes count with, whatever the model.
const PIXELS: usize = 8;

class! {
    LatentUpscale in "latent";
    |schema| schema
        .title("Upscale Latent")
        .about("Scales latents to a size in pixels. A side of 0 follows from the other.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::choice("upscale_method", LATENT_METHODS))
        .input(pixels("width", 512, 0, 8))
        .input(pixels("height", 512, 0, 8))
        .input(Input::choice("crop", CROPS))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let (rows, columns) = axes::size(&latent.samples)?;
        let follows = |length: usize, of: usize, side: usize| {
            ((length * side) as f64 / of as f64).round_ties_even().max(64.0) as usize
        };
        let (width, height) = match (call.size("width")?, call.size("height")?) {
            (0, 0) => return Ok(Outcome::one(call.value("samples")?.clone())),
            (0, height) => (follows(columns, rows.max(1), height.max(64)), height.max(64)),
            (width, 0) => (width.max(64), follows(rows, columns.max(1), width.max(64))),
            (width, height) => (width.max(64), height.max(64)),
        };
        let is_cropped = call.text("crop")? == "center";
        let target = Target { width: width / PIXELS, height: height / PIXELS, is_cropped };
        Ok(Outcome::object(scaled(&latent, target, Method::named(call.text("upscale_method")?)?)?))
    }
}

class! {
    LatentUpscaleBy in "latent";
    |schema| schema
        .title("Upscale Latent By")
        .about("Scales latents by a factor.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::choice("upscale_method", LATENT_METHODS))
        .input(Input::float("scale_by", 1.5, 0.01, 8.0, 0.01))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let (rows, columns) = axes::size(&latent.samples)?;
        let factor = call.float("scale_by")?;
        let times = |length: usize| (length as f64 * factor).round_ties_even() as usize;
        let target = Target::new(times(columns), times(rows));
        Ok(Outcome::object(scaled(&latent, target, Method::named(call.text("upscale_method")?)?)?))
    }
}

/// A latent in another size.
fn scaled(latent: &LatentImage, target: Target, method: Method) -> Result<LatentImage> {
    let mut shape = latent.samples.shape().to_vec();
    if let [.., height, width] = shape.as_mut_slice() {
        (*height, *width) = (target.height, target.width);
    }
    latent.with(&shape, || scale_latent(&latent.samples, target, method))
}

class! {
    LatentComposite in "latent";
    |schema| schema
        .title("Latent Composite")
        .about("Lays latents over others, soft at the edges if wanted.")
        .input(Input::socket("samples_to", "LATENT"))
        .input(Input::socket("samples_from", "LATENT"))
        .input(pixels("x", 0, 0, 8))
        .input(pixels("y", 0, 0, 8))
        .input(pixels("feather", 0, 0, 8))
        .output("LATENT");
    |runtime, call| {
        let to = call.object::<LatentImage>("samples_to")?;
        let from = call.object::<LatentImage>("samples_from")?;
        let (height, width) = axes::size(&to.samples)?;
        let (left, top) = (call.size("x")? / PIXELS, call.size("y")? / PIXELS);
        let source = visible(&from.samples, width.saturating_sub(left), height.saturating_sub(top))?;
        let (rows, columns) = axes::size(&source)?;
        let feather = call.size("feather")? / PIXELS;
        let edges = Edges {
            top: top != 0,
            bottom: top + rows < height,
            left: left != 0,
            right: left + columns < width,
        };
        let mask = match feather > 0 && rows > 0 && columns > 0 {
            true => Some(Arc::new(edges.mask(&runtime.host, rows, columns, feather)?)),
            false => None,
        };
        let patch = Patch { left, top, width: columns, height: rows, mask };
        Ok(Outcome::object(to.with_equal(|| laid_over(&to.samples, &source, &patch))?))
    }
}

/// Which edges of a patch lie inside what it is laid over.
struct Edges {
    top: bool,
    bottom: bool,
    left: bool,
    right: bool,
}

impl Edges {
    /// A mask that rises from those edges over `feather` values.
    fn mask(&self, host: &Host, height: usize, width: usize, feather: usize) -> Result<Mask> {
        let along = |length: usize, at_start: bool, at_end: bool| -> Vec<f32> {
            let mut factors = vec![1.0f32; length];
            for step in 0..feather.min(length) {
                let factor = (1.0 / feather as f64 * (step + 1) as f64) as f32;
                if at_start {
                    factors[step] *= factor;
                }
                if at_end {
                    factors[length - 1 - step] *= factor;
                }
            }
            factors
        };
        let rows = along(height, self.top, self.bottom);
        let columns = along(width, self.left, self.right);
        let values = rows.iter().flat_map(|row| columns.iter().map(move |column| row * column));
        Mask::collect(host, [1, height, width], values)
    }
}

class! {
    LatentCompositeMasked in "latent";
    |schema| schema
        .about("Lays latents over others, through a mask if there is one.")
        .input(Input::socket("destination", "LATENT"))
        .input(Input::socket("source", "LATENT"))
        .input(pixels("x", 0, 0, 8))
        .input(pixels("y", 0, 0, 8))
        .input(Input::boolean("resize_source", false))
        .input(Input::socket("mask", "MASK").optional())
        .output("LATENT");
    |runtime, call| {
        let destination = call.object::<LatentImage>("destination")?;
        let mut source = Latent::clone(&call.object::<LatentImage>("source")?.samples);
        if call.boolean("resize_source")? {
            let (height, width) = axes::size(&destination.samples)?;
            source = scale_latent(&source, Target::new(width, height), Method::Bilinear)?;
        }
        let (height, width) = axes::size(&source)?;
        let patch = Patch {
            left: call.size("x")? / PIXELS,
            top: call.size("y")? / PIXELS,
            width,
            height,
            mask: call.object_if_given::<Mask>("mask")?,
        };
        let laid = destination.with_equal(|| laid_over(&destination.samples, &source, &patch))?;
        Ok(Outcome::object(laid))
    }
}

/// A latent laid over another with as many channels and frames.
fn laid_over(destination: &Latent, source: &Latent, patch: &Patch) -> Result<Latent> {
    let (height, width) = axes::size(destination)?;
    let shape = destination.shape();
    let planes = |shape: &[usize]| shape[1..shape.len() - 2].to_vec();
    if planes(shape) != planes(source.shape()) {
        let text = format!("a latent of {:?} values does not go over one of {shape:?}", source.shape());
        return Err(Error::Told(text));
    }
    let source = axes::repeated_to(source, shape[0])?;
    let whole = [shape[0], planes(shape).iter().product(), height, width, 1];
    let values = composite(destination.values(), whole, source.values(), patch)?;
    Ok(Latent::new(shape.to_vec(), values)?)
}

/// At most so many columns and rows.
fn visible(latent: &Latent, columns: usize, rows: usize) -> Result<Latent> {
    let axis = latent.shape().len();
    axes::narrowed(&axes::narrowed(latent, axis - 2, 0, rows)?, axis - 1, 0, columns)
}

class! {
    LatentRotate in "latent/transform";
    |schema| schema
        .title("Rotate Latent")
        .about("Turns latents by quarters, clockwise.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::choice("rotation", ["none", "90 degrees", "180 degrees", "270 degrees"]))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let (height, width) = axes::size(&latent.samples)?;
        let samples = &latent.samples;
        let turned = match call.text("rotation")? {
            "90 degrees" => axes::rearranged(samples, (width, height), |row, column| (height - 1 - column, row))?,
            "180 degrees" => {
                axes::rearranged(samples, (height, width), |row, column| (height - 1 - row, width - 1 - column))?
            }
            "270 degrees" => axes::rearranged(samples, (width, height), |row, column| (column, width - 1 - row))?,
            _ => return Ok(Outcome::one(call.value("samples")?.clone())),
        };
        Ok(Outcome::object(latent.with_samples(turned)?))
    }
}

class! {
    LatentFlip in "latent/transform";
    |schema| schema
        .title("Flip Latent")
        .about("Mirrors latents.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::choice("flip_method", ["x-axis: vertically", "y-axis: horizontally"]))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let (height, width) = axes::size(&latent.samples)?;
        let is_vertical = call.text("flip_method")?.starts_with('x');
        let samples = axes::rearranged(&latent.samples, (height, width), |row, column| {
            if is_vertical { (height - 1 - row, column) } else { (row, width - 1 - column) }
        })?;
        Ok(Outcome::object(latent.with_samples(samples)?))
    }
}

class! {
    LatentCrop in "latent/transform";
    |schema| schema
        .title("Crop Latent")
        .about("Cuts a part out of latents.")
        .input(Input::socket("samples", "LATENT"))
        .input(pixels("width", 512, 64, 8))
        .input(pixels("height", 512, 64, 8))
        .input(pixels("x", 0, 0, 8))
        .input(pixels("y", 0, 0, 8))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let (height, width) = axes::size(&latent.samples)?;
        // At least 64 pixels stay, if there are as many.
        let left = (call.size("x")? / PIXELS).min(width.saturating_sub(8));
        let top = (call.size("y")? / PIXELS).min(height.saturating_sub(8));
        let axis = latent.samples.shape().len();
        let rows = axes::narrowed(&latent.samples, axis - 2, top, call.size("height")? / PIXELS)?;
        let samples = axes::narrowed(&rows, axis - 1, left, call.size("width")? / PIXELS)?;
        Ok(Outcome::object(latent.with_samples(samples)?))
    }
}

class! {
    LatentConcat in "latent/advanced";
    |schema| schema
        .about("Puts latents beside each other, or one after the other in time.")
        .input(Input::socket("samples1", "LATENT"))
        .input(Input::socket("samples2", "LATENT"))
        .input(Input::choice("dim", ["x", "-x", "y", "-y", "t", "-t"]))
        .output("LATENT");
    |runtime, call| {
        let first = call.object::<LatentImage>("samples1")?;
        let second = axes::repeated_to(&call.object::<LatentImage>("samples2")?.samples, first.batch())?;
        let name = call.text("dim")?;
        let axis = axes::named(&first.samples, name)?;
        let samples = if name.starts_with('-') {
            axes::joined(&second, &first.samples, axis)?
        } else {
            axes::joined(&first.samples, &second, axis)?
        };
        Ok(Outcome::object(first.with_samples(samples)?))
    }
}

class! {
    LatentCut in "latent/advanced";
    |schema| schema
        .about("Cuts a part out of latents along one axis. A number below 0 counts from the end.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::choice("dim", ["x", "y", "t"]))
        .input(Input::int("index", 0, -(MAX_RESOLUTION as i64), MAX_RESOLUTION).with("step", 1))
        .input(pixels("amount", 1, 1, 1))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let axis = axes::named(&latent.samples, call.text("dim")?)?;
        let length = latent.samples.shape()[axis];
        let index = call.int("index")?;
        let distance = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
        let start = if index >= 0 {
            distance.min(length.saturating_sub(1))
        } else {
            length - distance.min(length)
        };
        let samples = axes::narrowed(&latent.samples, axis, start, call.size("amount")?.min(length - start))?;
        Ok(Outcome::object(latent.with_samples(samples)?))
    }
}

class! {
    LatentCutToBatch in "latent/advanced";
    |schema| schema
        .about("Parts latents along one axis into a batch.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::choice("dim", ["t", "x", "y"]))
        .input(pixels("slice_size", 1, 1, 1))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let axis = axes::named(&latent.samples, call.text("dim")?)?;
        if axis < 2 {
            return Ok(Outcome::one(call.value("samples")?.clone()));
        }
        let length = latent.samples.shape()[axis];
        let size = call.size("slice_size")?.clamp(1, length.max(1));
        let kept = axes::narrowed(&latent.samples, axis, 0, length / size * size)?;
        let moved = axes::moved(&kept, axis, 1)?;
        let [batch, slices, rest @ ..] = moved.shape() else {
            return Err(Failure::value("a latent needs a batch and channels"));
        };
        let mut shape = vec![batch * slices / size, size];
        shape.extend(rest);
        let parted = Latent::new(shape, moved.values().to_vec()).map_err(Error::from)?;
        Ok(Outcome::object(latent.with_samples(axes::moved(&parted, 1, axis)?)?))
    }
}
