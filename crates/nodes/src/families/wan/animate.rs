//! A picture that moves as somebody in a video does (Animate): its poses, its face, what is behind, and where one goes on from.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema, Value};
use models::diffusion::latents::VIDEO_16;
use runtime::Runtime;
use runtime::host::Samples;
use sampling::Latent;

use super::{Asked, MODULE, axes, seen, sized};
use crate::class::class;
use crate::conditioning::{changed, three_outputs};
use crate::image::{MAX_RESOLUTION, Method, Target, scale_image, scale_mask};
use crate::value::{Image, Mask};
use crate::{Error, Result};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(WanAnimateToVideo(Arc::clone(runtime)));
}

/// Pixels along each side of a face.
const FACE: usize = 512;
/// Frames of the video for each of the latent, and channels of the mask.
const FRAMES: usize = 4;

fn more(schema: Schema) -> Schema {
    schema
        .input(Input::socket("clip_vision_output", "CLIP_VISION_OUTPUT").optional())
        .input(Input::socket("reference_image", "IMAGE").optional())
        .input(Input::socket("face_video", "IMAGE").optional())
        .input(Input::socket("pose_video", "IMAGE").optional())
        .input(Input::int("continue_motion_max_frames", 5, 1, MAX_RESOLUTION).with("step", 4))
        .input(Input::socket("background_video", "IMAGE").optional())
        .input(Input::socket("character_mask", "MASK").optional())
        .input(Input::socket("continue_motion", "IMAGE").optional())
        .input(Input::int("video_frame_offset", 0, 0, MAX_RESOLUTION).with("step", 1))
}

class! {
    /// A picture that moves as somebody in a video does.
    WanAnimateToVideo in "conditioning/video_models";
    |schema| {
        let schema = schema
            .input(Input::socket("positive", "CONDITIONING"))
            .input(Input::socket("negative", "CONDITIONING"))
            .input(Input::socket("vae", "VAE"));
        three_outputs(more(sized(schema, [832, 480, 77], 16)))
            .named_output("INT", "trim_latent")
            .named_output("INT", "trim_image")
            .named_output("INT", "video_frame_offset")
            .module(MODULE)
    };
    |runtime, call| animate(runtime, call)
}

fn animate(runtime: &Runtime, call: &Call) -> Result<Outcome, Failure> {
    let asked = Asked::of(call)?;
    let black = || Image::filled(&runtime.host, [1, asked.height, asked.width, 3], 0.0);
    let reference = call.object_if_given::<Image>("reference_image")?;
    let reference = match &reference {
        Some(image) => fitted(&image.frames(0..asked.length)?, [asked.width, asked.height])?,
        None => black()?,
    };
    let reference = asked.encode(runtime, call, &reference)?;
    let going_on = Going::of(call, &asked)?;
    let cut = Cut { asked: &asked, offset: going_on.offset };
    let poses = match cut.video(call, "pose_video")? {
        None => None,
        Some(video) => {
            let last = video.batch - 1;
            let video = video.frames((0..asked.length).map(|frame| frame.min(last)))?;
            Some(asked.encode(runtime, call, &fitted(&video, [asked.width, asked.height])?)?)
        }
    };
    let faces = match cut.video(call, "face_video")? {
        None => None,
        Some(video) => Some(faces_of(runtime, &fitted(&video, [FACE, FACE])?)?),
    };
    let shown = shown(runtime, call, (&asked, &cut), &going_on)?;
    let shown = asked.encode(runtime, call, &shown)?;
    let beside = joined(runtime, &reference, &shown)?;
    let trimmed = axes(&reference)[2];
    let mask = made_new(runtime, call, (&asked, &cut), (&going_on, trimmed))?;
    let vision = seen(call, "clip_vision_output")?.map(|seen| Arc::new(seen.penultimate.array()));
    let with = |input: &str, faces: Option<&Samples>| {
        changed(call, input, |entry| {
            entry.cond.concat_latent = Some(beside.shared());
            entry.cond.concat_mask = Some(mask.shared());
            entry.held.extend([beside.clone(), mask.clone()]);
            if let Some(poses) = &poses {
                entry.cond.poses = Some(poses.shared());
                entry.held.push(poses.clone());
            }
            if let Some(faces) = faces {
                entry.cond.faces = Some(faces.shared());
                entry.held.push(faces.clone());
            }
            if let Some(vision) = &vision {
                entry.cond.vision = Some(Arc::clone(vision));
            }
        })
    };
    let nothing = match &faces {
        None => None,
        Some(faces) => {
            let mut black = Latent::zeros(faces.shape());
            let room = runtime.host.room(faces.shape())?;
            black.values_mut().fill(-1.0);
            Some(room.latent(black))
        }
    };
    let (positive, negative) = (with("positive", faces.as_ref())?, with("negative", nothing.as_ref())?);
    let latent = asked.empty(runtime, &VIDEO_16, trimmed)?;
    Ok(Outcome::values([
        Value::object(positive),
        Value::object(negative),
        Value::object(latent),
        Value::from(trimmed as i64),
        Value::from(going_on.shown() as i64),
        Value::from((cut.offset + asked.length) as i64),
    ]))
}

/// Frames that a video goes on from.
struct Going {
    frames: Option<Image>,
    /// Where the videos that are followed begin.
    offset: usize,
}

impl Going {
    fn of(call: &Call, asked: &Asked) -> Result<Going, Failure> {
        let offset = call.size("video_frame_offset")?;
        let Some(motion) = call.object_if_given::<Image>("continue_motion")? else {
            return Ok(Going { frames: None, offset });
        };
        let count = motion.batch.min(call.size("continue_motion_max_frames")?);
        let kept = count.min(asked.length);
        let frames = fitted(&motion.frames(motion.batch - kept..motion.batch)?, [asked.width, asked.height])?;
        Ok(Going { frames: Some(frames), offset: offset.saturating_sub(count) })
    }

    /// Frames of their latent.
    fn latent_frames(&self) -> usize {
        self.frames.as_ref().map_or(0, |frames| (frames.batch - 1) / FRAMES + 1)
    }

    /// Frames of the video that they stand for.
    fn shown(&self) -> usize {
        (self.latent_frames() * FRAMES).saturating_sub(FRAMES - 1)
    }
}

/// The part of the videos that are followed which this one is about.
struct Cut<'a> {
    asked: &'a Asked,
    offset: usize,
}

impl Cut<'_> {
    /// That part of an input, if it has any.
    fn video(&self, call: &Call, input: &str) -> Result<Option<Image>, Failure> {
        let Some(video) = call.object_if_given::<Image>(input)? else { return Ok(None) };
        if video.batch <= self.offset {
            return Ok(None);
        }
        Ok(Some(video.frames(self.offset..self.offset + self.asked.length)?))
    }
}

fn fitted(image: &Image, [width, height]: [usize; 2]) -> Result<Image> {
    if image.batch == 0 {
        return Err(Error::Told("there is no picture in the batch; link one with at least one".into()));
    }
    scale_image(image, Target::cropped(width, height), Method::Area)?.with_channels(3)
}

/// Faces as the model sees them, `[1, 3, frames, side, side]`, values from -1 to 1.
fn faces_of(runtime: &Runtime, video: &Image) -> Result<Samples> {
    let [frames, height, width, colours] = video.shape();
    let shape = [1, colours, frames, height, width];
    let room = runtime.host.room(&shape)?;
    let pixels = height * width;
    let value = |at: usize| {
        let (colour, frame, pixel) = (at / (frames * pixels), at / pixels % frames, at % pixels);
        video.values[(frame * pixels + pixel) * colours + colour] * 2.0 - 1.0
    };
    let values = (0..frames * pixels * colours).map(value).collect();
    Ok(room.latent(Latent::new(shape.to_vec(), values)?))
}

/// What is shown beside the latent: the frames that it goes on from, then those of what is behind, grey where there are none.
fn shown(
    runtime: &Runtime,
    call: &Call,
    (asked, cut): (&Asked, &Cut<'_>),
    going_on: &Going,
) -> Result<Image, Failure> {
    let start = going_on.shown();
    let behind = match cut.video(call, "background_video")? {
        Some(video) if video.batch > start => {
            Some(fitted(&video.frames(start..video.batch)?, [asked.width, asked.height])?)
        }
        _ => None,
    };
    let motion = going_on.frames.iter().map(|frames| (frames, 0));
    let given: Vec<(&Image, usize)> = motion.chain(behind.iter().map(|behind| (behind, start))).collect();
    Ok(asked.filled_up(runtime, &given)?)
}

/// Where the video is made new: not where a picture or the frames that it goes on from are, and by a mask of somebody.
fn made_new(
    runtime: &Runtime,
    call: &Call,
    (asked, cut): (&Asked, &Cut<'_>),
    (going_on, trimmed): (&Going, usize),
) -> Result<Samples, Failure> {
    let [_, _, frames, height, width] = asked.shape(&VIDEO_16);
    let (plane, given) = (height * width, going_on.latent_frames() * FRAMES);
    let mut new: Vec<f32> =
        (0..frames * FRAMES * plane).map(|at| f32::from(at / plane.max(1) >= given)).collect();
    if let Some(mask) = call.object_if_given::<Mask>("character_mask")?
        && (mask.batch > cut.offset || mask.batch == 1)
    {
        let mask = match mask.batch {
            1 => mask.frames(std::iter::repeat_n(0, asked.length))?,
            _ => mask.frames(cut.offset..cut.offset + asked.length)?,
        };
        let mask = scale_mask(&mask, Target::cropped(width, height), Method::NearestExact)?;
        let start = going_on.shown().min(mask.batch) * plane;
        new[start..mask.batch * plane].copy_from_slice(&mask.values[start..]);
    }
    let shape = [1, FRAMES, trimmed + frames, height, width];
    let room = runtime.host.room(&shape)?;
    let mut mask = Latent::zeros(&shape);
    for (at, values) in mask.values_mut().chunks_exact_mut(plane.max(1)).enumerate() {
        let (channel, frame) = (at / (trimmed + frames), at % (trimmed + frames));
        if let Some(frame) = frame.checked_sub(trimmed) {
            values.copy_from_slice(&new[(frame * FRAMES + channel) * plane..][..plane]);
        }
    }
    Ok(room.latent(mask))
}

/// Frames of one latent behind those of another.
fn joined(runtime: &Runtime, first: &Latent, second: &Latent) -> Result<Samples> {
    let ([_, channels, before, height, width], [_, _, behind, ..]) = (axes(first), axes(second));
    let shape = [1, channels, before + behind, height, width];
    let room = runtime.host.room(&shape)?;
    let plane = height * width;
    let part = |latent: &Latent, frames: usize, channel: usize| {
        latent.values()[channel * frames * plane..][..frames * plane].to_vec()
    };
    let values = (0..channels)
        .flat_map(|channel| [part(first, before, channel), part(second, behind, channel)].concat())
        .collect();
    Ok(room.latent(Latent::new(shape.to_vec(), values)?))
}
