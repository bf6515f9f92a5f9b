//! Keys and values of what stands before the image. It sees neither the image nor the time, so they are the same in every
//! step: the first may record them, and later ones leave those tokens out.

use std::sync::Arc;

use residency::Lease;
use tensor::Tensor;

use super::QwenImage21;
use crate::Result;
use crate::diffusion::Alteration;
use crate::diffusion::batches::together;
use crate::diffusion::kept_heads::{KeptHeads, KeysAndValues};
use crate::diffusion::pass::Members;

/// What a batch does about what stands before its images.
pub(super) enum Prefix {
    /// Every step computes it.
    Computed,
    /// It is computed and recorded, for each evaluation of so many items.
    Record(Vec<Arc<KeptHeads>>, usize),
    /// It was recorded.
    Read(Vec<Arc<KeptHeads>>),
}

impl Prefix {
    /// All evaluations of a batch have prefixes of the same shapes, and are altered alike.
    pub(super) fn of(batch: &Members<'_, QwenImage21>) -> Prefix {
        let first = batch.first();
        let is_kept = first.altered.iter().any(|it| matches!(it, Alteration::KeepReferences));
        // What is recorded is of the model with all its blocks.
        let skips = first.altered.iter().any(|it| matches!(it, Alteration::SkipBlock { .. }));
        let all = || batch.members().map(|member| Arc::clone(&member.given.kept)).collect::<Vec<_>>();
        let items = first.latent.dim(0);
        match is_kept && !skips {
            false => Prefix::Computed,
            true if first.given.kept.are_whole(items) => Prefix::Read(all()),
            true => Prefix::Record(all(), items),
        }
    }

    /// Whether it is not among the tokens.
    pub(super) fn is_read(&self) -> bool {
        matches!(self, Prefix::Read(_))
    }

    /// The same for a block, in which so many of the first tokens are the prefix.
    pub(super) fn in_block(
        &self,
        lease: &Lease<'_>,
        block: usize,
        tokens: usize,
    ) -> Result<PrefixInBlock<'_>> {
        Ok(PrefixInBlock { prefix: self, block, tokens, recorded: self.recorded(lease, block)? })
    }

    /// What a block recorded, if it is read.
    fn recorded(&self, lease: &Lease<'_>, block: usize) -> Result<Option<KeysAndValues>> {
        let Prefix::Read(all) = self else { return Ok(None) };
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for [k, v] in all.iter().filter_map(|kept| kept.of(block)) {
            keys.push(lease.bring(&k)?);
            values.push(lease.bring(&v)?);
        }
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        Ok(Some([all(&keys)?, all(&values)?]))
    }

    /// All blocks have been passed.
    pub(super) fn finish(&self) {
        if let Prefix::Record(all, items) = self {
            all.iter().for_each(|kept| kept.finish(*items));
        }
    }
}

/// What stands before the images of a batch, in one block.
pub(super) struct PrefixInBlock<'a> {
    prefix: &'a Prefix,
    block: usize,
    tokens: usize,
    /// Its keys and values, where it is not among the tokens.
    pub(super) recorded: Option<KeysAndValues>,
}

impl PrefixInBlock<'_> {
    /// Keeps the first keys and values, for each evaluation its own, if they are to be recorded.
    pub(super) fn keep(&self, [k, v]: [&Tensor; 2]) -> Result<()> {
        let Prefix::Record(all, items) = self.prefix else { return Ok(()) };
        for (index, kept) in all.iter().enumerate() {
            // A copy: a view would hold the memory of all tokens.
            let own = |x: &Tensor| -> Result<Tensor> {
                let own = x.slice(0, index * items, *items)?.slice(1, 0, self.tokens)?;
                let out = x.lane().empty_as(x.dtype(), *own.shape())?;
                own.copy_into(&out)?;
                Ok(out)
            };
            kept.put(self.block, [own(k)?, own(v)?]);
        }
        Ok(())
    }
}
