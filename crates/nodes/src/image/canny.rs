//! Canny's edges: a blur, slopes, only what is steepest across an edge, and weak edges only beside strong ones.

use std::sync::Arc;

use graph::{Catalogue, Input, Outcome};

use super::filters::blurred;
use crate::class::class;
use crate::value::Image;
use crate::wanted::{collect_while_wanted, still_wanted};
use crate::{Error, Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(Canny(Arc::clone(runtime)));
}

class! {
    Canny in "image/preprocessors";
    |schema| schema
        .about("Draws the edges of pictures, white on black.")
        .input(Input::socket("image", "IMAGE"))
        .input(Input::float("low_threshold", 0.4, 0.01, 0.99, 0.01))
        .input(Input::float("high_threshold", 0.8, 0.01, 0.99, 0.01))
        .output("IMAGE");
    |runtime, call| {
        let image = call.object::<Image>("image")?;
        let limits = Limits { low: call.float("low_threshold")? as f32, high: call.float("high_threshold")? as f32 };
        Ok(Outcome::object(edges(&image, limits)?))
    }
}

/// From which steepness on an edge counts beside another, and by itself.
#[derive(Clone, Copy)]
struct Limits {
    low: f32,
    high: f32,
}

/// The gaussian of five values with a deviation of 1.
fn kernel() -> Vec<f32> {
    let heights: Vec<f32> = (-2i32..=2).map(|x| (-(x * x) as f32 / 2.0).exp()).collect();
    let sum: f32 = heights.iter().sum();
    heights.iter().map(|height| height / sum).collect()
}

fn edges(image: &Image, limits: Limits) -> Result<Image> {
    if limits.low > limits.high {
        let text =
            format!("low_threshold ({}) must not be above high_threshold ({})", limits.low, limits.high);
        return Err(Error::Told(text));
    }
    let brightness = |pixel: &[f32]| match pixel {
        [red, green, blue, ..] => 0.299 * red + 0.587 * green + 0.114 * blue,
        _ => pixel.first().copied().unwrap_or(0.0),
    };
    let values = image.values.chunks_exact(image.channels.max(1)).map(brightness);
    let bright = Image::collect(image.host(), [image.batch, image.height, image.width, 1], values)?;
    let grey = blurred(&bright, &kernel())?;
    let mut out = Image::filled(image.host(), [image.batch, image.height, image.width, 3], 0.0)?;
    let length = image.height * image.width;
    for (index, out) in out.values.to_mut()?.chunks_exact_mut(3 * length).enumerate() {
        let plane = Plane { width: image.width, height: image.height, values: grey.frame(index) };
        for (pixel, edge) in out.chunks_exact_mut(3).zip(plane.edges(limits)?) {
            pixel.fill(edge);
        }
    }
    Ok(out)
}

/// One channel of one picture.
struct Plane<'a> {
    width: usize,
    height: usize,
    values: &'a [f32],
}

/// Neighbours by eighths of a turn, from the right one on: column and row.
const NEIGHBOURS: [(isize, isize); 8] =
    [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)];

impl Plane<'_> {
    fn edges(&self, limits: Limits) -> Result<Vec<f32>> {
        let slopes = collect_while_wanted(self.places().map(|(column, row)| self.slope(column, row)))?;
        let steepness = |column: usize, row: usize, direction: usize| {
            self.neighbour(column, row, direction).map_or(0.0, |place| slopes[place].0)
        };
        let steepest = self.places().zip(&slopes).map(|((column, row), (value, direction))| {
            let across = [*direction, (direction + 4) % 8];
            let is_steepest = across.into_iter().all(|direction| *value > steepness(column, row, direction));
            if is_steepest { *value } else { 0.0 }
        });
        self.joined(&collect_while_wanted(steepest)?, limits)
    }

    /// Strong edges, and the weak ones that touch them, directly or through others.
    fn joined(&self, steepness: &[f32], limits: Limits) -> Result<Vec<f32>> {
        let mut out = vec![0.0; steepness.len()];
        let mut open: Vec<usize> = (0..out.len()).filter(|place| steepness[*place] > limits.high).collect();
        for place in &open {
            out[*place] = 1.0;
        }
        let mut visited = 0usize;
        while let Some(place) = open.pop() {
            visited += 1;
            if visited.is_multiple_of(1 << 16) {
                still_wanted()?;
            }
            for direction in 0..8 {
                let neighbour = self.neighbour(place % self.width, place / self.width, direction);
                if let Some(near) =
                    neighbour.filter(|near| out[*near] == 0.0 && steepness[*near] > limits.low)
                {
                    out[near] = 1.0;
                    open.push(near);
                }
            }
        }
        Ok(out)
    }

    /// How steep a place is, and to which eighth of a turn it rises.
    fn slope(&self, column: usize, row: usize) -> (f32, usize) {
        let at = |x: isize, y: isize| {
            let column = column.saturating_add_signed(x).min(self.width - 1);
            let row = row.saturating_add_signed(y).min(self.height - 1);
            self.values[row * self.width + column]
        };
        let right = at(1, -1) + 2.0 * at(1, 0) + at(1, 1) - at(-1, -1) - 2.0 * at(-1, 0) - at(-1, 1);
        let down = at(-1, 1) + 2.0 * at(0, 1) + at(1, 1) - at(-1, -1) - 2.0 * at(0, -1) - at(1, -1);
        let eighth = (down.atan2(right).to_degrees() / 45.0).round_ties_even() as i32;
        ((right * right + down * down + 1e-6).sqrt(), eighth.rem_euclid(8) as usize)
    }

    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let width = self.width;
        (0..self.height).flat_map(move |row| (0..width).map(move |column| (column, row)))
    }

    fn neighbour(&self, column: usize, row: usize, direction: usize) -> Option<usize> {
        let (x, y) = NEIGHBOURS[direction];
        let column = column.checked_add_signed(x).filter(|column| *column < self.width)?;
        let row = row.checked_add_signed(y).filter(|row| *row < self.height)?;
        Some(row * self.width + column)
    }
}
