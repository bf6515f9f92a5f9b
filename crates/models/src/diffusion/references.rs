//! Pictures to look at: where their tokens stand among those of the picture that is made.

use std::sync::Arc;

use meta::Shape;
use residency::Lease;
use sampling::{Latent, LatentShape, LatentSpec};
use tensor::Tensor;

use crate::diffusion::patches::{Grid, PATCH, frames_apart, patchify};
use crate::{Error, Result};

/// Where reference images stand for the rotary positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReferencePlaces {
    /// All one index away from the picture, below or beside each other, on whichever side the whole grows less.
    #[default]
    Offset,
    /// Each with an index of its own, over the picture.
    Index,
    /// The same with indices that go down from the picture's.
    IndexDown,
    /// In the picture's own plane, on the diagonal behind it.
    Diagonal,
}

/// Finds the places of references one after the other. Sizes are in values of a latent.
pub(super) struct ReferenceLayout {
    places: ReferencePlaces,
    /// Values of a latent along one side of a token.
    patch: usize,
    /// How far indices are apart.
    step: f64,
    count: usize,
    height: usize,
    width: usize,
}

impl ReferenceLayout {
    /// For pictures whose tokens are patches, with indices that count.
    pub(super) fn new(places: ReferencePlaces) -> ReferenceLayout {
        ReferenceLayout { places, patch: PATCH, step: 1.0, count: 0, height: 0, width: 0 }
    }

    /// For pictures whose tokens are values, with indices so far apart.
    pub(super) fn of_values(places: ReferencePlaces, step: f64) -> ReferenceLayout {
        ReferenceLayout { patch: 1, step, ..ReferenceLayout::new(places) }
    }

    /// The position of the next reference's first token: index, row and column.
    pub(super) fn next(&mut self, grid: &Grid, latent: &Grid) -> [f64; 3] {
        let patch = self.patch;
        let patches = |values: usize| ((values + patch / 2) / patch) as f64;
        self.count += 1;
        let index = self.count as f64 * self.step;
        match self.places {
            ReferencePlaces::Index => [index, 0.0, 0.0],
            ReferencePlaces::IndexDown => [-index, 0.0, 0.0],
            ReferencePlaces::Diagonal => {
                let (down, right) = (latent.rows * patch + self.height, latent.columns * patch + self.width);
                self.height += grid.height;
                self.width += grid.width;
                [0.0, patches(down), patches(right)]
            }
            ReferencePlaces::Offset => {
                let beside = grid.height + self.height > grid.width + self.width;
                let (down, right) = if beside { (0, self.width) } else { (self.height, 0) };
                self.height = self.height.max(grid.height + down);
                self.width = self.width.max(grid.width + right);
                [1.0, patches(down), patches(right)]
            }
        }
    }
}

/// The shape of a latent picture or video, `[batch or 1, channels, frames, height, width]`, and its patches on the device,
/// `[batch or 1, tokens, channels · 2 · 2]`.
pub(super) fn frames_as_patches(
    lease: &Lease<'_>,
    spec: &LatentSpec,
    latent: &Arc<Latent>,
    batch: usize,
) -> Result<(Shape, Tensor)> {
    let latent = spec.to_model(latent)?;
    let latent = if latent.shape().first() == Some(&1) { latent } else { latent.with_items(batch)? };
    let LatentShape { batch, channels, frames, height, width } = LatentShape::of(&latent)?;
    let latent = lease.lane().tensor([batch, channels, frames, height, width], latent.values())?;
    let patches = patchify(&frames_apart(&latent)?)?;
    let (tokens, values) = (frames * patches.dim(1), patches.dim(2));
    Ok((*latent.shape(), patches.reshape([batch, tokens, values])?))
}

/// The error for a way to place references that a family does not know.
pub(super) fn unknown_places<T>(method: &str, known: &str) -> Result<T> {
    Err(Error::Input {
        what: "the way to place reference latents",
        expected: known.to_owned(),
        got: format!("\"{method}\""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(places: ReferencePlaces, sizes: &[(usize, usize)]) -> Vec<[i32; 3]> {
        let grid = |&(height, width): &(usize, usize)| Grid {
            height,
            width,
            rows: height.div_ceil(PATCH),
            columns: width.div_ceil(PATCH),
        };
        let mut layout = ReferenceLayout::new(places);
        sizes.iter().map(|size| layout.next(&grid(size), &grid(&(8, 12))).map(|at| at as i32)).collect()
    }

    #[test]
    fn references_stand_apart() {
        let sizes = [(8, 4), (8, 4), (4, 20)];
        assert_eq!(places(ReferencePlaces::Index, &sizes), [[1, 0, 0], [2, 0, 0], [3, 0, 0]]);
        assert_eq!(places(ReferencePlaces::IndexDown, &sizes), [[-1, 0, 0], [-2, 0, 0], [-3, 0, 0]]);
        // The second stands beside the first, which is high; the third below both, since it is wide.
        assert_eq!(places(ReferencePlaces::Offset, &sizes), [[1, 0, 0], [1, 0, 2], [1, 4, 0]]);
        assert_eq!(places(ReferencePlaces::Diagonal, &sizes), [[0, 4, 6], [0, 8, 8], [0, 12, 10]]);
    }
}
