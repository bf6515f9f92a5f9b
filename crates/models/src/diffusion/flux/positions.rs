//! Rotary positions: every token turns with three numbers, the index of its image, its row and its column. Text
//! stands at 0, 0, 0.

use meta::DeviceId;
use tensor::{Lane, Tensor};

use super::{Config, FluxInputs, Grid, PATCH, ReferencePlaces};
use crate::{Probe, Result};

/// The angles of all tokens, text first, as tables on the devices that asked for them.
///
/// Only the waves of each axis are sent to a device, which spreads them over the tokens itself: a few kilobytes travel
/// beside weights that are streamed, where megabytes would wait for their turn on the link.
pub(super) struct Positions {
    grids: Vec<TokenGrid>,
    on: Vec<(DeviceId, Rotation)>,
}

/// Tokens in rows and columns, and the waves of each axis.
struct TokenGrid {
    rows: usize,
    columns: usize,
    /// One position for the index; one for each row and each column, or one for all.
    axes: [Vec<Waves>; 3],
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
    /// The positions of the text, then those of the latent, then those of each reference.
    pub(super) fn new(config: &Config, latent: &Grid, inputs: &FluxInputs<'_>) -> Positions {
        let mut positions = Positions { grids: Vec::new(), on: Vec::new() };
        let frequencies = config.axes.map(|size| frequencies(size, config.theta));
        positions.push(&frequencies, Place::Point, inputs.context.dim(1), 1);
        positions.push(&frequencies, Place::From([0, 0, 0]), latent.rows, latent.columns);
        let mut layout = ReferenceLayout { places: inputs.reference_places, count: 0, height: 0, width: 0 };
        for reference in inputs.references {
            let grid = Grid::of(reference);
            let start = layout.next(&grid, latent);
            positions.push(&frequencies, Place::From(start), grid.rows, grid.columns);
        }
        positions
    }

    /// Adds a grid of tokens.
    fn push(&mut self, frequencies: &[Vec<f64>; 3], place: Place, rows: usize, columns: usize) {
        let (start, spreads) = match place {
            Place::Point => ([0, 0, 0], false),
            Place::From(start) => (start, true),
        };
        let waves = |axis: usize, count: usize| -> Vec<Waves> {
            let count = if spreads { count } else { 1 };
            (0..count).map(|i| Waves::at((start[axis] + i) as f64, &frequencies[axis])).collect()
        };
        self.grids.push(TokenGrid { rows, columns, axes: [waves(0, 1), waves(1, rows), waves(2, columns)] });
    }

    /// The tables on a lane's device. They are sent there once.
    pub(super) fn on(&mut self, lane: &Lane) -> Result<Rotation> {
        let device = lane.device().id();
        if let Some((_, rotation)) = self.on.iter().find(|(id, _)| *id == device) {
            return Ok(rotation.clone());
        }
        let table = |values: fn(&Waves) -> &[f32]| -> Result<Tensor> {
            let grids = self.grids.iter().map(|grid| grid.table(lane, values)).collect::<Result<Vec<_>>>()?;
            Ok(Tensor::concat(&grids.iter().collect::<Vec<_>>(), 1)?)
        };
        let rotation = Rotation { cos: table(|waves| &waves.cos)?, sin: table(|waves| &waves.sin)? };
        self.on.push((device, rotation.clone()));
        Ok(rotation)
    }

    pub(super) fn show(&mut self, lane: &Lane, probe: &mut Probe<'_>) -> Result<()> {
        let rotation = self.on(lane)?;
        probe.show(format_args!("pe_embedder.cos"), &rotation.cos);
        probe.show(format_args!("pe_embedder.sin"), &rotation.sin);
        Ok(())
    }
}

impl TokenGrid {
    /// The cosines or sines of every token, `[1, tokens, head size / 2]`.
    fn table(&self, lane: &Lane, values: fn(&Waves) -> &[f32]) -> Result<Tensor> {
        let axis = |waves: &[Waves], along: usize| -> Result<Tensor> {
            let all: Vec<f32> = waves.iter().flat_map(|waves| values(waves).iter().copied()).collect();
            let pairs = all.len() / waves.len();
            let mut shape = [1, 1, pairs];
            shape[along] = waves.len();
            Ok(lane.tensor_f32(shape, &all)?.broadcast([self.rows, self.columns, pairs])?)
        };
        let [index, down, right] = &self.axes;
        let parts = [axis(index, 0)?, axis(down, 0)?, axis(right, 1)?];
        let table = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 2)?;
        let pairs = table.dim(2);
        Ok(table.reshape([1, self.rows * self.columns, pairs])?)
    }
}

/// Where a grid of tokens stands.
#[derive(Clone, Copy)]
enum Place {
    /// All tokens at 0, 0, 0.
    Point,
    /// The first token here, the others to its right and below.
    From([usize; 3]),
}

/// Finds the places of references one after the other. Sizes are in values of a latent.
struct ReferenceLayout {
    places: ReferencePlaces,
    count: usize,
    height: usize,
    width: usize,
}

impl ReferenceLayout {
    /// The position of the next reference's first token: index, row and column.
    fn next(&mut self, grid: &Grid, latent: &Grid) -> [usize; 3] {
        let patches = |values: usize| (values + PATCH / 2) / PATCH;
        self.count += 1;
        match self.places {
            ReferencePlaces::Index => [self.count, 0, 0],
            ReferencePlaces::Diagonal => {
                let (down, right) = (latent.rows * PATCH + self.height, latent.columns * PATCH + self.width);
                self.height += grid.height;
                self.width += grid.width;
                [0, patches(down), patches(right)]
            }
            ReferencePlaces::Offset => {
                let beside = grid.height + self.height > grid.width + self.width;
                let (down, right) = if beside { (0, self.width) } else { (self.height, 0) };
                self.height = self.height.max(grid.height + down);
                self.width = self.width.max(grid.width + right);
                [1, patches(down), patches(right)]
            }
        }
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
fn frequencies(size: usize, theta: f64) -> Vec<f64> {
    (0..size / 2).map(|i| 1.0 / theta.powf((2 * i) as f64 / size as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(places: ReferencePlaces, sizes: &[(usize, usize)]) -> Vec<[usize; 3]> {
        let grid = |&(height, width): &(usize, usize)| Grid {
            height,
            width,
            rows: height.div_ceil(PATCH),
            columns: width.div_ceil(PATCH),
        };
        let mut layout = ReferenceLayout { places, count: 0, height: 0, width: 0 };
        sizes.iter().map(|size| layout.next(&grid(size), &grid(&(8, 12)))).collect()
    }

    #[test]
    fn references_stand_apart() {
        let sizes = [(8, 4), (8, 4), (4, 20)];
        assert_eq!(places(ReferencePlaces::Index, &sizes), [[1, 0, 0], [2, 0, 0], [3, 0, 0]]);
        // The second stands beside the first, which is high; the third below both, since it is wide.
        assert_eq!(places(ReferencePlaces::Offset, &sizes), [[1, 0, 0], [1, 0, 2], [1, 4, 0]]);
        assert_eq!(places(ReferencePlaces::Diagonal, &sizes), [[0, 4, 6], [0, 8, 8], [0, 12, 10]]);
    }
}
