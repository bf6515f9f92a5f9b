//! Scaling latents by turning one value's channels toward the next one's, so that their length is kept.

use super::{Method, Target, taps};
use crate::Result;
use crate::value::filled;
use crate::wanted::still_wanted;

/// Beyond this, two directions count as equal, or as opposite.
const NEARLY_ONE: f32 = 1.0 - 1e-5;

/// Scales latents of `[batch, channels, frames, height, width]`.
pub(super) fn scale(values: &[f32], shape: [usize; 5], target: Target) -> Result<Vec<f32>> {
    let [batch, channels, frames, height, width] = shape;
    let rows = Axis { batch, channels, before: frames * height, length: width, after: 1 };
    let rows = rows.scaled(values, target.width)?;
    let columns = Axis { batch, channels, before: frames, length: height, after: target.width };
    columns.scaled(&rows, target.height)
}

/// Latents of `[batch, channels, before, length, after]`, scaled along the length.
struct Axis {
    batch: usize,
    channels: usize,
    before: usize,
    length: usize,
    after: usize,
}

impl Axis {
    fn scaled(&self, values: &[f32], to: usize) -> Result<Vec<f32>> {
        let steps = steps(self.length, to);
        let mut out = filled(&[self.batch, self.channels, self.before, to, self.after], 0.0)?;
        let mut first = vec![0.0; self.channels];
        let mut second = vec![0.0; self.channels];
        for item in 0..self.batch {
            for before in 0..self.before {
                still_wanted()?;
                for (index, step) in steps.iter().enumerate() {
                    for after in 0..self.after {
                        let at = |channel: usize, position: usize, length: usize| {
                            let line = (item * self.channels + channel) * self.before + before;
                            (line * length + position) * self.after + after
                        };
                        for channel in 0..self.channels {
                            first[channel] = values[at(channel, step.first, self.length)];
                            second[channel] = values[at(channel, step.second, self.length)];
                        }
                        for (channel, value) in turned(&first, &second, step.share).into_iter().enumerate() {
                            out[at(channel, index, to)] = value;
                        }
                    }
                }
            }
        }
        Ok(out)
    }
}

/// One new position: the two old ones that it lies between, and how near the second.
struct Step {
    first: usize,
    second: usize,
    share: f32,
}

/// The positions come from scaling the numbers of the old ones, which is not the same as the positions themselves
/// where the axis ends: there the number of the next one stays.
fn steps(from: usize, to: usize) -> Vec<Step> {
    let last = from - 1;
    let step = |taps: &super::Taps| {
        let number: f32 = taps.iter().map(|(at, weight)| at as f32 * weight).sum();
        let next: f32 = taps.iter().map(|(at, weight)| (at + 1).min(last) as f32 * weight).sum();
        Step { first: number as usize, second: next as usize, share: number - number.floor() }
    };
    taps(from, to, Method::Bilinear).iter().map(step).collect()
}

fn turned(first: &[f32], second: &[f32], share: f32) -> Vec<f32> {
    let length = |vector: &[f32]| vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let (first_length, second_length) = (length(first), length(second));
    let direction = |vector: &[f32], length: f32| -> Vec<f32> {
        vector.iter().map(|value| if length == 0.0 { 0.0 } else { value / length }).collect()
    };
    let (from, toward) = (direction(first, first_length), direction(second, second_length));
    let cosine: f32 = from.iter().zip(&toward).map(|(a, b)| a * b).sum();
    if cosine > NEARLY_ONE {
        return first.to_vec();
    }
    if cosine < -NEARLY_ONE {
        return first.iter().zip(second).map(|(a, b)| a * (1.0 - share) + b * share).collect();
    }
    let angle = cosine.acos();
    let (a, b) = (((1.0 - share) * angle).sin() / angle.sin(), (share * angle).sin() / angle.sin());
    let scale = first_length * (1.0 - share) + second_length * share;
    from.iter().zip(&toward).map(|(from, toward)| (a * from + b * toward) * scale).collect()
}
