//! What unCLIP models are told beside the time: what CLIP sees in pictures, with noise, and how much noise.

use sampling::noise::prepare_noise;

use crate::conditioning::{Conditioned, Scene, SeenPicture};
use crate::diffusion::modulation::waves;
use crate::{Error, Result};

/// The widths of the vector: twice the width of CLIP-L's and CLIP-H's pictures.
pub(super) const WIDTHS: [usize; 2] = [1536, 2048];

/// Levels of noise.
const LEVELS: usize = 1000;
/// How much noise is added to the sum of several pictures.
const MERGE_NOISE: f64 = 0.05;
/// What the seed of this noise is before that of the run.
const SEED_BEFORE: u64 = 10;

/// The vector of a conditioning, `[1, width]`.
pub(super) fn vector(conditioned: &Conditioned<'_>, scene: &Scene<'_>, width: usize) -> Result<Vec<f32>> {
    let half = width / 2;
    let noise = prepare_noise(scene.seed.wrapping_sub(SEED_BEFORE), &[1, half], None)?;
    let mut sum = vec![0.0; width];
    let mut count = 0;
    for SeenPicture { embeds, strength, noise_augmentation } in &conditioned.cond.seen_pictures {
        let [_, got]: [usize; 2] = embeds.axes("what CLIP sees in a picture", "pictures and width")?;
        if got != half {
            return Err(Error::Input {
                what: "what CLIP sees in a picture",
                expected: format!("{half} values wide, as the vision model in the checkpoint gives it"),
                got: got.to_string(),
            });
        }
        for picture in embeds.values.chunks_exact(half.max(1)) {
            let told = noised(picture, noise.values(), *noise_augmentation);
            sum.iter_mut().zip(&told).for_each(|(sum, value)| *sum += value * strength);
            count += 1;
        }
    }
    if count > 1 {
        return Ok(noised(&sum[..half], noise.values(), MERGE_NOISE));
    }
    Ok(sum)
}

/// A picture's values with a share of noise, then the level of it as waves.
fn noised(picture: &[f32], noise: &[f32], share: f64) -> Vec<f32> {
    let level = (((LEVELS - 1) as f64 * share).round_ties_even() as usize).min(LEVELS - 1);
    let kept = kept_at(level);
    let (signal, rest) = (kept.sqrt() as f32, (1.0 - kept).sqrt() as f32);
    let values = picture.iter().zip(noise).map(|(value, noise)| signal * value + rest * noise);
    values.chain(waves(level as f32, picture.len())).collect()
}

/// How much of the signal's variance a level leaves, on a cosine's schedule.
fn kept_at(level: usize) -> f64 {
    let curve = |at: usize| {
        let share = at as f64 / LEVELS as f64;
        ((share + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2)
    };
    (0..=level).map(|at| 1.0 - (1.0 - curve(at + 1) / curve(at)).min(0.999)).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_grows_with_its_level() {
        assert!((kept_at(0) - 0.999_958).abs() < 1e-5, "{}", kept_at(0));
        assert!(kept_at(500) < 0.5 && kept_at(LEVELS - 1) < 1e-6);
        let told = noised(&[1.0, 2.0], &[0.0, 0.0], 0.0);
        assert_eq!(told.len(), 4);
        assert_eq!(&told[2..], [1.0, 0.0]);
    }
}
