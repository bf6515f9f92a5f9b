//! A video of somebody who speaks or sings (S2V), and one that goes on from another.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema, Value};
use models::diffusion::latents::VIDEO_16;
use runtime::host::Samples;
use runtime::{Runtime, Vae};
use sampling::Latent;

use super::{Asked, GREY, MODULE, axes, overwrite, sized, zeros_of};
use crate::Result;
use crate::audio::Heard;
use crate::class::class;
use crate::conditioning::{changed, three_outputs};
use crate::image::pixels;
use crate::value::{Array, Image, LatentImage};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(WanSoundImageToVideo(Arc::clone(runtime)));
    catalogue.add(WanSoundImageToVideoExtend(Arc::clone(runtime)));
}

/// Moments of a second that encoders hear, that the sound is brought to, and frames of a second of the video.
const HEARD_RATE: f64 = 50.0;
const SOUND_RATE: f64 = 30.0;
const VIDEO_RATE: f64 = 16.0;
/// Frames of the video for each of the latent.
const FRAMES: usize = 4;
/// Frames of a video that another goes on from, and those of its latent.
const MOTION: usize = 73;
const MOTION_LATENT: usize = 19;

/// The inputs that both classes end with.
fn beside(schema: Schema) -> Schema {
    schema
        .input(Input::socket("audio_encoder_output", "AUDIO_ENCODER_OUTPUT").optional())
        .input(Input::socket("ref_image", "IMAGE").optional())
        .input(Input::socket("control_video", "IMAGE").optional())
}

fn both_texts(schema: Schema) -> Schema {
    schema
        .input(Input::socket("positive", "CONDITIONING"))
        .input(Input::socket("negative", "CONDITIONING"))
        .input(Input::socket("vae", "VAE"))
}

class! {
    /// A video of somebody who speaks or sings.
    WanSoundImageToVideo in "conditioning/video_models";
    |schema| {
        let schema = beside(sized(both_texts(schema), [832, 480, 77], 16));
        three_outputs(schema.input(Input::socket("ref_motion", "IMAGE").optional())).module(MODULE)
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let motion = match call.object_if_given::<Image>("ref_motion")? {
            None => None,
            Some(motion) => {
                let last = motion.batch.saturating_sub(MOTION)..motion.batch;
                let motion = asked.fitted(&motion.frames(last)?)?;
                Some(asked.encode(runtime, call, &behind_grey(runtime, &motion)?)?)
            }
        };
        told(runtime, call, &asked, (motion, 0))
    }
}

class! {
    /// A video that goes on from another.
    WanSoundImageToVideoExtend in "conditioning/video_models";
    |schema| {
        let schema = both_texts(schema)
            .input(pixels("length", 77, 1, FRAMES as i64))
            .input(Input::socket("video_latent", "LATENT"));
        three_outputs(beside(schema)).module(MODULE)
    };
    |runtime, call| {
        let before = call.object::<LatentImage>("video_latent")?;
        let [batch, _, frames, height, width] = axes(&before.samples);
        let asked = Asked {
            vae: call.object::<Vae>("vae")?,
            width: width * VIDEO_16.pixels_per_value,
            height: height * VIDEO_16.pixels_per_value,
            length: call.size("length")?.max(1),
            batch,
        };
        let motion = last_frames(runtime, &before.samples)?;
        told(runtime, call, &asked, (Some(motion), frames * FRAMES))
    }
}

/// Frames behind as many grey ones as are missing.
fn behind_grey(runtime: &Runtime, motion: &Image) -> Result<Image> {
    let missing = MOTION.saturating_sub(motion.batch);
    if missing == 0 {
        return Ok(motion.clone());
    }
    let frame = motion.height * motion.width * motion.channels;
    let shape = [MOTION, motion.height, motion.width, motion.channels];
    let grey = std::iter::repeat_n(GREY, missing * frame);
    Image::collect(&runtime.host, shape, grey.chain(motion.values.iter().copied()))
}

/// The last frames of a latent video.
fn last_frames(runtime: &Runtime, latent: &Latent) -> Result<Samples> {
    let [batch, channels, frames, height, width] = axes(latent);
    let (count, plane) = (frames.min(MOTION_LATENT), height * width);
    let shape = [batch, channels, count, height, width];
    let room = runtime.host.room(&shape)?;
    let rows = latent.values().chunks_exact((frames * plane).max(1));
    let values = rows.flat_map(|row| &row[(frames - count) * plane..]).copied().collect();
    Ok(room.latent(Latent::new(shape.to_vec(), values)?))
}

/// What the model is told, for a video that begins so many frames behind the start of the sound.
fn told(
    runtime: &Runtime,
    call: &Call,
    asked: &Asked,
    (motion, offset): (Option<Samples>, usize),
) -> Result<Outcome, Failure> {
    let heard = call.object_if_given::<Heard>("audio_encoder_output")?;
    let audio = heard.and_then(|heard| with_frames(&heard, FRAMES * asked.frames(), offset)).map(Arc::new);
    let quiet = audio.as_ref().map(|audio| Arc::new(Array::zeros(&audio.shape)));
    let picture = match call.object_if_given::<Image>("ref_image")? {
        None => None,
        Some(image) => Some(asked.encode(runtime, call, &asked.fitted(&image.frames([0])?)?)?),
    };
    let shape = asked.shape(&VIDEO_16);
    let room = runtime.host.room(&shape)?;
    let mut steering = zeros_of(&VIDEO_16, &shape)?;
    if let Some(video) = asked.first_pictures(call, "control_video")? {
        let video = asked.encode(runtime, call, &video)?;
        overwrite(&mut steering, &video, 0);
    }
    let steering = room.latent(steering);
    let with = |input: &str, audio: Option<&Arc<Array>>| {
        changed(call, input, |entry| {
            if let Some(audio) = audio {
                entry.cond.audio = Some(Arc::clone(audio));
            }
            if let Some(picture) = &picture {
                entry.cond.reference_latents.push(picture.shared());
                entry.held.push(picture.clone());
            }
            if let Some(motion) = &motion {
                entry.cond.frames_before = Some(motion.shared());
                entry.held.push(motion.clone());
            }
            entry.cond.concat_latent = Some(steering.shared());
            entry.held.push(steering.clone());
        })
    };
    let (positive, negative) = (with("positive", audio.as_ref())?, with("negative", quiet.as_ref())?);
    let latent = asked.empty(runtime, &VIDEO_16, 0)?;
    Ok(Outcome::values([Value::object(positive), Value::object(negative), Value::object(latent)]))
}

/// What is heard with each of so many frames of a video, from a frame of the sound on: `[1, frames, layers · width]`. Nothing
/// where the sound has long ended.
fn with_frames(heard: &Heard, frames: usize, offset: usize) -> Option<Array> {
    let [layers, moments, width] = heard.shape;
    let sound = (moments as f64 / HEARD_RATE * SOUND_RATE) as usize;
    let whole = (sound as f64 / (frames as f64 * SOUND_RATE / VIDEO_RATE)) as usize + 1;
    if offset >= whole * frames {
        return None;
    }
    let mut array = Array::zeros(&[1, frames, layers * width]);
    for (index, values) in array.values.chunks_exact_mut((layers * width).max(1)).enumerate() {
        let at = ((offset + index) as f64 * SOUND_RATE / VIDEO_RATE).round_ties_even() as usize;
        if at >= sound {
            continue;
        }
        // Moments of the sound stand between those that were heard, from the first to the last.
        let place = if sound > 1 { (moments - 1) as f32 / (sound - 1) as f32 * at as f32 } else { 0.0 };
        let (first, share) = (place as usize, place.fract());
        let second = (first + 1).min(moments - 1);
        for (layer, values) in values.chunks_exact_mut(width.max(1)).enumerate() {
            let both = heard.at(layer, first).iter().zip(heard.at(layer, second));
            values.iter_mut().zip(both).for_each(|(value, (one, other))| {
                *value = one * (1.0 - share) + other * share;
            });
        }
    }
    Some(array)
}

#[cfg(test)]
mod tests {
    use runtime::host::Host;

    use super::*;

    #[test]
    fn frames_hear_their_own_moments() {
        // Every value is its layer plus a tenth of its moment.
        let host = Host::with_budget(1 << 20);
        let (layers, moments) = (2, 21);
        let values = (0..layers * moments).map(|at| (at / moments) as f32 + (at % moments) as f32 / 10.0);
        let values = host.room(&[layers, moments]).unwrap().collect(values).unwrap();
        let heard = Heard { shape: [layers, moments, 1], values, samples: 0 };
        // Twenty-one moments are twelve of the sound; frames are at every 1.875th of those.
        let array = with_frames(&heard, 8, 0).unwrap();
        assert_eq!(array.shape, [1, 8, 2]);
        let close = |got: f32, want: f32| assert!((got - want).abs() < 1e-5, "{got} {want}");
        let moment = |at: f32| at * 20.0 / 11.0 / 10.0;
        for (frame, at) in [(0, 0.0), (1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0), (5, 9.0), (6, 11.0)] {
            close(array.values[2 * frame], moment(at));
            close(array.values[2 * frame + 1], 1.0 + moment(at));
        }
        assert_eq!(array.values[14..], [0.0, 0.0]);
        assert!(with_frames(&heard, 8, 8).is_none());
        // A shorter video is followed by others.
        close(with_frames(&heard, 4, 4).unwrap().values[0], moment(8.0));
    }
}
