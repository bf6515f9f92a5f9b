//! Low frequencies of a picture, by sums over its rows and columns.

use crate::{Latent, LatentShape};

/// A latent whose guidance is scaled by how fast it changes over the picture: `low` where fewer than `cutoff` waves
/// fit into it, `high` elsewhere. Of a video the frames in the middle count as low, too.
pub(super) fn scaled(latent: &Latent, [low, high]: [f32; 2], cutoff: usize) -> Latent {
    let Ok(LatentShape { frames, height, width, .. }) = LatentShape::of(latent) else {
        return latent.clone();
    };
    let is_video = latent.shape().len() == 5;
    let (rows, columns) = (Projection::new(height, cutoff), Projection::new(width, cutoff));
    let in_the_middle = |frame: usize| !is_video || low_range(frames, cutoff).contains(&frame);
    let mut out = latent.clone();
    for (plane, values) in out.values_mut().chunks_exact_mut((height * width).max(1)).enumerate() {
        if !in_the_middle(plane % frames.max(1)) {
            values.iter_mut().for_each(|value| *value *= high);
            continue;
        }
        let slow = project(values, &rows, &columns);
        for (value, slow) in values.iter_mut().zip(slow) {
            *value = (f64::from(high) * f64::from(*value) + f64::from(low - high) * slow) as f32;
        }
    }
    out
}

/// Which places count as low along an axis whose middle is the zero frequency.
fn low_range(length: usize, cutoff: usize) -> std::ops::Range<usize> {
    let middle = length / 2;
    let reach = cutoff.min(middle);
    middle - reach..middle + reach
}

/// What the low waves of an axis make of a value so many places away: real and imaginary part.
struct Projection {
    real: Vec<f64>,
    imaginary: Vec<f64>,
}

impl Projection {
    fn new(length: usize, cutoff: usize) -> Projection {
        let middle = (length / 2) as f64;
        let at = |distance: usize| {
            low_range(length, cutoff).fold((0.0, 0.0), |(real, imaginary), place| {
                let wave = place as f64 - middle;
                let angle = std::f64::consts::TAU * wave * distance as f64 / length as f64;
                (real + angle.cos() / length as f64, imaginary + angle.sin() / length as f64)
            })
        };
        let (real, imaginary) = (0..length).map(at).unzip();
        Projection { real, imaginary }
    }

    fn length(&self) -> usize {
        self.real.len()
    }
}

/// The real part of what low waves of both axes make of a plane.
fn project(plane: &[f32], rows: &Projection, columns: &Projection) -> Vec<f64> {
    let (height, width) = (rows.length(), columns.length());
    // First along each row, into two planes.
    let (mut real, mut imaginary) = (vec![0.0; plane.len()], vec![0.0; plane.len()]);
    for y in 0..height {
        let row = &plane[y * width..(y + 1) * width];
        for x in 0..width {
            let (mut a, mut b) = (0.0, 0.0);
            for (from, value) in row.iter().enumerate() {
                let distance = (x + width - from) % width;
                a += f64::from(*value) * columns.real[distance];
                b += f64::from(*value) * columns.imaginary[distance];
            }
            (real[y * width + x], imaginary[y * width + x]) = (a, b);
        }
    }
    let mut out = vec![0.0; plane.len()];
    for y in 0..height {
        for from in 0..height {
            let distance = (y + height - from) % height;
            let (a, b) = (rows.real[distance], rows.imaginary[distance]);
            for x in 0..width {
                out[y * width + x] += a * real[from * width + x] - b * imaginary[from * width + x];
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_is_low_and_a_chessboard_high() {
        let constant = Latent::new(vec![1, 1, 4, 6], vec![2.0; 24]).unwrap();
        let scaled_by = |latent: &Latent| scaled(latent, [0.5, 3.0], 1);
        assert!(scaled_by(&constant).values().iter().all(|value| (value - 1.0).abs() < 1e-6));
        let board = |at: usize| if (at / 6 + at % 6).is_multiple_of(2) { 1.0 } else { -1.0 };
        let board = Latent::new(vec![1, 1, 4, 6], (0..24).map(board).collect()).unwrap();
        let values = scaled_by(&board);
        assert!(
            values.values().iter().zip(board.values()).all(|(got, want)| (got - 3.0 * want).abs() < 1e-5)
        );
    }

    #[test]
    fn a_cutoff_above_the_middle_takes_all_frequencies() {
        let latent = Latent::new(vec![1, 1, 4, 4], (0..16u8).map(f32::from).collect()).unwrap();
        let all = scaled(&latent, [2.0, 7.0], 20);
        assert!(all.values().iter().zip(latent.values()).all(|(got, want)| (got - 2.0 * want).abs() < 1e-4));
    }
}
