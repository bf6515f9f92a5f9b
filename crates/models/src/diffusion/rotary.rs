//! Rotary positions of videos: every token turns with three numbers, its frame, its row and its column.

use std::sync::{Mutex, PoisonError};

use meta::DeviceId;
use tensor::{Lane, Tensor};

use super::alterations::Placed;
use super::batches::together;
use crate::{Probe, Result};

/// The angles of the tokens of a grid, as tables on the devices that asked for them.
///
/// Only the waves of each axis are sent to a device, which spreads them over the tokens itself: a few kilobytes travel
/// beside weights that are streamed, where megabytes would wait for their turn on the link.
pub(super) struct VideoPositions {
    /// Where its tokens stand.
    places: Vec<Places>,
    grids: Vec<[Vec<Waves>; 3]>,
    on: Mutex<Vec<(DeviceId, Rotation)>>,
}

/// Where the frames, rows and columns of a grid stand.
pub(super) type Places = [Vec<f64>; 3];

/// Cosines and sines on a device, `[1, tokens, head size / 2]`.
#[derive(Clone)]
pub(super) struct Rotation {
    pub(super) cos: Tensor,
    pub(super) sin: Tensor,
}

/// Cosines and sines of one position on one axis.
struct Waves {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl VideoPositions {
    /// Positions of grids one after the other; each axis has so many of the values of a head.
    pub(super) fn new(places: Vec<Places>, values: [usize; 3], theta: f64) -> VideoPositions {
        let frequencies = values.map(|values| {
            let frequency = |i: usize| 1.0 / theta.powf((2 * i) as f64 / values as f64);
            (0..values / 2).map(frequency).collect::<Vec<f64>>()
        });
        let waves = |grid: &Places, axis: usize| {
            grid[axis].iter().map(|at| Waves::at(*at, &frequencies[axis])).collect::<Vec<Waves>>()
        };
        let grids = places.iter().map(|grid| [waves(grid, 0), waves(grid, 1), waves(grid, 2)]).collect();
        VideoPositions { places, grids, on: Mutex::default() }
    }

    /// Whether they are of tokens that stand like this.
    pub(super) fn are_of(&self, places: &[Places]) -> bool {
        self.places == places
    }

    /// The tables on a lane's device. They are sent there once.
    pub(super) fn on(&self, lane: &Lane) -> Result<Rotation> {
        let device = lane.device().id();
        // Tables are put in whole, so what another thread left is good.
        let mut on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rotation)) = on.iter().find(|(id, _)| *id == device) {
            return Ok(rotation.clone());
        }
        let rotation = Rotation {
            cos: self.table(lane, |waves| &waves.cos)?,
            sin: self.table(lane, |waves| &waves.sin)?,
        };
        on.push((device, rotation.clone()));
        Ok(rotation)
    }

    /// Shows the tables.
    pub(super) fn show(&self, lane: &Lane, probe: &mut Probe<'_>) -> Result<()> {
        let rotation = self.on(lane)?;
        probe.show(format_args!("rope_embedder.cos"), &rotation.cos);
        probe.show(format_args!("rope_embedder.sin"), &rotation.sin);
        Ok(())
    }

    /// The cosines or sines of every token, `[1, tokens, head size / 2]`.
    fn table(&self, lane: &Lane, values: fn(&Waves) -> &[f32]) -> Result<Tensor> {
        let tables =
            self.grids.iter().map(|grid| table_of(lane, grid, values)).collect::<Result<Vec<_>>>()?;
        together(&tables.iter().collect::<Vec<_>>(), 1)
    }
}

/// The same of a grid.
fn table_of(lane: &Lane, grid: &[Vec<Waves>; 3], values: fn(&Waves) -> &[f32]) -> Result<Tensor> {
    let [frames, rows, columns] = grid.each_ref().map(Vec::len);
    let mut parts = Vec::with_capacity(grid.len());
    for (axis, waves) in grid.iter().enumerate() {
        let all: Vec<f32> = waves.iter().flat_map(|waves| values(waves).iter().copied()).collect();
        let pairs = all.len() / waves.len().max(1);
        let mut shape = [1, 1, 1, pairs];
        shape[axis] = waves.len();
        parts.push(lane.tensor_f32(shape, &all)?.broadcast([frames, rows, columns, pairs])?);
    }
    let table = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 3)?;
    let pairs = table.dim(3);
    Ok(table.reshape([1, frames * rows * columns, pairs])?)
}

/// Where the tokens of so many frames, rows and columns stand.
pub(super) fn counted(size: [usize; 3], placed: &Placed) -> Places {
    [0, 1, 2].map(|axis| (0..size[axis]).map(|at| placed.at(axis, at)).collect())
}

impl Waves {
    fn at(position: f64, frequencies: &[f64]) -> Waves {
        let (sin, cos) =
            frequencies.iter().map(|f| (position * f).sin_cos()).map(|(s, c)| (s as f32, c as f32)).unzip();
        Waves { cos, sin }
    }
}
