//! Rotary positions: every token turns with one number for each axis of its place.

use std::sync::{Mutex, PoisonError};

use meta::DeviceId;
use tensor::{Lane, Tensor};

use super::alterations::Placed;
use super::attending::Attending;
use crate::{Probe, Result};

/// The angles of all tokens, as tables on the devices that asked for them.
///
/// Only the waves of each axis are sent to a device, which spreads them over the tokens itself: a few kilobytes travel
/// beside weights that are streamed, where megabytes would wait for their turn on the link.
pub(super) struct Positions {
    /// For each axis the frequencies of its pairs of values.
    frequencies: Vec<Vec<f64>>,
    grids: Vec<TokenGrid>,
    /// Which of the tokens are looked at more or less.
    pub(super) attending: Attending,
    on: Mutex<Vec<(DeviceId, Rotation)>>,
}

/// Tokens in frames, rows and columns, and the waves of each axis.
struct TokenGrid {
    size: [usize; 3],
    axes: Vec<AxisWaves>,
}

/// The waves of one axis: one for all tokens, or one for each place along a side of the grid.
struct AxisWaves {
    side: usize,
    waves: Vec<Waves>,
}

/// How the numbers of one axis run over a grid of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Along {
    /// The same number for all tokens.
    At(f64),
    /// From this number on, frame by frame.
    Frames(f64),
    /// From this number on, row by row.
    Rows(f64),
    /// From this number on, column by column.
    Columns(f64),
    /// From a number on, in steps of a length along a side: 0 for frames, 1 for rows, 2 for columns.
    Spread {
        /// The side.
        side: usize,
        /// The first number.
        start: f64,
        /// From each number to the next.
        step: f64,
    },
}

impl Along {
    /// The axes of a picture at an index: the index, then rows and columns, moved as an alteration says. An index is shifted
    /// and not scaled: there is one of it.
    pub(super) fn picture(index: f64, placed: &Placed) -> [Along; 3] {
        let spread = |side| Along::Spread {
            side,
            start: placed.at(side, 0),
            step: placed.at(side, 1) - placed.at(side, 0),
        };
        [Along::At(index + placed.at(0, 0)), spread(1), spread(2)]
    }
}

/// Cosines and sines on a device, `[1, tokens, head size / 2]`.
#[derive(Clone)]
pub(super) struct Rotation {
    pub(super) cos: Tensor,
    pub(super) sin: Tensor,
}

impl Rotation {
    /// The rotation of `len` tokens from `start`.
    pub(super) fn slice(&self, start: usize, len: usize) -> Result<Rotation> {
        Ok(Rotation { cos: self.cos.slice(1, start, len)?, sin: self.sin.slice(1, start, len)? })
    }
}

impl Positions {
    /// No tokens yet; so many values of a head turn with each axis, at frequencies that fall from one to `1 / theta`.
    pub(super) fn new(axes: &[usize], theta: f64) -> Positions {
        Positions::turning(axes.iter().map(|size| frequencies(*size, theta)).collect())
    }

    /// No tokens yet; each axis has these frequencies.
    pub(super) fn turning(frequencies: Vec<Vec<f64>>) -> Positions {
        Positions { frequencies, grids: Vec::new(), attending: Attending::default(), on: Mutex::default() }
    }

    /// Adds a grid of frames, rows and columns of tokens, in this order; `along` says how each axis runs.
    pub(super) fn push(&mut self, size: [usize; 3], along: &[Along]) {
        let waves = |(along, frequencies): (&Along, &Vec<f64>)| {
            let (start, side, step) = match *along {
                Along::At(at) => (at, None, 1.0),
                Along::Frames(start) => (start, Some(0), 1.0),
                Along::Rows(start) => (start, Some(1), 1.0),
                Along::Columns(start) => (start, Some(2), 1.0),
                Along::Spread { side, start, step } => (start, Some(side), step),
            };
            let count = side.map_or(1, |side| size[side]);
            let waves = (0..count).map(|i| Waves::at(start + step * i as f64, frequencies)).collect();
            AxisWaves { side: side.unwrap_or(0), waves }
        };
        let axes = along.iter().zip(&self.frequencies).map(waves).collect();
        self.grids.push(TokenGrid { size, axes });
    }

    /// Adds tokens of a text, one below the other.
    pub(super) fn push_text(&mut self, tokens: usize, along: &[Along]) {
        self.push([1, tokens, 1], along);
    }

    /// How many tokens there are.
    pub(super) fn tokens(&self) -> usize {
        self.grids.iter().map(|grid| grid.size.iter().product::<usize>()).sum()
    }

    /// The tables on a lane's device. They are sent there once.
    pub(super) fn on(&self, lane: &Lane) -> Result<Rotation> {
        let device = lane.device().id();
        // Tables are put in whole, so what another thread left is good.
        let mut on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rotation)) = on.iter().find(|(id, _)| *id == device) {
            return Ok(rotation.clone());
        }
        let table = |values: fn(&Waves) -> &[f32]| -> Result<Tensor> {
            let grids = self.grids.iter().filter(|grid| !grid.size.contains(&0));
            let grids = grids.map(|grid| grid.table(lane, values)).collect::<Result<Vec<_>>>()?;
            Ok(Tensor::concat(&grids.iter().collect::<Vec<_>>(), 1)?)
        };
        let rotation = Rotation { cos: table(|waves| &waves.cos)?, sin: table(|waves| &waves.sin)? };
        on.push((device, rotation.clone()));
        Ok(rotation)
    }

    pub(super) fn show(&self, lane: &Lane, probe: &mut Probe<'_>) -> Result<()> {
        let rotation = self.on(lane)?;
        probe.show(format_args!("pe_embedder.cos"), &rotation.cos);
        probe.show(format_args!("pe_embedder.sin"), &rotation.sin);
        Ok(())
    }
}

impl TokenGrid {
    /// The cosines or sines of every token, `[1, tokens, head size / 2]`.
    fn table(&self, lane: &Lane, values: fn(&Waves) -> &[f32]) -> Result<Tensor> {
        let [frames, rows, columns] = self.size;
        let axis = |AxisWaves { side, waves }: &AxisWaves| -> Result<Tensor> {
            let all: Vec<f32> = waves.iter().flat_map(|waves| values(waves).iter().copied()).collect();
            let pairs = all.len() / waves.len();
            let mut shape = [1, 1, 1, pairs];
            shape[*side] = waves.len();
            Ok(lane.tensor_f32(shape, &all)?.broadcast([frames, rows, columns, pairs])?)
        };
        let parts = self.axes.iter().map(axis).collect::<Result<Vec<_>>>()?;
        let table = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 3)?;
        let pairs = table.dim(3);
        Ok(table.reshape([1, frames * rows * columns, pairs])?)
    }
}

/// Cosines and sines of one position on one axis.
struct Waves {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Waves {
    fn at(position: f64, frequencies: &[f64]) -> Waves {
        let (sin, cos) =
            frequencies.iter().map(|f| (position * f).sin_cos()).map(|(s, c)| (s as f32, c as f32)).unzip();
        Waves { cos, sin }
    }
}

/// `theta^(-2 i / size)` for each pair of values of an axis.
pub(super) fn frequencies(size: usize, theta: f64) -> Vec<f64> {
    (0..size / 2).map(|i| 1.0 / theta.powf((2 * i) as f64 / size as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::alterations::Amount;
    use super::*;

    #[test]
    fn pictures_stand_where_an_alteration_puts_them() {
        let placed = Placed { scale: [9.0, 0.5, 2.0].map(Amount), shift: [3.0, -1.0, 4.0].map(Amount) };
        let mut positions = Positions::new(&[4, 6, 6], 2000.0);
        positions.push([1, 3, 2], &Along::picture(10.0, &placed));
        let numbers: [&[f64]; 3] = [&[13.0], &[-1.0, -0.5, 0.0], &[4.0, 6.0]];
        for (axis, (numbers, size)) in positions.grids[0].axes.iter().zip(numbers.into_iter().zip([4, 6, 6]))
        {
            assert_eq!(axis.waves.len(), numbers.len());
            for (waves, number) in axis.waves.iter().zip(numbers) {
                let angles =
                    (0..size / 2).map(|i| number * 2000f64.powf(-2.0 * f64::from(i) / f64::from(size)));
                for ((angle, cos), sin) in angles.zip(&waves.cos).zip(&waves.sin) {
                    assert!(
                        (angle.cos() as f32 - cos).abs() < 1e-6 && (angle.sin() as f32 - sin).abs() < 1e-6
                    );
                }
            }
        }
    }

    #[test]
    fn as_counted_means_as_without_an_alteration() {
        let counted = Along::picture(1.0, &Placed::COUNTED);
        let spread = |side| Along::Spread { side, start: 0.0, step: 1.0 };
        assert_eq!(counted, [Along::At(1.0), spread(1), spread(2)]);
    }
}
