//! What decides whether evaluations run as one batch.

use meta::Shape;
use tensor::Tensor;

use super::ReferencePlaces;
use super::prepared::Prepared;
use crate::conditioning::TokenBias;
use crate::diffusion::alterations::SkippedBlocks;
use crate::diffusion::batches::{FEW_ROWS, Together};
use crate::diffusion::patches::Grid;
use crate::diffusion::{Alteration, ControlResiduals, Placed};

/// One evaluation of a step.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    /// The noisy latent, `[batch, channels, height, width]`.
    pub(super) latent: &'a Tensor,
    /// How much of it is noise, 0 to 1.
    pub(super) sigma: f32,
    /// What else it is given.
    pub(super) given: &'a Prepared,
    /// What control networks add.
    pub(super) control: Option<&'a ControlResiduals>,
    /// How it departs from the model as it was trained.
    pub(super) altered: &'a [Alteration],
}

/// What decides whether evaluations fit together. Channels beside the latent and guidance are not in it: both have
/// become tokens and vectors of equal shapes before evaluations meet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shapes {
    latent: Shape,
    /// Tokens of the text.
    text: usize,
    /// Spans of them that are looked at more or less.
    biased: Vec<TokenBias>,
    /// Rows of the pooled text: one, or one for each item.
    pooled: usize,
    references: Vec<Shape>,
    places: ReferencePlaces,
    /// The blocks that are passed over.
    pub(super) skipped: SkippedBlocks,
    /// Where its tokens stand, if not where they were counted.
    pub(super) placed: Option<Placed>,
}

impl Shapes {
    pub(super) fn of(member: &Member<'_>) -> Shapes {
        let Prepared { text, biased, pooled, references, places, .. } = member.given;
        Shapes {
            latent: *member.latent.shape(),
            text: text.dim(1),
            biased: biased.clone(),
            pooled: pooled.dim(0),
            references: references.iter().map(|reference| reference.shape).collect(),
            places: *places,
            skipped: SkippedBlocks::of(member.altered),
            placed: Placed::of(member.altered),
        }
    }
}

impl Together for Shapes {
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
        let (biased, references) = (Vec::new(), Vec::new());
        let skipped = SkippedBlocks::default();
        Shapes {
            latent: Shape::from(latent),
            text,
            biased,
            pooled,
            references,
            places,
            skipped,
            placed: None,
        }
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
