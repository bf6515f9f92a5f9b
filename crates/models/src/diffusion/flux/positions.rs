//! Where tokens stand: text at 0, 0, 0, the picture from there, references where their places are.

use super::Config;
use super::prepared::Prepared;
use crate::diffusion::Placed;
use crate::diffusion::attending::Attending;
use crate::diffusion::patches::Grid;
use crate::diffusion::positions::{Along, Positions};
use crate::diffusion::references::ReferenceLayout;

/// The positions of the text, then those of the latent, then those of each reference: the index of the image, the row and
/// the column. Those of the latent may be moved; references stay.
pub(super) fn positions(config: &Config, latent: &Grid, given: &Prepared, placed: &Placed) -> Positions {
    let mut positions = Positions::new(&config.axes, config.theta);
    positions.push_text(given.text.dim(1), &[Along::At(0.0); 3]);
    positions.push([1, latent.rows, latent.columns], &Along::picture(0.0, placed));
    let mut layout = ReferenceLayout::new(given.places);
    for reference in &given.references {
        let grid = Grid::sized(&reference.shape);
        let [index, row, column] = layout.next(&grid, latent);
        let along = [Along::At(index), Along::Rows(row), Along::Columns(column)];
        positions.push([1, grid.rows, grid.columns], &along);
    }
    positions.attending = Attending::new(&given.biased, given.text.dim(1), positions.tokens());
    positions
}
