//! Pictures with transparency: parted, joined, and laid over each other in Porter and Duff's ways.

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome, Value};

use super::resample::{Method, Target, scale_image, scale_mask};
use crate::class::class;
use crate::value::{Image, Mask};
use crate::wanted::still_wanted;
use crate::{Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(PorterDuffImageComposite(Arc::clone(runtime)));
    catalogue.add(SplitImageWithAlpha(Arc::clone(runtime)));
    catalogue.add(JoinImageWithAlpha(Arc::clone(runtime)));
}

const MODES: [&str; 18] = [
    "ADD", "CLEAR", "DARKEN", "DST", "DST_ATOP", "DST_IN", "DST_OUT", "DST_OVER", "LIGHTEN", "MULTIPLY",
    "OVERLAY", "SCREEN", "SRC", "SRC_ATOP", "SRC_IN", "SRC_OUT", "SRC_OVER", "XOR",
];

class! {
    PorterDuffImageComposite in "mask/compositing";
    |schema| schema
        .title("Porter-Duff Image Composite")
        .about("Lays pictures with transparency over each other in one of Porter and Duff's ways.")
        .input(Input::socket("source", "IMAGE"))
        .input(Input::socket("source_alpha", "MASK"))
        .input(Input::socket("destination", "IMAGE"))
        .input(Input::socket("destination_alpha", "MASK"))
        .input(Input::choice("mode", MODES).with("default", "DST"))
        .output("IMAGE")
        .output("MASK");
    |runtime, call| {
        let (source, destination) = (call.object::<Image>("source")?, call.object::<Image>("destination")?);
        let source_mask = call.object::<Mask>("source_alpha")?;
        let destination_mask = call.object::<Mask>("destination_alpha")?;
        if source.channels != destination.channels {
            let text = format!("source has {} channels and destination {}", source.channels, destination.channels);
            return Err(Failure::value(text + "; they must be equal"));
        }
        let Image { height, width, channels, .. } = *destination;
        let source = fit_image(&source, width, height)?;
        let source_mask = fit_mask(&source_mask, width, height)?;
        let destination_mask = fit_mask(&destination_mask, width, height)?;
        let batch = source.batch.min(source_mask.batch).min(destination.batch).min(destination_mask.batch);
        let mode = call.text("mode")?;
        let mut image = Image::filled(destination.host(), [batch, height, width, channels], 0.0)?;
        let mut mask = Mask::filled(destination.host(), [batch, height, width], 0.0)?;
        let out = image.values.to_mut()?;
        for (place, transparency) in mask.values.to_mut()?.iter_mut().enumerate() {
            if place.is_multiple_of(width) {
                still_wanted()?;
            }
            let (source_alpha, destination_alpha) =
                (1.0 - source_mask.values[place], 1.0 - destination_mask.values[place]);
            let mut alpha = 0.0;
            let colours = place * channels..(place + 1) * channels;
            for (at, out) in colours.clone().zip(&mut out[colours]) {
                let over = Layer { colour: source.values[at] * source_alpha, alpha: source_alpha };
                let under = Layer { colour: destination.values[at] * destination_alpha, alpha: destination_alpha };
                let mixed = mixed(mode, over, under);
                alpha = mixed.alpha;
                *out = if alpha > 1e-5 { (mixed.colour / alpha).clamp(0.0, 1.0) } else { 0.0 };
            }
            *transparency = 1.0 - alpha;
        }
        Ok(Outcome::values([Value::object(image), Value::object(mask)]))
    }
}

fn fit_image(image: &Image, width: usize, height: usize) -> Result<Image> {
    if (image.width, image.height) == (width, height) {
        return Ok(image.clone());
    }
    scale_image(image, Target::cropped(width, height), Method::Bicubic)
}

fn fit_mask(mask: &Mask, width: usize, height: usize) -> Result<Mask> {
    if (mask.width, mask.height) == (width, height) {
        return Ok(mask.clone());
    }
    scale_mask(mask, Target::cropped(width, height), Method::Bicubic)
}

/// A value of a picture, times its opacity, and that.
#[derive(Clone, Copy)]
struct Layer {
    colour: f32,
    alpha: f32,
}

fn mixed(mode: &str, over: Layer, under: Layer) -> Layer {
    let (s, d) = (over.colour, under.colour);
    let (sa, da) = (over.alpha, under.alpha);
    let union = sa + da - sa * da;
    let (colour, alpha) = match mode {
        "ADD" => ((s + d).clamp(0.0, 1.0), (sa + da).clamp(0.0, 1.0)),
        "CLEAR" => (0.0, 0.0),
        "DARKEN" => ((1.0 - da) * s + (1.0 - sa) * d + s.min(d), union),
        "DST_ATOP" => (sa * d + (1.0 - da) * s, sa),
        "DST_IN" => (d * sa, sa * da),
        "DST_OUT" => ((1.0 - sa) * d, (1.0 - sa) * da),
        "DST_OVER" => (d + (1.0 - da) * s, da + (1.0 - da) * sa),
        "LIGHTEN" => ((1.0 - da) * s + (1.0 - sa) * d + s.max(d), union),
        "MULTIPLY" => (s * d, sa * da),
        "OVERLAY" if 2.0 * d < da => (2.0 * s * d, union),
        "OVERLAY" => (sa * da - 2.0 * (da - s) * (sa - d), union),
        "SCREEN" => (s + d - s * d, union),
        "SRC" => (s, sa),
        "SRC_ATOP" => (da * s + (1.0 - sa) * d, da),
        "SRC_IN" => (s * da, sa * da),
        "SRC_OUT" => ((1.0 - da) * s, (1.0 - da) * sa),
        "SRC_OVER" => (s + (1.0 - sa) * d, sa + (1.0 - sa) * da),
        "XOR" => ((1.0 - da) * s + (1.0 - sa) * d, (1.0 - da) * sa + (1.0 - sa) * da),
        _ => (d, da),
    };
    Layer { colour, alpha }
}

class! {
    SplitImageWithAlpha in "mask/compositing";
    |schema| schema
        .title("Split Image with Alpha")
        .about("Parts pictures into their colours and a mask of their transparency.")
        .input(Input::socket("image", "IMAGE"))
        .output("IMAGE")
        .output("MASK");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let mask = image.with_channels(4)?.channel(3)?.map(|alpha| 1.0 - alpha)?;
        Ok(Outcome::values([Value::object(image.with_channels(3)?), Value::object(mask)]))
    }
}

class! {
    JoinImageWithAlpha in "mask/compositing";
    |schema| schema
        .title("Join Image with Alpha")
        .about("Makes pictures transparent where a mask is 1.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::socket("alpha", "MASK"))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let mask = scale_mask(&*call.object("alpha")?, Target::new(image.width, image.height), Method::Bilinear)?;
        let mut out = image.repeated_to(image.batch.min(mask.batch))?.with_channels(4)?;
        for (pixel, mask) in out.values.to_mut()?.chunks_exact_mut(4).zip(&mask.values) {
            pixel[3] = 1.0 - mask;
        }
        Ok(Outcome::object(out))
    }
}
