//! Where tokens stand: text at 0, 0, 0, the picture from there, references where their places are.

use super::Config;
use super::prepared::Prepared;
use crate::diffusion::attending::Attending;
use crate::diffusion::patches::Grid;
use crate::diffusion::positions::{Along, Positions};
use crate::diffusion::references::ReferenceLayout;

/// The positions of the text, then those of the latent, then those of each reference: the index of the image, the row and
/// the column.
pub(super) fn positions(config: &Config, latent: &Grid, given: &Prepared) -> Positions {
    let mut positions = Positions::new(&config.axes, config.theta);
    positions.push_text(given.text.dim(1), &[Along::At(0.0); 3]);
    let mut push = |grid: &Grid, [index, row, column]: [f64; 3]| {
        let along = [Along::At(index), Along::Rows(row), Along::Columns(column)];
        positions.push([1, grid.rows, grid.columns], &along);
    };
    push(latent, [0.0; 3]);
    let mut layout = ReferenceLayout::new(given.places);
    for reference in &given.references {
        let grid = Grid::sized(&reference.shape);
        push(&grid, layout.next(&grid, latent));
    }
    positions.attending = Attending::new(&given.biased, given.text.dim(1), positions.tokens());
    positions
}
