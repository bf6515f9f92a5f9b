//! Cutting, padding, joining, turning.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Value};

use super::pixels;
use super::resample::{Method, Target, scale_image};
use crate::class::class;
use crate::value::{Image, Mask};
use crate::wanted::still_wanted;
use crate::{Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(ImageCrop(Arc::clone(runtime)));
    catalogue.add(ImagePadForOutpaint(Arc::clone(runtime)));
    catalogue.add(ImageStitch(Arc::clone(runtime)));
    catalogue.add(ImageRotate(Arc::clone(runtime)));
    catalogue.add(ImageFlip(Arc::clone(runtime)));
}

impl Image {
    /// A part of every picture; what lies outside is left out.
    pub(super) fn cut(&self, x: usize, y: usize, width: usize, height: usize) -> Result<Image> {
        let (x, y) = (x.min(self.width), y.min(self.height));
        let (width, height) = (width.min(self.width - x), height.min(self.height - y));
        let shape = [self.batch, height, width, self.channels];
        let room = self.host().room(&shape)?;
        let mut values = room.vector()?;
        for row in (0..self.batch).flat_map(|item| (y..y + height).map(move |row| item * self.height + row)) {
            let start = (row * self.width + x) * self.channels;
            values.extend_from_slice(&self.values[start..start + width * self.channels]);
        }
        Ok(Image::of(shape, room.hold(values)))
    }

    /// Puts smaller pictures of as many channels into these; they must fit.
    pub(super) fn put(&mut self, small: &Image, x: usize, y: usize) -> Result<()> {
        let length = small.width * self.channels;
        let (height, width, channels) = (self.height, self.width, self.channels);
        let all = self.values.to_mut()?;
        for (row, values) in small.values.chunks_exact(length.max(1)).enumerate() {
            let (item, row) = (row / small.height, row % small.height);
            let start = ((item * height + y + row) * width + x) * channels;
            all[start..start + length].copy_from_slice(values);
        }
        Ok(())
    }

    /// Pictures of another size whose pixel at a row and column is taken from the place that `from` says.
    fn taken(
        &self,
        height: usize,
        width: usize,
        from: impl Fn(usize, usize) -> (usize, usize),
    ) -> Result<Image> {
        let shape = [self.batch, height, width, self.channels];
        let room = self.host().room(&shape)?;
        let mut values = room.vector()?;
        for item in 0..self.batch {
            for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
                let (row, column) = from(row, column);
                let start = ((item * self.height + row) * self.width + column) * self.channels;
                values.extend_from_slice(&self.values[start..start + self.channels]);
            }
        }
        Ok(Image::of(shape, room.hold(values)))
    }
}

class! {
    ImageCrop in "image/transform";
    |schema| schema
        .title("Image Crop")
        .about("Cuts a part out of pictures.")
        .input(Input::socket("image", "IMAGE"))
        .input(pixels("width", 512, 1, 1))
        .input(pixels("height", 512, 1, 1))
        .input(pixels("x", 0, 0, 1))
        .input(pixels("y", 0, 0, 1))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let x = call.size("x")?.min(image.width.saturating_sub(1));
        let y = call.size("y")?.min(image.height.saturating_sub(1));
        Ok(Outcome::object(image.cut(x, y, call.size("width")?, call.size("height")?)?))
    }
}

class! {
    ImagePadForOutpaint in "image";
    |schema| schema
        .title("Pad Image for Outpainting")
        .about("Adds grey borders, and gives a mask of what is to be painted, soft toward the picture.")
        .input(Input::socket("image", "IMAGE"))
        .input(pixels("left", 0, 0, 8))
        .input(pixels("top", 0, 0, 8))
        .input(pixels("right", 0, 0, 8))
        .input(pixels("bottom", 0, 0, 8))
        .input(pixels("feathering", 40, 0, 1))
        .output("IMAGE")
        .output("MASK");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let border = Border {
            left: call.size("left")?,
            top: call.size("top")?,
            right: call.size("right")?,
            bottom: call.size("bottom")?,
        };
        let (height, width) = (image.height + border.top + border.bottom, image.width + border.left + border.right);
        let mut out = Image::filled(image.host(), [image.batch, height, width, image.channels], 0.5)?;
        out.put(&image, border.left, border.top)?;
        let mut mask = Mask::filled(image.host(), [1, height, width], 1.0)?;
        let soft = mask.values.to_mut()?;
        for (row, column) in (0..image.height).flat_map(|row| (0..image.width).map(move |column| (row, column))) {
            if column == 0 {
                still_wanted()?;
            }
            let value = border.softness(&image, row, column, call.size("feathering")?);
            soft[(border.top + row) * width + border.left + column] = value;
        }
        Ok(Outcome::values([Value::object(out), Value::object(mask)]))
    }
}

/// Pixels added on each side.
struct Border {
    left: usize,
    top: usize,
    right: usize,
    bottom: usize,
}

impl Border {
    /// How much a pixel of the picture is to be painted: less the farther it is from a border that was added.
    fn softness(&self, image: &Image, row: usize, column: usize, feathering: usize) -> f32 {
        if feathering == 0 || feathering * 2 >= image.height || feathering * 2 >= image.width {
            return 0.0;
        }
        let distances = [
            if self.top != 0 { row } else { image.height },
            if self.bottom != 0 { image.height - row } else { image.height },
            if self.left != 0 { column } else { image.width },
            if self.right != 0 { image.width - column } else { image.width },
        ];
        let distance = distances.into_iter().min().unwrap_or(feathering).min(feathering);
        let value = (feathering - distance) as f64 / feathering as f64;
        (value * value) as f32
    }
}

class! {
    ImageStitch in "image/transform";
    |schema| schema
        .title("Image Stitch")
        .about("Puts a second picture beside the first, with a strip between them if wanted.")
        .input(Input::socket("image1", "IMAGE"))
        .input(Input::choice("direction", ["right", "down", "left", "up"]).with("default", "right"))
        .input(Input::boolean("match_image_size", true))
        .input(Input::int("spacing_width", 0, 0, 1024).with("step", 2))
        .input(Input::choice("spacing_color", ["white", "black", "red", "green", "blue"]).with("default", "white"))
        .input(Input::socket("image2", "IMAGE").optional())
        .output("IMAGE");
    |runtime, call| {
        let first = call.object::<Image>("image1")?;
        let Some(second) = call.object_if_given::<Image>("image2")? else {
            return Ok(Outcome::one(call.value("image1")?.clone()));
        };
        Ok(Outcome::object(stitched(call, &first, &second)?))
    }
}

fn stitched(call: &Call, first: &Image, second: &Image) -> Result<Image, Failure> {
    let direction = call.text("direction")?;
    let is_row = matches!(direction, "left" | "right");
    let colour: [f32; 3] = match call.text("spacing_color")? {
        "white" => [1.0, 1.0, 1.0],
        "red" => [1.0, 0.0, 0.0],
        "green" => [0.0, 1.0, 0.0],
        "blue" => [0.0, 0.0, 1.0],
        _ => [0.0, 0.0, 0.0],
    };
    let batch = first.batch.max(second.batch);
    let last_again =
        |image: &Image| image.frames((0..batch).map(|index| index.min(image.batch.saturating_sub(1))));
    let (mut first, mut second) = (last_again(first)?, last_again(second)?);
    if call.boolean("match_image_size")? {
        let aspect = second.width as f64 / second.height as f64;
        let target = if is_row {
            Target::new((first.height as f64 * aspect) as usize, first.height)
        } else {
            Target::new(first.width, (first.width as f64 / aspect) as usize)
        };
        second = scale_image(&second, target, Method::Lanczos)?;
    } else {
        // Only white and black fill the borders; beside a coloured strip they are black.
        let grey = if colour[0] == colour[1] && colour[1] == colour[2] { colour[0] } else { 0.0 };
        let (width, height) = (first.width.max(second.width), first.height.max(second.height));
        let (width, height) = if is_row { (0, height) } else { (width, 0) };
        first = padded(&first, width, height, grey)?;
        second = padded(&second, width, height, grey)?;
    }
    let channels = first.channels.max(second.channels);
    let (first, second) = (first.with_channels(channels)?, second.with_channels(channels)?);
    let spacing = call.size("spacing_width")?.next_multiple_of(2);
    let (height, width) = if is_row {
        (first.height, first.width + spacing + second.width)
    } else {
        (first.height + spacing + second.height, first.width)
    };
    let mut out = Image::filled(first.host(), [batch, height, width, channels], 1.0)?;
    for pixel in out.values.to_mut()?.chunks_exact_mut(channels) {
        pixel.iter_mut().zip(colour).for_each(|(value, colour)| *value = colour);
    }
    let (before, after) =
        if matches!(direction, "left" | "up") { (&second, &first) } else { (&first, &second) };
    out.put(before, 0, 0)?;
    if is_row {
        out.put(after, before.width + spacing, 0)?;
    } else {
        out.put(after, 0, before.height + spacing)?;
    }
    Ok(out)
}

/// In the middle of at least this size.
fn padded(image: &Image, width: usize, height: usize, value: f32) -> Result<Image> {
    let (width, height) = (width.max(image.width), height.max(image.height));
    let mut out = Image::filled(image.host(), [image.batch, height, width, image.channels], value)?;
    out.put(image, (width - image.width) / 2, (height - image.height) / 2)?;
    Ok(out)
}

class! {
    ImageRotate in "image/transform";
    |schema| schema
        .about("Turns pictures by quarters, clockwise.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::choice("rotation", ["none", "90 degrees", "180 degrees", "270 degrees"]))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let (height, width) = (image.height, image.width);
        Ok(Outcome::object(match call.text("rotation")? {
            "90 degrees" => image.taken(width, height, |row, column| (height - 1 - column, row))?,
            "180 degrees" => image.taken(height, width, |row, column| (height - 1 - row, width - 1 - column))?,
            "270 degrees" => image.taken(width, height, |row, column| (column, width - 1 - row))?,
            _ => Image::clone(&image),
        }))
    }
}

class! {
    ImageFlip in "image/transform";
    |schema| schema
        .about("Mirrors pictures.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::choice("flip_method", ["x-axis: vertically", "y-axis: horizontally"]))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let (height, width) = (image.height, image.width);
        Ok(Outcome::object(if call.text("flip_method")?.starts_with('x') {
            image.taken(height, width, |row, column| (height - 1 - row, column))?
        } else {
            image.taken(height, width, |row, column| (row, width - 1 - column))?
        }))
    }
}
