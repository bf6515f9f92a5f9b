//! LTX-Video's own nodes: pictures that a video starts with or is led by, its schedule and what it is told of time.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema, Value};
use models::diffusion::ltxv::LATENT;
use runtime::host::Samples;
use runtime::{Model, Runtime, Vae};
use sampling::{Latent, LatentShape, ModelSampling, nodes};

use crate::class::class;
use crate::conditioning::{changed, three_outputs};
use crate::image::{Method, Target, pixels, scale_image};
use crate::latent::{EmptyLatent, sized};
use crate::sampling_nodes::{give_sigmas, with_sampling};
use crate::upscale::LatentUpscaleModel;
use crate::value::{Conditioning, Image, LatentImage, Mask};
use crate::video::through_codec;
use crate::{Error, Result, vae};

/// Where ComfyUI has these classes.
const MODULE: &str = "comfy_extras.nodes_lt";
/// Frames of a video behind the first that one frame of a latent stands for.
const FRAMES: usize = 8;
/// Places of a latent that the shift is counted for where no latent is given.
const USUAL_TOKENS: usize = 4096;
/// Frames of a guide that stand behind the video; those after them are put into it.
const FRAMES_BEHIND: usize = 2;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(EmptyLTXVLatentVideo(runtime()));
    catalogue.add(LTXVImgToVideo(runtime()));
    catalogue.add(LTXVAddGuide(runtime()));
    catalogue.add(LTXVCropGuides(runtime()));
    catalogue.add(LTXVConditioning(runtime()));
    catalogue.add(ModelSamplingLTXV(runtime()));
    catalogue.add(LTXVScheduler(runtime()));
    catalogue.add(LTXVPreprocess(runtime()));
    catalogue.add(LTXVLatentUpsampler(runtime()));
}

fn both_texts(schema: Schema) -> Schema {
    schema.input(Input::socket("positive", "CONDITIONING")).input(Input::socket("negative", "CONDITIONING"))
}

fn shifts(schema: Schema) -> Schema {
    schema.input(Input::float("max_shift", 2.05, 0.0, 100.0, 0.01)).input(Input::float(
        "base_shift",
        0.95,
        0.0,
        100.0,
        0.01,
    ))
}

class! {
    EmptyLTXVLatentVideo in "latent/video/ltxv";
    |schema| sized(schema, [768, 512], [32, 64], Some(pixels("length", 97, 1, 8)))
        .about("Makes empty latent videos for LTX-Video.");
    |runtime, call| EmptyLatent { channels: 128, pixels: 32, frames: Some(FRAMES) }.empty(runtime, call)
}

class! {
    /// A video that begins with pictures.
    LTXVImgToVideo in "conditioning/video_models";
    |schema| {
        let schema = both_texts(schema)
            .input(Input::socket("vae", "VAE"))
            .input(Input::socket("image", "IMAGE"))
            .input(pixels("width", 768, 64, 32))
            .input(pixels("height", 512, 64, 32))
            .input(pixels("length", 97, 9, FRAMES as i64))
            .input(Input::int("batch_size", 1, 1, 4096))
            .input(Input::float("strength", 1.0, 0.0, 1.0, 0.01));
        three_outputs(schema).module(MODULE)
    };
    |runtime, call| {
        let (width, height, length) = (call.size("width")?, call.size("height")?, call.size("length")?);
        let image = call.object::<Image>("image")?;
        let start = scale_image(&image, Target::cropped(width, height), Method::Bilinear)?.with_channels(3)?;
        let encoded = vae::encode(runtime, call, &*call.object::<Vae>("vae")?, &start)?;
        let side = |pixels: usize| pixels / LATENT.pixels_per_value;
        let frames = length.saturating_sub(1) / FRAMES + 1;
        let shape = [call.size("batch_size")?, LATENT.channels, frames, side(height), side(width)];
        let room = runtime.host.room(&shape)?;
        let mut latent = Latent::zeros(&shape);
        let given = overwrite(&mut latent, &encoded, 0)?;
        let kept = 1.0 - call.float("strength")? as f32;
        let mask = (0..frames).map(|frame| if frame < given { kept } else { 1.0 });
        let mask = Mask::collect(&runtime.host, [frames, 1, 1], mask)?;
        let latent = LatentImage { noise_mask: Some(mask), ..LatentImage::new(room.latent(latent)) };
        let text = |input: &str| call.object::<Conditioning>(input).map(|text| Value::object(Conditioning::clone(&text)));
        Ok(Outcome::values([text("positive")?, text("negative")?, Value::object(latent)]))
    }
}

class! {
    /// Pictures that lead a video at a frame.
    LTXVAddGuide in "conditioning/video_models";
    |schema| {
        let schema = both_texts(schema)
            .input(Input::socket("vae", "VAE"))
            .input(Input::socket("latent", "LATENT"))
            .input(Input::socket("image", "IMAGE").tooltip(
                "A picture or a video that leads; of a video 8 n + 1 frames count, what is over is left out.",
            ))
            .input(Input::int("frame_idx", 0, -9999, 9999).tooltip(
                "The frame that it begins at; below 0 it is counted from the end. Videos of more than eight frames begin \
                 right behind a multiple of eight.",
            ))
            .input(Input::float("strength", 1.0, 0.0, 1.0, 0.01));
        three_outputs(schema).module(MODULE)
    };
    |runtime, call| {
        let latent = call.object::<LatentImage>("latent")?;
        let shape = LatentShape::of(&latent.samples).map_err(Error::from)?;
        let image = call.object::<Image>("image")?;
        let whole = image.frames(0..1 + image.batch.saturating_sub(1) / FRAMES * FRAMES)?;
        let side = |values: usize| values * LATENT.pixels_per_value;
        let target = Target::new(side(shape.width), side(shape.height));
        let whole = scale_image(&whole, target, Method::Bilinear)?.with_channels(3)?;
        let guide = vae::encode(runtime, call, &*call.object::<Vae>("vae")?, &whole)?;
        let of_video = shape.frames - keyframes_of(call)?.len().min(shape.frames);
        let start = start_of(call.int("frame_idx")?, of_video, whole.batch);
        let place = Place { start, strength: call.float("strength")? as f32 };
        let led = led_by(runtime, &latent, &guide, &place)?;
        let times = place.times(LatentShape::of(&guide).map_err(Error::from)?.frames.min(FRAMES_BEHIND));
        let text = |input: &str| -> Result<Value, Failure> {
            let text = changed(call, input, |entry| entry.cond.keyframes.extend_from_slice(&times))?;
            Ok(Value::object(text))
        };
        Ok(Outcome::values([text("positive")?, text("negative")?, Value::object(led)]))
    }
}

/// Where a guide stands in a video, and how much it counts.
struct Place {
    start: usize,
    strength: f32,
}

impl Place {
    /// The frames of the video at which so many frames of the guide's latent stand.
    fn times(&self, count: usize) -> Vec<f32> {
        // At the start of a video the first frame of a latent stands for one, not for eight.
        let before = if self.start == 0 { FRAMES - 1 } else { 0 };
        (0..count).map(|frame| (self.start + (frame * FRAMES).saturating_sub(before)) as f32).collect()
    }

    /// The frame of the latent that it begins at, where the guide has so many frames.
    fn latent_frame(&self, guide_frames: usize) -> usize {
        start_of(self.start as i64, 0, guide_frames).div_ceil(FRAMES)
    }
}

/// The frame of a video of so many latent frames that a guide begins at. One of several frames begins right behind a
/// multiple of eight, or at the start.
fn start_of(asked: i64, latent_frames: usize, guide_frames: usize) -> usize {
    let length = (latent_frames.saturating_sub(1) * FRAMES + 1) as i64;
    let start = if asked < 0 { (length + asked).max(0) } else { asked };
    let start = usize::try_from(start).unwrap_or(0);
    if guide_frames > 1 && start != 0 { (start - 1) / FRAMES * FRAMES + 1 } else { start }
}

/// The different frames at which the positive text says that a video is led.
fn keyframes_of(call: &Call) -> Result<Vec<f32>, Failure> {
    let positive = call.object::<Conditioning>("positive")?;
    let said = positive.entries.iter().map(|entry| &entry.cond.keyframes).find(|frames| !frames.is_empty());
    let mut frames = said.cloned().unwrap_or_default();
    frames.sort_by(f32::total_cmp);
    frames.dedup();
    Ok(frames)
}

/// A latent with the first frames of a guide behind it and the others in it, and with a mask that says how much they stay.
fn led_by(runtime: &Runtime, latent: &LatentImage, guide: &Latent, place: &Place) -> Result<LatentImage> {
    let (shape, given) = (LatentShape::of(&latent.samples)?, LatentShape::of(guide)?);
    let first = given.frames.min(FRAMES_BEHIND);
    let start = place.start.div_ceil(FRAMES);
    if start + given.frames > shape.frames {
        return Err(Error::Told(format!(
            "the guide of {} latent frames does not fit into the video's {} from frame {start} on; begin it earlier, or \
             make the video longer",
            given.frames, shape.frames
        )));
    }
    if given.channels != shape.channels {
        return Err(Error::Told(format!(
            "the guide has {} channels and the latent {}; load the autoencoder of the model",
            given.channels, shape.channels
        )));
    }
    let all = [shape.batch, shape.channels, shape.frames + first, shape.height, shape.width];
    let room = runtime.host.room(&all)?;
    let mut joined = Latent::zeros(&all);
    overwrite(&mut joined, &latent.samples, 0)?;
    overwrite(&mut joined, &guide_frames(guide, 0, first)?, shape.frames)?;
    overwrite(&mut joined, &guide_frames(guide, first, given.frames - first)?, start + first)?;
    let mask = mask_of(runtime, latent, shape.frames)?;
    let (plane, kept) = (mask.height * mask.width, 1.0 - place.strength);
    let mut values = mask.values.to_vec();
    let mut fill = |from: usize, frames: usize, value: f32| {
        let end = ((from + frames) * plane).min(values.len());
        values[(from * plane).min(end)..end].fill(value);
    };
    // What stands behind is not fixed in the video itself.
    fill(place.latent_frame(first), first, 1.0);
    fill(start + first, given.frames - first, kept);
    values.resize(values.len() + first * plane, kept);
    let mask = Mask::collect(&runtime.host, [shape.frames + first, mask.height, mask.width], values)?;
    Ok(LatentImage { samples: room.latent(joined), noise_mask: Some(mask), ..latent.clone() })
}

/// The mask of a latent of so many frames, one plane for each; everything is made new where it has none.
fn mask_of(runtime: &Runtime, latent: &LatentImage, frames: usize) -> Result<Mask> {
    match &latent.noise_mask {
        None => Mask::filled(&runtime.host, [frames, 1, 1], 1.0),
        Some(mask) if mask.batch == frames => Ok(mask.clone()),
        Some(mask) if mask.batch == 1 => mask.repeated_to(frames),
        Some(mask) => Err(Error::Told(format!(
            "the latent has {frames} frames and its mask {}; give the mask one plane, or one for each frame",
            mask.batch
        ))),
    }
}

/// Some frames of a latent.
fn guide_frames(latent: &Latent, start: usize, count: usize) -> Result<Latent> {
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(latent)?;
    let plane = height * width;
    let volumes = latent.values().chunks_exact((frames * plane).max(1));
    let values = volumes.flat_map(|volume| &volume[start * plane..(start + count) * plane]).copied();
    Ok(Latent::new(vec![batch, channels, count, height, width], values.collect())?)
}

/// Writes the frames of one latent over those of another from a frame on, into every item and as many as fit; how many
/// those were.
fn overwrite(to: &mut Latent, from: &Latent, start: usize) -> Result<usize> {
    let (shape, given) = (LatentShape::of(to)?, LatentShape::of(from)?);
    if (shape.channels, shape.height, shape.width) != (given.channels, given.height, given.width) {
        return Err(Error::Told(format!(
            "a latent of {:?} values does not fit into one of {:?}; load the autoencoder of the model",
            from.shape(),
            to.shape()
        )));
    }
    let (plane, count) = (shape.plane(), given.frames.min(shape.frames.saturating_sub(start)));
    if count * plane == 0 || given.batch == 0 {
        return Ok(0);
    }
    for (index, volume) in to.values_mut().chunks_exact_mut(shape.frames * plane).enumerate() {
        let (item, channel) = (index / shape.channels % given.batch, index % shape.channels);
        let source = &from.values()[(item * given.channels + channel) * given.frames * plane..];
        volume[start * plane..(start + count) * plane].copy_from_slice(&source[..count * plane]);
    }
    Ok(count)
}

class! {
    /// A video without the frames that led it.
    LTXVCropGuides in "conditioning/video_models";
    |schema| {
        let schema = both_texts(schema).input(Input::socket("latent", "LATENT"));
        three_outputs(schema).module(MODULE)
    };
    |runtime, call| {
        let latent = call.object::<LatentImage>("latent")?;
        let shape = LatentShape::of(&latent.samples).map_err(Error::from)?;
        let frames = shape.frames - keyframes_of(call)?.len().min(shape.frames);
        let mask = mask_of(runtime, &latent, shape.frames)?.frames(0..frames)?;
        let samples = Samples::new(&runtime.host, guide_frames(&latent.samples, 0, frames)?)?;
        let latent = LatentImage { samples, noise_mask: Some(mask), ..LatentImage::clone(&latent) };
        let text = |input: &str| changed(call, input, |entry| entry.cond.keyframes.clear()).map(Value::object);
        Ok(Outcome::values([text("positive")?, text("negative")?, Value::object(latent)]))
    }
}

class! {
    /// How many frames of a video pass in a second.
    LTXVConditioning in "conditioning/video_models";
    |schema| both_texts(schema)
        .input(Input::float("frame_rate", 25.0, 0.0, 1000.0, 0.01))
        .named_output("CONDITIONING", "positive")
        .named_output("CONDITIONING", "negative")
        .module(MODULE);
    |runtime, call| {
        let rate = call.float("frame_rate")? as f32;
        let text = |input: &str| changed(call, input, |entry| entry.cond.frame_rate = Some(rate)).map(Value::object);
        Ok(Outcome::values([text("positive")?, text("negative")?]))
    }
}

/// Places of a latent, or as many as are usual.
fn tokens(call: &Call) -> Result<usize, Failure> {
    let latent = call.object_if_given::<LatentImage>("latent")?;
    Ok(latent.map_or(USUAL_TOKENS, |latent| latent.samples.shape().iter().skip(2).product()))
}

class! {
    /// A flow shifted by the size of the video.
    ModelSamplingLTXV in "advanced/model";
    |schema| shifts(schema.input(Input::socket("model", "MODEL")))
        .input(Input::socket("latent", "LATENT").optional())
        .output("MODEL")
        .module(MODULE);
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        let (base, max) = (call.float("base_shift")?, call.float("max_shift")?);
        let shift = nodes::ltxv_shift(max, base, tokens(call)?);
        Ok(with_sampling(&model, ModelSampling::exponential_flow(shift)))
    }
}

class! {
    /// The levels of LTX-Video for the size of a video.
    LTXVScheduler in "sampling/custom_sampling/schedulers";
    |schema| shifts(schema.input(Input::int("steps", 20, 1, 10_000)))
        .input(Input::boolean("stretch", true).tooltip("Whether the last level above 0 becomes the terminal one."))
        .input(Input::float("terminal", 0.1, 0.0, 0.99, 0.01).tooltip("The last level above 0 where they are stretched."))
        .input(Input::socket("latent", "LATENT").optional())
        .output("SIGMAS")
        .module(MODULE);
    |runtime, call| {
        let terminal = if call.boolean("stretch")? { Some(call.float("terminal")?) } else { None };
        let (base, max) = (call.float("base_shift")?, call.float("max_shift")?);
        give_sigmas(nodes::ltxv(call.size("steps")?, max, base, terminal, tokens(call)?))
    }
}

class! {
    /// Pictures as a video codec leaves them, each by itself.
    LTXVPreprocess in "image";
    |schema| schema
        .input(Input::socket("image", "IMAGE"))
        .input(Input::int("img_compression", 35, 0, 100).tooltip("How much is lost; nothing at 0."))
        .named_output("IMAGE", "output_image")
        .module(MODULE);
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        match call.size("img_compression")? {
            0 => Ok(Outcome::object(Image::clone(&image))),
            lost => Ok(Outcome::object(through_codec(call, &image, lost as f64)?)),
        }
    }
}

class! {
    /// A latent video with frames of twice the size, by a network that knows latents as the autoencoder's layers have them.
    LTXVLatentUpsampler in "latent/video";
    |schema| schema
        .input(Input::socket("samples", "LATENT"))
        .input(Input::socket("upscale_model", "LATENT_UPSCALE_MODEL"))
        .input(Input::socket("vae", "VAE"))
        .output("LATENT")
        .module("comfy_extras.nodes_lt_upsampler");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let model = call.object::<LatentUpscaleModel>("upscale_model")?;
        let vae = call.object::<Vae>("vae")?;
        let Some([means, deviations]) = vae::channel_statistics(&vae)? else {
            let text = format!("{} says nothing of its latents' channels; link the autoencoder of LTX-Video", vae.source.name());
            return Err(Failure::value(text));
        };
        let change = |latent: &Latent, of: &dyn Fn(usize, f32) -> f32| -> Result<Latent> {
            let LatentShape { channels, frames, height, width, .. } = LatentShape::of(latent)?;
            let volume = (frames * height * width).max(1);
            let values = latent.values().chunks_exact(volume).enumerate().flat_map(|(at, values)| {
                values.iter().map(move |value| of(at % channels, *value))
            });
            Ok(Latent::new(latent.shape().to_vec(), values.collect())?)
        };
        let channels = LatentShape::of(&latent.samples).map_err(Error::from)?.channels;
        if means.len() != channels || deviations.len() != channels {
            let (name, known) = (vae.source.name(), means.len());
            return Err(Failure::value(format!("{name} has latents of {known} channels, but this one has {channels}")));
        }
        let raw = change(&latent.samples, &|channel, value| value * deviations[channel] + means[channel])?;
        let large = model.enlarge(runtime, call, &raw)?;
        let room = runtime.host.room(large.shape())?;
        let large = change(&large, &|channel, value| (value - means[channel]) / deviations[channel])?;
        Ok(Outcome::object(LatentImage::new(room.latent(large))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guides_stand_where_they_are_asked_for() {
        assert_eq!(start_of(-1, 3, 1), 16);
        assert_eq!(start_of(-99, 3, 1), 0);
        assert_eq!(start_of(13, 3, 9), 9);
        assert_eq!(Place { start: 0, strength: 1.0 }.times(3), [0.0, 1.0, 9.0]);
        assert_eq!(Place { start: 9, strength: 1.0 }.times(2), [9.0, 17.0]);
        assert_eq!(Place { start: 16, strength: 1.0 }.latent_frame(1), 2);
    }

    #[test]
    fn frames_are_written_into_every_item() {
        let mut to = Latent::zeros(&[2, 1, 3, 1, 1]);
        let from = Latent::new(vec![1, 1, 2, 1, 1], vec![5.0, 6.0]).unwrap();
        assert_eq!(overwrite(&mut to, &from, 2).unwrap(), 1);
        assert_eq!(to.values(), [0.0, 0.0, 5.0, 0.0, 0.0, 5.0]);
        assert_eq!(guide_frames(&from, 1, 1).unwrap().values(), [6.0]);
    }
}
