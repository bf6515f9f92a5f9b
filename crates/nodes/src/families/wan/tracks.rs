//! A video in which points of its first picture follow tracks (ATI): what the picture shows there is spread along them, in
//! the latent beside the model's own.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input};
use models::diffusion::latents::VIDEO_16;
use runtime::Runtime;
use runtime::host::Samples;
use sampling::Latent;
use serde_json::Value as Json;

use super::beside::{Beside, vision};
use super::{Asked, FRAMES, made_new};
use crate::class::class;
use crate::conditioning::three_outputs;
use crate::value::Image;
use crate::{Error, Result};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(WanTrackToVideo(Arc::clone(runtime)));
}

/// Points that a track is drawn with; later ones are left out, missing ones are not seen.
const POINTS: usize = 121;

class! {
    /// A video that begins with a picture, whose points follow tracks.
    WanTrackToVideo in "conditioning/video_models";
    |schema| {
        let tracks = Input::new("tracks", graph::Kind::Text).with("multiline", true).with("default", "[]");
        let schema = schema
            .input(Input::socket("positive", "CONDITIONING"))
            .input(Input::socket("negative", "CONDITIONING"))
            .input(Input::socket("vae", "VAE"))
            .input(tracks);
        let schema = super::sized(schema, [832, 480, 81], 16)
            .input(Input::float("temperature", 220.0, 1.0, 1000.0, 0.1))
            .input(Input::int("topk", 2, 1, 10))
            .input(Input::socket("start_image", "IMAGE"))
            .input(Input::socket("clip_vision_output", "CLIP_VISION_OUTPUT").optional());
        three_outputs(schema).module(super::MODULE)
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let mut beside = Beside { vision: vision(call, "clip_vision_output")?, ..Beside::default() };
        let tracks = tracks_of(call.text("tracks")?);
        let pictures = call.object::<Image>("start_image")?;
        if tracks.is_empty() {
            let start = asked.fitted(&pictures.frames(0..asked.length)?)?;
            beside.picture = Some(asked.encode(runtime, call, &asked.filled_up(runtime, &[(&start, 0)])?)?);
            let given = ((start.batch - 1) / FRAMES + 1) * FRAMES;
            beside.mask = Some(made_new(runtime, asked.shape(&VIDEO_16), |frame| frame < given)?);
        } else {
            let (picture, mask) = following(runtime, call, &asked, (&pictures, &tracks))?;
            (beside.picture, beside.mask) = (Some(picture), Some(mask));
        }
        beside.outcome(call, asked.empty(runtime, &VIDEO_16, 0)?)
    }
}

/// A point of a track, in pixels.
type Point = [f32; 2];
/// The tracks of one video.
type Tracks = Vec<Vec<Point>>;

/// Tracks as a text has them: one, several, or several for each video; none if it is no such list.
fn tracks_of(text: &str) -> Vec<Tracks> {
    let Ok(Json::Array(list)) = serde_json::from_str(&text.replace('\'', "\"")) else { return Vec::new() };
    let point = |value: &Json| -> Option<Point> {
        let number = |name: &str| value.get(name)?.as_f64().map(|number| number as f32);
        Some([number("x")?, number("y")?])
    };
    let track = |value: &Json| value.as_array()?.iter().map(point).collect::<Option<Vec<Point>>>();
    let several = |value: &Json| value.as_array()?.iter().map(track).collect::<Option<Tracks>>();
    let whole = Json::Array(list);
    let all = track(&whole)
        .map(|only| vec![vec![only]])
        .or_else(|| several(&whole).map(|tracks| vec![tracks]))
        .or_else(|| whole.as_array()?.iter().map(several).collect());
    let mut all: Vec<Tracks> = all.unwrap_or_default();
    all.iter_mut().for_each(|tracks| tracks.retain(|track| !track.is_empty()));
    all.retain(|tracks| !tracks.is_empty());
    all
}

/// What stands beside the latent of each video, and its mask.
fn following(
    runtime: &Runtime,
    call: &Call,
    asked: &Asked,
    (pictures, tracks): (&Image, &[Tracks]),
) -> Result<(Samples, Samples), Failure> {
    let [_, channels, frames, height, width] = asked.shape(&VIDEO_16);
    let start = asked.fitted(&pictures.frames(0..asked.batch.min(pictures.batch))?)?;
    let (temperature, most) = (call.float("temperature")? as f32, call.size("topk")?);
    let all = [asked.batch, channels, frames, height, width];
    let masked = [asked.batch, FRAMES, frames, height, width];
    let rooms = [runtime.host.room(&all)?, runtime.host.room(&masked)?];
    let (mut beside, mut mask) = (Vec::new(), Vec::new());
    for item in 0..asked.batch {
        let picture = start.frames([item.min(start.batch - 1)])?;
        let video = asked.encode(runtime, call, &asked.filled_up(runtime, &[(&picture, 0)])?)?;
        let video = VIDEO_16.to_model(&video).map_err(Error::from)?;
        let own = &tracks[item.min(tracks.len() - 1)];
        let path = Path::new(own, [asked.width, asked.height], asked.length - 1);
        let (shown, weights) = path.spread(&video, temperature, most);
        beside.extend(shown);
        let made: Vec<f32> = weights.iter().map(|weight| 1.0 - weight).collect();
        (0..FRAMES).for_each(|_| mask.extend_from_slice(&made));
    }
    let beside = Latent::new(all.to_vec(), beside).map_err(Error::from)?;
    let beside = VIDEO_16.to_autoencoder(&beside).map_err(Error::from)?;
    let mask = Latent::new(masked.to_vec(), mask).map_err(Error::from)?;
    let [room, other] = rooms;
    Ok((room.latent(beside), other.latent(mask)))
}

/// Where the points of tracks are, frame by frame: in halves of the shorter side from the middle, and whether they are seen.
struct Path {
    /// For each frame of the video the points of all tracks.
    frames: Vec<Vec<(Point, bool)>>,
}

impl Path {
    /// Tracks over a frame of so many pixels, for a video of so many frames behind the first.
    fn new(tracks: &[Vec<Point>], [width, height]: [usize; 2], frames: usize) -> Path {
        let (wide, high) = (width as f32, height as f32);
        let point = |track: &Vec<Point>, at: usize| {
            let [x, y] = track.get(at).copied().unwrap_or_default();
            let side = wide.min(high);
            ([(x - wide / 2.0) / side * 2.0, (y - high / 2.0) / side * 2.0], at < track.len())
        };
        // Tracks are drawn at another rate than videos have: every so many-th point of so many repetitions.
        let common = gcd(POINTS - 1, frames).max(1);
        let (every, repeated) = ((POINTS - 1) / common, frames / common);
        let first = usize::from(every > 1);
        let times = (0..frames).map(|frame| 1 + (first + frame * every) / repeated.max(1));
        let times = std::iter::once(0).chain(times);
        Path { frames: times.map(|at| tracks.iter().map(|track| point(track, at)).collect()).collect() }
    }

    /// A latent `[1, channels, frames, height, width]` in which what its first frame has at the first points follows them,
    /// and how much of each place is such.
    fn spread(&self, video: &Latent, temperature: f32, most: usize) -> (Vec<f32>, Vec<f32>) {
        let [_, _, frames, height, width] = super::axes(video);
        let (plane, volume) = (height * width, frames * height * width);
        let side = height.min(width) as f32;
        let (wide, high) = (width as f32 / side, height as f32 / side);
        let along = |count: usize, far: f32| {
            let step = if count > 1 { 2.0 * far / (count - 1) as f32 } else { 0.0 };
            (0..count).map(|at| step.mul_add(at as f32, -far)).collect::<Vec<f32>>()
        };
        let (columns, rows) = (along(width, wide), along(height, high));
        let seen = |[x, y]: Point| sampled(video, [(x / wide).clamp(-1.0, 1.0), (y / high).clamp(-1.0, 1.0)]);
        let features: Vec<Vec<f32>> = self.frames[0].iter().map(|(point, _)| seen(*point)).collect();
        let mut shown = video.values().to_vec();
        let mut weights = vec![1.0; volume];
        for frame in 1..frames {
            let points = self.mean(frame);
            for place in 0..plane {
                let (x, y) = (columns[place % width], rows[place / width]);
                let mut near: Vec<(f32, usize)> = points
                    .iter()
                    .enumerate()
                    .map(|(index, ([px, py], seen))| {
                        let far = (px - x) * (px - x) + (py - y) * (py - y);
                        ((-far * temperature).exp() * seen, index)
                    })
                    .collect();
                near.sort_by(|a, b| b.0.total_cmp(&a.0));
                near.truncate(most);
                let sum: f32 = near.iter().map(|(weight, _)| weight).sum();
                weights[frame * plane + place] = sum;
                let values = shown[frame * plane + place..].iter_mut().step_by(volume);
                for (channel, value) in values.enumerate() {
                    let follows: f32 =
                        near.iter().map(|(weight, index)| weight * features[*index][channel]).sum();
                    *value = follows + *value * (1.0 - sum.clamp(0.0, 1.0));
                }
            }
        }
        (shown, weights)
    }

    /// Where the points are in the frames that a frame of a latent stands for, and whether any of them is seen there.
    fn mean(&self, frame: usize) -> Vec<(Point, f32)> {
        let first = 1 + (frame - 1) * FRAMES;
        let frames = &self.frames[first.min(self.frames.len())..(first + FRAMES).min(self.frames.len())];
        let point = |track: usize| {
            let mut sum = [0.0; 3];
            for ([x, y], _) in frames.iter().map(|points| points[track]).filter(|(_, seen)| *seen) {
                sum = [sum[0] + x, sum[1] + y, sum[2] + 1.0];
            }
            let by = sum[2] + 1e-5;
            ([sum[0] / by, sum[1] / by], sum[2].min(1.0))
        };
        (0..self.frames[0].len()).map(point).collect()
    }
}

/// The channels of a latent's first frame at a place from -1 to 1, between values; nothing lies outside.
fn sampled(video: &Latent, [x, y]: Point) -> Vec<f32> {
    let [_, channels, frames, height, width] = super::axes(video);
    let (volume, plane) = (frames * height * width, height * width);
    let place = |at: f32, count: usize| ((at + 1.0) * count as f32 - 1.0) / 2.0;
    let (column, row) = (place(x, width), place(y, height));
    let (left, top) = (column.floor(), row.floor());
    let (right, below) = (column - left, row - top);
    let corners = [
        (top, left, (1.0 - below) * (1.0 - right)),
        (top, left + 1.0, (1.0 - below) * right),
        (top + 1.0, left, below * (1.0 - right)),
        (top + 1.0, left + 1.0, below * right),
    ];
    let inside = |at: f32, count: usize| at >= 0.0 && at < count as f32;
    let known = corners.iter().filter(|(row, column, _)| inside(*row, height) && inside(*column, width));
    let known: Vec<(usize, f32)> =
        known.map(|(row, column, share)| (*row as usize * width + *column as usize, *share)).collect();
    let value = |channel: usize| {
        let first = &video.values()[channel * volume..][..plane];
        known.iter().map(|(at, share)| first[*at] * share).sum()
    };
    (0..channels).map(value).collect()
}

/// The greatest number that divides both.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_are_read_in_all_their_forms() {
        let one = tracks_of("[{'x': 1, 'y': 2.5}, {\"x\": 3, \"y\": 4}]");
        assert_eq!(one, [vec![vec![[1.0, 2.5], [3.0, 4.0]]]]);
        assert_eq!(tracks_of("[[{'x': 1, 'y': 2.5}, {'x': 3, 'y': 4}]]"), one);
        assert_eq!(tracks_of("[[[{'x': 1, 'y': 2.5}, {'x': 3, 'y': 4}]]]"), one);
        assert_eq!(tracks_of("[[{'x': 1, 'y': 2}], [{'x': 3, 'y': 4}]]")[0].len(), 2);
        for nothing in ["[]", "", "{", "[[]]", "[1]", "[{'x': 1}]"] {
            assert_eq!(tracks_of(nothing), [] as [Tracks; 0], "{nothing}");
        }
    }

    #[test]
    fn points_are_taken_at_the_rate_of_the_video() {
        let track: Vec<Point> = (0..POINTS).map(|at| [at as f32, 0.0]).collect();
        let at = |frames: usize| {
            let path = Path::new(std::slice::from_ref(&track), [2, 2], frames);
            path.frames.iter().map(|points| points[0].0[0] + 1.0).collect::<Vec<f32>>()
        };
        // Eighty of a hundred and twenty points: two of each three, and the first before them.
        let eighty = at(80);
        assert_eq!((eighty.len(), &eighty[..6]), (81, &[0.0, 1.0, 3.0, 4.0, 6.0, 7.0][..]));
        assert_eq!(at(120).len(), 121);
        assert_eq!(at(120)[..4], [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(at(0), [0.0]);
    }

    #[test]
    fn what_a_point_shows_follows_it() {
        // One channel, two frames of four by four values; the point lies on a value of the first frame.
        let mut video = Latent::zeros(&[1, 1, 2, 4, 4]);
        video.values_mut()[5] = 3.0;
        // From the middle of the second value of the second row to the lower right corner.
        let mut track = vec![[12.0, 12.0]];
        track.resize(POINTS, [32.0, 32.0]);
        let path = Path::new(std::slice::from_ref(&track), [32, 32], 4);
        let (shown, weights) = path.spread(&video, 220.0, 2);
        assert_eq!((&shown[..16], &weights[..16]), (&video.values()[..16], &[1.0; 16][..]));
        assert!(
            (weights[31] - 1.0).abs() < 1e-3 && (shown[31] - 3.0).abs() < 1e-2,
            "{} {}",
            weights[31],
            shown[31]
        );
        assert!(weights[16] < 1e-6 && shown[16].abs() < 1e-6);
        // A track that has ended is not seen.
        let path = Path::new(&[vec![[12.0, 12.0]]], [32, 32], 4);
        let (_, weights) = path.spread(&video, 220.0, 2);
        assert!(weights[16..].iter().all(|weight| *weight == 0.0));
    }

    #[test]
    fn places_between_values_and_outside() {
        let video = Latent::new(vec![1, 1, 1, 1, 2], vec![2.0, 4.0]).unwrap();
        assert_eq!(sampled(&video, [0.0, 0.0]), [3.0]);
        assert_eq!(sampled(&video, [-0.5, 0.0]), [2.0]);
        assert_eq!(sampled(&video, [-1.0, 0.0]), [1.0]);
    }
}
