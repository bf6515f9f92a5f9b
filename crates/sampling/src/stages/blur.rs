//! A latent blurred where a model looked, for self-attention guidance (Hong et al. 2022).

use crate::{Error, Latent, LatentShape};

/// Places of the blur's kernel along one side.
const KERNEL: usize = 9;

/// The latent blurred where `looked` is true. `looked` has one value for each token of each item; tokens stand for the
/// picture in rows, at some lower size of the same proportions.
pub fn blurred(latent: &Latent, looked: &[bool], sigma: f64) -> Result<Latent, Error> {
    let LatentShape { batch, channels, height, width, .. } = LatentShape::of(latent)?;
    let tokens = looked.len() / batch.max(1);
    let (rows, columns) = grid(tokens, height, width);
    let kernel = kernel(sigma);
    let mut out = latent.clone();
    let planes = out.values_mut().chunks_exact_mut((height * width).max(1));
    for (plane, values) in planes.enumerate() {
        let item = plane / (values_per_item(latent, batch) / (height * width).max(1)).max(1);
        let soft = blur(values, [height, width], &kernel);
        for (at, (value, soft)) in values.iter_mut().zip(soft).enumerate() {
            let (y, x) = (at / width * rows / height, at % width * columns / width);
            if looked[item * tokens + y * columns + x] {
                *value = soft;
            }
        }
    }
    debug_assert!(channels > 0, "a latent that was recognised has channels");
    Ok(out)
}

fn values_per_item(latent: &Latent, batch: usize) -> usize {
    latent.values().len() / batch.max(1)
}

/// Rows and columns of so many tokens, the nearest to the picture's proportions that divide them.
fn grid(tokens: usize, height: usize, width: usize) -> (usize, usize) {
    let rows = ((height as f64 / width as f64) * tokens as f64).sqrt().round_ties_even() as usize;
    let steps = ((tokens as f64).sqrt() / 2.0).floor() as usize;
    for step in 0..steps {
        for candidate in [rows + step, rows.saturating_sub(step).max(1)] {
            if candidate > 0 && tokens.is_multiple_of(candidate) {
                return (candidate, tokens / candidate);
            }
        }
    }
    (1, tokens)
}

fn kernel(sigma: f64) -> [f32; KERNEL] {
    let half = (KERNEL - 1) as f32 * 0.5;
    let bell = |at: usize| (-0.5 * ((at as f32 - half) / sigma as f32).powi(2)).exp();
    let values: [f32; KERNEL] = std::array::from_fn(bell);
    let sum: f32 = values.iter().sum();
    values.map(|value| value / sum)
}

/// A plane blurred along both sides; beyond an edge it is mirrored.
fn blur(plane: &[f32], [height, width]: [usize; 2], kernel: &[f32; KERNEL]) -> Vec<f32> {
    let half = KERNEL / 2;
    let mirrored = |at: usize, length: usize| {
        let at = at.abs_diff(half);
        if at < length { at } else { (2 * (length - 1)).saturating_sub(at) }
    };
    let mut out = vec![0.0; plane.len()];
    for (at, out) in out.iter_mut().enumerate() {
        let (y, x) = (at / width, at % width);
        let mut sum = 0.0;
        for (i, down) in kernel.iter().enumerate() {
            let row = mirrored(y + i, height) * width;
            for (j, across) in kernel.iter().enumerate() {
                sum += plane[row + mirrored(x + j, width)] * (down * across);
            }
        }
        *out = sum;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_looked_at_is_blurred() {
        let mut values = vec![0.0; 64];
        values[0] = 1.0;
        values[63] = 1.0;
        let latent = Latent::new(vec![1, 1, 8, 8], values).unwrap();
        // Two by two tokens: the first stands for the upper left quarter.
        let out = blurred(&latent, &[true, false, false, false], 2.0).unwrap();
        assert!(out.values()[0] < 0.2 && out.values()[9] > 0.0, "{:?}", out.values());
        assert_eq!((out.values()[63], out.values()[62]), (1.0, 0.0));
        let sum: f32 = kernel(2.0).iter().sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }

    #[test]
    fn tokens_have_the_picture_s_proportions() {
        assert_eq!(grid(64, 16, 16), (8, 8));
        assert_eq!(grid(32, 16, 32), (4, 8));
        assert_eq!(grid(35, 10, 14), (5, 7));
    }
}
