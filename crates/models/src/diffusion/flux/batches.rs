//! Which evaluations of a step run as one batch: decided by shapes alone, so that where weights live and how much
//! memory is free never change a bit.

use meta::Shape;
use tensor::Tensor;

use super::{FluxInputs, Grid, ReferencePlaces};
use crate::Result;

/// A device may sum a product of up to this many rows in another order than one of more. An evaluation gives the same
/// bits alone and beside others as long as none of its products grows past it by the company.
const FEW_ROWS: usize = 8;

/// Evaluations of equal shapes that run as one, in the order in which they came.
pub(super) struct Batch<'a> {
    shapes: Shapes,
    /// The first of them, which has what all have in common.
    first: &'a FluxInputs<'a>,
    /// All of them, with their places among the evaluations of the step.
    members: Vec<(usize, &'a FluxInputs<'a>)>,
}

/// What decides whether evaluations fit together. Channels beside the latent and guidance are not in it: both have
/// become tokens and vectors of equal shapes before evaluations meet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shapes {
    latent: Shape,
    /// Tokens of the text.
    text: usize,
    /// Rows of the pooled text: one, or one for each item.
    pooled: usize,
    references: Vec<Shape>,
    places: ReferencePlaces,
}

impl<'a> Batch<'a> {
    /// The batches of a step, by their first evaluations.
    pub(super) fn all_of(evaluations: &'a [FluxInputs<'a>]) -> Vec<Batch<'a>> {
        let mut batches: Vec<Batch<'a>> = Vec::new();
        for (place, inputs) in evaluations.iter().enumerate() {
            let shapes = Shapes::of(inputs);
            let most = shapes.most_together();
            let fits = |batch: &&mut Batch<'a>| batch.shapes == shapes && batch.members.len() < most;
            match batches.iter_mut().find(fits) {
                Some(batch) => batch.members.push((place, inputs)),
                None => batches.push(Batch { shapes, first: inputs, members: vec![(place, inputs)] }),
            }
        }
        batches
    }

    /// What all have in common.
    pub(super) fn first(&self) -> &FluxInputs<'a> {
        self.first
    }

    /// The evaluations.
    pub(super) fn members(&self) -> impl Iterator<Item = &FluxInputs<'a>> {
        self.members.iter().map(|(_, inputs)| *inputs)
    }

    /// The size of their latents.
    pub(super) fn grid(&self) -> Grid {
        Grid::of(self.first.latent)
    }

    /// Each evaluation's part of what the batch gave, with its place among the evaluations of the step.
    pub(super) fn apart(&self, output: &Tensor) -> Result<Vec<(usize, Tensor)>> {
        let items = self.first.latent.dim(0);
        let part = |(index, (place, _)): (usize, &(usize, &FluxInputs<'a>))| {
            Ok((*place, output.slice(0, index * items, items)?))
        };
        self.members.iter().enumerate().map(part).collect()
    }
}

impl Shapes {
    fn of(inputs: &FluxInputs<'_>) -> Shapes {
        Shapes {
            latent: *inputs.latent.shape(),
            text: inputs.context.dim(1),
            pooled: inputs.pooled.dim(0),
            references: inputs.references.iter().map(|reference| *reference.shape()).collect(),
            places: inputs.reference_places,
        }
    }

    /// How many evaluations of these shapes may run as one.
    fn most_together(&self) -> usize {
        let items = self.latent.dims()[0];
        // References make blocks longer, but the last layer has the tokens of the latent alone.
        if items * self.text.min(Grid::sized(&self.latent).patches()) <= FEW_ROWS {
            return 1;
        }
        // Modulations are products of one row for each row of the pooled text.
        if self.pooled > FEW_ROWS { usize::MAX } else { FEW_ROWS / self.pooled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(latent: [usize; 4], text: usize, pooled: usize) -> Shapes {
        let places = ReferencePlaces::default();
        Shapes { latent: Shape::from(latent), text, pooled, references: Vec::new(), places }
    }

    #[test]
    fn products_of_few_rows_stay_products_of_few_rows() {
        assert_eq!(shapes([1, 16, 64, 64], 256, 1).most_together(), 8);
        assert_eq!(shapes([3, 16, 64, 64], 256, 3).most_together(), 2);
        assert_eq!(shapes([9, 16, 64, 64], 256, 9).most_together(), usize::MAX);
        // Eight tokens of text, and eight of the image.
        assert_eq!(shapes([1, 16, 64, 64], 8, 1).most_together(), 1);
        assert_eq!(shapes([1, 16, 64, 64], 9, 1).most_together(), 8);
        assert_eq!(shapes([1, 16, 4, 8], 256, 1).most_together(), 1);
        assert_eq!(shapes([2, 16, 4, 8], 256, 1).most_together(), 8);
        let references = vec![Shape::from([1, 16, 64, 64])];
        assert_eq!(Shapes { references, ..shapes([1, 16, 4, 8], 256, 1) }.most_together(), 1);
    }
}
