//! Pictures and videos that stand beside, in front of or behind the latent.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Value};
use models::diffusion::latents::{VIDEO_16, VIDEO_48};
use runtime::Runtime;
use runtime::host::Samples;
use sampling::Latent;

use super::{
    Asked, FRAMES, MODULE, axes, both_changed, conditioned, made_new, overwrite, seen, sized, zeros_of,
};
use crate::class::class;
use crate::conditioning::{changed, three_outputs};
use crate::value::{Array, Conditioning, Entry, Image, LatentImage, Mask};
use crate::{Error, Result};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(WanImageToVideo(runtime()));
    catalogue.add(WanFirstLastFrameToVideo(runtime()));
    catalogue.add(WanFunInpaintToVideo(runtime()));
    catalogue.add(WanFunControlToVideo(runtime()));
    catalogue.add(Wan22FunControlToVideo(runtime()));
    catalogue.add(WanPhantomSubjectToVideo(runtime()));
    catalogue.add(Wan22ImageToVideoLatent(runtime()));
    catalogue.add(TrimVideoLatent(runtime()));
}

/// A picture input that may be left out.
fn picture(name: &str) -> Input {
    Input::socket(name, "IMAGE").optional()
}

/// What a vision tower saw, which may be left out.
fn features(name: &str) -> Input {
    Input::socket(name, "CLIP_VISION_OUTPUT").optional()
}

/// What stands beside the latent.
#[derive(Default)]
pub(super) struct Beside {
    pub(super) picture: Option<Samples>,
    pub(super) mask: Option<Samples>,
    pub(super) mask_at: usize,
    pub(super) vision: Option<Arc<Array>>,
    pub(super) reference: Option<Samples>,
    pub(super) camera: Option<Samples>,
}

impl Beside {
    /// Tells it to an entry.
    pub(super) fn tell(&self, entry: &mut Entry) {
        if let Some(picture) = &self.picture {
            entry.cond.concat_latent = Some(picture.shared());
            entry.cond.concat_mask = self.mask.as_ref().map(Samples::shared);
            entry.cond.concat_mask_at = self.mask_at;
        }
        if let Some(vision) = &self.vision {
            entry.cond.vision = Some(Arc::clone(vision));
        }
        if let Some(reference) = &self.reference {
            entry.cond.reference_latents.push(reference.shared());
        }
        if let Some(camera) = &self.camera {
            entry.cond.camera = Some(camera.shared());
        }
        let held = [&self.picture, &self.mask, &self.reference, &self.camera];
        entry.held.extend(held.into_iter().flatten().cloned());
    }

    /// Both conditionings that know it, and a latent.
    pub(super) fn outcome(&self, call: &Call, latent: LatentImage) -> Result<Outcome, Failure> {
        let [positive, negative] = both_changed(call, |entry| self.tell(entry))?;
        Ok(Outcome::values([Value::object(positive), Value::object(negative), Value::object(latent)]))
    }
}

/// The features that one input has.
pub(super) fn vision(call: &Call, input: &str) -> Result<Option<Arc<Array>>, Failure> {
    Ok(seen(call, input)?.map(|output| Arc::new(output.penultimate.array())))
}

class! {
    /// A video that begins with a picture.
    WanImageToVideo in "conditioning/video_models";
    |schema| {
        let schema = conditioned(schema).input(features("clip_vision_output")).input(picture("start_image"));
        three_outputs(schema)
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let mut beside = Beside { vision: vision(call, "clip_vision_output")?, ..Beside::default() };
        if let Some(start) = asked.first_pictures(call, "start_image")? {
            beside.picture = Some(asked.encode(runtime, call, &asked.filled_up(runtime, &[(&start, 0)])?)?);
            // Whole frames of the latent are given.
            let given = ((start.batch - 1) / FRAMES + 1) * FRAMES;
            beside.mask = Some(made_new(runtime, asked.shape(&VIDEO_16), |frame| frame < given)?);
        }
        beside.outcome(call, asked.empty(runtime, &VIDEO_16, 0)?)
    }
}

/// A video between pictures: those that it begins with, those that it ends with.
fn between(runtime: &Runtime, call: &Call, vision: Option<Arc<Array>>) -> Result<Outcome, Failure> {
    let asked = Asked::of(call)?;
    let spec = asked.spec()?;
    let start = asked.first_pictures(call, "start_image")?;
    let end = match call.object_if_given::<Image>("end_image")? {
        None => None,
        Some(image) => {
            let first = image.batch.saturating_sub(asked.length);
            Some(asked.fitted(&image.frames(first..image.batch)?)?)
        }
    };
    let mut given: Vec<(&Image, usize)> = start.iter().map(|image| (image, 0)).collect();
    given.extend(end.iter().map(|image| (image, asked.length - image.batch)));
    let picture = asked.encode(runtime, call, &asked.filled_up(runtime, &given)?)?;
    let shape = asked.shape(spec);
    // The first frame counts four times.
    let begun = start.as_ref().map_or(0, |image| image.batch + FRAMES - 1);
    let ended = shape[2] * FRAMES - end.as_ref().map_or(0, |image| image.batch);
    let mask = made_new(runtime, shape, |frame| frame < begun || frame >= ended)?;
    let beside = Beside { picture: Some(picture), mask: Some(mask), vision, ..Beside::default() };
    beside.outcome(call, asked.empty(runtime, spec, 0)?)
}

class! {
    /// A video between a first and a last picture.
    WanFirstLastFrameToVideo in "conditioning/video_models";
    |schema| {
        let schema = conditioned(schema)
            .input(features("clip_vision_start_image"))
            .input(features("clip_vision_end_image"))
            .input(picture("start_image"))
            .input(picture("end_image"));
        three_outputs(schema)
    };
    |runtime, call| {
        let (start, end) = (vision(call, "clip_vision_start_image")?, vision(call, "clip_vision_end_image")?);
        let vision = match (start, end) {
            (Some(start), Some(end)) => Some(Arc::new(after(&start, &end)?)),
            (start, end) => start.or(end),
        };
        between(runtime, call, vision)
    }
}

/// The tokens of one picture after those of another.
fn after(first: &Array, second: &Array) -> Result<Array> {
    let axes = |array: &Array| array.axes::<3>("the features of a picture", "batch, tokens and width");
    let ([batch, a, width], [other_batch, b, other_width]) = (axes(first)?, axes(second)?);
    if (batch, width) != (other_batch, other_width) {
        return Err(Error::Told(format!(
            "features of the shapes {:?} and {:?} cannot be joined: encode both pictures with one vision model",
            first.shape, second.shape
        )));
    }
    let items = first.values.chunks_exact(a * width).zip(second.values.chunks_exact(b * width));
    let values = items.flat_map(|(first, second)| first.iter().chain(second).copied()).collect();
    Ok(Array { shape: vec![batch, a + b, width], values })
}

class! {
    /// A video between a first and a last picture, for models that fill in.
    WanFunInpaintToVideo in "conditioning/video_models";
    |schema| {
        let schema = conditioned(schema)
            .input(features("clip_vision_output"))
            .input(picture("start_image"))
            .input(picture("end_image"));
        three_outputs(schema)
    };
    |runtime, call| between(runtime, call, vision(call, "clip_vision_output")?)
}

class! {
    /// A video that follows another one.
    WanFunControlToVideo in "conditioning/video_models";
    |schema| {
        let schema = conditioned(schema)
            .input(features("clip_vision_output"))
            .input(picture("start_image"))
            .input(picture("control_video"));
        three_outputs(schema)
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let picture = controlled(runtime, call, &asked, &VIDEO_16)?;
        let vision = vision(call, "clip_vision_output")?;
        let beside = Beside { picture: Some(picture), vision, ..Beside::default() };
        beside.outcome(call, asked.empty(runtime, &VIDEO_16, 0)?)
    }
}

/// The latent of a video to follow, and beside it that of pictures to begin with; zeros of the model for what is missing.
fn controlled(
    runtime: &Runtime,
    call: &Call,
    asked: &Asked,
    spec: &'static sampling::LatentSpec,
) -> Result<Samples, Failure> {
    let [_, channels, frames, height, width] = asked.shape(spec);
    let shape = [1, 2 * channels, frames, height, width];
    let room = runtime.host.room(&shape)?;
    let empty = zeros_of(spec, &asked.shape(spec))?;
    let mut both = Latent::new(shape.to_vec(), empty.values().repeat(2)).map_err(Error::from)?;
    for (input, channel) in [("start_image", channels), ("control_video", 0)] {
        if let Some(image) = asked.first_pictures(call, input)? {
            overwrite(&mut both, &*asked.encode(runtime, call, &image)?, channel);
        }
    }
    Ok(room.latent(both))
}

class! {
    /// A video that follows another one and looks like a picture.
    Wan22FunControlToVideo in "conditioning/video_models";
    |schema| three_outputs(conditioned(schema).input(picture("ref_image")).input(picture("control_video")));
    |runtime, call| {
        let asked = Asked::of(call)?;
        let spec = asked.spec()?;
        let reference = match call.object_if_given::<Image>("ref_image")? {
            None => None,
            Some(image) => Some(asked.encode(runtime, call, &asked.fitted(&image.frames([0])?)?)?),
        };
        let beside = Beside {
            picture: Some(controlled(runtime, call, &asked, spec)?),
            mask: Some(made_new(runtime, asked.shape(spec), |_| false)?),
            mask_at: spec.channels,
            reference,
            ..Beside::default()
        };
        beside.outcome(call, asked.empty(runtime, spec, 0)?)
    }
}

class! {
    /// A video with the people and things of pictures.
    WanPhantomSubjectToVideo in "conditioning/video_models";
    |schema| conditioned(schema)
        .input(picture("images"))
        .named_output("CONDITIONING", "positive")
        .named_output("CONDITIONING", "negative_text")
        .named_output("CONDITIONING", "negative_img_text")
        .named_output("LATENT", "latent");
    |runtime, call| {
        let asked = Asked::of(call)?;
        let latent = Value::object(asked.empty(runtime, &VIDEO_16, 0)?);
        let Some(images) = asked.first_pictures(call, "images")? else {
            let plain = |input: &str| changed(call, input, |_| ());
            let negatives = [plain("negative")?, plain("negative")?].map(Value::object);
            return Ok(Outcome::values([Value::object(plain("positive")?)].into_iter().chain(negatives).chain([latent])));
        };
        let mut encoded = Vec::with_capacity(images.batch);
        for index in 0..images.batch {
            encoded.push(asked.encode(runtime, call, &images.frames([index])?)?);
        }
        let behind = joined(runtime, &encoded)?;
        let nothing = zeros_of(&VIDEO_16, behind.shape())?;
        let nothing = runtime.host.room(behind.shape())?.latent(nothing);
        let with = |input: &str, frames: &Samples| -> Result<Conditioning, Failure> {
            changed(call, input, |entry| {
                entry.cond.frames_behind = Some(frames.shared());
                entry.held.push(frames.clone());
            })
        };
        Ok(Outcome::values([
            Value::object(with("positive", &behind)?),
            Value::object(with("negative", &behind)?),
            Value::object(with("negative", &nothing)?),
            latent,
        ]))
    }
}

/// Latents of one frame each as one of many.
fn joined(runtime: &Runtime, parts: &[Samples]) -> Result<Samples> {
    let [_, channels, _, height, width] = parts.first().map_or([0; 5], |first| axes(first));
    let plane = height * width;
    let shape = [1, channels, parts.len(), height, width];
    let room = runtime.host.room(&shape)?;
    let planes =
        (0..channels).flat_map(|c| parts.iter().map(move |part| &part.values()[c * plane..][..plane]));
    Ok(room.latent(Latent::new(shape.to_vec(), planes.flatten().copied().collect())?))
}

class! {
    /// A latent that begins with a picture, for the model that is told where it is clean.
    Wan22ImageToVideoLatent in "conditioning/inpaint";
    |schema| sized(schema.input(Input::socket("vae", "VAE")), [1280, 704, 49], 32)
        .input(picture("start_image"))
        .output("LATENT")
        .module(MODULE);
    |runtime, call| {
        let asked = Asked::of(call)?;
        let shape = asked.shape(&VIDEO_48);
        let Some(start) = asked.first_pictures(call, "start_image")? else {
            let one = Asked { batch: 1, ..asked };
            return Ok(Outcome::object(one.empty(runtime, &VIDEO_48, 0)?));
        };
        let encoded = asked.encode(runtime, call, &start)?;
        let given = axes(&encoded)[2];
        let [_, _, frames, height, width] = shape;
        let mut one = zeros_of(&VIDEO_48, &shape)?;
        overwrite(&mut one, &encoded, 0);
        let all = [asked.batch, shape[1], frames, height, width];
        let room = runtime.host.room(&all)?;
        let samples = Latent::new(all.to_vec(), one.values().repeat(asked.batch)).map_err(Error::from)?;
        // One mask for each frame of the latent.
        let values = (0..frames * height * width).map(|at| f32::from(at / (height * width) >= given));
        let mask = Mask::collect(&runtime.host, [frames, height, width], values)?;
        Ok(Outcome::object(LatentImage { noise_mask: Some(mask), ..LatentImage::new(room.latent(samples)) }))
    }
}

class! {
    /// A latent video without its first frames.
    TrimVideoLatent in "latent/video";
    |schema| schema
        .input(Input::socket("samples", "LATENT"))
        .input(Input::int("trim_amount", 0, 0, 99_999))
        .output("LATENT")
        .module(MODULE);
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let [batch, channels, frames, height, width] = axes(&latent.samples);
        let cut = call.size("trim_amount")?.min(frames);
        let (volume, plane) = (frames * height * width, height * width);
        let rest = latent.samples.values().chunks_exact(volume.max(1)).flat_map(|video| &video[cut * plane..]);
        let shape = vec![batch, channels, frames - cut, height, width];
        let trimmed = Latent::new(shape, rest.copied().collect()).map_err(Error::from)?;
        Ok(Outcome::object(latent.with_samples(trimmed)?))
    }
}
