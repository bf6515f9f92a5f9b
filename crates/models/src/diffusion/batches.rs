//! Which evaluations of a step run as one batch: decided by shapes alone, so that where weights live and how much
//! memory is free never change a bit.

use tensor::Tensor;

use crate::Result;

/// A device may sum a product of up to this many rows in another order than one of more. An evaluation gives the same
/// bits alone and beside others as long as none of its products grows past it by the company.
pub(super) const FEW_ROWS: usize = 8;

/// Evaluations of equal shapes that run as one, in the order in which they came.
pub(super) struct Batch<S, M> {
    shapes: S,
    /// All of them, with their places among the evaluations of the step.
    members: Vec<(usize, M)>,
}

/// What decides whether evaluations fit together.
pub(super) trait Together: PartialEq {
    /// How many evaluations of these shapes may run as one.
    fn most_together(&self) -> usize;
}

impl<S: Together, M: Copy> Batch<S, M> {
    /// The batches of a step, by their first evaluations.
    pub(super) fn all_of(evaluations: &[M], shapes_of: impl Fn(&M) -> S) -> Vec<Batch<S, M>> {
        let mut batches: Vec<Batch<S, M>> = Vec::new();
        for (place, member) in evaluations.iter().copied().enumerate() {
            let shapes = shapes_of(&member);
            let most = shapes.most_together();
            let fits = |batch: &&mut Batch<S, M>| batch.shapes == shapes && batch.members.len() < most;
            match batches.iter_mut().find(fits) {
                Some(batch) => batch.members.push((place, member)),
                None => batches.push(Batch { shapes, members: vec![(place, member)] }),
            }
        }
        batches
    }

    /// The shapes that all have in common.
    pub(super) fn shapes(&self) -> &S {
        &self.shapes
    }

    /// The first of them; a batch has at least one.
    pub(super) fn first(&self) -> M {
        self.members[0].1
    }

    /// The evaluations.
    pub(super) fn members(&self) -> impl Iterator<Item = &M> {
        self.members.iter().map(|(_, member)| member)
    }

    /// Each evaluation's part of what the batch gave, of so many items, with its place among the evaluations of the step.
    pub(super) fn apart(&self, output: &Tensor, items: usize) -> Result<Vec<(usize, Tensor)>> {
        let part =
            |(index, (place, _)): (usize, &(usize, M))| Ok((*place, output.slice(0, index * items, items)?));
        self.members.iter().enumerate().map(part).collect()
    }
}

/// Results in the order of the evaluations.
pub(super) fn in_order(mut outputs: Vec<(usize, Tensor)>) -> Vec<Tensor> {
    outputs.sort_by_key(|(place, _)| *place);
    outputs.into_iter().map(|(_, output)| output).collect()
}

/// One tensor of all, one after the other along an axis.
pub(super) fn together(parts: &[&Tensor], axis: usize) -> Result<Tensor> {
    match parts {
        [only] => Ok((*only).clone()),
        many => Ok(Tensor::concat(many, axis)?),
    }
}
