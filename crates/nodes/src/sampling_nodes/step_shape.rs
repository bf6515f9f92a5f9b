//! What one step of a run evaluates, known before the model is opened: what a plan has to make room and time for.

use super::entries::{ReadyEntry, counting_at};
use crate::studio::{EvaluationShape, Work};

/// The largest step of a run over these levels that evaluates some of the conditionings, by their places. All of its
/// evaluations go through the model in one pass. Samplers ask in between, too; what counts there counts at a level
/// beside it, unless an entry's time lies within one step.
pub(crate) fn largest_step(
    conditionings: &[Vec<ReadyEntry>],
    evaluated: &[usize],
    sigmas: &[f32],
    latent: [usize; 4],
) -> Work {
    let at = |sigma: &f32| -> Vec<EvaluationShape> {
        let entries = evaluated.iter().filter_map(|which| conditionings.get(*which));
        let shapes = entries.flat_map(|entries| {
            counting_at(entries, *sigma, latent).into_iter().map(|counting| {
                let [height, width, ..] = counting.coverage.window();
                shape_of(&entries[counting.index], [height, width])
            })
        });
        shapes.collect()
    };
    let size = |evaluations: &Vec<EvaluationShape>| evaluations.iter().map(values).sum::<usize>();
    Work::step(latent[0], sigmas.iter().map(at).max_by_key(size).unwrap_or_default())
}

fn shape_of(entry: &ReadyEntry, [height, width]: [usize; 2]) -> EvaluationShape {
    let told = &entry.told;
    let references = told.reference_latents.iter().filter_map(|latent| match *latent.shape() {
        [_, _, height, width] => Some([height, width]),
        _ => None,
    });
    EvaluationShape {
        height,
        width,
        text: told.tokens.shape.get(1).copied().unwrap_or(0),
        references: references.collect(),
    }
}

/// Values of the latent, of the references and tokens of the text: about how much there is to do.
fn values(shape: &EvaluationShape) -> usize {
    let references: usize = shape.references.iter().map(|[height, width]| height * width).sum();
    shape.height * shape.width + references + shape.text
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

    fn largest(entries: &[&[Entry]], evaluated: &[usize]) -> Vec<EvaluationShape> {
        let conditionings: Vec<Conditioning> =
            entries.iter().map(|entries| Conditioning { entries: entries.to_vec() }).collect();
        let all: Vec<&Conditioning> = conditionings.iter().collect();
        let ready = ready(&all, LATENT, &ModelSampling::flux(1.15)).unwrap();
        match largest_step(&ready, evaluated, &[1.0, 0.7, 0.4, 0.1, 0.0], LATENT) {
            Work::Step(step) if step.batch == LATENT[0] => step.evaluations,
            other => panic!("{other:?}"),
        }
    }

    fn whole(text: usize) -> EvaluationShape {
        EvaluationShape { height: 16, width: 32, text, references: Vec::new() }
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
        let parts = shapes.iter().map(|shape| [shape.height, shape.width, shape.text]);
        assert_eq!(parts.collect::<Vec<_>>(), [[8, 8, 9], [16, 32, 5]]);
        let reference = Arc::new(Latent::zeros(&[1, 16, 4, 20]));
        let seen = Entry { reference_latents: vec![Arc::clone(&reference), reference], ..entry(4) };
        assert_eq!(largest(&[&[seen]], &[0])[0].references, [[4, 20], [4, 20]]);
    }
}
