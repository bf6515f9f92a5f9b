//! Evaluations whose outputs are guessed from the last computed step (EasyCache): nothing of the model is touched for
//! them, so nothing of it travels either.

use models::diffusion::Alteration;
use sampling::{Latent, ModelSampling, Reuse, ReuseRule};

use super::guided::difference;

/// An evaluation: its conditioning, by its place in the run, and how it departs from the model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) cond: usize,
    pub(super) altered: Vec<Alteration>,
}

/// What a run knows of the outputs of its last computed step.
pub(super) struct GuessedEvaluations {
    reuse: Reuse,
    /// The evaluation that decides for all.
    leader: Option<Key>,
    /// What each evaluation adds to its input.
    differences: Vec<(Key, Latent)>,
}

impl GuessedEvaluations {
    pub(super) fn new(rule: &ReuseRule, sampling: &ModelSampling) -> GuessedEvaluations {
        GuessedEvaluations { reuse: rule.for_run(sampling), leader: None, differences: Vec::new() }
    }

    /// Steps that were guessed.
    pub(super) fn skipped(&self) -> usize {
        self.reuse.skipped()
    }

    /// The outputs of all evaluations of a step, if they are to be guessed.
    pub(super) fn guess(&mut self, keys: &[&Key], inputs: &[&Latent], sigma: f32) -> Option<Vec<Latent>> {
        if self.reuse.has_ended(sigma) || !self.reuse.has_begun(sigma) {
            return None;
        }
        if self.leader.is_none() {
            self.leader = company(keys, inputs).last().map(|place| (*keys[*place]).clone());
        }
        let leader = self.leader.as_ref()?;
        let place = keys.iter().position(|key| *key == leader)?;
        let known: Vec<Option<&Latent>> = keys.iter().map(|key| self.difference_of(key)).collect();
        let all_known = known.iter().all(Option::is_some);
        let guessed: Vec<Latent> = if all_known {
            let sums = inputs.iter().zip(known).filter_map(|(input, known)| Some((input, known?)));
            sums.map(|(input, known)| sum(input, known)).collect()
        } else {
            Vec::new()
        };
        (self.reuse.skips(inputs[place], sigma) && all_known).then_some(guessed)
    }

    fn difference_of(&self, key: &Key) -> Option<&Latent> {
        self.differences.iter().find(|(known, _)| known == key).map(|(_, difference)| difference)
    }

    /// Remembers a computed step.
    pub(super) fn remember(&mut self, keys: &[&Key], inputs: &[&Latent], outputs: &[Latent], sigma: f32) {
        if self.reuse.has_ended(sigma) {
            return;
        }
        self.differences = keys
            .iter()
            .zip(inputs.iter().zip(outputs))
            .map(|(key, (input, output))| ((*key).clone(), difference(output, input)))
            .collect();
        let Some(leader) = &self.leader else { return };
        let Some(place) = keys.iter().position(|key| *key == leader) else { return };
        let company = company(keys, inputs);
        let sizes = company.iter().map(|place| outputs[*place].mean_size());
        let size = sizes.sum::<f32>() / company.len().max(1) as f32;
        self.reuse.remember(inputs[place], &outputs[place], size);
    }
}

/// The evaluations that run as one batch with the first, by their places: those of its shape, altered like it.
fn company(keys: &[&Key], inputs: &[&Latent]) -> Vec<usize> {
    let (Some(first), Some(shape)) = (keys.first(), inputs.first().map(|input| input.shape())) else {
        return Vec::new();
    };
    let with_first = |place: &usize| keys[*place].altered == first.altered && inputs[*place].shape() == shape;
    (0..keys.len()).filter(with_first).collect()
}

fn sum(input: &Latent, difference: &Latent) -> Latent {
    let mut out = input.clone();
    out.values_mut().iter_mut().zip(difference.values()).for_each(|(out, more)| *out += more);
    out
}
