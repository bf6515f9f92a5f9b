//! A video that steers another through blocks beside the model's own (VACE).

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Value};
use models::conditioning::VideoControl;
use models::diffusion::latents::VIDEO_16;
use runtime::Runtime;
use runtime::host::Samples;
use sampling::Latent;

use super::{Asked, GREY, axes, both_changed, conditioned, zeros_of};
use crate::class::class;
use crate::conditioning::three_outputs;
use crate::image::{Method, Target, scale_mask};
use crate::value::{Image, Mask};
use crate::{Error, Result};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(WanVaceToVideo(Arc::clone(runtime)));
}

/// Pixels along one side of a latent value, which the mask keeps as channels.
const PIXELS: usize = VIDEO_16.pixels_per_value;

class! {
    /// A video that is made new where a mask says, and looks like a picture.
    WanVaceToVideo in "conditioning/video_models";
    |schema| {
        let schema = conditioned(schema)
            .input(Input::float("strength", 1.0, 0.0, 1000.0, 0.01))
            .input(Input::socket("control_video", "IMAGE").optional())
            .input(Input::socket("control_masks", "MASK").optional())
            .input(Input::socket("reference_image", "IMAGE").optional());
        three_outputs(schema).named_output("INT", "trim_latent")
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let video = asked.first_pictures(call, "control_video")?;
        let video = asked.filled_up(runtime, &video.iter().map(|video| (video, 0)).collect::<Vec<_>>())?;
        let mask = mask_of(call, &asked)?;
        let reference = reference_of(runtime, call, &asked)?;
        let more = reference.as_ref().map_or(0, |latent| axes(latent)[2]);
        let inactive = asked.encode(runtime, call, &masked(&video, &mask, |mask| 1.0 - mask)?)?;
        let reactive = asked.encode(runtime, call, &masked(&video, &mask, |mask| mask)?)?;
        let frames = steering_frames(runtime, reference.as_ref(), [&inactive, &reactive])?;
        let mask = steering_mask(runtime, &asked, &mask, more)?;
        let control = VideoControl {
            frames: frames.shared(),
            mask: mask.shared(),
            strength: call.float("strength")? as f32,
        };
        let [positive, negative] = both_changed(call, |entry| {
            entry.cond.controls.push(control.clone());
            entry.held.extend([frames.clone(), mask.clone()]);
        })?;
        Ok(Outcome::values([
            Value::object(positive),
            Value::object(negative),
            Value::object(asked.empty(runtime, &VIDEO_16, more)?),
            Value::from(more as i64),
        ]))
    }
}

/// A mask for each frame in the video's size; what is missing is made new.
fn mask_of(call: &Call, asked: &Asked) -> Result<Vec<f32>, Failure> {
    let count = asked.length * asked.height * asked.width;
    let mut values = match call.object_if_given::<Mask>("control_masks")? {
        None => Vec::with_capacity(count),
        Some(mask) => {
            let target = Target::cropped(asked.width, asked.height);
            scale_mask(&mask.frames(0..asked.length)?, target, Method::Bilinear)?.values.to_vec()
        }
    };
    values.resize(count, 1.0);
    Ok(values)
}

/// A picture's latent with zeros of the model beside it.
fn reference_of(runtime: &Runtime, call: &Call, asked: &Asked) -> Result<Option<Latent>, Failure> {
    let Some(image) = call.object_if_given::<Image>("reference_image")? else { return Ok(None) };
    let picture = asked.encode(runtime, call, &asked.fitted(&image.frames([0])?)?)?;
    let beside = zeros_of(&VIDEO_16, picture.shape())?;
    Ok(Some(picture.with_channels_of(&beside).map_err(Error::from)?))
}

/// The video where a mask counts, grey elsewhere.
fn masked(video: &Image, mask: &[f32], counts: impl Fn(f32) -> f32) -> Result<Image> {
    let value = |(at, value): (usize, &f32)| (value - GREY) * counts(mask[at / video.channels]) + GREY;
    Image::collect(video.host(), video.shape(), video.values.iter().enumerate().map(value))
}

/// Both halves of a video side by side, behind a reference.
fn steering_frames(runtime: &Runtime, reference: Option<&Latent>, halves: [&Samples; 2]) -> Result<Samples> {
    let [_, channels, frames, height, width] = axes(halves[0]);
    let (plane, more) = (height * width, reference.map_or(0, |latent| axes(latent)[2]));
    let shape = [1, 2 * channels, more + frames, height, width];
    let room = runtime.host.room(&shape)?;
    let mut values = Vec::with_capacity(shape.iter().product());
    for channel in 0..2 * channels {
        if let Some(reference) = reference {
            values.extend_from_slice(&reference.values()[channel * more * plane..][..more * plane]);
        }
        let half = halves[channel / channels].values();
        values.extend_from_slice(&half[channel % channels * frames * plane..][..frames * plane]);
    }
    Ok(room.latent(Latent::new(shape.to_vec(), values)?))
}

/// The mask with the pixels of a latent value as channels and one of its frames for each of the latent, behind zeros for a
/// reference.
fn steering_mask(runtime: &Runtime, asked: &Asked, mask: &[f32], more: usize) -> Result<Samples> {
    let [_, _, frames, height, width] = asked.shape(&VIDEO_16);
    let shape = [1, PIXELS * PIXELS, more + frames, height, width];
    let room = runtime.host.room(&shape)?;
    let mut values = Vec::with_capacity(shape.iter().product());
    for (dy, dx) in (0..PIXELS).flat_map(|dy| (0..PIXELS).map(move |dx| (dy, dx))) {
        values.resize(values.len() + more * height * width, 0.0);
        for frame in 0..frames {
            // The nearest frame to the middle of what the latent's frame stands for.
            let nearest = (2 * frame + 1) * asked.length / (2 * frames);
            let frame = &mask[nearest.min(asked.length - 1) * asked.height * asked.width..];
            for y in 0..height {
                let row = &frame[(y * PIXELS + dy) * asked.width..];
                values.extend((0..width).map(|x| row[x * PIXELS + dx]));
            }
        }
    }
    Ok(room.latent(Latent::new(shape.to_vec(), values)?))
}
