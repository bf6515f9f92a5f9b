//! What one step of a run evaluates, known before the model is opened: what a plan has to make room and time for.

use super::entries::{ReadyEntry, counting_at};
use crate::studio::WorkSize;

/// The evaluations of a run's largest step. All of them go through the model in one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// The latent's shape.
    latent: [usize; 4],
    /// The evaluations, in the order of conditionings and entries.
    pub(crate) evaluations: Vec<EvaluationShape>,
}

/// What one evaluation is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EvaluationShape {
    /// Items.
    pub(crate) batch: usize,
    /// Values of the latent from top to bottom.
    pub(crate) height: usize,
    /// Values of the latent from left to right.
    pub(crate) width: usize,
    /// Tokens of the text.
    pub(crate) text: usize,
    /// Height and width of each reference latent.
    pub(crate) references: Vec<[usize; 2]>,
}

impl StepShape {
    /// The shape of the largest step of a run over these levels that evaluates some of the conditionings, by their
    /// places. Samplers ask in between, too; what counts there counts at a level beside it, unless an entry's time
    /// lies within one step.
    pub(crate) fn largest(
        conditionings: &[Vec<ReadyEntry>],
        evaluated: &[usize],
        sigmas: &[f32],
        latent: [usize; 4],
    ) -> StepShape {
        let at = |sigma: &f32| -> Vec<EvaluationShape> {
            let entries = evaluated.iter().filter_map(|which| conditionings.get(*which));
            let shapes = entries.flat_map(|entries| {
                counting_at(entries, *sigma, latent).into_iter().map(|counting| {
                    let [height, width, ..] = counting.coverage.window();
                    EvaluationShape::of(&entries[counting.index], latent[0], [height, width])
                })
            });
            shapes.collect()
        };
        let size = |evaluations: &Vec<EvaluationShape>| -> usize {
            evaluations.iter().map(EvaluationShape::values).sum::<usize>()
        };
        let evaluations = sigmas.iter().map(at).max_by_key(size).unwrap_or_default();
        StepShape { latent, evaluations }
    }

    /// How much the model works on at once. Each evaluation counts as one more item of the whole picture with the
    /// longest text, which is more than enough where areas are smaller.
    pub(crate) fn work_size(&self) -> WorkSize {
        let [batch, _, height, width] = self.latent;
        // References are more tokens of the picture: as many as if it were higher.
        let references = self.evaluations.iter().map(EvaluationShape::reference_values).max().unwrap_or(0);
        WorkSize {
            batch: batch * self.evaluations.len().max(1),
            height: height + references.div_ceil(width.max(1)),
            width,
            text: self.evaluations.iter().map(|evaluation| evaluation.text).max().unwrap_or(0),
        }
    }
}

impl EvaluationShape {
    fn of(entry: &ReadyEntry, batch: usize, [height, width]: [usize; 2]) -> EvaluationShape {
        let told = &entry.told;
        let references = told.reference_latents.iter().filter_map(|latent| match *latent.shape() {
            [_, _, height, width] => Some([height, width]),
            _ => None,
        });
        EvaluationShape {
            batch,
            height,
            width,
            text: told.tokens.shape.get(1).copied().unwrap_or(0),
            references: references.collect(),
        }
    }

    fn reference_values(&self) -> usize {
        self.references.iter().map(|[height, width]| height * width).sum()
    }

    /// Values of the latent, of the references and tokens of the text: about how much there is to do.
    fn values(&self) -> usize {
        self.batch * (self.height * self.width + self.reference_values() + self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sampling::{Latent, ModelSampling};

    use super::super::entries::ready;
    use super::*;
    use crate::value::{Area, Array, Conditioning, Entry};

    const LATENT: [usize; 4] = [2, 16, 16, 32];

    fn entry(tokens: usize) -> Entry {
        Entry::new(Array { shape: vec![1, tokens, 1], values: vec![0.0; tokens] }, None)
    }

    fn largest(entries: &[&[Entry]], evaluated: &[usize]) -> StepShape {
        let conditionings: Vec<Conditioning> =
            entries.iter().map(|entries| Conditioning { entries: entries.to_vec() }).collect();
        let all: Vec<&Conditioning> = conditionings.iter().collect();
        let ready = ready(&all, LATENT, &ModelSampling::flux(1.15)).unwrap();
        StepShape::largest(&ready, evaluated, &[1.0, 0.7, 0.4, 0.1, 0.0], LATENT)
    }

    fn size(batch: usize, height: usize, text: usize) -> WorkSize {
        WorkSize { batch, height, width: 32, text }
    }

    #[test]
    fn every_conditioning_that_is_evaluated_is_one_more() {
        let conditionings: [&[Entry]; 3] = [&[entry(4)], &[entry(9)], &[entry(3)]];
        assert_eq!(largest(&conditionings, &[0]).work_size(), size(2, 16, 4));
        let both = largest(&conditionings, &[0, 1]);
        assert_eq!(both.evaluations.iter().map(|shape| shape.text).collect::<Vec<_>>(), [4, 9]);
        assert_eq!(both.work_size(), size(4, 16, 9));
        assert_eq!(largest(&conditionings, &[0, 1, 2]).work_size(), size(6, 16, 9));
        // One that is not there sees nothing, and asks for nothing.
        assert_eq!(largest(&conditionings[..1], &[0, 1]).work_size(), size(2, 16, 4));
        assert_eq!(largest(&[&[]], &[0]).work_size(), size(2, 16, 0));
    }

    #[test]
    fn areas_times_and_references_count() {
        let area = Some(Area::Values([8, 8, 0, 0]));
        let first = Entry { end_percent: 0.5, ..entry(4) };
        let second = Entry { start_percent: 0.5, area, ..entry(9) };
        let third = Entry { start_percent: 0.5, ..entry(5) };
        // The first counts early, the others late.
        let shape = largest(&[&[first, second, third]], &[0]);
        let parts = shape.evaluations.iter().map(|shape| [shape.height, shape.width, shape.text]);
        assert_eq!(parts.collect::<Vec<_>>(), [[8, 8, 9], [16, 32, 5]]);
        let reference = Arc::new(Latent::zeros(&[1, 16, 4, 20]));
        let seen = Entry { reference_latents: vec![Arc::clone(&reference), reference], ..entry(4) };
        let shape = largest(&[&[seen]], &[0]);
        assert_eq!(shape.evaluations[0].references, [[4, 20], [4, 20]]);
        assert_eq!(shape.work_size(), size(2, 16 + 5, 4));
    }
}
