//! Where the tokens of a video stand: in seconds, rows and columns of pixels. All values of a token turn with them, not
//! those of each head alike.

use meta::DeviceId;
use tensor::{Lane, Tensor};

use super::Config;
use super::latent::LATENT;
use crate::Result;
use crate::diffusion::known::Known;

/// Frames of a video behind the first that one frame of a latent stands for.
const FRAMES: usize = 8;
/// The fastest waves turn so many times as often as the slowest.
const THETA: f64 = 10_000.0;
/// Seconds and pixels over which positions run from the one end of a wave to the other.
const LENGTHS: [f32; 3] = [20.0, 2048.0, 2048.0];

/// What decides where tokens stand.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Placing {
    /// Frames, rows and columns of the latent.
    pub(super) size: [usize; 3],
    /// The frames of the video at which the last frames of the latent stand.
    pub(super) keyframes: Vec<f32>,
    /// Frames of a second.
    pub(super) frame_rate: f32,
}

/// The angles of the tokens, as tables on the devices that asked for them.
pub(super) struct TokenAngles {
    size: [usize; 3],
    /// For each axis the angles of its places, `[places, waves]`.
    axes: [Vec<f32>; 3],
    waves: usize,
    /// Pairs of values in front that do not turn.
    still: usize,
    on: Known<DeviceId, Rotation>,
}

/// Cosines and sines on a device, `[1, tokens, hidden / 2]`.
#[derive(Clone)]
pub(super) struct Rotation {
    pub(super) cos: Tensor,
    pub(super) sin: Tensor,
}

impl TokenAngles {
    pub(super) fn new(config: &Config, placing: &Placing) -> TokenAngles {
        let [frames, rows, columns] = placing.size;
        let of_video = frames - placing.keyframes.len();
        let seconds = |frame: f32| frame * (1.0 / f64::from(placing.frame_rate)) as f32;
        let times = (0..of_video).map(|frame| {
            let first = if config.has_causal_times { FRAMES - 1 } else { 0 };
            (frame * FRAMES).saturating_sub(first) as f32
        });
        let times: Vec<f32> = times.chain(placing.keyframes.iter().copied()).map(seconds).collect();
        let pixels = |count: usize| (0..count).map(|at| (at * LATENT.pixels_per_value) as f32).collect();
        let places: [Vec<f32>; 3] = [times, pixels(rows), pixels(columns)];
        let frequencies = frequencies(config.hidden / 6);
        // Angles are rounded to f32 at every step, as they are where the weights were trained: the fastest waves see it.
        let angles = |axis: usize| {
            let shares = places[axis].iter().map(|place| place / LENGTHS[axis] * 2.0 - 1.0);
            shares.flat_map(|share| frequencies.iter().map(move |frequency| frequency * share)).collect()
        };
        TokenAngles {
            size: placing.size,
            axes: [angles(0), angles(1), angles(2)],
            waves: frequencies.len(),
            still: config.hidden % 6 / 2,
            on: Known::default(),
        }
    }

    /// The tables on a lane's device. They are sent there once.
    pub(super) fn on(&self, lane: &Lane) -> Result<Rotation> {
        self.on.of(&lane.device().id(), || {
            Ok(Rotation { cos: self.table(lane, f32::cos, 1.0)?, sin: self.table(lane, f32::sin, 0.0)? })
        })
    }

    /// One function of all angles. Only those of each axis are sent to the device, which spreads them over the tokens: the
    /// three of a wave stand side by side.
    fn table(&self, lane: &Lane, function: fn(f32) -> f32, still: f32) -> Result<Tensor> {
        let [frames, rows, columns] = self.size;
        let mut parts = Vec::with_capacity(self.axes.len());
        for (axis, angles) in self.axes.iter().enumerate() {
            let values: Vec<f32> = angles.iter().map(|angle| function(*angle)).collect();
            let mut shape = [1, 1, 1, self.waves, 1];
            shape[axis] = self.size[axis];
            parts.push(lane.tensor_f32(shape, &values)?.broadcast([frames, rows, columns, self.waves, 1])?);
        }
        let tokens = frames * rows * columns;
        let turning = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 4)?;
        let turning = turning.reshape([1, tokens, 3 * self.waves])?;
        if self.still == 0 {
            return Ok(turning);
        }
        let still = lane.tensor_f32([1, 1, 1], &[still])?.broadcast([1, tokens, self.still])?;
        Ok(Tensor::concat(&[&still, &turning], 2)?)
    }
}

/// So many frequencies that grow evenly in their logarithms from a quarter turn to `THETA` times that.
fn frequencies(count: usize) -> Vec<f32> {
    let step = 1.0 / (count.max(2) - 1) as f32;
    let frequency = |i: usize| {
        // From the nearer end, as evenly spaced values are made where the weights were trained.
        let share = if i < count / 2 { step * i as f32 } else { 1.0 - step * (count - 1 - i) as f32 };
        THETA.powf(f64::from(share)) as f32 * std::f32::consts::PI / 2.0
    };
    (0..count).map(frequency).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_run_from_a_quarter_turn_up() {
        let all = frequencies(3);
        let quarter = std::f32::consts::FRAC_PI_2;
        assert_eq!(all, [quarter, 100.0 * quarter, 10_000.0 * std::f32::consts::PI / 2.0]);
    }
}
