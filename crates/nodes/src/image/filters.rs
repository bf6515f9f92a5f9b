//! Mixing, blurring and sharpening.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome};

use super::resample::{Method, Target, scale_image};
use crate::class::class;
use crate::value::{Image, filled};
use crate::wanted::still_wanted;
use crate::{Error, Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(ImageBlend(Arc::clone(runtime)));
    catalogue.add(ImageBlur(Arc::clone(runtime)));
    catalogue.add(ImageSharpen(Arc::clone(runtime)));
    catalogue.add(ImageAddNoise(Arc::clone(runtime)));
}

class! {
    ImageBlend in "image/postprocessing";
    |schema| schema
        .title("Image Blend")
        .about("Mixes two pictures. The second is scaled and cut to the size of the first.")
        .input(Input::socket("image1", "IMAGE"))
        .input(Input::socket("image2", "IMAGE"))
        .input(Input::float("blend_factor", 0.5, 0.0, 1.0, 0.01))
        .input(Input::choice("blend_mode", ["normal", "multiply", "screen", "overlay", "soft_light", "difference"]))
        .output("IMAGE");
    |runtime, call| {
        let (first, second) = same_channels(&*call.object("image1")?, &*call.object("image2")?)?;
        let second = if (first.height, first.width) == (second.height, second.width) {
            second
        } else {
            scale_image(&second, Target::cropped(first.width, first.height), Method::Bicubic)?
        };
        let batch = first.batch.max(second.batch);
        let (first, second) = (first.repeated_to(batch)?, second.repeated_to(batch)?);
        let mode = call.text("blend_mode")?;
        let factor = call.float("blend_factor")? as f32;
        let mixed = first.values.iter().zip(&second.values).map(|(a, b)| {
            (a * (1.0 - factor) + blended(mode, *a, *b) * factor).clamp(0.0, 1.0)
        });
        Ok(Outcome::object(Image::collect(first.host(), first.shape(), mixed)?))
    }
}

fn blended(mode: &str, a: f32, b: f32) -> f32 {
    match mode {
        "multiply" => a * b,
        "screen" => 1.0 - (1.0 - a) * (1.0 - b),
        "overlay" if a <= 0.5 => 2.0 * a * b,
        "overlay" => 1.0 - 2.0 * (1.0 - a) * (1.0 - b),
        "soft_light" if b <= 0.5 => a - (1.0 - 2.0 * b) * a * (1.0 - a),
        "soft_light" => {
            let curve = if a <= 0.25 { ((16.0 * a - 12.0) * a + 4.0) * a } else { a.sqrt() };
            a + (2.0 * b - 1.0) * (curve - a)
        }
        "difference" => a - b,
        _ => b,
    }
}

/// The second with as many channels as the first, opaque if it had no transparency.
pub(super) fn same_channels(first: &Image, second: &Image) -> Result<(Image, Image)> {
    Ok((first.clone(), second.with_channels(first.channels)?))
}

class! {
    ImageBlur in "image/postprocessing";
    |schema| schema
        .title("Image Blur")
        .about("Blurs pictures.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::int("blur_radius", 1, 1, 31).with("step", 1))
        .input(Input::float("sigma", 1.0, 0.1, 10.0, 0.1))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let kernel = bell(call.size("blur_radius")?, call.float("sigma")?);
        Ok(Outcome::object(blurred(&image, &kernel)?))
    }
}

class! {
    ImageSharpen in "image/postprocessing";
    |schema| schema
        .title("Image Sharpen")
        .about("Sharpens pictures: adds what a blur would take away.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::int("sharpen_radius", 1, 1, 31).with("step", 1))
        .input(Input::float("sigma", 1.0, 0.1, 10.0, 0.01))
        .input(Input::float("alpha", 1.0, 0.0, 5.0, 0.01))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let kernel = bell(call.size("sharpen_radius")?, call.float("sigma")?);
        let strength = (call.float("alpha")? * 10.0) as f32;
        let soft = blurred(&image, &kernel)?;
        let sharp = image.values.iter().zip(&soft.values).map(|(value, soft)| {
            (value * (1.0 + strength) - soft * strength).clamp(0.0, 1.0)
        });
        Ok(Outcome::object(Image::collect(image.host(), image.shape(), sharp)?))
    }
}

class! {
    ImageAddNoise in "image";
    |schema| schema
        .about("Adds noise to pictures, the same for the same seed.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::seed("seed"))
        .input(Input::float("strength", 0.5, 0.0, 1.0, 0.01))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let shape = image.shape();
        let _noise_room = image.host().room(&shape)?;
        let noise = sampling::noise::prepare_noise_while(call.seed("seed")?, &shape, None, || call.check().is_ok())
            .map_err(Error::from)?;
        let strength = call.float("strength")? as f32;
        let noisy = image.values.iter().zip(noise.values()).map(|(value, noise)| {
            (value + strength * noise).clamp(0.0, 1.0)
        });
        Ok(Outcome::object(Image::collect(image.host(), shape, noisy)?))
    }
}

/// One side of a bell curve over -1 to 1, whatever the radius; the square of it sums to 1.
fn bell(radius: usize, sigma: f64) -> Vec<f32> {
    let place = |at: usize| if radius == 0 { 0.0 } else { at as f64 / radius as f64 - 1.0 };
    let heights: Vec<f64> =
        (0..=2 * radius).map(|at| (-place(at).powi(2) / (2.0 * sigma * sigma)).exp()).collect();
    let sum: f64 = heights.iter().sum();
    heights.iter().map(|height| (height / sum) as f32).collect()
}

/// Pictures under a kernel along rows and then columns. Beyond the edge they are mirrored.
pub(super) fn blurred(image: &Image, kernel: &[f32]) -> Result<Image> {
    let radius = kernel.len() / 2;
    if radius >= image.width || radius >= image.height {
        let (width, height) = (image.width, image.height);
        let text = format!("a radius of {radius} is too large for a picture of {width}x{height} pixels");
        return Err(Error::Told(text));
    }
    let (_rows_room, room) = (image.host().room(&image.shape())?, image.host().room(&image.shape())?);
    let lines = image.batch * image.height;
    let rows = under_kernel(&image.values, [lines, image.width, image.channels], kernel)?;
    let columns = under_kernel(&rows, [image.batch, image.height, image.width * image.channels], kernel)?;
    Ok(Image::of(image.shape(), room.hold(columns)))
}

/// Values of `[before, length, after]` under a kernel along the length.
fn under_kernel(values: &[f32], shape: [usize; 3], kernel: &[f32]) -> Result<Vec<f32>> {
    let [_, length, after] = shape;
    let radius = kernel.len() / 2;
    let mut out = filled(&shape, 0.0)?;
    for (source, out) in values.chunks_exact(length * after).zip(out.chunks_exact_mut(length * after)) {
        still_wanted()?;
        for (at, out) in out.chunks_exact_mut(after).enumerate() {
            // A place of one pixel is too little to ask for.
            if after >= LONG_ROW {
                still_wanted()?;
            }
            for (offset, weight) in kernel.iter().enumerate() {
                let from = mirrored(at + offset, radius, length);
                for (value, source) in out.iter_mut().zip(&source[from * after..]) {
                    *value += weight * source;
                }
            }
        }
    }
    Ok(out)
}

/// Values side by side that are worth asking whether they are wanted.
const LONG_ROW: usize = 1024;

/// The place `shifted - radius`, mirrored at the first and last one.
fn mirrored(shifted: usize, radius: usize, length: usize) -> usize {
    let place = shifted.abs_diff(radius);
    if place < length { place } else { 2 * (length - 1) - place }
}
