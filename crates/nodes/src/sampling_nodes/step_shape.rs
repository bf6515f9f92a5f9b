//! What one step of a run evaluates, known before the model is opened: what a plan has to make room and time for.

use runtime::{EvaluationShape, Work};
use sampling::LatentShape;

use super::entries::{ReadyEntry, counting_at};
use super::predicting::Question;

/// The largest step of a run over these levels that asks these questions of the model. All of its
/// evaluations go through the model in one pass. Samplers ask in between, too; what counts there counts at a level
/// beside it, unless an entry's time lies within one step.
pub(crate) fn largest_step(
    conditionings: &[Vec<ReadyEntry>],
    questions: &[Question],
    sigmas: &[f32],
    latent: LatentShape,
) -> Work {
    let at = |sigma: &f32| -> Vec<EvaluationShape> {
        let entries =
            questions.iter().filter_map(|question| Some((conditionings.get(question.side)?, question)));
        let shapes = entries.flat_map(|(entries, question)| {
            counting_at(entries, *sigma, latent).into_iter().map(|counting| {
                let [height, width, ..] = counting.coverage.window();
                let shape = shape_of(&entries[counting.index], [height, width]);
                EvaluationShape { altered: question.altered.clone(), ..shape }
            })
        });
        shapes.collect()
    };
    let size = |evaluations: &Vec<EvaluationShape>| evaluations.iter().map(values).sum::<usize>();
    Work::step(latent.batch, latent.frames, sigmas.iter().map(at).max_by_key(size).unwrap_or_default())
}

/// What an entry takes of a step over a part of the latent.
pub(crate) fn shape_of(entry: &ReadyEntry, [height, width]: [usize; 2]) -> EvaluationShape {
    EvaluationShape { height, width, cond: entry.entry.cond.shape(), altered: Vec::new() }
}

/// Values of the latent, of the references and tokens of the text: about how much there is to do.
fn values(shape: &EvaluationShape) -> usize {
    let references: usize = shape.cond.references.iter().map(|[height, width]| height * width).sum();
    shape.height * shape.width + references + shape.cond.tokens
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use models::conditioning::CondShape;
    use sampling::{Latent, ModelSampling};

    use super::super::entries::ready;
    use super::*;
    use crate::value::{Area, Array, Conditioning, Entry};

    const LATENT: LatentShape = LatentShape { batch: 2, channels: 16, frames: 1, height: 16, width: 32 };

    fn entry(tokens: usize) -> Entry {
        Entry::text(Array { shape: vec![1, tokens, 1], values: vec![0.0; tokens] }, None)
    }

    fn largest(entries: &[&[Entry]], evaluated: &[usize]) -> Vec<EvaluationShape> {
        let conditionings: Vec<Conditioning> =
            entries.iter().map(|entries| Conditioning { entries: entries.to_vec() }).collect();
        let all: Vec<&Conditioning> = conditionings.iter().collect();
        let ready = ready(&all, LATENT, &ModelSampling::exponential_flow(1.15)).unwrap();
        let questions: Vec<Question> = evaluated.iter().copied().map(Question::from).collect();
        match largest_step(&ready, &questions, &[1.0, 0.7, 0.4, 0.1, 0.0], LATENT) {
            Work::Step(step) if step.batch == LATENT.batch => step.evaluations,
            other => panic!("{other:?}"),
        }
    }

    fn whole(text: usize) -> EvaluationShape {
        let cond = CondShape { tokens: text, ..CondShape::default() };
        EvaluationShape { height: 16, width: 32, cond, altered: Vec::new() }
    }

    #[test]
    fn every_conditioning_that_is_evaluated_is_one_more() {
        let conditionings: [&[Entry]; 3] = [&[entry(4)], &[entry(9)], &[entry(3)]];
        assert_eq!(largest(&conditionings, &[0]), [whole(4)]);
        assert_eq!(largest(&conditionings, &[0, 1]), [whole(4), whole(9)]);
        assert_eq!(largest(&conditionings, &[0, 1, 2]), [whole(4), whole(9), whole(3)]);
        // One that is not there sees nothing, and asks for nothing.
        assert_eq!(largest(&conditionings[..1], &[0, 1]), [whole(4)]);
        assert_eq!(largest(&[&[]], &[0]), []);
    }

    #[test]
    fn areas_times_and_references_count() {
        let area = Some(Area::Values([8, 8, 0, 0]));
        let first = Entry { end_percent: 0.5, ..entry(4) };
        let second = Entry { start_percent: 0.5, area, ..entry(9) };
        let third = Entry { start_percent: 0.5, ..entry(5) };
        // The first counts early, the others late.
        let shapes = largest(&[&[first, second, third]], &[0]);
        let parts = shapes.iter().map(|shape| [shape.height, shape.width, shape.cond.tokens]);
        assert_eq!(parts.collect::<Vec<_>>(), [[8, 8, 9], [16, 32, 5]]);
        let reference = Arc::new(Latent::zeros(&[1, 16, 4, 20]));
        let mut seen = entry(4);
        seen.cond.reference_latents = vec![Arc::clone(&reference), reference];
        assert_eq!(largest(&[&[seen]], &[0])[0].cond.references, [[4, 20], [4, 20]]);
    }
}
