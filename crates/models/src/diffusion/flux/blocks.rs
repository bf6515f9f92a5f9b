//! The blocks of FLUX, and the activations that pass through them.

use std::sync::Arc;

use residency::Lease;
use tensor::{Activation, Tensor};

use super::Config;
use crate::diffusion::batches::together;
use crate::diffusion::kept_heads::LastTokens;
use crate::diffusion::modulation::{Everywhere, Modulation, by_item};
use crate::diffusion::positions::Positions;
use crate::diffusion::streams::StreamBlock;
use crate::diffusion::tokens::Tokens;
use crate::{Probe, Result};

/// One evaluation's activations before the first block.
pub(super) struct Entered {
    /// Image tokens `[batch, tokens, hidden]`.
    pub(super) image: Tensor,
    /// Text tokens `[batch, tokens, hidden]`.
    pub(super) text: Tensor,
    /// Time, guidance and pooled text, `[batch or 1, hidden]`.
    pub(super) vector: Tensor,
}

/// The activations between double blocks, of evaluations that run as one batch. They travel together to where the next block computes.
pub(super) struct Apart {
    /// Image tokens `[batch, tokens, hidden]`.
    image: Tensor,
    /// Text tokens `[batch, tokens, hidden]`.
    text: Tensor,
    /// Time, guidance and pooled text, after the SiLU with which every block begins: as many rows as there are items,
    /// or one for all items of an evaluation.
    vector: Everywhere,
    positions: Arc<Positions>,
}

/// The activations between single blocks.
pub(super) struct Joined {
    /// Text tokens, then image tokens, `[batch, tokens, hidden]`.
    tokens: Tensor,
    /// How many of them are text.
    texts: usize,
    /// As in [`Apart`].
    vector: Everywhere,
    positions: Arc<Positions>,
}

impl Apart {
    /// The activations of one or more evaluations of equal shapes, one after the other.
    pub(super) fn new(entered: &[Entered], positions: Arc<Positions>) -> Result<Apart> {
        let together =
            |part: fn(&Entered) -> &Tensor| together(&entered.iter().map(part).collect::<Vec<_>>(), 0);
        let vector = together(|entered| &entered.vector)?.activate(Activation::Silu)?;
        let (image, text) = (together(|entered| &entered.image)?, together(|entered| &entered.text)?);
        Ok(Apart { image, text, vector: Everywhere::new(vector), positions })
    }

    /// The same activations where a block computes.
    pub(super) fn bring(self, lease: &Lease<'_>) -> Result<Apart> {
        let (image, text) = (lease.bring(&self.image)?, lease.bring(&self.text)?);
        Ok(Apart { image, text, ..self })
    }

    /// The image's tokens.
    pub(super) fn image(&self) -> &Tensor {
        &self.image
    }

    /// Text and image in one sequence, as single blocks want them.
    pub(super) fn join(self) -> Result<Joined> {
        let tokens = Tensor::concat(&[&self.text, &self.image], 1)?;
        Ok(Joined { tokens, texts: self.text.dim(1), vector: self.vector, positions: self.positions })
    }

    /// A block that keeps image and text apart: they meet in its attention.
    pub(super) fn double_block(
        mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        probe: &mut Probe<'_>,
    ) -> Result<Apart> {
        let name = format!("double_blocks.{index}");
        if index == 0 {
            self.positions.show(lease.lane(), probe)?;
        }
        let (vector, items) = (self.vector.on(lease)?, self.image.dim(0));
        let mut changes = |side: &str| -> Result<[Modulation; 2]> {
            let layer = format!("{name}.{side}_mod.lin");
            let change = lease.linear(&layer, &vector)?;
            probe.show(format_args!("{layer}"), &change);
            let change = by_item(&change, items)?;
            Ok([Modulation::part(&change, 0, 6)?, Modulation::part(&change, 3, 6)?])
        };
        let (image_changes, text_changes) = (changes("img")?, changes("txt")?);
        let rotation = self.positions.on(lease.lane())?;
        let tokens = Tokens::Apart { image: self.image, text: self.text };
        let attending = &self.positions.attending;
        let block =
            StreamBlock { sizes: config.sizes(), lease, name, rotation, attending, last: LastTokens::Usual };
        let [image, text] = block.double(tokens, [&image_changes, &text_changes], probe)?.sides()?;
        Ok(Apart { image, text, vector: self.vector, positions: self.positions })
    }
}

impl Joined {
    /// The same activations where a block computes.
    pub(super) fn bring(self, lease: &Lease<'_>) -> Result<Joined> {
        Ok(Joined { tokens: lease.bring(&self.tokens)?, ..self })
    }

    /// All tokens, the text's first.
    pub(super) fn tokens(&self) -> &Tensor {
        &self.tokens
    }

    /// How many of them are text.
    pub(super) fn texts(&self) -> usize {
        self.texts
    }

    /// The first `count` tokens of the image.
    pub(super) fn image_tokens(&self, count: usize) -> Result<Tensor> {
        Ok(self.tokens.slice(1, self.texts, count)?)
    }

    /// Time, guidance and pooled text after SiLU.
    pub(super) fn vector(&self) -> &Tensor {
        self.vector.first()
    }

    /// A block over text and image together, with attention and feed-forward side by side.
    pub(super) fn single_block(
        mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        probe: &mut Probe<'_>,
    ) -> Result<Joined> {
        let name = format!("single_blocks.{index}");
        let rotation = self.positions.on(lease.lane())?;
        let change = lease.linear(&format!("{name}.modulation.lin"), &self.vector.on(lease)?)?;
        probe.show(format_args!("{name}.modulation.lin"), &change);
        let change = Modulation::part(&by_item(&change, self.tokens.dim(0))?, 0, 3)?;
        let tokens = Tokens::Joined { all: self.tokens, texts: self.texts };
        let attending = &self.positions.attending;
        let block =
            StreamBlock { sizes: config.sizes(), lease, name, rotation, attending, last: LastTokens::Usual };
        let (tokens, texts) = block.single(tokens, &change, probe)?.joined()?;
        Ok(Joined { tokens, texts, vector: self.vector, positions: self.positions })
    }
}
