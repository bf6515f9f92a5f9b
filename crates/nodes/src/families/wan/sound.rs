//! A video that goes with a sound (HuMo).

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Outcome, Value};
use models::diffusion::latents::VIDEO_16;
use runtime::Runtime;
use runtime::host::Samples;
use sampling::Latent;

use super::{Asked, MODULE, sized};
use crate::audio::Heard;
use crate::class::class;
use crate::conditioning::{changed, three_outputs};
use crate::value::{Array, Conditioning, Image};
use crate::{Error, Result};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(WanHuMoImageToVideo(Arc::clone(runtime)));
}

/// Layers of the encoder, what comes out of the last among them, and how many of them are one feature.
const LAYERS: usize = 33;
const TOGETHER: usize = 8;
/// Features of a frame.
const FEATURES: usize = LAYERS / TOGETHER + 1;
/// Values of a feature, where no encoder says how many.
const WIDTH: usize = 1280;
/// Values of the sound for two moments.
const TWO_MOMENTS: usize = 640;
/// Frames of the video around one of the latent, and how many of them are not its own.
const AROUND: usize = 8;
const SHIFT: isize = 2;
/// Frames of the video for each of the latent behind the first.
const FRAMES: isize = 4;

class! {
    /// A video that goes with a sound, and whose people or things are those of a picture.
    WanHuMoImageToVideo in "conditioning/video_models";
    |schema| {
        let schema = schema
            .input(Input::socket("positive", "CONDITIONING"))
            .input(Input::socket("negative", "CONDITIONING"))
            .input(Input::socket("vae", "VAE"));
        let schema = sized(schema, [832, 480, 97], 16)
            .input(Input::socket("audio_encoder_output", "AUDIO_ENCODER_OUTPUT").optional())
            .input(Input::socket("ref_image", "IMAGE").optional());
        three_outputs(schema).module(MODULE)
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let [_, channels, frames, height, width] = asked.shape(&VIDEO_16);
        let picture = match call.object_if_given::<Image>("ref_image")? {
            Some(image) => Some(asked.encode(runtime, call, &asked.fitted(&image.frames([0])?)?)?),
            None => None,
        };
        let shape = picture.as_ref().map_or(vec![1, channels, 1, height, width], |picture| picture.shape().to_vec());
        let nothing = runtime.host.room(&shape)?.latent(Latent::zeros(&shape));
        let heard = call.object_if_given::<Heard>("audio_encoder_output")?;
        let audio = match &heard {
            None => silence(frames, WIDTH),
            Some(heard) => with_frames(heard, frames)?,
        };
        let quiet = Arc::new(silence(frames, heard.map_or(WIDTH, |heard| heard.shape[2])));
        let told = |input: &str, picture: &Samples, audio: &Arc<Array>| -> Result<Conditioning, Failure> {
            changed(call, input, |entry| {
                entry.cond.reference_latents.push(picture.shared());
                entry.cond.audio = Some(Arc::clone(audio));
                entry.held.push(picture.clone());
            })
        };
        let positive = told("positive", picture.as_ref().unwrap_or(&nothing), &Arc::new(audio))?;
        let negative = told("negative", &nothing, &quiet)?;
        let latent = asked.empty(runtime, &VIDEO_16, 0)?;
        Ok(Outcome::values([Value::object(positive), Value::object(negative), Value::object(latent)]))
    }
}

/// Nothing to be heard, `[1, frames, values]`.
fn silence(frames: usize, width: usize) -> Array {
    Array::zeros(&[1, frames, AROUND * FEATURES * width])
}

/// What is heard around each frame of a latent, `[1, frames, values]`: five features of each of eight frames of the video.
fn with_frames(heard: &Heard, frames: usize) -> Result<Array> {
    let [layers, moments, width] = heard.shape;
    if layers != LAYERS {
        return Err(Error::Told(format!(
            "the sound was listened to by an encoder of {} layers, but the model was made for one of {}; load \
             whisper_large_v3",
            layers.saturating_sub(1),
            LAYERS - 1
        )));
    }
    let moments = moments.min(heard.samples / TWO_MOMENTS * 2);
    let of_video = moments / 2;
    let feature = |moment: usize, feature: usize| -> Vec<f32> {
        let layers = feature * TOGETHER..((feature + 1) * TOGETHER).min(LAYERS);
        let count = layers.len() as f32;
        let mut mean = vec![0.0; width];
        for layer in layers {
            mean.iter_mut().zip(heard.at(layer, moment)).for_each(|(mean, value)| *mean += value / count);
        }
        mean
    };
    let mut array = silence(frames, width);
    for (frame, values) in array.values.chunks_exact_mut((AROUND * FEATURES * width).max(1)).enumerate() {
        for (place, values) in values.chunks_exact_mut((FEATURES * width).max(1)).enumerate() {
            let Some(shown) = frame_around(frame, place).filter(|shown| *shown < of_video) else { continue };
            // Frames are half as many as moments, from the first moment to the last.
            let at = match of_video {
                0 | 1 => 0.0,
                _ => (moments - 1) as f32 / (of_video - 1) as f32 * shown as f32,
            };
            let (first, share) = (at as usize, at.fract());
            let second = (first + 1).min(moments - 1);
            for (index, values) in values.chunks_exact_mut(width.max(1)).enumerate() {
                let (one, other) = (feature(first, index), feature(second, index));
                for (value, (one, other)) in values.iter_mut().zip(one.iter().zip(&other)) {
                    *value = one * (1.0 - share) + other * share;
                }
            }
        }
    }
    Ok(array)
}

/// The frame of the video at a place around a frame of the latent; none where there is none.
fn frame_around(frame: usize, place: usize) -> Option<usize> {
    // Before the first frame of the latent there are three places more than it looks back.
    let start = match frame {
        0 => -SHIFT - (FRAMES - 1),
        later => 1 + FRAMES * (later as isize - 1) - SHIFT,
    };
    usize::try_from(start + place as isize).ok()
}

#[cfg(test)]
mod tests {
    use runtime::host::Host;

    use super::*;

    #[test]
    fn frames_hear_what_is_around_them() {
        let around = |frame: usize| (0..AROUND).map(|place| frame_around(frame, place)).collect::<Vec<_>>();
        assert_eq!(around(0), [None, None, None, None, None, Some(0), Some(1), Some(2)]);
        assert_eq!(around(1), [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), Some(6)]);
        assert_eq!(around(3)[0], Some(7));
    }

    #[test]
    fn layers_are_means_of_eight_and_moments_meet_between() {
        // Every value is its layer plus a tenth of its moment.
        let host = Host::with_budget(1 << 24);
        let (moments, width) = (8, 2);
        let values = (0..LAYERS * moments * width)
            .map(|at| (at / (moments * width)) as f32 + (at / width % moments) as f32 / 10.0);
        let room = host.room(&[LAYERS, moments, width]).unwrap();
        let heard = Heard {
            shape: [LAYERS, moments, width],
            values: room.collect(values).unwrap(),
            samples: 3 * TWO_MOMENTS + 100,
        };
        let array = with_frames(&heard, 2).unwrap();
        assert_eq!(array.shape, [1, 2, AROUND * FEATURES * width]);
        // Six moments are three frames: at moments 0, 2.5 and 5.
        let value = |frame: usize, place: usize, feature: usize| {
            array.values[((frame * AROUND + place) * FEATURES + feature) * width]
        };
        let close = |got: f32, want: f32| assert!((got - want).abs() < 1e-5, "{got} {want}");
        close(value(0, 5, 0), 3.5);
        close(value(0, 6, 1), 11.5 + 0.25);
        close(value(0, 7, 4), 32.0 + 0.5);
        close(value(1, 1, 3), 27.5);
        assert_eq!([value(0, 4, 0), value(1, 4, 2)], [0.0; 2]);
        let other = Heard { shape: [3, moments, width], ..heard };
        assert!(with_frames(&other, 2).unwrap_err().to_string().contains("whisper_large_v3"));
    }
}
