//! The tokens of an evaluation between blocks: those of the text and of the image, apart or as one sequence.

use residency::Lease;
use tensor::Tensor;

use crate::Result;

/// Tokens of evaluations that run as one batch, each `[batch, tokens, hidden]`.
pub(super) enum Tokens {
    /// Each side by itself.
    Apart {
        /// The image's tokens.
        image: Tensor,
        /// The text's.
        text: Tensor,
    },
    /// As one sequence.
    Joined {
        /// Those of the text, then those of the image.
        all: Tensor,
        /// How many of them are text.
        texts: usize,
    },
}

impl Tokens {
    /// The same tokens where a block computes.
    pub(super) fn bring(self, lease: &Lease<'_>) -> Result<Tokens> {
        Ok(match self {
            Tokens::Apart { image, text } => {
                Tokens::Apart { image: lease.bring(&image)?, text: lease.bring(&text)? }
            }
            Tokens::Joined { all, texts } => Tokens::Joined { all: lease.bring(&all)?, texts },
        })
    }

    /// Both sides, whatever they are by now.
    pub(super) fn sides(&self) -> Result<[Tensor; 2]> {
        Ok(match self {
            Tokens::Apart { image, text } => [image.clone(), text.clone()],
            Tokens::Joined { all, texts } => {
                [all.slice(1, *texts, all.dim(1) - texts)?, all.slice(1, 0, *texts)?]
            }
        })
    }

    /// One sequence, with the number of tokens of text in it.
    pub(super) fn joined(self) -> Result<(Tensor, usize)> {
        match self {
            Tokens::Apart { image, text } => {
                let texts = text.dim(1);
                Ok((Tensor::concat(&[&text.to_lane(image.lane())?, &image], 1)?, texts))
            }
            Tokens::Joined { all, texts } => Ok((all, texts)),
        }
    }

    /// The tokens of the image; a view if they are joined.
    pub(super) fn image(&self) -> Result<Tensor> {
        let [image, _] = self.sides()?;
        Ok(image)
    }
}
