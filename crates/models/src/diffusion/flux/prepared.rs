//! What an evaluation is given that does not change within a run, through the model's first layers once.

use meta::Shape;
use residency::Lease;
use tensor::Tensor;

use super::{Flux, FluxInputs, LAYERS, ReferencePlaces, embedding};
use crate::conditioning::TokenBias;
use crate::diffusion::modulation::embed;
use crate::diffusion::patches::patchify;
use crate::{Probe, Result};

/// What an evaluation is given beside its latent and time, on the device of the first block.
pub(super) struct Prepared {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    pub(super) text: Tensor,
    /// Spans of the text that are looked at more or less.
    pub(super) biased: Vec<TokenBias>,
    /// The pooled text in the model's width, `[batch or 1, hidden]`.
    pub(super) pooled: Tensor,
    /// The guidance in the model's width, `[1, hidden]`, of a model that takes one.
    pub(super) guidance: Option<Tensor>,
    /// Further channels beside the latent.
    pub(super) concat: Option<Tensor>,
    /// Images to look at.
    pub(super) references: Vec<Reference>,
    /// Where they stand.
    pub(super) places: ReferencePlaces,
    /// A picture in the model's width that is added to the latent's tokens, `[batch or 1, tokens, hidden]`: what a control
    /// network looks at.
    pub(super) hint: Option<Tensor>,
}

/// An image to look at.
pub(super) struct Reference {
    /// The shape of its latent.
    pub(super) shape: Shape,
    /// Its patches, `[batch or 1, patches, channels · 2 · 2]`.
    pub(super) patches: Tensor,
}

impl Prepared {
    /// Everything but the latent and the time of these inputs, which were checked.
    pub(super) fn new(
        flux: &Flux,
        lease: &Lease<'_>,
        inputs: &FluxInputs<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Prepared> {
        let guidance = match inputs.guidance.filter(|_| flux.config.guidance) {
            Some(guidance) => {
                Some(embed(lease, ("guidance_in", LAYERS), &embedding(lease.lane(), guidance)?, probe)?)
            }
            None => None,
        };
        let pooled = embed(lease, ("vector_in", LAYERS), &lease.bring(inputs.pooled)?, probe)?;
        let text = lease.linear("txt_in", &lease.bring(inputs.context)?)?;
        probe.show(format_args!("txt_in"), &text);
        let (text, moved) = match inputs.in_front {
            Some(tokens) => (behind(&lease.bring(tokens)?, &text)?, tokens.dim(1)),
            None => (text, 0),
        };
        let biased = inputs.biased.iter().map(|span| TokenBias { start: span.start + moved, ..*span });
        let reference = |reference: &Tensor| -> Result<Reference> {
            Ok(Reference { shape: *reference.shape(), patches: patchify(&lease.bring(reference)?)? })
        };
        Ok(Prepared {
            text,
            biased: biased.collect(),
            pooled,
            guidance,
            concat: inputs.concat.cloned(),
            references: inputs.references.iter().map(reference).collect::<Result<_>>()?,
            places: inputs.reference_places,
            hint: None,
        })
    }
}

/// A text behind other tokens, as many times as there are items of one or the other.
fn behind(tokens: &Tensor, text: &Tensor) -> Result<Tensor> {
    let items = tokens.dim(0).max(text.dim(0));
    let all = |tensor: &Tensor| -> Result<Tensor> {
        Ok(tensor.broadcast([items, tensor.dim(1), tensor.dim(2)])?.contiguous()?)
    };
    Ok(Tensor::concat(&[&all(tokens)?, &all(text)?], 1)?)
}
