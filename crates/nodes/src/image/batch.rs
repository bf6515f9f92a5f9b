//! Plain pictures, and batches: joined, parted, repeated, measured.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, NodeClass, Outcome, Schema, Slot, Value};

use super::resample::{Method, Target, scale_image};
use super::{growing, grown, pixels};
use crate::class::class;
use crate::value::Image;
use crate::{Error, Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(EmptyImage(Arc::clone(runtime)));
    catalogue.add(ImageInvert(Arc::clone(runtime)));
    catalogue.add(ImageBatch(Arc::clone(runtime)));
    catalogue.add(BatchImagesNode(Arc::clone(runtime)));
    catalogue.add(ImageFromBatch(Arc::clone(runtime)));
    catalogue.add(RepeatImageBatch(Arc::clone(runtime)));
    catalogue.add(RebatchImages);
    catalogue.add(GetImageSize(Arc::clone(runtime)));
}

class! {
    EmptyImage in "image";
    |schema| schema
        .about("Makes pictures of one colour.")
        .input(pixels("width", 512, 1, 1))
        .input(pixels("height", 512, 1, 1))
        .input(Input::int("batch_size", 1, 1, 4096))
        .input(Input::int("color", 0, 0, 0xFF_FFFF).with("step", 1).with("display", "color"))
        .output("IMAGE");
    |runtime, call| {
        let colour = call.int("color")?;
        let shape = [call.size("batch_size")?, call.size("height")?, call.size("width")?, 3];
        let mut image = Image::filled(&runtime.host, shape, 0.0)?;
        let part = |shift: u32| (((colour >> shift) & 0xFF) as f64 / 255.0) as f32;
        let pixel = [part(16), part(8), part(0)];
        image.values.to_mut()?.chunks_exact_mut(3).for_each(|place| place.copy_from_slice(&pixel));
        Ok(Outcome::object(image))
    }
}

class! {
    ImageInvert in "image";
    |schema| schema
        .title("Invert Image")
        .about("Turns light into dark and dark into light.")
        .input(Input::socket("image", "IMAGE"))
        .output("IMAGE");
    |runtime, call| Ok(Outcome::object(call.object::<Image>("image")?.map(|value| 1.0 - value)?))
}

class! {
    ImageBatch in "image";
    |schema| schema
        .title("Batch Images")
        .about("Joins two batches. The second is scaled and cut to the size of the first.")
        .input(Input::socket("image1", "IMAGE"))
        .input(Input::socket("image2", "IMAGE"))
        .output("IMAGE");
    |runtime, call| Ok(Outcome::object(joined(&[call.object("image1")?, call.object("image2")?])?))
}

class! {
    BatchImagesNode in "image";
    |schema| schema
        .title("Batch Images")
        .about("Joins any number of batches. All are scaled and cut to the size of the first.")
        .input(growing("images", "IMAGE", "image", 2))
        .output("IMAGE");
    |runtime, call| Ok(Outcome::object(joined(&grown(call, "images")?)?))
}

/// All pictures in one batch, of the first one's size and with as many channels as any has.
fn joined(images: &[Arc<Image>]) -> Result<Image> {
    let Some(first) = images.first() else {
        return Err(Error::Told("there are no pictures to join; link at least one".to_owned()));
    };
    let channels = images.iter().map(|image| image.channels).max().unwrap_or(3);
    let (height, width) = (first.height, first.width);
    let fitted = images.iter().map(|image| {
        let image = image.with_channels(channels)?;
        match (image.height, image.width) == (height, width) {
            true => Ok(image),
            false => scale_image(&image, Target::cropped(width, height), Method::Bilinear),
        }
    });
    let fitted: Vec<Image> = fitted.collect::<Result<_>>()?;
    let batch = fitted.iter().map(|image| image.batch).sum();
    let values = fitted.iter().flat_map(|image| &image.values).copied();
    Image::collect(first.host(), [batch, height, width, channels], values)
}

class! {
    ImageFromBatch in "image/batch";
    |schema| schema
        .about("Takes some pictures out of a batch.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::int("batch_index", 0, 0, 4095))
        .input(Input::int("length", 1, 1, 4096))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let start = call.size("batch_index")?.min(image.batch.saturating_sub(1));
        let length = call.size("length")?.min(image.batch - start);
        Ok(Outcome::object(image.frames(start..start + length)?))
    }
}

class! {
    RepeatImageBatch in "image/batch";
    |schema| schema
        .about("Repeats a batch.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::int("amount", 1, 1, 4096))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let batch = image.batch.saturating_mul(call.size("amount")?);
        Ok(Outcome::object(image.repeated_to(batch)?))
    }
}

struct RebatchImages;

impl NodeClass for RebatchImages {
    fn schema(&self) -> Schema {
        Schema::new("RebatchImages", "image/batch")
            .title("Rebatch Images")
            .about("Parts a list of batches into batches of another size.")
            .takes_lists()
            .input(Input::socket("images", "IMAGE"))
            .input(Input::int("batch_size", 1, 1, 4096))
            .list_output("IMAGE", "IMAGE")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let size = call.size("batch_size")?.max(1);
        let mut singles = Vec::new();
        for value in call.inputs.list("images") {
            let image = value.downcast::<Image>().ok_or_else(|| {
                Failure::error(
                    "TypeError",
                    format!("images must hold pictures, but has {}", value.describe()),
                )
            })?;
            for index in 0..image.batch {
                singles.push(Arc::new(image.frames([index])?));
            }
        }
        let batches = singles.chunks(size).map(|chunk| join_equal(chunk).map(Value::object));
        Ok(Outcome::slots([Slot::Many(batches.collect::<Result<_, _>>()?)]))
    }
}

/// Pictures in one batch that must be of one size already.
fn join_equal(images: &[Arc<Image>]) -> Result<Image, Failure> {
    let shape = |image: &Image| [image.height, image.width, image.channels];
    if let [first, rest @ ..] = images
        && let Some(other) = rest.iter().find(|other| shape(other) != shape(first))
    {
        let (first, other) = (shape(first), shape(other));
        return Err(Failure::error(
            "RuntimeError",
            format!("pictures of {first:?} and {other:?} values do not fit into one batch; scale them first"),
        ));
    }
    Ok(joined(images)?)
}

class! {
    GetImageSize in "image";
    |schema| schema
        .title("Get Image Size")
        .about("Tells the width and height of pictures, and how many there are.")
        .input(Input::socket("image", "IMAGE"))
        .hidden("unique_id", graph::Hidden::UniqueId)
        .named_output("INT", "width")
        .named_output("INT", "height")
        .named_output("INT", "batch_size");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        call.show_text(format!("width: {}, height: {}\n batch size: {}", image.width, image.height, image.batch));
        Ok(Outcome::values([image.width.into(), image.height.into(), image.batch.into()]))
    }
}
