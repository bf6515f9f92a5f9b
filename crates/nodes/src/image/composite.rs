//! One picture or latent laid over another, through a mask if there is one.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome};

use super::filters::same_channels;
use super::pixels;
use super::resample::{Method, Target, scale_image, scale_mask};
use crate::class::class;
use crate::value::{Image, Mask};
use crate::wanted::still_wanted;
use crate::{Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(ImageCompositeMasked(Arc::clone(runtime)));
}

class! {
    ImageCompositeMasked in "image";
    |schema| schema
        .about("Lays pictures over others, through a mask if there is one.")
        .input(Input::socket("destination", "IMAGE"))
        .input(Input::socket("source", "IMAGE"))
        .input(pixels("x", 0, 0, 1))
        .input(pixels("y", 0, 0, 1))
        .input(Input::boolean("resize_source", false))
        .input(Input::socket("mask", "MASK").optional())
        .output("IMAGE");
    |runtime, call| {
        let (destination, mut source) = same_channels(&*call.object("destination")?, &*call.object("source")?)?;
        if call.boolean("resize_source")? {
            source = scale_image(&source, Target::new(destination.width, destination.height), Method::Bilinear)?;
        }
        let patch = Patch {
            left: call.size("x")?,
            top: call.size("y")?,
            width: source.width,
            height: source.height,
            mask: call.object_if_given::<Mask>("mask")?,
        };
        let source = source.repeated_to(destination.batch)?;
        let shape = [destination.batch, 1, destination.height, destination.width, destination.channels];
        let room = destination.host().room(&destination.shape())?;
        let values = composite(&destination.values, shape, &source.values, &patch)?;
        Ok(Outcome::object(Image::of(destination.shape(), room.hold(values))))
    }
}

/// Where a source goes.
pub(crate) struct Patch {
    pub(crate) left: usize,
    pub(crate) top: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// How much of it is seen; scaled to its size.
    pub(crate) mask: Option<Arc<Mask>>,
}

/// Lays a source over a destination of `[batch, planes, height, width, channels]`. The source has as many items,
/// planes and channels; what lies outside is not seen.
pub(crate) fn composite(
    destination: &[f32],
    shape: [usize; 5],
    source: &[f32],
    patch: &Patch,
) -> Result<Vec<f32>> {
    let [batch, planes, height, width, channels] = shape;
    let mut out = destination.to_vec();
    let mask = match &patch.mask {
        None => None,
        Some(mask) => {
            let mask = scale_mask(mask, Target::new(patch.width, patch.height), Method::Bilinear)?;
            Some(mask.repeated_to(batch)?)
        }
    };
    let seen_width = patch.width.min(width.saturating_sub(patch.left));
    let seen_height = if seen_width == 0 { 0 } else { patch.height.min(height.saturating_sub(patch.top)) };
    for plane in 0..batch * planes {
        for row in 0..seen_height {
            still_wanted()?;
            let to = ((plane * height + patch.top + row) * width + patch.left) * channels;
            let from = (plane * patch.height + row) * patch.width * channels;
            let length = seen_width * channels;
            let (out, source) = (&mut out[to..to + length], &source[from..from + length]);
            let Some(mask) = &mask else {
                out.copy_from_slice(source);
                continue;
            };
            let start = (plane / planes * patch.height + row) * patch.width;
            let seen = mask.values[start..].iter().flat_map(|value| std::iter::repeat_n(*value, channels));
            for ((out, source), seen) in out.iter_mut().zip(source).zip(seen) {
                *out = seen * source + (1.0 - seen) * *out;
            }
        }
    }
    Ok(out)
}
