//! Where entries of a conditioning count in a latent and how much, and the mean of what the model answers to them.

use sampling::{Latent, LatentShape, Window};

use crate::Result;

/// The reference divides by this much where nothing counts, so that the answer there is zero.
const NOTHING: f32 = 1e-37;

/// Where an entry counts, and how much.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Coverage {
    window: Window,
    weights: Weights,
}

#[derive(Clone, Debug, PartialEq)]
enum Weights {
    /// One everywhere in the window.
    One,
    /// One for each item and place of the window.
    Each(Vec<f32>),
}

impl Coverage {
    /// Weights of a window, by item and place: `[batch, height, width]`.
    pub(crate) fn new(window: Window, weights: Vec<f32>) -> Coverage {
        let weights =
            if weights.iter().all(|weight| *weight == 1.0) { Weights::One } else { Weights::Each(weights) };
        Coverage { window, weights }
    }

    /// The part of the latent that the model is shown.
    pub(crate) fn window(&self) -> Window {
        self.window
    }

    /// The weight of an item at a place of the window.
    #[cfg(test)]
    pub(crate) fn weight(&self, item: usize, y: usize, x: usize) -> f32 {
        let [height, width, ..] = self.window;
        match &self.weights {
            Weights::One => 1.0,
            Weights::Each(weights) => weights[(item * height + y) * width + x],
        }
    }

    /// What is missing to one in the sum of others over the whole latent, unless that is nothing.
    pub(crate) fn of_the_rest<'a>(
        others: impl IntoIterator<Item = &'a Coverage>,
        shape: LatentShape,
    ) -> Option<Coverage> {
        let LatentShape { height, width, .. } = shape;
        let left = |covered: &f32| if *covered < 1.0 { 1.0 - covered } else { 0.0 };
        let rest: Vec<f32> = counts(others, shape).iter().map(left).collect();
        let window = [height, width, 0, 0];
        (!rest.iter().all(|weight| *weight == 0.0)).then(|| Coverage::new(window, rest))
    }

    /// Whether it is the whole latent, with weight one.
    fn is_all_of(&self, shape: LatentShape) -> bool {
        self.window == [shape.height, shape.width, 0, 0] && self.weights == Weights::One
    }

    /// Adds an answer, each of its values times its weight, to the sum of a latent of `shape`.
    fn add_weighted(&self, sum: &mut [f32], answer: &[f32], shape: LatentShape) {
        let planes = shape.channels * shape.frames;
        let ([height, width, ..], rows) = (self.window, self.rows(planes, shape));
        for (row, answer) in rows.zip(answer.chunks_exact(width.max(1))) {
            let sum = &mut sum[row.place..row.place + width];
            match &self.weights {
                Weights::One => sum.iter_mut().zip(answer).for_each(|(sum, answer)| *sum += answer),
                Weights::Each(weights) => {
                    let weights = &weights[(row.item * height + row.y) * width..][..width];
                    let values = sum.iter_mut().zip(answer).zip(weights);
                    values.for_each(|((sum, answer), weight)| *sum += answer * weight);
                }
            }
        }
    }

    /// Adds the weights to the counts of a latent of `shape`, which are by item and place.
    fn add_weights(&self, counts: &mut [f32], shape: LatentShape) {
        let [height, width, ..] = self.window;
        for row in self.rows(1, shape) {
            let counts = &mut counts[row.place..row.place + width];
            match &self.weights {
                Weights::One => counts.iter_mut().for_each(|count| *count += 1.0),
                Weights::Each(weights) => {
                    let weights = &weights[(row.item * height + row.y) * width..][..width];
                    counts.iter_mut().zip(weights).for_each(|(count, weight)| *count += weight);
                }
            }
        }
    }

    /// The rows of the window in a latent with so many planes for each item, in the order of memory.
    fn rows(&self, planes: usize, shape: LatentShape) -> impl Iterator<Item = Row> + use<> {
        let LatentShape { batch, height: whole_height, width: whole_width, .. } = shape;
        let [height, _, top, left] = self.window;
        (0..batch).flat_map(move |item| {
            (0..planes).flat_map(move |plane| {
                let plane = (item * planes + plane) * whole_height;
                (0..height).map(move |y| Row { item, y, place: (plane + top + y) * whole_width + left })
            })
        })
    }
}

/// A row of a window.
struct Row {
    item: usize,
    /// Counted in the window.
    y: usize,
    /// Where it starts in the latent.
    place: usize,
}

/// The sum of all weights by item and place, and the little that stands for nothing.
fn counts<'a>(coverages: impl IntoIterator<Item = &'a Coverage>, shape: LatentShape) -> Vec<f32> {
    let mut counts = vec![NOTHING; shape.batch * shape.plane()];
    coverages.into_iter().for_each(|coverage| coverage.add_weights(&mut counts, shape));
    counts
}

/// The mean of answers to a latent, each weighted by where it counts; zero where none does. The sums are formed in the order in
/// which the answers come.
pub(crate) fn weighted_mean(mut answers: Vec<(&Coverage, Latent)>, x: &Latent) -> Result<Latent> {
    let shape = LatentShape::of(x)?;
    if let [(coverage, answer)] = answers.as_mut_slice()
        && coverage.is_all_of(shape)
        && answer.shape() == x.shape()
    {
        // The weight and the count are exactly one. What is left of the sum is the zero that it starts with, which
        // takes the sign of a negative zero.
        answer.values_mut().iter_mut().for_each(|value| *value += 0.0);
        return Ok(answers.remove(0).1);
    }
    let mut sum = Latent::zeros(x.shape());
    for (coverage, answer) in &answers {
        coverage.add_weighted(sum.values_mut(), answer.values(), shape);
    }
    let counts = counts(answers.iter().map(|(coverage, _)| *coverage), shape);
    let (planes, plane) = ((shape.channels * shape.frames).max(1), shape.plane().max(1));
    for (index, values) in sum.values_mut().chunks_exact_mut(plane).enumerate() {
        let counts = &counts[index / planes * plane..][..plane];
        values.iter_mut().zip(counts).for_each(|(value, count)| *value /= count);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LatentShape = LatentShape { batch: 2, channels: 3, frames: 2, height: 5, width: 7 };
    /// Planes of an item.
    const PLANES: usize = SHAPE.channels * SHAPE.frames;

    fn random(seed: u64, count: usize) -> Vec<f32> {
        testkit::random_normal(seed, count)
    }

    /// An answer to what a coverage shows of a latent.
    fn answer(seed: u64, coverage: &Coverage) -> Latent {
        let [height, width, ..] = coverage.window();
        let shape = vec![SHAPE.batch, SHAPE.channels, SHAPE.frames, height, width];
        let mut values = random(seed, shape.iter().product());
        values[0] = -0.0;
        Latent::new(shape, values).unwrap()
    }

    /// The mean by its definition, value by value.
    fn plain_mean(answers: &[(&Coverage, Latent)]) -> Vec<f32> {
        let LatentShape { height, width, .. } = SHAPE;
        let value = |at: usize| {
            let (item, plane) = (at / (PLANES * height * width), at / (height * width) % PLANES);
            let (y, x) = (at / width % height, at % width);
            let (mut sum, mut count) = (0.0, NOTHING);
            for (coverage, answer) in answers {
                let [h, w, top, left] = coverage.window();
                if (top..top + h).contains(&y) && (left..left + w).contains(&x) {
                    let weight = coverage.weight(item, y - top, x - left);
                    let place = ((item * PLANES + plane) * h + y - top) * w + x - left;
                    sum += answer.values()[place] * weight;
                    count += weight;
                }
            }
            sum / count
        };
        (0..SHAPE.values()).map(value).collect()
    }

    fn check(coverages: &[Coverage]) -> Latent {
        let answers: Vec<(&Coverage, Latent)> = coverages
            .iter()
            .enumerate()
            .map(|(i, coverage)| (coverage, answer(i as u64, coverage)))
            .collect();
        let want = plain_mean(&answers);
        let got = weighted_mean(answers, &Latent::zeros(&[2, 3, 2, 5, 7])).unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert!(bits(got.values()) == bits(&want), "{coverages:?}");
        got
    }

    #[test]
    fn means_are_those_of_the_definition_to_the_bit() {
        let whole = || Coverage::new([5, 7, 0, 0], vec![1.0; 70]);
        let half = || Coverage::new([5, 7, 0, 0], vec![0.5; 70]);
        let mask = || Coverage::new([5, 7, 0, 0], random(7, 70));
        let corner = || Coverage::new([3, 4, 2, 3], vec![1.0; 24]);
        let faded = || Coverage::new([2, 6, 0, 1], random(8, 24));
        let columns = || Coverage::new([5, 2, 0, 3], random(9, 20));
        assert!(whole().is_all_of(SHAPE) && !corner().is_all_of(SHAPE) && !half().is_all_of(SHAPE));
        check(&[whole()]);
        check(&[half()]);
        check(&[mask()]);
        check(&[corner()]);
        check(&[whole(), whole(), whole()]);
        check(&[whole(), corner()]);
        check(&[faded(), mask(), corner(), half(), columns()]);
        // Nobody says anything.
        assert!(check(&[]).is_zero());
    }

    #[test]
    fn a_negative_zero_loses_its_sign_as_in_a_sum() {
        let whole = Coverage::new([5, 7, 0, 0], vec![1.0; 70]);
        assert_eq!(check(&[whole]).values()[0].to_bits(), 0.0f32.to_bits());
    }

    #[test]
    fn the_rest_is_what_is_missing_to_one() {
        let whole = Coverage::new([5, 7, 0, 0], vec![1.0; 70]);
        assert_eq!(Coverage::of_the_rest([&whole], SHAPE), None);
        let all = Coverage::of_the_rest([], SHAPE).unwrap();
        assert!(all.is_all_of(SHAPE));
        let corner = Coverage::new([3, 4, 2, 3], [0.25, 1.5].repeat(12));
        let rest = Coverage::of_the_rest([&corner], SHAPE).unwrap();
        assert_eq!(rest.window(), [5, 7, 0, 0]);
        assert_eq!([rest.weight(0, 0, 0), rest.weight(1, 2, 3), rest.weight(1, 2, 4)], [1.0, 0.75, 0.0]);
    }
}
