//! Steps whose result is guessed from the one before, because the input has hardly changed (EasyCache, LazyCache).

use crate::{Latent, ModelSampling};

/// Every so many values along each side of a picture are looked at.
const STRIDE: usize = 8;

/// When a step may be guessed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReuseRule {
    /// How much the result may change, summed over guessed steps.
    pub threshold: f64,
    /// The share of the run before which nothing is guessed.
    pub start_percent: f64,
    /// The share of the run behind which nothing is guessed.
    pub end_percent: f64,
}

/// What a run knows of its last computed step.
#[derive(Clone, Debug)]
pub struct Reuse {
    threshold: f32,
    start: f32,
    end: f32,
    /// How much the result changed for a change of the input.
    rate: Option<f32>,
    /// The change since the last computed step.
    change: f32,
    input_change: Option<f32>,
    before: Option<Before>,
    skipped: usize,
}

/// The last computed step.
#[derive(Clone, Debug)]
struct Before {
    input: Vec<f32>,
    output: Vec<f32>,
    /// The mean size of its result.
    size: f32,
}

impl ReuseRule {
    /// For one run of a model.
    #[must_use]
    pub fn for_run(&self, sampling: &ModelSampling) -> Reuse {
        Reuse {
            threshold: self.threshold as f32,
            start: sampling.percent_to_sigma(self.start_percent) as f32,
            end: sampling.percent_to_sigma(self.end_percent) as f32,
            rate: None,
            change: 0.0,
            input_change: None,
            before: None,
            skipped: 0,
        }
    }
}

impl Reuse {
    /// Whether the run has come to where steps may be guessed.
    #[must_use]
    pub fn has_begun(&self, sigma: f32) -> bool {
        sigma <= self.start
    }

    /// Whether the run has passed it; such a step is neither guessed nor remembered.
    #[must_use]
    pub fn has_ended(&self, sigma: f32) -> bool {
        sigma <= self.end
    }

    /// Steps that were guessed.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Whether the result for this input is to be guessed.
    pub fn skips(&mut self, input: &Latent, sigma: f32) -> bool {
        self.input_change = None;
        if !self.has_begun(sigma) {
            return false;
        }
        let Some(before) = &self.before else { return false };
        let change = distance(&sample(input), &before.input);
        self.input_change = Some(change);
        let Some(rate) = self.rate else { return false };
        self.change += rate * change / before.size;
        if self.change < self.threshold {
            self.skipped += 1;
            return true;
        }
        self.change = 0.0;
        false
    }

    /// Remembers a computed step: its input and output, and the mean size of all outputs that were computed with it.
    pub fn remember(&mut self, input: &Latent, output: &Latent, size: f32) {
        let (input, output) = (sample(input), sample(output));
        if let (Some(before), Some(change)) = (&self.before, self.input_change) {
            self.rate = Some(distance(&output, &before.output) / change);
        }
        self.before = Some(Before { input, output, size });
    }
}

/// The mean size of values.
pub(crate) fn mean_size<'a>(values: impl Iterator<Item = &'a f32>) -> f32 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += f64::from(value.abs());
        count += 1.0;
    }
    (sum / count) as f32
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    let distances: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    mean_size(distances.iter())
}

/// Some of a latent's values.
fn sample(latent: &Latent) -> Vec<f32> {
    let (width, height) = match *latent.shape() {
        [.., height, width] => (width.max(1), height.max(1)),
        _ => (1, 1),
    };
    let kept =
        |at: &usize| (at % width).is_multiple_of(STRIDE) && (at / width % height).is_multiple_of(STRIDE);
    (0..latent.values().len()).filter(kept).map(|at| latent.values()[at]).collect()
}

impl Latent {
    /// The mean size of its values.
    #[must_use]
    pub fn mean_size(&self) -> f32 {
        mean_size(self.values().iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_guessed_until_the_change_adds_up() {
        let rule = ReuseRule { threshold: 0.25, start_percent: 0.0, end_percent: 0.9 };
        let sampling = ModelSampling::flow(1.0, 1.0);
        let mut reuse = rule.for_run(&sampling);
        let latent = |value: f32| Latent::new(vec![1, 1, 9, 9], vec![value; 81]).unwrap();
        let mut step = |input: f32, sigma: f32| {
            let skips = reuse.skips(&latent(input), sigma);
            if !skips {
                reuse.remember(&latent(input), &latent(10.0 * input), 10.0 * input);
            }
            skips
        };
        // Two steps tell how fast the result changes.
        assert_eq!([step(1.0, 0.9), step(1.1, 0.8)], [false, false]);
        // A tenth more changes it by a tenth of its size: twice is below the threshold, with the third it is above.
        assert_eq!([step(1.21, 0.7), step(1.21, 0.6), step(1.21, 0.5)], [true, true, false]);
        assert!(reuse.has_ended(0.05) && !reuse.has_ended(0.2) && reuse.has_begun(1.0));
        assert_eq!(reuse.skipped(), 2);
    }
}
