//! What evaluations that run as one batch do about pictures to look at: read as at the end of time, and with their keys and
//! values computed in every step, recorded, or read from what the first step recorded.

use std::sync::Arc;

use residency::Lease;
use tensor::Tensor;

use super::{Flux2, KeptHeads, LastTokens};
use crate::Result;
use crate::diffusion::Alteration;
use crate::diffusion::batches::together;
use crate::diffusion::modulation::{Modulation, by_item};
use crate::diffusion::pass::Members;

/// What a batch does about its pictures to look at.
pub(super) struct ReferenceUse {
    /// Whether they are among the tokens and read as at the end of time.
    pub(super) are_still: bool,
    /// Their tokens, all together.
    tokens: usize,
    keeping: Keeping,
}

/// Where keys and values come from.
enum Keeping {
    /// Every step computes them.
    None,
    /// They are recorded, for each evaluation of so many items.
    Record(Vec<Arc<KeptHeads>>, usize),
    /// They were recorded.
    Read(Vec<Arc<KeptHeads>>),
}

impl ReferenceUse {
    /// All evaluations of a batch have references of the same shapes, and are altered alike.
    pub(super) fn of(batch: &Members<'_, Flux2>) -> ReferenceUse {
        let first = batch.first();
        let tokens = first.given.references.count();
        let has = |wanted: fn(&Alteration) -> bool| first.altered.iter().any(wanted);
        let is_kept = tokens > 0 && has(|alteration| matches!(alteration, Alteration::KeepReferences));
        // What is recorded is of the model with all its blocks.
        let skips = has(|alteration| matches!(alteration, Alteration::SkipBlock { .. }));
        let all = || batch.members().map(|member| Arc::clone(&member.given.kept)).collect::<Vec<_>>();
        let items = first.latent.dim(0);
        let keeping = match is_kept && !skips {
            false => Keeping::None,
            true if first.given.kept.are_whole(items) => Keeping::Read(all()),
            true => Keeping::Record(all(), items),
        };
        let are_still = first.given.references.are_still.unwrap_or(is_kept) && tokens > 0;
        let are_read = matches!(keeping, Keeping::Read(_));
        ReferenceUse { are_still: are_still && !are_read, tokens, keeping }
    }

    /// Whether their keys and values are read, so that they are not among the tokens.
    pub(super) fn are_read(&self) -> bool {
        matches!(self.keeping, Keeping::Read(_))
    }

    /// What a block does about their keys and values.
    pub(super) fn in_block(&self, lease: &Lease<'_>, block: usize) -> Result<LastTokens> {
        Ok(match &self.keeping {
            Keeping::None => LastTokens::Usual,
            Keeping::Record(..) => LastTokens::record(self.tokens),
            Keeping::Read(all) => {
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                for [k, v] in all.iter().filter_map(|kept| kept.of(block)) {
                    keys.push(lease.bring(&k)?);
                    values.push(lease.bring(&v)?);
                }
                let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
                LastTokens::Recorded([all(&keys)?, all(&values)?])
            }
        })
    }

    /// Keeps what a block recorded, for each evaluation its own.
    pub(super) fn keep(&self, block: usize, last: LastTokens) -> Result<()> {
        let (Keeping::Record(all, items), Some([k, v])) = (&self.keeping, last.into_recorded()) else {
            return Ok(());
        };
        for (index, kept) in all.iter().enumerate() {
            let own = |x: &Tensor| x.slice(0, index * items, *items);
            kept.put(block, [own(&k)?, own(&v)?]);
        }
        Ok(())
    }

    /// All blocks have been passed.
    pub(super) fn finish(&self) {
        if let Keeping::Record(all, items) = &self.keeping {
            all.iter().for_each(|kept| kept.finish(*items));
        }
    }

    /// Three parts of a modulation that has a row for each evaluation, and behind those as many for references, which are
    /// the last of so many tokens; with no tokens the references are not among them.
    pub(super) fn modulation(
        &self,
        change: &Tensor,
        (rows, items): (usize, usize),
        (part, parts): (usize, usize),
        tokens: usize,
    ) -> Result<Modulation> {
        let from = |first: usize| -> Result<Modulation> {
            Modulation::part(&by_item(&change.slice(0, first, rows)?, items)?, part, parts)
        };
        let own = from(0)?;
        if !self.are_still || tokens == 0 {
            return Ok(own);
        }
        Ok(own.but_for(tokens - self.tokens..tokens, from(rows)?))
    }
}
