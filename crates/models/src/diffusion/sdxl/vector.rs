//! The vector that the models are told beside the time: the pooled text, then numbers as waves.

use super::family::LATENT;
use crate::Result;
use crate::conditioning::{Conditioned, PictureSizes, Scene};
use crate::diffusion::modulation::{TIME_VALUES, waves};
use crate::error::Error;

/// How good the picture is to be, and how good it is not to be, where nobody says.
const AESTHETICS: f32 = 6.0;
const NEGATIVE_AESTHETICS: f32 = 2.5;

/// The values behind a pooled text of the base model: three sizes.
const BASE_VALUES: usize = 6 * TIME_VALUES;
/// And of the refiner: two sizes and a grade.
const REFINER_VALUES: usize = 5 * TIME_VALUES;
/// Values of CLIP-G's pooled text.
pub(super) const POOLED: usize = 1280;
/// The widths of both models' vectors.
pub(super) const BASE_WIDTH: usize = POOLED + BASE_VALUES;
pub(super) const REFINER_WIDTH: usize = POOLED + REFINER_VALUES;

/// The vectors of a conditioning, row by row.
pub(super) fn of(conditioned: &Conditioned<'_>, scene: &Scene<'_>, width: usize) -> Result<Vec<f32>> {
    // Where nobody says, the picture is as large as it will be.
    let pixels = |values: usize| (values * LATENT.pixels_per_value) as f32;
    let usual = [pixels(scene.shape.height), pixels(scene.shape.width)];
    let numbers = if width == REFINER_WIDTH {
        of_refiner(&conditioned.cond.sizes, usual, conditioned.is_negative)
    } else {
        of_base(&conditioned.cond.sizes, usual)
    };
    let told: Vec<f32> = numbers.iter().flat_map(|number| waves(*number, TIME_VALUES)).collect();
    let pooled_width = width.saturating_sub(told.len());
    let Some(pooled) = &conditioned.cond.pooled else {
        return Ok([vec![0.0; pooled_width], told].concat());
    };
    let [_, got]: [usize; 2] = pooled.axes("the pooled text", "batch and width")?;
    if got != pooled_width {
        return Err(Error::Input {
            what: "the pooled text",
            expected: format!("{pooled_width} values wide, as CLIP-G gives it"),
            got: got.to_string(),
        });
    }
    Ok(pooled.values.chunks_exact(got.max(1)).flat_map(|row| row.iter().chain(&told)).copied().collect())
}

fn of_base(sizes: &PictureSizes, usual: [f32; 2]) -> Vec<f32> {
    let original = sizes.original.unwrap_or(usual);
    [original, sizes.cut.unwrap_or_default(), sizes.target.unwrap_or(original)].concat()
}

fn of_refiner(sizes: &PictureSizes, usual: [f32; 2], is_negative: bool) -> Vec<f32> {
    let usual_grade = if is_negative { NEGATIVE_AESTHETICS } else { AESTHETICS };
    let grade = sizes.aesthetics.unwrap_or(usual_grade);
    let sizes = [sizes.original.unwrap_or(usual), sizes.cut.unwrap_or_default()].concat();
    [sizes, vec![grade]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_says_is_as_usual() {
        let said = PictureSizes { original: Some([512.0, 640.0]), ..PictureSizes::default() };
        let usual = [64.0, 128.0];
        assert_eq!(of_base(&PictureSizes::default(), usual), [64.0, 128.0, 0.0, 0.0, 64.0, 128.0]);
        assert_eq!(of_base(&said, usual), [512.0, 640.0, 0.0, 0.0, 512.0, 640.0]);
        assert_eq!(of_refiner(&said, usual, false), [512.0, 640.0, 0.0, 0.0, 6.0]);
        assert_eq!(of_refiner(&said, usual, true)[4], 2.5);
        let graded = PictureSizes { aesthetics: Some(4.0), ..said };
        assert_eq!(of_refiner(&graded, usual, true)[4], 4.0);
    }
}
