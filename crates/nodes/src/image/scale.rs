//! Scaling to a size, by a factor, to a number of pixels, to a side, to another picture.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Kind, Outcome, Value};

use super::resample::{CROPS, IMAGE_METHODS, Method, Target, scale_image};
use super::{MAX_RESOLUTION, pixels};
use crate::class::class;
use crate::value::{Image, Mask};
use crate::{Error, Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(ImageScale(Arc::clone(runtime)));
    catalogue.add(ImageScaleBy(Arc::clone(runtime)));
    catalogue.add(ImageScaleToTotalPixels(Arc::clone(runtime)));
    catalogue.add(ImageScaleToMaxDimension(Arc::clone(runtime)));
    catalogue.add(ResizeAndPadImage(Arc::clone(runtime)));
    catalogue.add(ResizeImageMaskNode(Arc::clone(runtime)));
}

fn method(call: &Call, name: &str) -> Result<Method, Failure> {
    Ok(Method::named(call.text(name)?)?)
}

fn methods(name: &str) -> Input {
    Input::choice(name, IMAGE_METHODS)
}

class! {
    ImageScale in "image/upscaling";
    |schema| schema
        .title("Upscale Image")
        .about("Scales pictures to a size. A side of 0 follows from the other.")
        .input(Input::socket("image", "IMAGE"))
        .input(methods("upscale_method"))
        .input(pixels("width", 512, 0, 1))
        .input(pixels("height", 512, 0, 1))
        .input(Input::choice("crop", CROPS))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let (width, height) = (call.size("width")?, call.size("height")?);
        if (width, height) == (0, 0) {
            return Ok(Outcome::one(call.value("image")?.clone()));
        }
        let target = Size::of(&image).with_sides(width, height).target(call.text("crop")? == "center");
        Ok(Outcome::object(scale_image(&image, target, method(call, "upscale_method")?)?))
    }
}

class! {
    ImageScaleBy in "image/upscaling";
    |schema| schema
        .title("Upscale Image By")
        .about("Scales pictures by a factor.")
        .input(Input::socket("image", "IMAGE"))
        .input(methods("upscale_method"))
        .input(Input::float("scale_by", 1.0, 0.01, 8.0, 0.01))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let target = Size::of(&image).times(call.float("scale_by")?).target(false);
        Ok(Outcome::object(scale_image(&image, target, method(call, "upscale_method")?)?))
    }
}

class! {
    ImageScaleToTotalPixels in "image/upscaling";
    |schema| schema
        .title("Scale Image to Total Pixels")
        .about("Scales pictures to a number of pixels, with the same proportions.")
        .input(Input::socket("image", "IMAGE"))
        .input(methods("upscale_method"))
        .input(Input::float("megapixels", 1.0, 0.01, 16.0, 0.01))
        .input(Input::int("resolution_steps", 1, 1, 256).optional())
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        // Workflows from before this input do not have it.
        let steps = if call.inputs.first("resolution_steps").is_some() { call.size("resolution_steps")? } else { 1 };
        let size = Size::of(&image);
        let factor = (call.float("megapixels")? * 1024.0 * 1024.0 / (size.width * size.height)).sqrt();
        let target = size.times_in_steps(factor, steps.max(1) as f64).target(false);
        Ok(Outcome::object(scale_image(&image, target, method(call, "upscale_method")?)?))
    }
}

class! {
    ImageScaleToMaxDimension in "image/upscaling";
    |schema| schema
        .about("Scales pictures so that the longer side has a length, with the same proportions.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::choice("upscale_method", ["area", "lanczos", "bilinear", "nearest-exact", "bilinear", "bicubic"]))
        .input(pixels("largest_size", 512, 0, 1))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let target = Size::of(&image).with_longer_side(call.size("largest_size")?).target(false);
        Ok(Outcome::object(scale_image(&image, target, method(call, "upscale_method")?)?))
    }
}

class! {
    ResizeAndPadImage in "image/transform";
    |schema| schema
        .about("Scales pictures into a frame of a size, with the same proportions, and fills the rest.")
        .input(Input::socket("image", "IMAGE"))
        .input(pixels("target_width", 512, 1, 1))
        .input(pixels("target_height", 512, 1, 1))
        .input(Input::choice("padding_color", ["white", "black"]))
        .input(Input::choice("interpolation", ["area", "bicubic", "nearest-exact", "bilinear", "lanczos"]))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let (width, height) = (call.size("target_width")?, call.size("target_height")?);
        let factor = (width as f64 / image.width as f64).min(height as f64 / image.height as f64);
        let target = Target::new((image.width as f64 * factor) as usize, (image.height as f64 * factor) as usize);
        let small = scale_image(&image, target, method(call, "interpolation")?)?;
        let colour = if call.text("padding_color")? == "black" { 0.0 } else { 1.0 };
        let mut out = Image::filled(image.host(), [image.batch, height, width, image.channels], colour)?;
        out.put(&small, (width - target.width) / 2, (height - target.height) / 2)?;
        Ok(Outcome::object(out))
    }
}

class! {
    ResizeImageMaskNode in "transform";
    |schema| {
        let mut schema = schema
            .title("Resize Image/Mask")
            .about("Scales pictures or masks in one of several ways.")
            .input(Input::new("input", Kind::MatchType {
                template: "input_type".to_owned(),
                allowed: "IMAGE,MASK".to_owned(),
            }))
            .input(Input::new("resize_type", Kind::DynamicChoice(resize_types())))
            .input(methods("scale_method").with("default", "area"))
            .named_output("COMFY_MATCHTYPE_V3", "resized");
        schema.outputs[0].match_template = Some("input_type".to_owned());
        schema
    };
    |runtime, call| {
        let method = method(call, "scale_method")?;
        let input = call.value("input")?;
        if let Some(image) = input.downcast::<Image>() {
            return Ok(Outcome::one(match Resized::asked(call, Size::of(&image))? {
                None => input.clone(),
                Some(resized) => Value::object(resized.image(&image, method)?),
            }));
        }
        let mask = call.object::<Mask>("input")?;
        let Mask { batch, height, width, .. } = *mask;
        let image = Image { batch, height, width, channels: 1, values: mask.values.clone() };
        Ok(Outcome::one(match Resized::asked(call, Size::of(&image))? {
            None => input.clone(),
            Some(resized) => Value::object(resized.image(&image, method)?.channel(0)?),
        }))
    }
}

/// The ways to say a size, each with its inputs.
fn resize_types() -> Vec<(String, Vec<Input>)> {
    let side = |name: &str| pixels(name, 512, 0, 1);
    let crop = || Input::choice("crop", CROPS).with("default", "center");
    let types = [
        ("scale dimensions", vec![side("width"), side("height"), crop()]),
        ("scale by multiplier", vec![Input::float("multiplier", 1.0, 0.01, 8.0, 0.01)]),
        ("scale longer dimension", vec![side("longer_size")]),
        ("scale shorter dimension", vec![side("shorter_size")]),
        ("scale width", vec![side("width")]),
        ("scale height", vec![side("height")]),
        ("scale total pixels", vec![Input::float("megapixels", 1.0, 0.01, 16.0, 0.01)]),
        ("match size", vec![Input::socket("match", "IMAGE,MASK"), crop()]),
        ("scale to multiple", vec![Input::int("multiple", 8, 1, MAX_RESOLUTION).with("step", 1)]),
    ];
    types.into_iter().map(|(name, inputs)| (name.to_owned(), inputs)).collect()
}

/// What [`ResizeImageMaskNode`] was asked for: the size to scale to, and the size to cut that to.
struct Resized {
    target: Target,
    kept: Option<(usize, usize)>,
}

impl Resized {
    /// What is asked of a picture of a size; `None` if it is to stay as it is.
    fn asked(call: &Call, size: Size) -> Result<Option<Resized>, Failure> {
        let side = |name: &str| call.size(&format!("resize_type.{name}"));
        let number = |name: &str| call.float(&format!("resize_type.{name}"));
        let is_cropped = || Ok::<_, Failure>(call.text("resize_type.crop")? == "center");
        let whole = |size: Size| Some(Resized { target: size.target(false), kept: None });
        let sides = |width: usize, height: usize, is_cropped: bool| {
            let target = size.with_sides(width, height).target(is_cropped);
            ((width, height) != (0, 0)).then_some(Resized { target, kept: None })
        };
        Ok(match call.text("resize_type")? {
            "scale dimensions" => sides(side("width")?, side("height")?, is_cropped()?),
            "scale by multiplier" => whole(size.times(number("multiplier")?)),
            "scale longer dimension" => whole(size.with_longer_side(side("longer_size")?)),
            "scale shorter dimension" => whole(size.with_shorter_side(side("shorter_size")?)),
            "scale width" => sides(side("width")?, 0, false),
            "scale height" => sides(0, side("height")?, false),
            "scale total pixels" => {
                let total = (number("megapixels")? * 1024.0 * 1024.0).trunc();
                whole(size.times((total / (size.width * size.height)).sqrt()))
            }
            "match size" => {
                let other = call.value("resize_type.match")?;
                let size = match (other.downcast::<Image>(), other.downcast::<Mask>()) {
                    (Some(image), _) => Size::of(&image),
                    (_, Some(mask)) => Size { width: mask.width as f64, height: mask.height as f64 },
                    _ => return Err(Failure::value("match must be a picture or a mask")),
                };
                Some(Resized { target: size.target(is_cropped()?), kept: None })
            }
            "scale to multiple" => size.covering_multiple(side("multiple")?.max(1)),
            other => return Err(Error::Told(format!("there is no way to resize called \"{other}\"")).into()),
        })
    }

    fn image(&self, image: &Image, method: Method) -> Result<Image> {
        let scaled = scale_image(image, self.target, method)?;
        match self.kept {
            None => Ok(scaled),
            Some((width, height)) => {
                scaled.cut((scaled.width - width) / 2, (scaled.height - height) / 2, width, height)
            }
        }
    }
}

/// A width and a height, not rounded yet.
#[derive(Clone, Copy)]
struct Size {
    width: f64,
    height: f64,
}

impl Size {
    fn of(image: &Image) -> Size {
        Size { width: image.width as f64, height: image.height as f64 }
    }

    fn target(self, is_cropped: bool) -> Target {
        Target { width: self.width as usize, height: self.height as usize, is_cropped }
    }

    /// Rounded as Python does: a half goes to the even neighbour.
    fn rounded(width: f64, height: f64) -> Size {
        Size { width: width.round_ties_even(), height: height.round_ties_even() }
    }

    fn times(self, factor: f64) -> Size {
        Size::rounded(self.width * factor, self.height * factor)
    }

    fn times_in_steps(self, factor: f64, step: f64) -> Size {
        let size = Size::rounded(self.width * factor / step, self.height * factor / step);
        Size { width: size.width * step, height: size.height * step }
    }

    /// With these sides; one that is 0 follows from the other, and two leave everything as it is.
    fn with_sides(self, width: usize, height: usize) -> Size {
        let (wide, high) = (width as f64, height as f64);
        match (width, height) {
            (0, 0) => self,
            (0, _) => {
                Size { width: (self.width * high / self.height).round_ties_even().max(1.0), height: high }
            }
            (_, 0) => {
                Size { width: wide, height: (self.height * wide / self.width).round_ties_even().max(1.0) }
            }
            _ => Size { width: wide, height: high },
        }
    }

    fn with_longer_side(self, length: usize) -> Size {
        let length = length as f64;
        if self.height > self.width {
            Size { width: (self.width / self.height * length).round_ties_even(), height: length }
        } else {
            Size { width: length, height: (self.height / self.width * length).round_ties_even() }
        }
    }

    fn with_shorter_side(self, length: usize) -> Size {
        let length = length as f64;
        if self.height < self.width {
            Size { width: (self.width / self.height * length).round_ties_even(), height: length }
        } else {
            Size { width: length, height: (self.height / self.width * length).round_ties_even() }
        }
    }

    /// Just large enough to cut sides from that are the next smaller multiples.
    fn covering_multiple(self, multiple: usize) -> Option<Resized> {
        let step = multiple as f64;
        let (width, height) = ((self.width / step).floor() * step, (self.height / step).floor() * step);
        if width == 0.0 || height == 0.0 || (width, height) == (self.width, self.height) {
            return None;
        }
        let factor = (width / self.width).max(height / self.height);
        let scaled = if width / self.width >= height / self.height {
            Size { width, height: (self.height * factor).ceil().max(height) }
        } else {
            Size { width: (self.width * factor).ceil().max(width), height }
        };
        Some(Resized { target: scaled.target(false), kept: Some((width as usize, height as usize)) })
    }
}
