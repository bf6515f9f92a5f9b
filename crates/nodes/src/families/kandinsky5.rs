//! Kandinsky 5's own nodes: a prompt for each text encoder, pictures that a video begins with, and how their brightness and
//! contrast are brought to those of the frames that follow.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome, Value};
use models::diffusion::latents::VIDEO_KL_16;
use runtime::Runtime;
use sampling::Latent;

use super::asked::{Asked, as_latent, axes, both_changed, made_new, sized};
use crate::class::class;
use crate::conditioning::three_outputs;
use crate::image::MAX_RESOLUTION;
use crate::text::{Prompts, clip_of, encode, prompt_input};
use crate::value::{Conditioning, LatentImage};

/// Where ComfyUI has these classes.
const MODULE: &str = "comfy_extras.nodes_kandinsky5";

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CLIPTextEncodeKandinsky5(Arc::clone(runtime)));
    catalogue.add(Kandinsky5ImageToVideo(Arc::clone(runtime)));
    catalogue.add(NormalizeVideoLatentStart(Arc::clone(runtime)));
}

class! {
    /// A prompt for each text encoder of Kandinsky 5.
    CLIPTextEncodeKandinsky5 in "advanced/conditioning/kandinsky5";
    |schema| schema
        .input(Input::socket("clip", "CLIP"))
        .input(prompt_input("clip_l"))
        .input(prompt_input("qwen25_7b"))
        .output("CONDITIONING")
        .module(MODULE);
    |runtime, call| {
        let prompts = Prompts {
            own: &[("qwen25_7b", call.text("qwen25_7b")?)],
            others: call.text("clip_l")?,
            ..Prompts::default()
        };
        let entry = encode(runtime, call, &*clip_of(call)?, prompts)?;
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}

class! {
    /// A video that begins with pictures, which the model sees in place of its first frames.
    Kandinsky5ImageToVideo in "conditioning/video_models";
    |schema| {
        let schema = schema
            .input(Input::socket("positive", "CONDITIONING"))
            .input(Input::socket("negative", "CONDITIONING"))
            .input(Input::socket("vae", "VAE"));
        let schema =
            sized(schema, [768, 512, 121], 16).input(Input::socket("start_image", "IMAGE").optional());
        three_outputs(schema).named_output("LATENT", "cond_latent").module(MODULE)
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let latent = asked.empty(runtime, &VIDEO_KL_16, 0)?;
        let given = match asked.first_pictures(call, "start_image")? {
            None => None,
            Some(start) => {
                let shape = asked.shape(&VIDEO_KL_16);
                let mask = as_latent(runtime, &made_new(runtime, shape, &start)?, shape)?;
                Some((asked.encode(runtime, call, &start)?, mask))
            }
        };
        let [positive, negative] = both_changed(call, |entry| {
            if let Some((pictures, mask)) = &given {
                entry.cond.concat_latent = Some(pictures.shared());
                entry.cond.concat_mask = Some(mask.shared());
                entry.held.extend([pictures.clone(), mask.clone()]);
            }
        })?;
        // What no picture was given for is empty.
        let clean = match given {
            None => asked.empty(runtime, &VIDEO_KL_16, 0)?,
            Some((pictures, _)) => LatentImage::new(pictures),
        };
        let both = [Value::object(positive), Value::object(negative)];
        Ok(Outcome::values(both.into_iter().chain([Value::object(latent), Value::object(clean)])))
    }
}

class! {
    /// A video whose first frames have the brightness and contrast of those behind them, but for a limit.
    NormalizeVideoLatentStart in "conditioning/video_models";
    |schema| schema
        .input(Input::socket("latent", "LATENT"))
        .input(Input::int("start_frame_count", 4, 1, MAX_RESOLUTION))
        .input(Input::int("reference_frame_count", 5, 1, MAX_RESOLUTION))
        .named_output("LATENT", "latent")
        .module(MODULE);
    |runtime, call| {
        let latent = call.object::<LatentImage>("latent")?;
        let [start, reference] = [call.size("start_frame_count")?, call.size("reference_frame_count")?];
        let mut samples = Latent::clone(&latent.samples);
        normalise_start(&mut samples, start, reference);
        Ok(Outcome::object(latent.with_samples(samples)?))
    }
}

/// How far the mean and the deviation of a frame may fall and rise.
const MEAN_LIMITS: [f64; 2] = [0.3, 0.35];
const DEVIATION_LIMITS: [f64; 2] = [0.35, 0.5];

/// Brings each of the first frames to the mean and deviation of all that the next ones hold. A video without frames behind
/// them stays as it is.
fn normalise_start(samples: &mut Latent, start: usize, reference: usize) {
    let [batch, channels, frames, height, width] = axes(samples);
    let plane = height * width;
    if frames <= 1 || start >= frames || plane == 0 {
        return;
    }
    let end = frames.min(start.saturating_add(reference.min(frames - 1)));
    let places = |items: std::ops::Range<usize>, frame: usize| {
        let starts =
            (items.start * channels..items.end * channels).map(move |at| (at * frames + frame) * plane);
        starts.flat_map(move |start| start..start + plane)
    };
    let all = (start..end).flat_map(|frame| places(0..batch, frame));
    let reference = moments(all.map(|at| samples.values()[at]));
    for (item, frame) in (0..batch).flat_map(|item| (0..start).map(move |frame| (item, frame))) {
        let own = moments(places(item..item + 1, frame).map(|at| samples.values()[at]));
        let within = |wanted: f64, own: f64, [low, high]: [f64; 2]| wanted.clamp(own - low, own + high);
        let mean = within(reference.0, own.0, MEAN_LIMITS);
        let deviation = within(reference.1, own.1, DEVIATION_LIMITS);
        for at in places(item..item + 1, frame) {
            let value = &mut samples.values_mut()[at];
            *value = ((f64::from(*value) - own.0) / (own.1 + 1e-8) * deviation + mean) as f32;
        }
    }
}

/// Mean and deviation, of a sample.
fn moments(values: impl Iterator<Item = f32> + Clone) -> (f64, f64) {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().map(f64::from).sum::<f64>() / count;
    let squares = values.map(|value| (f64::from(value) - mean).powi(2)).sum::<f64>();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_frames_are_brought_to_those_behind_within_limits() {
        // Two frames of four values: deviations 1 and 3, means 0 and 10.
        let shift = 3f32.sqrt() / 2.0;
        let frame = |mean: f32, scale: f32| [-shift, -shift, shift, shift].map(|v| v * scale + mean);
        let values = [frame(0.0, 1.0), frame(10.0, 3.0), frame(0.0, 1.0)].concat();
        let mut video = Latent::new(vec![1, 1, 3, 2, 2], values.clone()).unwrap();
        normalise_start(&mut video, 1, 1);
        let wanted = frame(0.35, 1.5);
        for (got, wanted) in video.values().iter().zip(wanted) {
            assert!((got - wanted).abs() < 1e-6, "{got} {wanted}");
        }
        assert_eq!(video.values()[4..], values[4..]);
        // What is near enough is met.
        let values = [frame(0.0, 1.0), frame(0.2, 1.25)].concat();
        let mut video = Latent::new(vec![1, 1, 2, 2, 2], values.clone()).unwrap();
        normalise_start(&mut video, 1, 5);
        for (got, wanted) in video.values()[..4].iter().zip(&values[4..]) {
            assert!((got - wanted).abs() < 1e-6, "{got} {wanted}");
        }
        let before = video.clone();
        normalise_start(&mut video, 2, 5);
        assert_eq!(video.values(), before.values());
    }
}
